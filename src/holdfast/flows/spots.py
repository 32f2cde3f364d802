"""Where a request needs room: the limits of its action, each as this request meets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.flows.keying import partition_of
from holdfast.flows.limits import ActionLimit
from holdfast.workflows.limiting.standing import LIMIT

if TYPE_CHECKING:
    from holdfast.flows.limits import LimitOfAction
    from holdfast.flows.tasks import Task


class Spot(Struct, frozen=True):
    """A limit as one request meets it.

    Attributes:
        limit: The limit.
        address: Where its line lies.
        label: What it is called for people, without the tenant.
    """

    limit: ActionLimit
    address: tuple[str, ...]
    label: str

    @property
    def order(self) -> tuple[bool, tuple[str, ...]]:
        """Narrow limits are taken before those of everybody."""
        return self.limit.key == "none", self.address


def spots_of(task: Task) -> tuple[Spot, ...]:
    """Return the limits that a request needs room at, in the order in which it is taken."""
    found = [_spot(task, each) for each in task.action.limits if isinstance(each, ActionLimit)]
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.order))


def _spot(task: Task, limit: ActionLimit) -> Spot | None:
    part = partition_of(limit.key, task.arrival, task.inputs.values)
    if part is None:
        return None
    own = (LIMIT, limit.name, "name") if limit.name else (LIMIT, task.name, "action")
    return Spot(limit, (*own, *part), f"the limit {what_of(task, limit, part)}")


def what_of(task: Task, limit: LimitOfAction, part: tuple[str, ...]) -> str:
    """Return what a limit counts, in words: ``"of chat.respond for user 'ann'"``."""
    own = f"{limit.name!r}" if limit.name else f"of {task.name}"
    return own if not part else f"{own} for {' '.join([part[1], *map(repr, part[2:])])}"

"""Where a request needs room: the limits of its action, each as this request meets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from standfast.flows.arrival import Arrival, Principal
from standfast.flows.keying import partition_of
from standfast.flows.limits import ActionLimit
from standfast.workflows.limiting.standing import LIMIT

if TYPE_CHECKING:
    from standfast.flows.action import Action
    from standfast.flows.limits import LimitOfAction
    from standfast.flows.tasks import Task


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
    return None if part is None else _spot_at(task.name, limit, part)


def _spot_at(name: str, limit: ActionLimit, part: tuple[str, ...]) -> Spot:
    own = (LIMIT, limit.name, "name") if limit.name else (LIMIT, name, "action")
    return Spot(limit, (*own, *part), f"the limit {what_of(name, limit, part)}")


def sole_spots_of(action: Action[..., Any], tenant: str, user: str, session: str) -> tuple[Spot, ...]:
    """Return the limits that let in one at a time, as a request meets them that was taken on.

    What a function of its inputs said of it is not known any more.
    """
    name, who = f"{action.flow}.{action.name}", Principal(tenant, user)
    arrival = Arrival(flow=action.flow, action=action.name, principal=who, session=session)
    sole = [each for each in action.limits if isinstance(each, ActionLimit) and each.max == 1]
    return tuple(
        [_spot_at(name, each, partition_of(each.key, arrival) or ()) for each in sole if not callable(each.key)]
    )


def what_of(name: str, limit: LimitOfAction, part: tuple[str, ...]) -> str:
    """Return what a limit counts, in words: ``"of chat.respond for user 'ann'"``."""
    own = f"{limit.name!r}" if limit.name else f"of {name}"
    return own if not part else f"{own} for {' '.join([part[1], *map(repr, part[2:])])}"

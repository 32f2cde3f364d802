"""Schedules of actions, as users declare them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, Unpack

import msgspec

from standfast.errors import ForbiddenError, InvalidFlowError, InvalidInputError
from standfast.flows.arrival import NOBODY, check_id
from standfast.flows.call import Call, name_of
from standfast.flows.policies import Batch, Debounce
from standfast.workflows.schedules.specification import Schedule

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from standfast.flows.action import Action
    from standfast.flows.arrival import Principal
    from standfast.workflows.schedules.specification import Overlap, TickOptions

OnOverlap: TypeAlias = Literal["skip", "allow", "queue", "restart"]
"""What a tick does while a request of the same schedule is unfinished."""

LONGEST_ID: Final = 60
"""The most characters in the id of such a schedule: with a time behind it, it is the id of a request."""

_OVERLAPS: Final[dict[str, Overlap]] = {
    "skip": "skip",
    "allow": "allow",
    "queue": "queue",
    "restart": "cancel_running",
}


def schedule_of(
    action: Action[..., Any],
    schedule_id: str,
    inputs: Mapping[str, Any] | None = None,
    *,
    principal: Principal = NOBODY,
    session: str = "",
    on_overlap: OnOverlap = "skip",
    paused: bool = False,
    **when: Unpack[TickOptions],
) -> Schedule:
    """Return a schedule whose ticks are requests of an action, see :meth:`standfast.flows.action.Action.schedule`."""
    where = f"{action.where}, schedule {schedule_id!r:.80}"
    if not isinstance(schedule_id, str) or not schedule_id.isascii() or len(schedule_id) > LONGEST_ID:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidFlowError(where, f"the id must be ASCII text of at most {LONGEST_ID} characters")
    if isinstance(action.policy, Debounce | Batch):
        problem = f"with the policy {action.policy.name!r} a tick would have no run of its own"
        raise InvalidFlowError(where, f"{problem}; schedule an action with another policy, which sends the request")
    if on_overlap not in _OVERLAPS:
        raise InvalidFlowError(where, f"on_overlap is {on_overlap!r:.60}; it must be one of {', '.join(_OVERLAPS)}")
    check_id("the session", session)
    call = _call(action, where, inputs or {}, principal, session)
    return Schedule(name_of(action), call, id=schedule_id, paused=paused, overlap=_OVERLAPS[on_overlap], **when)


def _call(action: Action[..., Any], where: str, inputs: Mapping[str, Any], principal: Principal, session: str) -> Call:
    """Return what each tick asks for; refuse what could only fail."""
    try:
        action.check_roles(principal.roles)
        packed = action.read(inputs).packed
    except (ForbiddenError, InvalidInputError) as problem:
        raise InvalidFlowError(where, str(problem)) from None
    return Call(
        flow=action.flow,
        action=action.name,
        tenant=principal.tenant,
        inputs=msgspec.json.decode(packed),
        user=principal.user,
        roles=tuple(sorted(principal.roles)),
        session=session,
        transport="schedule",
    )


def known_schedules(schedules: Iterable[Schedule], workflows: Container[object]) -> tuple[Schedule, ...]:
    """Return schedules of actions that are there, by the names of their workflows; refuse others, and an id twice."""
    known: dict[str, Schedule] = {}
    for each in schedules:
        where = f"schedule {each.id!r}"
        if each.workflow not in workflows:
            raise InvalidFlowError(where, "it is of no action of these flows; make it with action.schedule(...)")
        if known.setdefault(each.id, each) is not each:
            raise InvalidFlowError(where, "there are two with this id; rename one of them")
    return tuple(known.values())

"""What can be declared together: policies, and what else an action says. The rest is refused, with the reason.

:data:`REFUSED` is the one table of it. Whatever is not in it works, and a test tries every combination.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from standfast.errors import InvalidFlowError
from standfast.flows.limits import ActionLimit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from standfast.flows.limits import LimitOfAction
    from standfast.flows.policies import Policy

Trait: TypeAlias = Literal[
    "limit",  # an ActionLimit that lets requests wait
    "limit of the policy's key",  # one that counts by the key of the policy
    "limit that rejects",  # an ActionLimit(on_limit="reject"), or with max_queued
    "rate",
    "idempotency",  # an idempotency_window
    "priority",  # together with a limit that lets requests wait
    "durable",
    "not durable",
    "retry",
    "interrupted",  # interrupted="fail"
    "cancel on disconnect",
    "continue on disconnect",
]
"""What an action can say besides its policy."""

TRAITS: Final[tuple[Trait, ...]] = get_args(Trait)

_LATE: Final = (
    "a request could be refused after it has waited for its turn, and others with it; "
    "let it wait for the limit too, with on_limit='queue' and no max_queued"
)
_SINGLE: Final = (
    "the policy lets one request of its key run at a time, so a limit by that key is never reached; "
    "leave it out, count by another key, or give the limit a name= that other actions share"
)
_ANSWERED: Final = (
    "a request is answered before it has run, so it is always durable; "
    "leave out durable=False, or choose another policy"
)
_IN_ORDER: Final = (
    "its requests are durable, and durable requests wait in the store in the order of their arrival, "
    "so a priority would have no effect; leave it out"
)
_GOES_ON: Final = "a durable request goes on without its caller; leave it out"
_SHARED: Final = "others may share the run, so it goes on without its first caller; leave it out"
_COLLECTING: Final = ("debounce", "batch", "latest")
_KEYED: Final = ("queue", "reject", "restart", "join", *_COLLECTING)

REFUSED: Final[Mapping[Trait, Mapping[str, str]]] = {
    "limit": {},
    "limit of the policy's key": dict.fromkeys(_KEYED, _SINGLE),
    "limit that rejects": dict.fromkeys(("queue", "restart", "join", *_COLLECTING), _LATE),
    "rate": {},
    "idempotency": {},
    "priority": dict.fromkeys(_COLLECTING, _IN_ORDER),
    "durable": {},
    "not durable": dict.fromkeys(_COLLECTING, _ANSWERED),
    "retry": {},
    "interrupted": {},
    "cancel on disconnect": {"join": _SHARED, **dict.fromkeys(_COLLECTING, _GOES_ON)},
    "continue on disconnect": {},
}
"""Why a trait is refused, by trait and name of the policy."""


def check_trait(where: str, policy: Policy, trait: Trait, said: str) -> None:
    """Refuse something that cannot be meant together with a policy.

    Args:
        where: The place.
        policy: The policy of the action.
        trait: What it is in the table.
        said: What was said, as it stands in the code.

    Raises:
        InvalidFlowError: It is in the table.
    """
    reason = REFUSED[trait].get(policy.name)
    if reason is not None:
        raise InvalidFlowError(where, f"{said} cannot be had with the policy {policy.name!r}: {reason}")


def check_limits(where: str, policy: Policy, limits: tuple[LimitOfAction, ...]) -> None:
    """Refuse limits that make no sense with a policy."""
    for each in limits:
        if not isinstance(each, ActionLimit):
            check_trait(where, policy, "rate", repr(each))
            continue
        rejects = not each.waits or each.max_queued is not None
        check_trait(where, policy, "limit that rejects" if rejects else "limit", repr(each))
        if each.key == policy.key and not each.name:
            check_trait(where, policy, "limit of the policy's key", repr(each))


def check_priority(where: str, policy: Policy, limits: tuple[LimitOfAction, ...], *, durable: bool) -> None:
    """Refuse a priority that could have no effect: it orders those who wait for a limit, and only those."""
    check_trait(where, policy, "priority", "a priority")
    if durable:
        raise InvalidFlowError(where, f"a priority cannot be had with durable=True: {_IN_ORDER}")
    if not any(isinstance(each, ActionLimit) and each.waits for each in limits):
        problem = "a priority orders those who wait for a limit, and the action has none that lets requests wait"
        order = "the line of a key is in the order of arrival, whatever the policy"
        raise InvalidFlowError(where, f"{problem} ({order}); add limits=[sf.ActionLimit(...)], or leave it out")


def check_disconnect(where: str, policy: Policy, given: str, *, durable: bool) -> None:
    """Refuse to cancel what goes on without its caller."""
    trait: Trait = "cancel on disconnect" if given == "cancel" else "continue on disconnect"
    check_trait(where, policy, trait, f"on_disconnect={given!r}")
    if given == "cancel" and durable:
        raise InvalidFlowError(where, f"on_disconnect='cancel' cannot be had with durable=True: {_GOES_ON}")

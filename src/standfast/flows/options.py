"""What policies have in common: forms of keys, and the checks of their options."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar, get_args

from standfast.durations import seconds
from standfast.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.durations import Duration
    from standfast.flows.arrival import Arrival

T = TypeVar("T")

KeyForm: TypeAlias = Literal["session", "user", "tenant", "none"]
KeyFunction: TypeAlias = "Callable[[Arrival], str | None]"
Key: TypeAlias = "KeyForm | KeyFunction"
"""What requests have to have in common to collide."""

KEY_FORMS: Final = ("session", "user", "tenant", "none")
_SHORTEST: Final = 0.001


def length(policy: str, what: str, given: Duration) -> float:
    """Return a length of time in seconds; refuse none at all."""
    return seconds(given, what=f"the {what} of {policy}", minimum=_SHORTEST)


def checked_count(policy: str, what: str, given: int, most: int) -> int:
    """Return a whole number in its limits."""
    if type(given) is not int or not 1 <= given <= most:
        raise InvalidFlowError(policy, f"{what} is {given!r:.60}; it must be a whole number from 1 to {most:,}")
    return given


def checked_choice(policy: str, what: str, given: T, choices: object) -> T:
    """Return one of the texts that a literal type lists."""
    if given not in (known := get_args(choices)):
        raise InvalidFlowError(policy, f"{what} is {given!r:.60}; it must be {' or '.join(map(repr, known))}")
    return given


def checked_key(policy: str, key: Key) -> Key:
    """Return a key: one of its forms, or a plain function of one argument."""
    if key in KEY_FORMS:
        return key
    if not callable(key):
        forms = ", ".join(map(repr, KEY_FORMS))
        raise InvalidFlowError(policy, f"the key {key!r:.60} is none; there are {forms}, or a function of the arrival")
    if inspect.iscoroutinefunction(key):
        raise InvalidFlowError(policy, "the key function is async; it must be a plain function, which does no I/O")
    try:
        inspect.signature(key).bind(None)
    except (TypeError, ValueError):  # ValueError: a builtin that does not say what it takes
        raise InvalidFlowError(policy, "the key function must take one argument, the arrival") from None
    return key


def checked_shared_key(policy: str, key: Key, problem: str) -> Key:
    """Return the key of a policy that means nothing without one."""
    if key == "none":
        raise InvalidFlowError(policy, f"without a key there is {problem}; use sf.Allow(), or another key")
    return checked_key(policy, key)

"""What an application was given, as far as its kind goes: what is none of it is refused where it is declared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from standfast.durations import seconds
from standfast.errors import InvalidDurationError, InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.durations import Duration

T = TypeVar("T")

APP: Final = "App"
"""How errors call the place."""


def texts(name: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return several texts. One alone would be taken for its letters."""
    if isinstance(given, str):
        raise InvalidFlowError(APP, f"{name} is one text; give a list of them: {name}=[{given!r:.60}]")
    found = several(name, given, str, f"{name}=['...']")
    return tuple(found)


def several(name: str, given: Iterable[T], kind: type[T] | tuple[type[T], ...], example: str) -> tuple[T, ...]:
    """Return several of a kind."""
    try:
        found = tuple(given)
    except TypeError:
        raise InvalidFlowError(APP, f"{name} is {given!r:.60}; give a list: {example}") from None
    for each in found:
        if not isinstance(each, kind):
            raise InvalidFlowError(APP, f"{each!r:.60} cannot be one of {name}; write {example}")
    return found


def one(name: str, given: T | None, kind: type[T], example: str) -> T | None:
    """Return one of a kind, or nothing."""
    if given is not None and not isinstance(given, kind):
        raise InvalidFlowError(APP, f"{name} is {given!r:.60}; write {example}")
    return given


def function(name: str, given: T, example: str) -> T:
    """Return a function, or nothing."""
    if given is not None and not callable(given):
        raise InvalidFlowError(APP, f"{name} is {given!r:.60}; it must be a function, such as {example}")
    return given


def time(name: str, given: Duration) -> Duration:
    """Return a time as it was given, if it can be read."""
    try:
        seconds(given, what=name)
    except InvalidDurationError as problem:
        raise InvalidFlowError(APP, str(problem)) from None
    return given

"""Durations the way people write them.

``"5 seconds"``, ``"100ms"``, ``"1.5 hours"``, a ``timedelta`` or a number of seconds all become seconds. What
cannot be a duration, or is probably a mistake, is refused before anything is done with it.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import lru_cache
from typing import Final, TypeAlias

from standfast.errors import InvalidArgumentError

Duration: TypeAlias = str | float | timedelta
"""A length of time: ``"5 seconds"``, ``"1.5 hours"``, a ``timedelta``, or a number of seconds."""

DAY: Final = 86_400.0

MAX_SECONDS: Final = 100 * 365.25 * DAY
"""A hundred years: an instant that far ahead is still exact in microseconds below 2^53."""

_MAX_TEXT: Final = 64
_MAX_SHOWN: Final = 32

_UNITS: Final = {
    name: length
    for length, names in {
        0.000_001: ("us", "microsecond", "microseconds"),
        0.001: ("ms", "millisecond", "milliseconds"),
        1.0: ("s", "sec", "secs", "second", "seconds"),
        60.0: ("m", "min", "mins", "minute", "minutes"),
        3_600.0: ("h", "hr", "hrs", "hour", "hours"),
        DAY: ("d", "day", "days"),
        7 * DAY: ("w", "week", "weeks"),
    }.items()
    for name in names
}
_UNEVEN_UNITS: Final = {"mo", "month", "months", "y", "year", "years"}

# Each class of characters ends where the next begins, so matching takes one pass whatever the text.
_TEXT: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([A-Za-z]+)\s*)?", re.ASCII)


def seconds(
    value: Duration,
    *,
    what: str = "duration",
    minimum: float = 0.0,
    maximum: float = MAX_SECONDS,
    maximum_bare: float = MAX_SECONDS,
) -> float:
    """Return ``value`` in seconds.

    >>> seconds("1.5 hours"), seconds("100ms"), seconds(30)
    (5400.0, 0.1, 30.0)

    Args:
        value: Text with a unit (us, ms, s, m, h, d, w, or their names), a ``timedelta``, or seconds.
        what: What the duration is for, as an error shows it: ``"timeout"``, ``"lease"``.
        minimum: The shortest that makes sense, itself included.
        maximum: The longest that makes sense, itself included.
        maximum_bare: The longest that may be given as a bare number. A lease of 90000 is more often a mistaken
            90 seconds in milliseconds than a little over a day: with ``maximum_bare=DAY`` it needs a unit.

    Raises:
        InvalidArgumentError: The value cannot be read, or lies outside the limits.
    """
    if type(value) is float and minimum <= value <= maximum and value <= maximum_bare:
        return value
    length = _length(value, what)
    problem = _problem(length, minimum, maximum)
    if length > maximum_bare and isinstance(value, int | float) and length < float("inf"):
        problem = f"a bare number above {maximum_bare:g} is probably milliseconds, so it needs a unit"
    if problem:
        raise _invalid(value, problem, what)
    return length


def typed(text: str) -> Duration:
    """Return a duration that was typed where there is nothing but text, in a URL or on a command line.

    A number without a unit is seconds there, as it is in code; whatever else it is stays as it was.

    >>> seconds(typed("30")), seconds(typed("100ms"))
    (30.0, 0.1)
    """
    match = _TEXT.fullmatch(text) if len(text) <= _MAX_TEXT else None
    return text if match is None or match[2] else float(match[1])


def fault_in(text: str) -> str:
    """Say what is wrong with a duration that was typed; empty if nothing is.

    >>> fault_in("30"), fault_in("2 months")
    ('', 'months and years differ in length, so it must be given in days')
    """
    value = typed(text)
    length = value if isinstance(value, float) else _parse(text) if len(text) <= _MAX_TEXT else "it is too long"
    return length if isinstance(length, str) else _problem(length, 0.0, MAX_SECONDS)


def _problem(length: float, minimum: float, maximum: float) -> str:
    """Say what is wrong with a length, or nothing."""
    if length != length:  # noqa: PLR0124 -- only NaN differs from itself
        return "it is not a number"
    if length < 0 <= minimum:
        return "it is negative"
    if length < minimum:
        return f"it is shorter than {_spelled(minimum)}"
    return f"it is longer than {_spelled(maximum)}" if length > maximum else ""


def optional_seconds(value: Duration | None, *, what: str = "duration", minimum: float = 0.0) -> float | None:
    """Return ``value`` in seconds, or None (no limit) for None."""
    return None if value is None else seconds(value, what=what, minimum=minimum)


def _length(value: object, what: str) -> float:
    if isinstance(value, str):
        length = _parse(value) if len(value) <= _MAX_TEXT else f"the text is {len(value):,} characters long"
        if isinstance(length, str):
            raise _invalid(value, length, what)
        return length
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(value, "that is no length of time", what)
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _invalid(value: object, problem: str, what: str) -> InvalidArgumentError:
    article = "" if what.startswith("the ") else "an " if what[:1] in "aeiou" else "a "
    advice = 'write "5 seconds", "1.5 hours", a timedelta or a number of seconds'
    return InvalidArgumentError(f"{article}{what}", f"{problem}; {advice}", _shown(value))


@lru_cache(maxsize=256)
def _parse(text: str) -> float | str:
    """Return the seconds that ``text`` stands for, or what is wrong with it."""
    match = _TEXT.fullmatch(text)
    if match is None:
        if text.strip().startswith("-"):
            return "it is negative"
        return "it is not a number followed by a unit" if text.strip() else "it is empty"
    number, unit = match[1], (match[2] or "").lower()
    if unit in _UNITS:
        return float(number) * _UNITS[unit]
    if unit in _UNEVEN_UNITS:
        return "months and years differ in length, so it must be given in days"
    return f"there is no unit {unit!r}" if unit else "it has no unit"


def _spelled(length: float) -> str:
    return f"{length / DAY:,.0f} days" if length >= DAY else f"{length:g} seconds"


def _shown(value: object) -> str:
    """Show a refused value on one short line."""
    if isinstance(value, int) and abs(value) > MAX_SECONDS:
        return f"an integer of {value.bit_length()} bits"
    if not isinstance(value, str | float | int | timedelta):
        return f"{type(value).__name__} object"  # its own repr could be anything
    text = ascii(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."

"""When a cron expression fires in a time zone, also where clocks are put forward or back.

The expression is matched against local time. Which instant a local time stands for follows from one question: does
the field of hours begin with ``*``?

- It does not (``"30 2 * * *"``): the times are **named**, and each runs once a day. A time that is skipped when clocks
  go forward runs at the moment they do, several such times together once. A time that occurs twice runs the first time.
- It does (``"*/15 * * * *"``, ``"0 */2 * * *"``): the ticks **follow the clock face**. A time that is skipped is left
  out, one that occurs twice runs both times, so a tick every 15 minutes stays one every 15 minutes.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from standfast.clock import Instant
from standfast.errors import DeclarationError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cronsim import CronSim

NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
}
LONGEST_CRON: Final = 200

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 -- a time on a clock face, of no zone
_MICROSECOND: Final = timedelta(microseconds=1)
_DAY: Final = 86_400_000_000


def check_cron(cron: str) -> str:
    """Return a cron expression in its plain form; refuse what is none, and what never fires.

    Raises:
        DeclarationError: It cannot be read, or names a day that no year has.
    """
    if not isinstance(cron, str) or len(cron) > LONGEST_CRON or not (cron.isascii() and cron.isprintable()):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        problem = 'it must be text with five fields, like "0 9 * * mon-fri"'
        raise DeclarationError("the cron of a schedule", problem, ascii(cron)[:60])
    plain = NICKNAMES.get(cron.strip().lower(), " ".join(cron.split()))
    next(ticks(plain, "UTC", Instant(0)))
    return plain


def zone_of(zone: str) -> tzinfo:
    """Return a time zone by its name; UTC is known everywhere.

    Raises:
        MissingExtraError: This machine has no zone of that name.
    """
    if zone == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415 -- only cron schedules need it

    try:
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # no such file, a path that leads elsewhere, a folder
        raise MissingExtraError(f"the time zone {zone!r}", "tzdata") from None


def ticks(cron: str, zone: str, after: Instant) -> Iterator[Instant]:
    """Yield the instants after ``after`` at which a cron expression fires, in order and each once, without end.

    Raises:
        DeclarationError: The expression cannot be read, or has no match within fifty years.
        MissingExtraError: This machine does not know the zone.
    """
    place, hours = zone_of(zone), _parse(cron).parts[2]
    next_tick = _next_on_clock_face if hours.startswith("*") else _next_named
    at = int(after)
    while True:
        at = next_tick(cron, place, at)
        yield Instant(at)


def in_words(cron: str, zone: str) -> str:
    """Return a cron expression as people say it: ``At 09:00 on Monday through Friday, Europe/Berlin``."""
    words = _parse(cron).explain()
    return words if zone == "UTC" else f"{words}, {zone}"


# --- labels: local time in microseconds, as a clock on the wall shows it --------------------------------------------


def _next_named(cron: str, zone: tzinfo, at: int) -> int:
    """Return the next instant, if each label stands for the first moment at or after which the clock shows it."""
    label, found = at + _offset(zone, at), at
    while found <= at:  # in a repeated hour, what the clock shows again has been already
        label = _next_label(cron, label)
        found = _first_shown(zone, label)
    return found


def _first_shown(zone: tzinfo, label: int) -> int:
    """Return the first instant at which the clock shows a label, or has jumped over it."""
    shown = (_LOCAL_EPOCH + label * _MICROSECOND).replace(tzinfo=zone)
    instant = (shown - _EPOCH) // _MICROSECOND
    if instant + _offset(zone, instant) == label:
        return instant
    # Of a skipped label, zoneinfo takes the offset from before the jump, and so an instant after it.
    return _first_change(zone, instant - _DAY, instant)


def _next_on_clock_face(cron: str, zone: tzinfo, at: int) -> int:
    """Return the next instant at which the clock shows any matching label: label by label while its offset stays."""
    offset = _offset(zone, at)
    while True:
        found = _next_label(cron, at + offset) - offset
        reach = min(found, at + _DAY)  # no zone changes twice in a day
        if _offset(zone, reach) != offset:
            change = _first_change(zone, at, reach)
            at, offset = change - 1, _offset(zone, change)
        elif reach == found:
            return found
        else:
            at = found - _DAY
            offset = _offset(zone, at)


def _first_change(zone: tzinfo, before: int, after: int) -> int:
    """Return the first instant that has the offset of ``after`` and not that of ``before``, if it changed once."""
    old = _offset(zone, before)
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (middle, after) if _offset(zone, middle) == old else (before, middle)
    return after


def _offset(zone: tzinfo, instant: int) -> int:
    """Return by how many microseconds the clock on the wall is ahead of UTC."""
    if zone is UTC:
        return 0
    there = (_EPOCH + instant * _MICROSECOND).astimezone(zone)
    return (there.utcoffset() or timedelta()) // _MICROSECOND


# --- the library ----------------------------------------------------------------------------------------------------


def _next_label(cron: str, label: int) -> int:
    """Return the first label after ``label`` that the expression matches."""
    simulation = copy.copy(_parse(cron))
    simulation.dt = (_LOCAL_EPOCH + label * _MICROSECOND).replace(microsecond=0)
    try:
        found = next(simulation)
    except (StopIteration, OverflowError):
        raise DeclarationError("the cron of a schedule", "no day within fifty years matches it", repr(cron)) from None
    return (found - _LOCAL_EPOCH) // _MICROSECOND


@lru_cache(maxsize=256)
def _parse(cron: str) -> CronSim:
    """Read an expression; as the starting point is of no zone, the library leaves zones to us."""
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 -- only cron schedules need it

    try:
        return CronSim(cron, _LOCAL_EPOCH)
    except CronSimError as error:
        advice = 'write minute, hour, day of month, month and day of week, like "0 9 * * mon-fri"'
        raise DeclarationError("the cron of a schedule", f"{str(error).lower()}; {advice}", repr(cron)) from None

"""What the tests of schedules share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Unpack

from msgspec import Raw

from standfast.clock import MICROSECONDS, Instant
from standfast.workflows.schedules.spec import ScheduleOptions, ScheduleSpec, check_spec

if TYPE_CHECKING:
    from standfast.workflows.schedules.spec import DueTicks

NOON: Final = Instant(1_711_800_000_000_000)
"""2024-03-30T12:00:00Z, the day before clocks go forward in Europe."""

MINUTE: Final = 60
DAY: Final = 86_400


def made(**options: Unpack[ScheduleOptions]) -> ScheduleSpec:
    """Make a schedule."""
    return check_spec("report", Raw(b"null"), **options)


def at(seconds: float) -> Instant:
    """Return the instant that many seconds after noon."""
    return Instant(NOON + round(seconds * MICROSECONDS))


def fired(due: DueTicks) -> list[float]:
    """Return the ticks to fire, in seconds after noon."""
    return [(tick - NOON) / MICROSECONDS for tick in due.fire]

"""What schedules tell."""

from __future__ import annotations

from typing import ClassVar

from standfast.clock import Instant  # noqa: TC001 -- the types of fields are read at run time
from standfast.events._event import Event, Level


class ScheduleEvent(Event, frozen=True, kw_only=True):
    """The root of what schedules tell. ``schedule`` is the schedule's id."""

    schedule: str


class TickFired(ScheduleEvent, frozen=True, kw_only=True):
    """A tick has started its run."""

    run: str
    nominal_at: Instant
    """The time that the schedule names."""
    late: float
    """How many seconds after its time, jitter included."""


class TickSkipped(ScheduleEvent, frozen=True, kw_only=True):
    """A tick has started nothing: the run before it is unfinished, or a limit or an error was in its way."""

    level: ClassVar[Level] = "warning"

    nominal_at: Instant
    reason: str


class TicksMissed(ScheduleEvent, frozen=True, kw_only=True):
    """Nobody was there when ticks were due, and the schedule does not make up for them, or not for so many."""

    level: ClassVar[Level] = "warning"

    count: int
    last_missed_at: Instant


class SchedulePaused(ScheduleEvent, frozen=True, kw_only=True):
    """A schedule fires no longer: somebody has paused it, or nobody here has its workflow."""

    level: ClassVar[Level] = "warning"

    note: str

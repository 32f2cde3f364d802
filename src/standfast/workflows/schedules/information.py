"""What can be known of a schedule from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from standfast.clock import Instant
from standfast.workflows.storing.values import PLAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.workflows.schedules.records import Stored
from standfast.workflows.schedules.specification import Overlap


class ScheduleInfo(Struct, frozen=True):
    """How a schedule is. Points in time are those that the schedule names, without jitter.

    Attributes:
        id: The schedule.
        workflow: What it starts.
        input: What that is started with, by name.
        cron: Its cron expression; None if it has a period.
        every: Its period in seconds; None if it has a cron expression.
        zone: The time zone of ``cron``.
        overlap: What a tick does while a run is unfinished.
        backfill: Whether ticks that nobody was there for are made up for.
        most_backfilled: How many of them at most.
        jitter: By how many seconds a tick fires later at most.
        created_at: Since when it is there.
        is_paused: Whether it fires at all.
        note: Why it is paused.
        next_at: Its next tick; None while it is paused.
        fires_at: When that fires, with its jitter.
        started: How many runs its ticks have started.
        skipped: How many ticks were dropped because a run of the schedule was unfinished.
        refused: How many ticks started nothing because of a limit of the workflow, or an error; see ``problem``.
        missed: How many ticks were left out because they were late.
        more_missed: Whether there were more than ``missed``, too many to count.
        last_run: The run that the latest of its ticks has started; empty: none.
        last_skipped_at: The latest tick that was skipped or refused.
        last_missed_at: The latest tick that was missed.
        problem: Why the latest tick that started nothing did not.
        queued: The runs that wait for their turn, the first in line first.
    """

    id: str
    workflow: str
    input: Any
    cron: str | None
    every: float | None
    zone: str
    overlap: Overlap
    backfill: bool
    most_backfilled: int
    jitter: float
    created_at: Instant
    is_paused: bool
    note: str
    next_at: Instant | None
    fires_at: Instant | None
    started: int
    skipped: int
    refused: int
    missed: int
    more_missed: bool
    last_run: str
    last_skipped_at: Instant | None
    last_missed_at: Instant | None
    problem: str
    queued: tuple[str, ...] = ()


def info_of(schedule_id: str, stored: Stored, queued: Sequence[str] = ()) -> ScheduleInfo:
    """Return what a stored schedule says."""
    spec, state = stored.spec, stored.state
    return ScheduleInfo(
        schedule_id,
        spec.workflow,
        PLAIN.unpack(spec.input),
        spec.cron,
        spec.every,
        spec.zone,
        spec.overlap,
        spec.backfill,
        spec.most_backfilled,
        spec.jitter,
        stored.created_at,
        state.paused,
        stored.note,
        None if state.paused else state.next_at,
        None if state.paused else stored.wake_at,
        state.fired - stored.skipped - stored.refused,
        stored.skipped,
        stored.refused,
        state.missed,
        state.uncounted,
        stored.last_run,
        stored.last_skipped_at,
        state.last_missed_at,
        stored.problem,
        tuple(queued),
    )

"""Driving schedules: any worker does it, and each tick starts one run, in the commit that moves its schedule on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct, structs

from standfast.clock import Instant, seconds_between
from standfast.errors import (
    ArbiterUnavailableError,
    FlowError,
    MissingExtraError,
    RunNotFoundError,
    WorkflowAlreadyExistsError,
    WorkflowConcurrencyLimitExceededError,
    WorkflowError,
)
from standfast.events import SchedulePaused, TickFired, TickSkipped, TicksMissed
from standfast.locks.inspect import waiting_in
from standfast.stores.protocol import Delete
from standfast.workflows.admission import start_in_lines
from standfast.workflows.limits import Ending, standings_of
from standfast.workflows.records import Standing, Start
from standfast.workflows.schedules.spec import (
    changing,
    commit,
    due,
    find,
    find_all,
    fires_at,
    line_of,
    pause,
    resume,
    run_id_of,
    with_timer,
)
from standfast.workflows.start import start
from standfast.workflows.termination import end_if_unstarted

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Record
    from standfast.workflows.catalog import Startable
    from standfast.workflows.definition import Workflow
    from standfast.workflows.records import Started
    from standfast.workflows.runtime import Runtime
    from standfast.workflows.schedules.spec import DueTicks, Overlap, ScheduleSnapshot, ScheduleSpec, Stored


# --- discarding the runs of a schedule that wait for their turn, when it is paused or deleted ----------------------


async def empty(runtime: Runtime, seen: ScheduleSnapshot) -> bool:
    """Discard the ticks that wait, and finish what that was for. Should this process die, another one does it again.

    False: another process has changed the schedule meanwhile.
    """
    how = "deleted" if seen.stored.is_deleted else "paused"
    ending = Ending("cancelled", f"its schedule was {how}", only_waiting=True)
    for run_id in await queued(runtime.space, seen.id):
        await end_if_unstarted(runtime, run_id, ending)
    after = None if seen.stored.is_deleted else structs.replace(seen.stored, is_emptying=False, wake_at=None)
    return await commit(runtime.space, changing(runtime.space, seen, after))


async def queued(scope: Scope, schedule_id: str) -> list[str]:
    """Return the runs that wait for their turn, the first in line first."""
    return [entry.id for entry in await waiting_in(scope, line_of(schedule_id))]


# --- starting the runs of a schedule: each stands in the schedule's line, and in those of its workflow's limits ----

MOST_QUEUED: Final = 1_000
"""How many runs of a schedule may wait for their turn."""

_ON_LIMIT: Final = {"skip": "reject", "queue": "queue", "cancel_running": "cancel_running"}


def label_of(schedule_id: str) -> str:
    """Return what the line of a schedule is called for people."""
    return f"schedule {schedule_id}"


def workflow_of(runtime: Runtime, spec: ScheduleSpec) -> Workflow[..., Any] | None:
    """Return the code for a schedule: in the version that it names, else the first that the engine has."""
    exact = runtime.workflows.get((spec.workflow, spec.version)) if spec.version is not None else None
    return exact or next((each for each in runtime.workflows.values() if each.name == spec.workflow), None)


def overlap_of(spec: ScheduleSpec, *, is_late: bool) -> Overlap:
    """Return what a tick does while a run of its schedule is unfinished.

    Ticks that are made up for all come at once. They run one after another: a backfill that dropped or cancelled all
    but one of them would make up for one.
    """
    return "queue" if is_late and spec.overlap != "allow" else spec.overlap


async def start_run(
    runtime: Runtime,
    schedule_id: str,
    spec: ScheduleSpec,
    workflow: Startable,
    run_id: str,
    *,
    nominal_at: Instant | None,
    overlap: Overlap,
    extra_changes: tuple[Change, ...] = (),
) -> Started:
    """Start a run of a schedule, with further changes in the same commit.

    Raises:
        RunNotFoundError: One of those changes met something else than it expected. Nothing was written.
        WorkflowConcurrencyLimitExceededError: It would have had to wait, and must not. Nothing was written.
        FlowError: It is a request, and the policy of its action refuses it. Nothing was written.
    """
    asked = Start(
        workflow=workflow,
        packed=bytes(spec.input),
        run_id=run_id,
        schedule=schedule_id,
        nominal_at=nominal_at,
        extra_changes=extra_changes,
    )
    own = () if overlap == "allow" else (standing_of(schedule_id, spec, overlap),)
    if workflow.on_tick is not None:
        return await workflow.on_tick(asked, own)
    lines = (*own, *standings_of(workflow, asked.packed))
    return await start_in_lines(runtime, asked, lines) if lines else await start(runtime, asked)


def standing_of(schedule_id: str, spec: ScheduleSpec, overlap: Overlap) -> Standing:
    """Return the place of a tick's run in the line of its schedule; what is made up for may all wait there."""
    most = max(MOST_QUEUED, spec.most_backfilled) if overlap == "queue" else None
    return Standing(line_of(schedule_id), "schedule", 1, _ON_LIMIT[overlap], label_of(schedule_id), most)


# --- driving schedules: any worker does it, and each tick starts one run, in the commit that moves its schedule on -

PATIENCE: Final = 10.0
"""Seconds for which a tick is left to other workers, if this one does not have what it needs."""

IN_A_ROW: Final = 100
"""How many ticks of one schedule are handled before others have their turn."""

AT_A_TIME: Final = 64
"""How many schedules are handled at a time."""


class _Skip(Struct, frozen=True):
    """Why a tick starts nothing; ``by_overlap``: because of a run of the same schedule."""

    reason: str
    by_overlap: bool = False


class _Missing(Struct, frozen=True):
    """Since when this engine waits for others to handle a tick."""

    tick: Instant | None
    since: Instant


@final
class Ticker:
    """Handles the ticks of all schedules, for one engine.

    Args:
        runtime: The engine.
        is_stopping: Tells that nothing new is to be begun.
    """

    def __init__(self, runtime: Runtime, is_stopping: Callable[[], bool]) -> None:
        self._runtime, self._is_stopping = runtime, is_stopping
        self._missing: Final[dict[str, _Missing]] = {}
        self._busy: Final[set[str]] = set()
        self._room: Final = asyncio.Semaphore(AT_A_TIME)

    async def on_timer(self, schedule_id: str, at: Instant, timer: Record) -> None:
        """Handle everything that is due of a schedule whose time has come."""
        if schedule_id in self._busy:
            return
        noticed_at = self._runtime.now()  # a tick is not late because there are many
        self._busy.add(schedule_id)
        try:
            async with self._room:
                if not self._is_stopping():
                    await self._handle(schedule_id, at, timer, noticed_at)
        finally:
            self._busy.discard(schedule_id)

    async def _handle(self, schedule_id: str, at: Instant, timer: Record, noticed_at: Instant) -> None:
        space = self._runtime.space
        seen = await find(space, schedule_id, at)
        if seen is None or seen.stored.wake_at != at:
            await space.commit(Delete(timer.key, timer.version))  # left behind
        for _ in range(IN_A_ROW):
            if seen is None or seen.stored.wake_at is None or seen.stored.wake_at > noticed_at:
                return
            self._runtime.saw(seen.at)
            if not await (empty(self._runtime, seen) if seen.stored.is_emptying else self._move_on(seen, noticed_at)):
                return
            seen = await find(space, schedule_id)

    async def come_back(self) -> None:
        """Let those schedules go on that have paused because no engine had what this engine has."""
        for schedule_id, stored, _ in await find_all(self._runtime.space):
            if not stored.lacks or workflow_of(self._runtime, stored.spec) is None:
                continue
            seen = await find(self._runtime.space, schedule_id)
            if seen is None or not seen.stored.lacks:
                continue
            try:
                state = resume(seen.stored.spec, seen.stored.state, seen.at)
            except MissingExtraError:  # this machine does not know its zone
                continue
            resumed = with_timer(structs.replace(seen.stored, state=state, note="", lacks=""), schedule_id)
            await self._write(seen, resumed)

    # --- one tick ------------------------------------------------------------------------------------------------

    async def _move_on(self, seen: ScheduleSnapshot, noticed_at: Instant) -> bool:
        """Handle the next tick, or pass over those that were missed; False: leave it to others for now."""
        workflow = workflow_of(self._runtime, seen.stored.spec)
        if workflow is None:
            return await self._lack(seen, f"no worker has the workflow {seen.stored.spec.workflow!r}")
        try:
            now_due = due(seen.stored.spec, seen.id, seen.stored.state, noticed_at, most=1)
        except MissingExtraError as problem:
            return await self._lack(seen, str(problem))
        self._missing.pop(seen.id, None)
        after = structs.replace(seen.stored, state=now_due.state, wake_at=now_due.wake_at)
        if after == seen.stored:
            return False
        moved = await (self._fire(seen, after, workflow, now_due) if now_due.fire else self._write(seen, after))
        missed, last = now_due.missed, now_due.state.last_missed_at
        if moved and missed and last is not None:
            wall = self._runtime.clock.wall()
            self._runtime.emit(TicksMissed(at=wall, schedule=seen.id, count=missed, last_missed_at=last))
        return True

    async def _fire(
        self, seen: ScheduleSnapshot, after: Stored, workflow: Workflow[..., Any], now_due: DueTicks
    ) -> bool:
        """Start the run of a tick; or write down why not. False: another process did one or the other."""
        [nominal_at] = now_due.fire
        run_id = run_id_of(seen.id, nominal_at)
        try:
            started = await start_run(
                self._runtime,
                seen.id,
                seen.stored.spec,
                workflow,
                run_id,
                nominal_at=nominal_at,
                overlap=overlap_of(seen.stored.spec, is_late=now_due.late > 0),
                extra_changes=tuple(changing(self._runtime.space, seen, structs.replace(after, last_run=run_id))),
            )
        except RunNotFoundError:
            return False
        except WorkflowConcurrencyLimitExceededError as full:
            is_own = full.partition_key == label_of(seen.id)
            skip = _Skip("a run of this schedule is unfinished" if is_own else str(full), by_overlap=is_own)
        except WorkflowAlreadyExistsError as problem:
            skip = _Skip(str(problem))
        except ArbiterUnavailableError:
            raise  # nothing was decided: it stays due
        except (WorkflowError, FlowError) as problem:
            skip = _Skip(f"{type(problem).__name__}: {problem}")
        else:
            if started.is_new:
                late = seconds_between(fires_at(seen.stored.spec, seen.id, nominal_at), seen.at)
                wall = self._runtime.clock.wall()
                self._runtime.emit(TickFired(at=wall, schedule=seen.id, run=run_id, nominal_at=nominal_at, late=late))
                return True
            joined = "its run is there already" if started.run_id == run_id else f"it joined the run {started.run_id!r}"
            skip = _Skip(joined)
        stored = structs.replace(
            after,
            skipped=after.skipped + skip.by_overlap,
            refused=after.refused + (not skip.by_overlap),
            last_skipped_at=nominal_at,
            problem=skip.reason,
        )
        if not await self._write(seen, stored):
            return False
        at = self._runtime.clock.wall()
        self._runtime.emit(TickSkipped(at=at, schedule=seen.id, nominal_at=nominal_at, reason=skip.reason))
        return True

    async def _write(self, seen: ScheduleSnapshot, after: Stored) -> bool:
        return await commit(self._runtime.space, changing(self._runtime.space, seen, after))

    # --- what is not here ----------------------------------------------------------------------------------------

    async def _lack(self, seen: ScheduleSnapshot, note: str) -> bool:
        """Leave a tick to other workers; if none of them takes it, pause the schedule, for everybody to see."""
        now = self._runtime.clock.elapsed()
        missing = self._missing.get(seen.id)
        if missing is None or missing.tick != seen.stored.wake_at:  # others have handled the one before
            missing = self._missing[seen.id] = _Missing(seen.stored.wake_at, now)
        if seconds_between(missing.since, now) < PATIENCE:
            return False
        del self._missing[seen.id]
        paused = structs.replace(seen.stored, state=pause(seen.stored.state), wake_at=None, note=note, lacks=note)
        if await self._write(seen, paused):
            self._runtime.emit(SchedulePaused(at=self._runtime.clock.wall(), schedule=seen.id, note=note))
        return False

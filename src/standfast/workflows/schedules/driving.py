"""Driving schedules: any worker does it, and each tick starts one run, in the commit that moves its schedule on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct, structs

from standfast.clock import Instant, seconds_between
from standfast.errors import (
    ArbiterUnavailableError,
    FlowError,
    RunNotFoundError,
    UnknownZoneError,
    WorkflowAlreadyExistsError,
    WorkflowConcurrencyLimitExceededError,
    WorkflowError,
)
from standfast.events import SchedulePaused, TickFired, TickSkipped, TicksMissed
from standfast.stores.protocol import Delete
from standfast.workflows.schedules.emptying import empty
from standfast.workflows.schedules.records import changing, commit, find, find_all, with_timer
from standfast.workflows.schedules.starting import label_of, overlap_of, start_run, workflow_of
from standfast.workflows.schedules.timing import due, fires_at, pause, resume, run_id_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.stores.protocol import Record
    from standfast.workflows.declaring.definition import Workflow
    from standfast.workflows.running.host import Host
    from standfast.workflows.schedules.records import Seen, Stored
    from standfast.workflows.schedules.timing import Due

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


class _Lacking(Struct, frozen=True):
    """Since when this engine waits for others to handle a tick."""

    tick: Instant | None
    since: Instant


@final
class Ticker:
    """Handles the ticks of all schedules, for one engine.

    Args:
        host: The engine.
        is_stopping: Tells that nothing new is to be begun.
    """

    def __init__(self, host: Host, is_stopping: Callable[[], bool]) -> None:
        self._host, self._is_stopping = host, is_stopping
        self._lacking: Final[dict[str, _Lacking]] = {}
        self._busy: Final[set[str]] = set()
        self._room: Final = asyncio.Semaphore(AT_A_TIME)

    async def on_timer(self, schedule_id: str, at: Instant, timer: Record) -> None:
        """Handle everything that is due of a schedule whose time has come."""
        if schedule_id in self._busy:
            return
        noticed_at = self._host.now()  # a tick is not late because there are many
        self._busy.add(schedule_id)
        try:
            async with self._room:
                if not self._is_stopping():
                    await self._handle(schedule_id, at, timer, noticed_at)
        finally:
            self._busy.discard(schedule_id)

    async def _handle(self, schedule_id: str, at: Instant, timer: Record, noticed_at: Instant) -> None:
        space = self._host.space
        seen = await find(space, schedule_id, at)
        if seen is None or seen.stored.wake_at != at:
            await space.commit(Delete(timer.key, timer.version))  # left behind
        for _ in range(IN_A_ROW):
            if seen is None or seen.stored.wake_at is None or seen.stored.wake_at > noticed_at:
                return
            self._host.saw(seen.at)
            if not await (empty(self._host, seen) if seen.stored.is_emptying else self._move_on(seen, noticed_at)):
                return
            seen = await find(space, schedule_id)

    async def come_back(self) -> None:
        """Let those schedules go on that have paused because nobody had what this engine has."""
        for schedule_id, stored, _ in await find_all(self._host.space):
            if stored.lacks and workflow_of(self._host, stored.spec) is not None:
                await self._resume(schedule_id)

    async def _resume(self, schedule_id: str) -> None:
        seen = await find(self._host.space, schedule_id)
        if seen is not None and seen.stored.lacks:
            try:
                state = resume(seen.stored.spec, seen.stored.state, seen.at)
            except UnknownZoneError:
                return
            stored = with_timer(structs.replace(seen.stored, state=state, note="", lacks=""), schedule_id)
            await commit(self._host.space, changing(self._host.space, seen, stored))

    # --- one tick ------------------------------------------------------------------------------------------------

    async def _move_on(self, seen: Seen, noticed_at: Instant) -> bool:
        """Handle the next tick, or pass over those that were missed; False: leave it to others for now."""
        workflow = workflow_of(self._host, seen.stored.spec)
        if workflow is None:
            return await self._lack(seen, f"no worker has the workflow {seen.stored.spec.workflow!r}")
        try:
            now_due = due(seen.stored.spec, seen.id, seen.stored.state, noticed_at, most=1)
        except UnknownZoneError as problem:
            return await self._lack(seen, str(problem))
        self._lacking.pop(seen.id, None)
        after = structs.replace(seen.stored, state=now_due.state, wake_at=now_due.wake_at)
        if after == seen.stored:
            return False
        moved = await (self._fire(seen, after, workflow, now_due) if now_due.fire else self._write(seen, after))
        if moved and now_due.missed:
            self._tell_missed(seen.id, now_due)
        return True

    async def _fire(self, seen: Seen, after: Stored, workflow: Workflow[..., Any], now_due: Due) -> bool:
        """Start the run of a tick; or write down why not. False: somebody else did one or the other."""
        [nominal_at] = now_due.fire
        run_id = run_id_of(seen.id, nominal_at)
        try:
            started = await start_run(
                self._host,
                seen.id,
                seen.stored.spec,
                workflow,
                run_id,
                nominal_at=nominal_at,
                overlap=overlap_of(seen.stored.spec, is_late=now_due.late > 0),
                alongside=tuple(changing(self._host.space, seen, structs.replace(after, last_run=run_id))),
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
                self._tell_fired(seen, run_id, nominal_at)
                return True
            joined = "its run is there already" if started.run_id == run_id else f"it joined the run {started.run_id!r}"
            skip = _Skip(joined)
        return await self._skip(seen, after, nominal_at, skip)

    async def _skip(self, seen: Seen, after: Stored, nominal_at: Instant, skip: _Skip) -> bool:
        stored = structs.replace(
            after,
            skipped=after.skipped + skip.by_overlap,
            refused=after.refused + (not skip.by_overlap),
            last_skipped_at=nominal_at,
            problem=skip.reason,
        )
        if not await self._write(seen, stored):
            return False
        at = self._host.clock.wall()
        self._host.emit(TickSkipped(at=at, schedule=seen.id, nominal_at=nominal_at, reason=skip.reason))
        return True

    async def _write(self, seen: Seen, after: Stored) -> bool:
        return await commit(self._host.space, changing(self._host.space, seen, after))

    def _tell_fired(self, seen: Seen, run_id: str, nominal_at: Instant) -> None:
        late = seconds_between(fires_at(seen.stored.spec, seen.id, nominal_at), seen.at)
        at = self._host.clock.wall()
        self._host.emit(TickFired(at=at, schedule=seen.id, run=run_id, nominal_at=nominal_at, late=late))

    def _tell_missed(self, schedule_id: str, now_due: Due) -> None:
        last = now_due.state.last_missed_at
        if last is not None:
            at, count = self._host.clock.wall(), now_due.missed
            self._host.emit(TicksMissed(at=at, schedule=schedule_id, count=count, last_missed_at=last))

    # --- what is not here ----------------------------------------------------------------------------------------

    async def _lack(self, seen: Seen, note: str) -> bool:
        """Leave a tick to other workers; if none of them takes it, pause the schedule, for everybody to see."""
        now = self._host.clock.elapsed()
        lacking = self._lacking.get(seen.id)
        if lacking is None or lacking.tick != seen.stored.wake_at:  # others have handled the one before
            lacking = self._lacking[seen.id] = _Lacking(seen.stored.wake_at, now)
        if seconds_between(lacking.since, now) < PATIENCE:
            return False
        del self._lacking[seen.id]
        paused = structs.replace(seen.stored, state=pause(seen.stored.state), wake_at=None, note=note, lacks=note)
        if await self._write(seen, paused):
            self._host.emit(SchedulePaused(at=self._host.clock.wall(), schedule=seen.id, note=note))
        return False

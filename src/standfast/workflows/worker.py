"""The worker of an engine: finds runs that can go on, drives them, and reclaims those of workers that died.

Hints tell what is ready; the timer index tells what is due; now and then it looks by itself, in case a hint was lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, final
from zlib import crc32

from standfast.clock import Instant, seconds_between
from standfast.errors import StandfastError, StoreRewoundError
from standfast.events import HintHeard, LoopHeldUp, RunLeftBehind, WorkerFails, WorkerPolled, WorkerWaits
from standfast.locks.heartbeat import LoopReport
from standfast.stores.protocol import Delete
from standfast.workflows.capacity import STARTED, Capacity, Load, grow_after, next_capacity, room, surplus
from standfast.workflows.claims import claim, find_dead, reclaim, take_back_deaths, workers_of
from standfast.workflows.context_locks import reap_waited_line
from standfast.workflows.control import Unload
from standfast.workflows.execution import execute, is_resting, release, suspend
from standfast.workflows.limits import OVERRIDE, end_override
from standfast.workflows.records import DUES, RUN_STATES, RunKeys
from standfast.workflows.run_index import index_existing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

    from standfast.clock import Clock
    from standfast.events import Hooks
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Record, Watch
    from standfast.workflows.activation import Activation
    from standfast.workflows.runtime import Runtime


# --- reading a range of records page by page -----------------------------------------------------------------------

PAGE: Final = 200


async def matching(
    space: Scope, start: RecordKey, end: RecordKey, is_meant: Callable[[Record], bool], *, limit: int
) -> AsyncIterator[Record]:
    """Yield the records of a range that are meant, page by page."""
    while True:
        page = await space.scan(start, end, limit=PAGE)
        for record in filter(is_meant, page.records.values()):
            yield record
            limit -= 1
        if page.more is None or limit <= 0:
            return
        start = page.more
        await asyncio.sleep(0)  # a store in this process answers at once: others go on meanwhile


# --- the worker of an engine: finds runs that can go on, drives them, and reclaims those of workers that died ------

_logger: Final = logging.getLogger("standfast")

POLL_EVERY: Final = 1.0
"""Seconds between two looks for what hints may have missed."""

PROBE_EVERY: Final = 0.05
"""Seconds between two looks at the liveness tokens of other workers, where the store can see a process die."""

FLUSH_AFTER: Final = 0.02
"""Seconds after which events are written though nothing needs them to be."""

AT_REST: Final = 0.4
"""After which part of the time that a run stays in memory it is looked again which have been there for so long."""

MOST_CLAIMED: Final = 128
"""How many runs begin to be claimed in one turn of the event loop."""

MOST_SUSPENDED: Final = 200
"""How many runs begin to be suspended in one turn of the event loop."""

HELD_UP: Final = 0.5
"""An event loop that stands still for this many seconds is reported: something blocks it."""

PULSE: Final = 0.1
"""Seconds between two beats of the event loop. No hold-up that is longer than ``HELD_UP`` falls between them."""

MINUTES: Final = 5
"""For how many minutes it is remembered how the event loop was."""

GRACE: Final = 5.0
"""Seconds that steps get to end when a worker is stopped."""

AHEAD: Final = 4
"""How many times the runs that are claimed at a time a worker knows of."""

MOST_NOTIFIED: Final = 10_000
"""Of how many runs at most it is noted when a hint told of them."""

LAST: Final = 1.0
"""Seconds that are waited for what is left to do when every run is handed back."""


INDEX_AGAIN: Final = 5.0
"""Seconds after which runs are indexed further when the store has failed."""

SHOWN: Final = 10
"""How many of those that are waited for are named."""


def tell_waits(hooks: Hooks, clock: Clock, under_way: Sequence[str], grace: float) -> None:
    """Tell what is waited for when a worker or a server stops; without a hook, on the log, which is stderr."""
    if not under_way or not grace:
        return
    waits = WorkerWaits(at=clock.wall(), waits_for=tuple(under_way[:SHOWN]), count=len(under_way), grace=grace)
    if hooks:
        hooks.emit(waits)
    else:
        _logger.warning("%s", waiting_line(waits))


def waiting_line(waits: WorkerWaits) -> str:
    """Say in a line what is waited for."""
    others = f" and {waits.count - SHOWN:,} others" if waits.count > SHOWN else ""
    return (
        f"waiting up to {waits.grace:g} s for what is under way: {', '.join(waits.waits_for)}{others};"
        " then it is cancelled, and what is durable is handed back"
    )


class _Minute:
    """The longest hold-up of a minute, when it ended, and how many were long."""

    __slots__ = ("at", "ends_at", "times", "worst")

    def __init__(self, ends_at: float) -> None:
        self.ends_at, self.worst, self.at, self.times = ends_at, 0.0, 0.0, 0


@final
class Pulse:
    """Beats on an event loop while a worker runs, so that a loop that stands still is seen whenever that happens.

    A hold-up delays the next beat by its length, less at most the time between two beats.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, held_up: Callable[[float], None]) -> None:
        self._loop, self._held_up = loop, held_up
        self._minutes: Final[deque[_Minute]] = deque(maxlen=MINUTES)
        self._minute = _Minute(0)
        self._next = self._begin()

    def _begin(self) -> asyncio.TimerHandle:
        return self._loop.call_at(self._loop.time() + PULSE, self._beat)

    def _beat(self) -> None:
        now = self._loop.time()
        late = now - self._next.when()
        self._next = self._begin()
        minute = self._minute
        if now >= minute.ends_at:
            minute = self._minute = _Minute(now + 60.0)
            self._minutes.append(minute)
        if late > minute.worst:
            minute.worst, minute.at = late, now
        if late >= HELD_UP - PULSE:
            minute.times += 1
            self._held_up(late)

    def report(self) -> LoopReport:
        """Say how the loop was in the last minutes, also from another thread while it stands still."""
        now = self._loop.time()
        minutes = [each for each in tuple(self._minutes) if each.ends_at > now - 60.0 * MINUTES]
        worst = max(minutes, key=lambda each: each.worst, default=_Minute(0))
        late = now - self._next.when()
        ago = now - worst.at if worst.worst else 0.0
        stands_for = late if late >= HELD_UP - PULSE else 0.0
        times = sum(each.times for each in minutes)
        return LoopReport(round(worst.worst, 4), round(ago, 1), times, round(stands_for, 3))

    def stop(self) -> None:
        """Beat no more."""
        self._next.cancel()


@final
class Worker:
    """Drives the runs of one engine."""

    def __init__(self, runtime: Runtime, *, linger: float, most_loaded: int) -> None:
        self._runtime, self._linger, self._most_loaded = runtime, linger, most_loaded
        self._tasks: Final[set[asyncio.Task[Any]]] = set()
        self._left: Final[set[str]] = set()
        self._notified: Final = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._indexing: asyncio.Task[None] | None = None
        self._sentinel: asyncio.Task[bool] | None = None
        self._pulse: Pulse | None = None
        self._ready: Final[OrderedDict[str, None]] = OrderedDict()
        self._capacity, self._ended, self._took = Capacity(), 0, 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._met_at = self._set_at = asyncio.get_running_loop().time()
        self._peak = 0
        self._has_more, self._was_lucky = False, True
        self._claiming: Final[dict[str, asyncio.Task[Any]]] = {}
        self._next_due: Instant | None = Instant(0)
        self._rested_at = Instant(0)
        self._liveness_tokens: dict[str, str] = {}
        self._met, self._problem = False, ""
        self._polled_at = self._probed_at = self._sought_at = -1e9
        self.is_stopping = self._resting = False
        self._hurried: Final = asyncio.Event()
        self._tells_hints, self._tells_polls = runtime.hooks.want(HintHeard), runtime.hooks.want(WorkerPolled)
        self._notified_at: Final[dict[str, Instant]] = {}
        self.on_schedule: Callable[[str, Instant, Record], Awaitable[None]] | None = None
        runtime.notify, runtime.execute, runtime.poll_again = self._notified.set, self.execute, self._on_ready
        runtime.made_room, runtime.is_torn_down = self._on_room, self._is_torn_down
        runtime.has_room = self.has_room

    async def start(self) -> None:
        """Begin to hear hints and to look."""
        space = self._runtime.space
        watch = space.watch(space.key("ready"), space.key("timer"), space.key("worker"))
        await watch.__aenter__()
        self._listening = asyncio.get_running_loop().create_task(self._listen(watch))
        self._main = asyncio.get_running_loop().create_task(self._run())
        self._indexing = asyncio.get_running_loop().create_task(self._index())
        self._sentinel = asyncio.get_running_loop().create_task(asyncio.Event().wait())
        self._pulse = Pulse(asyncio.get_running_loop(), self._tell_held_up)
        self._runtime.lines.heartbeat.loop_report = self._pulse.report

    def _end_pulse(self) -> None:
        if self._pulse is not None:
            self._pulse.stop()
            self._runtime.lines.heartbeat.loop_report = None

    async def _index(self) -> None:
        """Index what the store had before it had an index of runs; if the store fails, again later."""
        while True:
            try:
                await index_existing(self._runtime.space)
            except StandfastError:
                await asyncio.sleep(INDEX_AGAIN)
            else:
                return

    def _tell_held_up(self, late: float) -> None:
        self._runtime.emit(LoopHeldUp(at=self._runtime.clock.wall(), seconds=late))

    def _is_torn_down(self) -> bool:
        """Return True if the event loop ends: then all its tasks are cancelled at one moment, also one that only waits.

        The others have limits of time inside, which cancel them, too.
        """
        return self._sentinel is not None and self._sentinel.cancelling() > 0

    async def join(self) -> None:
        """Wait until the worker has stopped. If that is because of an error that it cannot go on after, raise it."""
        if self._main is not None:
            await asyncio.shield(self._main)

    def hurry(self) -> None:
        """Wait no longer for steps to end, if the worker is being stopped."""
        self._hurried.set()

    def execute(self, activation: Activation) -> None:
        """Drive a run that is claimed, unless it is in memory already under the same claim."""
        present = self._runtime.loaded.get(activation.keys.id)
        if present is not None and not present.is_unloading and present.fence >= activation.fence:
            return  # found by its owner's record before the task that has started it came to say so
        if self.is_stopping:
            self._own(self._safely(release(activation, "a worker")))
            return
        self._runtime.loaded[activation.keys.id] = activation
        activation.driven_at = activation.loop.time()
        task = activation.loop.create_task(execute(activation))
        if not task.done():  # an eager task may be over by now
            activation.driven_by = task
            self._tasks.add(task)  # until _on_room: a callback of the task would take another turn of the loop

    @property
    def utilisation(self) -> float:
        """The share of the runs that it works on at a time that it works on now: 0 is idle, 1 has no room."""
        return min(1.0, self._active() / max(1, self._capacity.runs))

    def has_room(self) -> bool:
        """Return True if a run that is started here should be driven here; else any worker claims it."""
        if self.is_stopping or len(self._runtime.loaded) >= self._most_loaded:
            return False
        return not self._liveness_tokens or self._active() < max(self._capacity.runs, STARTED)

    # --- how many ------------------------------------------------------------------------------------------------

    def _active(self) -> int:
        """Return how many runs are worked on, or about to be: those that wait for something are not."""
        return len(self._runtime.loaded) - len(self._runtime.idle) + len(self._claiming)

    def _room(self) -> int:
        return min(self._capacity.runs - self._active(), self._most_loaded - len(self._runtime.loaded))

    def _on_room(self, activation: Activation) -> None:
        """A run has left the memory: look for others if some are known to wait, or if there was no room for any."""
        if activation.driven_by is not None:
            self._tasks.discard(activation.driven_by)
            activation.driven_by = None
        self._ended += 1
        self._took += activation.loop.time() - activation.driven_at
        if self._ready or self._has_more or self.is_stopping or self._room() <= 1:
            self._notified.set()

    def _watch_load(self) -> None:
        """More runs could be claimed than there is capacity for: look in a while whether it may be more."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._set_timer(loop)
            self._set_at, self._ended, self._took, self._peak = loop.time(), 0, 0.0, self._active()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        seconds = grow_after(len(self._liveness_tokens), loop.time() - self._met_at)
        self._timer = loop.call_later(seconds, self._check_load, loop.time() + seconds)

    def _check_load(self, due: float) -> None:
        self._timer, loop = None, asyncio.get_running_loop()
        now, waiting, queued = loop.time(), len(self._ready) + self._has_more, self._runtime.threads.queued
        load = Load(self._peak, waiting, now - self._set_at, self._ended, self._took, now - due, queued)
        capacity = next_capacity(self._capacity, load, self._most_loaded)
        if capacity is None:
            self._set_timer(loop)
        else:
            self._capacity = capacity
            if waiting:
                self._watch_load()
        self._notified.set()

    def _meet(self, others: set[str]) -> None:
        """Leave others their share: a worker that was not there before has nothing yet."""
        if not others:
            return
        runtime, self._capacity = self._runtime, Capacity()
        self._met_at = asyncio.get_running_loop().time()
        if self._timer is not None:  # from now on both take more at the same time
            self._timer.cancel()
            self._timer = None
        active = [each for each in runtime.loaded.values() if each not in runtime.idle and not each.is_stopping]
        number = surplus(len(active), len(self._liveness_tokens) + 1)
        with_one_branch = [
            each for each in reversed(active) if len(each.branches) <= 1
        ]  # no other is held up by a step
        for each in with_one_branch[:number]:
            self._own(self._safely(self._hand_over(each)))

    async def _hand_over(self, activation: Activation) -> None:
        """Hand a run back for others to claim, when the step that it takes has ended."""
        activation.stop()
        await asyncio.wait({activation.over})
        if activation.ended is None and not activation.is_evicted and not activation.is_handed_back:
            await release(activation, "a worker")

    def begin(self, work: Awaitable[object]) -> None:
        """Do something beside the runs; should the store fail, it is given up."""
        self._own(self._safely(work))

    def _own(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- hints ---------------------------------------------------------------------------------------------------

    async def _listen(self, watch: Watch) -> None:
        try:
            while (hint := await watch.wait()) is not None:
                if not hint.complete:
                    self._polled_at = -1e9
                for key in hint.about:
                    self._on_hint(key)
                self._notified.set()
        finally:
            await watch.__aexit__()

    def _on_hint(self, key: RecordKey) -> None:
        kind, *parts = key.parts[2:]
        if kind == "ready":
            if self._tells_hints and len(self._notified_at) < MOST_NOTIFIED:
                self._notified_at.setdefault(parts[0], self._runtime.now())
            self._on_ready(parts[0])
        elif kind == "worker":
            self._met = True
        elif kind == "timer" and parts:
            at = Instant(int(parts[0]))
            if self._next_due is None or at < self._next_due:
                self._next_due = at

    def _on_ready(self, run_id: str) -> None:
        activation = self._runtime.loaded.get(run_id)
        if activation is not None and activation.claim is not None:
            activation.notify()
        else:
            self._ready[run_id] = None
            self._notified.set()

    # --- rounds --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self.is_stopping:
            self._notified.clear()
            try:
                await self._poll()
                self._problem = ""
            except StoreRewoundError as lost:
                # What was acknowledged to this process is gone, so nothing in its memory can be relied on. Every call
                # of this handle raises the same from now on; a process that opens the store anew goes on.
                self.is_stopping = True
                self._tell(lost)
                self._runtime.lost_presence()
                raise
            except StandfastError as problem:
                self._tell(problem)
                await asyncio.sleep(FLUSH_AFTER)  # the store is in trouble: try again
            if not self._notified.is_set():
                await self._rest()
            else:
                await asyncio.sleep(0)  # what this round has begun goes on before the next

    def _tell(self, problem: StandfastError) -> None:
        if type(problem).__name__ != self._problem:
            self._problem = type(problem).__name__
            self._runtime.emit(WorkerFails(at=self._runtime.clock.wall(), problem=f"{self._problem}: {problem}"))

    async def _rest(self) -> None:
        self._resting = True
        try:
            async with asyncio.timeout(self._seconds_to_rest()):
                await self._notified.wait()
        except TimeoutError:
            return
        finally:
            self._resting = False

    @property
    def is_at_rest(self) -> bool:
        """Whether there is nothing to do before some time has passed or news comes."""
        return self._resting and not (self._notified.is_set() or self._ready or self._claiming or self._runtime.dirty)

    def poll_now(self) -> None:
        """Look at everything in the next round, which begins at once."""
        self._polled_at, self._next_due = -1e9, Instant(0)
        self._notified.set()

    def _seconds_to_rest(self) -> float:
        runtime = self._runtime
        rest = POLL_EVERY
        if self._liveness_tokens and runtime.space.store.capabilities.sees_process_death:
            rest = PROBE_EVERY
        if self._has_more and self._room() > 0:
            rest = min(rest, PROBE_EVERY)
        if runtime.dirty:
            rest = min(rest, FLUSH_AFTER)
        if runtime.idle:
            rest = min(rest, max(0.01, self._linger))
        now = runtime.now()
        for instant in (runtime.next_alarm(), self._next_due if self._room() > 0 else None):
            if instant is not None:
                rest = min(rest, max(0.0, seconds_between(now, instant)))
        return max(rest, 0.001)

    async def _poll(self) -> None:
        runtime, loop = self._runtime, asyncio.get_running_loop()
        if runtime.worker is not None and not runtime.may_act():
            runtime.lost_presence()
        runtime.fire_alarms()
        self._flush_dirty()
        self._suspend_resting()
        if loop.time() - self._polled_at >= POLL_EVERY:
            self._polled_at = loop.time()
            await self._poll_all()
        elif self._met:  # another worker has come or gone: from now on its death is to be seen
            self._met = False
            await self.reclaim_dead()
        elif self._liveness_tokens and loop.time() - self._probed_at >= PROBE_EVERY:
            self._probed_at = loop.time()
            if any(runtime.space.store.is_dead(token) for token in self._liveness_tokens.values()):
                await self.reclaim_dead()
        is_short = len(self._ready) < self._capacity.runs
        if self._next_due is not None and self._next_due <= runtime.now() and is_short:
            await self._poll_due()
        if self._has_more and is_short and self._room() > 0:
            await self._poll_ready()
        self._claim_ready()

    def _suspend_resting(self) -> None:
        """Take runs out of memory that have waited for long enough, some in each turn of the event loop."""
        runtime, now = self._runtime, self._runtime.clock.elapsed()
        if not runtime.idle or seconds_between(self._rested_at, now) < self._linger * AT_REST:
            return
        self._rested_at = now
        resting = [each for each in runtime.idle if not each.is_unloading and is_resting(each, self._linger)]
        for activation in resting[:MOST_SUSPENDED]:
            self._own(self._safely(suspend(activation)))
        if len(resting) > MOST_SUSPENDED:
            self._rested_at = Instant(0)
            self._notified.set()

    def _flush_dirty(self) -> None:
        for activation in tuple(self._runtime.dirty):
            journal = activation.journal
            if journal is None or journal.is_flushing:
                continue
            if journal.has_only_grants and not activation.is_idle:  # mostly it is written with what is done next
                journal.spared_at = journal.spared_at or asyncio.get_running_loop().time()
                if asyncio.get_running_loop().time() - journal.spared_at < FLUSH_AFTER:
                    continue
            self._own(self._safely(activation.flush()))

    async def _safely(self, work: Awaitable[object]) -> None:
        try:
            await work
        except (StandfastError, Unload):
            return

    def _claim_ready(self) -> None:
        wanted = room(self._capacity, self._active(), len(self._ready), len(self._liveness_tokens) + 1)
        number = min(wanted, self._room(), MOST_CLAIMED)
        if number == MOST_CLAIMED:
            self._notified.set()  # the others in the next turn of the event loop
        if number > 0:
            some = islice((run_id for run_id in self._ready if run_id not in self._claiming), AHEAD * number)
            for run_id in self._in_own_order(list(some))[:number]:
                del self._ready[run_id]
                if not self.is_stopping:
                    self._begin_claim(run_id)
        self._peak = max(self._peak, self._active())
        if self._ready or self._has_more:
            self._watch_load()

    def _in_own_order(self, run_ids: list[str]) -> list[str]:
        """Return runs in an order in which no other worker has them, so that not all claim the same one first."""
        name = (
            self._runtime.worker.presence.encode()
            if self._liveness_tokens and self._runtime.worker is not None
            else b""
        )
        return sorted(run_ids, key=lambda each: crc32(each.encode(), crc32(name))) if name else run_ids

    def _begin_claim(self, run_id: str) -> asyncio.Task[Any]:
        task = self._own(self._claim_one(run_id))
        if not task.done():
            self._claiming[run_id] = task
        return task

    async def poll_run(self, run_id: str) -> None:
        """Take a run up now if it can be. One that is being taken up is not taken up a second time."""
        if not self.is_stopping:
            await asyncio.shield(self._claiming.get(run_id) or self._begin_claim(run_id))

    async def _claim_one(self, run_id: str) -> None:
        try:
            loaded = self._runtime.loaded.get(run_id)
            if loaded is not None:
                loaded.notify()
                return
            activation = await claim(self._runtime, run_id)
            if self._tells_hints:
                self._tell_notified(run_id, activation)
            self._was_lucky = self._was_lucky or activation is not None
            if activation is not None:
                if self.is_stopping:
                    await release(activation, "a worker")
                else:
                    self.execute(activation)
        except StandfastError:
            return  # its flag is still there, and found by the next look; not at once, for it may never be readable
        finally:
            self._claiming.pop(run_id, None)
            if self._ready:  # perhaps for want of room
                self._notified.set()

    def _tell_notified(self, run_id: str, activation: Activation | None) -> None:
        """Tell how long the hint of a new run was on its way. Of others it is not known when they were ready."""
        notified_at = self._notified_at.pop(run_id, None)
        if notified_at is None or activation is None or activation.state.claims > 1:
            return
        header = activation.header
        if header.begins_at is None and not header.lines:
            late, at = max(0.0, seconds_between(header.started_at, notified_at)), self._runtime.clock.wall()
            self._runtime.emit(HintHeard(at=at, run=run_id, seconds=late))

    # --- looking by itself ---------------------------------------------------------------------------------------

    async def _poll_all(self) -> None:
        space, began = self._runtime.space, asyncio.get_running_loop().time()
        await self._runtime.ensure_presence()  # others took it for dead: it is a worker also before it claims a run
        if self._runtime.outlived:
            await take_back_deaths(self._runtime)
        self._was_lucky = True
        found = await self._poll_ready()
        if self._tells_polls:
            at, took = self._runtime.clock.wall(), asyncio.get_running_loop().time() - began
            self._runtime.emit(WorkerPolled(at=at, seconds=took, found=found))
        for activation in [
            each
            for each in self._runtime.loaded.values()
            if each.inbox_poll.is_waiting and not each.inbox_poll.is_polling
        ]:
            activation.notify()  # the store failed when it looked for news
        if self._runtime.worker is not None:
            own = space.key("own", self._runtime.worker.presence)
            async for record in matching(space, *own.within(), self._is_for_here, limit=self._most_loaded):
                if record.key.parts[-1] not in self._runtime.loaded:
                    self._ready[record.key.parts[-1]] = None
        self._next_due = Instant(0)
        await self.reclaim_dead()

    async def _poll_ready(self) -> int:
        """Look for runs that can go on: about as many as are soon claimed, so that it costs what it brings.

        Return how many of them were not known.
        """
        if not self._was_lucky and asyncio.get_running_loop().time() - self._sought_at < PROBE_EVERY:
            return 0  # nothing of what was found the last time could be claimed yet
        known, loaded, new = self._ready, self._runtime.loaded, 0
        space, number, most = self._runtime.space, 0, max(PAGE, AHEAD * self._capacity.runs)
        self._was_lucky, self._sought_at = False, asyncio.get_running_loop().time()
        async for record in matching(space, *space.key("ready").within(), self._is_for_here, limit=most):
            number += 1
            run_id = record.key.parts[-1]
            new += run_id not in known and run_id not in loaded and run_id not in self._claiming
            self._on_ready(run_id)
        self._has_more = number >= most
        return new

    def _is_for_here(self, record: Record) -> bool:
        """Return True if the code of a run may be here; runs that wait for other code must not be in the way."""
        return not self._runtime.is_left_alone(record.key.parts[-1])

    async def reclaim_dead(self) -> None:
        """Make the runs of workers that died ready for others."""
        runtime = self._runtime
        workers = await workers_of(runtime.space)
        own = "" if runtime.worker is None else runtime.worker.presence
        known = set(self._liveness_tokens)
        dead, self._liveness_tokens = await find_dead(runtime.space, [name for name in workers if name != own])
        for name in dead:
            await reclaim(runtime, name, workers[name])
        self._meet(self._liveness_tokens.keys() - known)

    async def _poll_due(self) -> None:
        space, runtime = self._runtime.space, self._runtime
        start, end = space.key("timer").within()
        self._next_due = None
        while len(self._ready) < max(PAGE, AHEAD * self._capacity.runs):
            page = await space.scan(start, end, limit=PAGE)
            runtime.saw(page.at)
            due = {record: Instant(int(record.key.parts[-2])) for record in page.records.values()}
            await self._sort_due({record: at for record, at in due.items() if at <= page.at and self._is_new(record)})
            if (later := min((at for at in due.values() if at > page.at), default=None)) is not None:
                earlier = self._next_due  # meanwhile, of what has just been put on the index
                self._next_due = later if earlier is None else min(later, earlier)
                return
            if page.more is None:
                return
            start = page.more  # also past those that stay: of workflows that are not here
            await asyncio.sleep(0)
        self._next_due = Instant(0)  # there is more, and it is looked at when these are claimed

    def _is_new(self, record: Record) -> bool:
        name = record.key.parts[-1]
        return name not in self._ready and name not in self._claiming and self._is_for_here(record)

    async def _sort_due(self, due: dict[Record, Instant]) -> None:
        """Find out what is due: runs to claim, lines to reap, schedules, limits, and what earlier waits left behind."""
        space, page = self._runtime.space, self._runtime.space.at_most(100)
        for schedule in [record for record in due if record.key.parts[-1].startswith("@")]:
            at = due.pop(schedule)
            if schedule.key.parts[-1].startswith(OVERRIDE):
                self._own(self._safely(end_override(self._runtime, schedule)))
            elif self.on_schedule is not None:
                self._own(self._safely(self.on_schedule(schedule.key.parts[-1][1:], at, schedule)))
        records = list(due)
        for first in range(0, len(records), page):
            some = {record: RunKeys(space, record.key.parts[-1]) for record in records[first : first + page]}
            seen = await space.read(*(keys.state for keys in some.values()))
            for record, keys in some.items():
                await self._safely(self._due(record, due[record], keys, seen.get(keys.state)))

    async def _due(self, record: Record, at: Instant, keys: RunKeys, state: Record | None) -> None:
        if state is None or RUN_STATES.decode(state.value).until != at:
            await self._runtime.space.commit(Delete(record.key, record.version))  # left behind by an earlier wait
        elif DUES.decode(record.value).look_at:
            await reap_waited_line(self._runtime, keys, state, record)
        elif self._runtime.has_code_of(keys.id, RUN_STATES.decode(state.value)):
            self._ready[keys.id] = None

    # --- the end -------------------------------------------------------------------------------------------------

    async def stop(self, grace: float = GRACE) -> None:
        """Hand every run back: steps get some time to end, then they are cancelled."""
        self.is_stopping = True
        self._notified.set()
        if self._main is not None:
            await asyncio.gather(self._main, return_exceptions=True)
        self._end_pulse()
        loaded = [each for each in self._runtime.loaded.values() if each.claim is not None]
        under_way = [
            f"{each.keys.id} ({branch.step})"
            for each in loaded
            for branch in each.branches
            if branch.is_in_effect or branch.is_beginning
        ]
        tell_waits(self._runtime.hooks, self._runtime.clock, under_way, grace)
        hurried = asyncio.ensure_future(self._hurried.wait())
        await asyncio.gather(*(self._release(each, grace, hurried) for each in loaded), return_exceptions=True)
        hurried.cancel()
        for task in (self._listening, self._indexing, self._sentinel):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        left = [each for each in loaded if not each.over.done()]
        if self._tasks:  # steps that do not end when they are cancelled are left to themselves
            await asyncio.wait(self._tasks, timeout=LAST if left else None)
        for each in left:
            if not each.over.done() and each.keys.id not in self._left:
                self._left.add(each.keys.id)
                told = RunLeftBehind(at=self._runtime.clock.wall(), run=each.keys.id, workflow=each.workflow.name)
                self._runtime.emit(told)

    def stop_dead(self) -> set[asyncio.Task[Any]]:
        """Stop as if the process had died, and return the tasks that are left to end; for tests."""
        self.is_stopping = True
        self._end_pulse()
        loops = {task for task in (self._main, self._listening, self._indexing, self._sentinel) if task is not None}
        for task in loops:
            task.cancel()
        return loops | self._tasks

    async def _release(self, activation: Activation, grace: float, hurried: asyncio.Future[Any]) -> None:
        """Hand one run back: as soon as none of its steps is under way."""
        if activation in self._runtime.idle and all(wait.is_turn for wait in activation.waits):
            await self._safely(suspend(activation))  # there is nothing to do before its turn, which makes it ready
            if activation.is_handed_back:
                return
        activation.stop()
        if any(branch.is_in_effect or branch.is_beginning for branch in activation.branches):
            ends: set[asyncio.Future[Any]] = {activation.over, hurried}
            await asyncio.wait(ends, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        if activation.ended is None and not activation.is_evicted and not activation.is_handed_back:
            activation.unload()
            await asyncio.wait({activation.over}, timeout=GRACE)
            if activation.ended is None and not activation.is_evicted:
                await self._safely(release(activation, "a worker"))

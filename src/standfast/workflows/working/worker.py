"""The worker of an engine: finds runs that can go on, drives them, and looks after those of workers that died.

Hints tell what is ready; the timer index tells what is due; now and then it looks by itself, in case a hint was lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, final

from standfast.clock import Instant, seconds_between
from standfast.errors import StandfastError
from standfast.events import LoopHeldUp, RunLeftBehind, WorkerFails
from standfast.stores.protocol import Delete
from standfast.workflows.running.control import Unload
from standfast.workflows.running.driving import drive, is_resting, release, suspend
from standfast.workflows.storing.records import DUES, LIVES, RunKeys
from standfast.workflows.working.claiming import bury, claim, find_dead, workers_of
from standfast.workflows.working.looking_after import look_after
from standfast.workflows.working.paging import PAGE, matching

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from standfast.keys import RecordKey
    from standfast.stores.protocol import Record, Watch
    from standfast.workflows.running.activation import Activation
    from standfast.workflows.running.host import Host

LOOK_EVERY: Final = 1.0
"""Seconds between two looks for what hints may have missed."""

PROBE_EVERY: Final = 0.05
"""Seconds between two looks at the lifelines of other workers, where the store can see a process die."""

FLUSH_AFTER: Final = 0.02
"""Seconds after which marks are written though nothing needs them to be."""

HELD_UP: Final = 0.5
"""A worker that wakes up so many seconds too late says so: something blocks its event loop."""

GRACE: Final = 5.0
"""Seconds that steps get to end when a worker is stopped."""

LAST: Final = 1.0
"""Seconds that are waited for what is left to do when every run is handed back."""


@final
class Worker:
    """Drives the runs of one engine."""

    def __init__(self, host: Host, *, linger: float, most_loaded: int) -> None:
        self._host, self._linger, self._most_loaded = host, linger, most_loaded
        self._tasks: Final[set[asyncio.Task[Any]]] = set()
        self._left: Final[set[str]] = set()
        self._news: Final = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._ready: Final[dict[str, None]] = {}
        self._claiming: Final[dict[str, asyncio.Task[Any]]] = {}
        self._next_due: Instant | None = Instant(0)
        self._lifelines: dict[str, str] = {}
        self._met, self._problem = False, ""
        self._looked_at = -1e9
        self._probed_at = -1e9
        self.is_stopping = self._resting = False
        self._hurried: Final = asyncio.Event()
        self.on_schedule: Callable[[str, Instant, Record], Awaitable[None]] | None = None
        host.poke, host.take, host.look_again = self._news.set, self.take, self._hear_ready
        host.has_room = self._has_room

    async def start(self) -> None:
        """Begin to hear hints and to look."""
        space = self._host.space
        watch = space.watch(space.key("ready"), space.key("timer"), space.key("worker"))
        await watch.__aenter__()
        self._hearing = asyncio.get_running_loop().create_task(self._hear(watch))
        self._main = asyncio.get_running_loop().create_task(self._run())

    async def join(self) -> None:
        """Wait until the worker has stopped. If that is because of an error that nobody expected, raise it."""
        if self._main is not None:
            await asyncio.shield(self._main)

    def hurry(self) -> None:
        """Wait no longer for steps to end, if the worker is being stopped."""
        self._hurried.set()

    def take(self, activation: Activation) -> None:
        """Drive a run that is claimed, unless it is in memory already under the same claim."""
        present = self._host.loaded.get(activation.keys.id)
        if present is not None and not present.is_unloading and present.fence >= activation.fence:
            return  # found by its owner's record before whoever has started it came to say so
        if self.is_stopping:
            self._own(self._safely(release(activation, "a worker")))
            return
        self._host.loaded[activation.keys.id] = activation
        self._own(drive(activation))

    def _has_room(self) -> bool:
        return len(self._host.loaded) < self._most_loaded and not self.is_stopping

    def begin(self, work: Awaitable[object]) -> None:
        """Do something beside the runs; should the store fail, it is given up."""
        self._own(self._safely(work))

    def _own(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- hints ---------------------------------------------------------------------------------------------------

    async def _hear(self, watch: Watch) -> None:
        try:
            while (hint := await watch.wait()) is not None:
                if not hint.complete:
                    self._looked_at = -1e9
                for key in hint.about:
                    self._heard(key)
                self._news.set()
        finally:
            await watch.__aexit__()

    def _heard(self, key: RecordKey) -> None:
        kind, *parts = key.parts[2:]
        if kind == "ready":
            self._hear_ready(parts[0])
        elif kind == "worker":
            self._met = True
        elif kind == "timer" and parts:
            at = Instant(int(parts[0]))
            if self._next_due is None or at < self._next_due:
                self._next_due = at

    def _hear_ready(self, run_id: str) -> None:
        activation = self._host.loaded.get(run_id)
        if activation is not None and activation.claim is not None:
            activation.poke()
        else:
            self._ready[run_id] = None
            self._news.set()

    # --- rounds --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self.is_stopping:
            self._news.clear()
            try:
                await self._round()
                self._problem = ""
            except StandfastError as problem:
                self._tell(problem)
                await asyncio.sleep(FLUSH_AFTER)  # the store is in trouble: try again
            if not self._news.is_set():
                await self._rest()

    def _tell(self, problem: StandfastError) -> None:
        if type(problem).__name__ != self._problem:
            self._problem = type(problem).__name__
            self._host.emit(WorkerFails(at=self._host.clock.wall(), problem=f"{self._problem}: {problem}"))

    async def _rest(self) -> None:
        self._resting = True
        loop, seconds = asyncio.get_running_loop(), self._seconds_to_rest()
        began = loop.time()
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            late = loop.time() - began - seconds
            if late > HELD_UP:
                self._host.emit(LoopHeldUp(at=self._host.clock.wall(), seconds=late))
        finally:
            self._resting = False

    @property
    def is_at_rest(self) -> bool:
        """Whether there is nothing to do before some time has passed or somebody brings news."""
        return self._resting and not (self._news.is_set() or self._ready or self._claiming or self._host.dirty)

    def look_now(self) -> None:
        """Look at everything in the next round, which begins at once."""
        self._looked_at, self._next_due = -1e9, Instant(0)
        self._news.set()

    def _seconds_to_rest(self) -> float:
        host = self._host
        rest = LOOK_EVERY
        if self._lifelines and host.space.store.capabilities.sees_process_death:
            rest = PROBE_EVERY
        if host.dirty:
            rest = min(rest, FLUSH_AFTER)
        if host.idle:
            rest = min(rest, max(0.01, self._linger))
        now = host.now()
        for instant in (host.next_alarm(), self._next_due):
            if instant is not None:
                rest = min(rest, max(0.0, seconds_between(now, instant)))
        return max(rest, 0.001)

    async def _round(self) -> None:
        host, loop = self._host, asyncio.get_running_loop()
        if host.worker is not None and not host.may_act():
            host.lost_presence()
        host.ring()
        self._write_what_lies_about()
        for activation in [each for each in host.idle if is_resting(each, self._linger)]:
            self._own(self._safely(suspend(activation)))
        if loop.time() - self._looked_at >= LOOK_EVERY:
            self._looked_at = loop.time()
            await self._look_around()
        elif self._met:  # another worker has come or gone: from now on its death is to be seen
            self._met = False
            await self.bury_the_dead()
        elif self._lifelines and loop.time() - self._probed_at >= PROBE_EVERY:
            self._probed_at = loop.time()
            if any(host.space.store.is_severed(lifeline) for lifeline in self._lifelines.values()):
                await self.bury_the_dead()
        if self._next_due is not None and self._next_due <= host.now():
            await self._take_due()
        await self._take_ready()

    def _write_what_lies_about(self) -> None:
        for activation in tuple(self._host.dirty):
            if activation.journal is not None and not activation.journal.is_flushing:
                self._own(self._safely(activation.flush()))

    async def _safely(self, work: Awaitable[object]) -> None:
        try:
            await work
        except (StandfastError, Unload):
            return

    async def _take_ready(self) -> None:
        room = self._most_loaded - len(self._host.loaded)
        some = [run_id for run_id in self._ready if run_id not in self._claiming][: max(0, room)]
        for run_id in some:
            del self._ready[run_id]
        await self._take_all(some)

    async def _take_all(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            if run_id not in self._claiming and not self.is_stopping:
                self._begin_taking(run_id)

    def _begin_taking(self, run_id: str) -> asyncio.Task[Any]:
        task = self._own(self._take_one(run_id))
        if not task.done():
            self._claiming[run_id] = task
        return task

    async def look_at(self, run_id: str) -> None:
        """Take a run up now if it can be. One that is being taken up is not taken up a second time."""
        if not self.is_stopping:
            await asyncio.shield(self._claiming.get(run_id) or self._begin_taking(run_id))

    async def _take_one(self, run_id: str) -> None:
        try:
            loaded = self._host.loaded.get(run_id)
            if loaded is not None:
                loaded.poke()
                return
            activation = await claim(self._host, run_id)
            if activation is not None:
                if self.is_stopping:
                    await release(activation, "a worker")
                else:
                    self.take(activation)
        except StandfastError:
            return  # its flag is still there, and found by the next look; not at once, for it may never be readable
        finally:
            self._claiming.pop(run_id, None)
            if self._ready:  # perhaps for want of room
                self._news.set()

    # --- looking by itself ---------------------------------------------------------------------------------------

    async def _look_around(self) -> None:
        space = self._host.space
        async for record in matching(space, *space.key("ready").within(), self._is_for_here, limit=self._most_loaded):
            self._hear_ready(record.key.parts[-1])
        for activation in [
            each for each in self._host.loaded.values() if each.news.is_waiting and not each.news.is_looking
        ]:
            activation.poke()  # the store failed when it looked for news
        if self._host.worker is not None:
            own = space.key("own", self._host.worker.presence)
            async for record in matching(space, *own.within(), self._is_for_here, limit=self._most_loaded):
                if record.key.parts[-1] not in self._host.loaded:
                    self._ready[record.key.parts[-1]] = None
        self._next_due = Instant(0)
        await self.bury_the_dead()

    def _is_for_here(self, record: Record) -> bool:
        """Tell whether the code of a run may be here; those that wait for other code must not be in the others' way."""
        return not self._host.is_left_alone(record.key.parts[-1])

    async def bury_the_dead(self) -> None:
        """Make the runs of workers that died ready for others."""
        host = self._host
        workers = await workers_of(host.space)
        own = "" if host.worker is None else host.worker.presence
        dead, self._lifelines = await find_dead(host.space, [name for name in workers if name != own])
        for name in dead:
            await bury(host, name, workers[name])

    async def _take_due(self) -> None:
        space, host = self._host.space, self._host
        room = self._most_loaded - len(host.loaded)
        start, end = space.key("timer").within()
        self._next_due = None
        while room > 0:
            page = await space.scan(start, end, limit=PAGE)
            host.saw(page.at)
            for record in page.records.values():
                at = Instant(int(record.key.parts[-2]))
                if at > page.at:
                    heard = self._next_due  # meanwhile, of what has just been put on the index
                    self._next_due = at if heard is None else min(at, heard)
                    return
                if self._is_for_here(record):
                    await self._safely(self._due(record, at))
                    room -= self._is_for_here(record)
            if page.more is None:
                return
            start = page.more  # also past those that stay: of workflows that are not here

    async def _due(self, record: Record, at: Instant) -> None:
        name = record.key.parts[-1]
        if name.startswith("@") and self.on_schedule is not None:
            self._own(self._safely(self.on_schedule(name[1:], at, record)))
            return
        keys = RunKeys(self._host.space, name)
        seen = await self._host.space.read(keys.life)
        life = seen.get(keys.life)
        if life is None or LIVES.decode(life.value).until != at:
            await self._host.space.commit(Delete(record.key, record.version))  # left behind by an earlier wait
        elif DUES.decode(record.value).look_at:
            await look_after(self._host, keys, life, record)
        elif not self._host.has_code_of(name, LIVES.decode(life.value)):
            return
        else:
            await self._take_all([name])

    # --- the end -------------------------------------------------------------------------------------------------

    async def stop(self, grace: float = GRACE) -> None:
        """Hand every run back: steps get some time to end, then they are cancelled."""
        self.is_stopping = True
        self._news.set()
        if self._main is not None:
            await asyncio.gather(self._main, return_exceptions=True)
        loaded = [each for each in self._host.loaded.values() if each.claim is not None]
        hurried = asyncio.ensure_future(self._hurried.wait())
        await asyncio.gather(*(self._let_go(each, grace, hurried) for each in loaded), return_exceptions=True)
        hurried.cancel()
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)
        left = [each for each in loaded if not each.over.done()]
        if self._tasks:  # steps that do not end when they are cancelled are left to themselves
            await asyncio.wait(self._tasks, timeout=LAST if left else None)
        self._tell_left(left)

    def _tell_left(self, activations: list[Activation]) -> None:
        for each in activations:
            if not each.over.done() and each.keys.id not in self._left:
                self._left.add(each.keys.id)
                told = RunLeftBehind(at=self._host.clock.wall(), run=each.keys.id, workflow=each.workflow.name)
                self._host.emit(told)

    def stop_dead(self) -> set[asyncio.Task[Any]]:
        """Stop as if the process had died, and return the tasks that are left to end; for tests."""
        self.is_stopping = True
        loops = {task for task in (self._main, self._hearing) if task is not None}
        for task in loops:
            task.cancel()
        return loops | self._tasks

    async def _let_go(self, activation: Activation, grace: float, hurried: asyncio.Future[Any]) -> None:
        """Hand one run back: as soon as none of its steps is under way."""
        activation.stop()
        if any(branch.is_in_effect for branch in activation.branches):
            ends: set[asyncio.Future[Any]] = {activation.over, hurried}
            await asyncio.wait(ends, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        await self._hand_back(activation)

    async def _hand_back(self, activation: Activation) -> None:
        if activation.ended is None and not activation.is_deposed and not activation.is_handed_back:
            activation.unload()
            await asyncio.wait({activation.over}, timeout=GRACE)
            if activation.ended is None and not activation.is_deposed:
                await self._safely(release(activation, "a worker"))

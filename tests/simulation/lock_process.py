"""Simulated processes on one memory: each with a wire of its own that fails, stalls, or falls silent for ever."""

from __future__ import annotations

import asyncio
import contextlib
import random
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakKeyDictionary

from msgspec import structs

from standfast.errors import StoreError, StoreUnavailableError
from standfast.events import Hooks
from standfast.space import Space
from standfast.stores import GroupedStore
from standfast.stores.memory import CAPABILITIES
from standfast.testing import Faults, SimulatedLoop, VirtualClock
from standfast.testing.faults import Dice, Fate, lost, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.backend import Applied, RiderBatch, Subscriber
    from standfast.stores.memory import MemoryRecords
    from standfast.stores.protocol import Capabilities, Record, Snapshot, Wake

    Saw = Callable[["Process", Applied], None]

CALM: Final = Faults()
ROUGH_DAYS: Final = (
    CALM,
    Faults(delay=0.3, drop_hint=0.2, double_hint=0.2, delay_hint=0.3),
    Faults(lose_reply=0.1, land_late=0.05, fail_settle=0.2, delay=0.2, drop_hint=0.5),
    Faults(refuse=0.1, lose_request=0.05, lose_reply=0.05, fail_read=0.1, double_hint=0.3),
)
"""What may go wrong on one wire; each process draws one of these."""

_process: Final[ContextVar[Process | None]] = ContextVar("process", default=None)


@final
class Process:
    """One process: it can be cut off for a while, or die; all of its tasks are known."""

    def __init__(self, name: str, seed: int, memory: MemoryRecords, saw: Saw) -> None:
        self.name: Final = name
        self.memory: Final = memory
        self.is_dead = False
        self.requests = 0
        self.sees_deaths = False
        self.liveness_tokens: dict[str, Process] = {}
        self._saw: Final = saw
        self._random: Final = random.Random(seed)
        self._has_last_words = False
        self._stalled: asyncio.Future[None] | None = None
        self._grave: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self.dice = Dice(self._random.choice(ROUGH_DAYS), seed)
        self.faults = self.dice._faults
        self.clock: Final = VirtualClock(asyncio.get_running_loop())
        self.clock.step_wall(self._random.uniform(-3, 3))

    def open(self, lease: float) -> Space:
        """Open the space of this process."""
        store = GroupedStore(Wire(self))
        return Space(store, lease=lease, hooks=Hooks([lambda _: None]), clock=self.clock)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that belongs to this process, as whatever it starts does."""
        token = _process.set(self)
        try:
            return asyncio.get_running_loop().create_task(work)
        finally:
            _process.reset(token)

    # --- faults --------------------------------------------------------------------------------------------------

    def stall(self) -> None:
        """Let nothing through until :meth:`resume`."""
        if self._stalled is None:
            self._stalled = asyncio.get_running_loop().create_future()

    def resume(self) -> None:
        """Let everything through that was held up."""
        stalled, self._stalled = self._stalled, None
        if stalled is not None:
            stalled.set_result(None)
            self.clock.step_wall(self._random.uniform(-2, 2))

    async def stall_for(self, seconds: float) -> None:
        """Let nothing through for a while."""
        self.stall()
        await asyncio.sleep(seconds)
        self.resume()

    def die(self) -> None:
        """Stop dead: nothing is cleaned up, though a request that was on its way may still arrive."""
        self.is_dead = True
        self._has_last_words = self._random.random() < 0.5

    def discard(self) -> None:
        """Let the tasks of a dead process end, once nobody looks any more."""
        if self.is_dead and not self._grave.done():
            self._grave.set_exception(StoreUnavailableError(self.name, "its process has died"))
            self._grave.exception()

    def calm_down(self) -> None:
        """Have no more faults."""
        self.dice, self.faults = Dice(CALM, 0), CALM
        self.resume()

    @property
    def is_still(self) -> bool:
        """Whether nothing gets through at the moment."""
        return self.is_dead or self._stalled is not None

    async def awake(self) -> None:
        """Wait until it is neither stalled nor dead: for ever, perhaps."""
        while self._stalled is not None:
            await asyncio.shield(self._stalled)
        if self.is_dead:
            await asyncio.shield(self._grave)

    def answers_late(self) -> bool:
        """Tell whether a request still arrives although the process is cut off; its answer does not."""
        if self.is_dead:
            had, self._has_last_words = self._has_last_words, False
            return had
        return self._stalled is not None and self._random.random() < 0.5

    def land(self, batch: RiderBatch) -> Applied:
        """Apply a batch, for everybody to see."""
        applied = self.memory.apply(batch)
        if applied.changed:
            self._saw(self, applied)
        return applied


@final
class Wire:
    """The backend of one handle of a process: the shared memory, as far as it can be reached."""

    def __init__(self, process: Process) -> None:
        self._process: Final = process
        self._memory: Final = process.memory
        self._fates: Final[dict[str, Fate]] = {}
        self._late: Final[set[asyncio.Task[None]]] = set()

    @property
    def capabilities(self) -> Capabilities:
        """Those of the memory, perhaps with file_locks."""
        return structs.replace(CAPABILITIES, sees_process_death=self._process.sees_deaths)

    @property
    def name(self) -> str:
        """The name of the process."""
        return self._process.name

    def apply_now(self, batch: RiderBatch) -> Applied | None:
        """Apply the batch on the loop, unless something is to go wrong with it."""
        process = self._process
        process.requests += 1
        fate = process.dice.fate()
        if fate is not Fate.FINE or process.is_still or process.dice.happens(process.faults.delay):
            self._fates[batch.attempt] = fate
            return None
        return process.land(batch)

    async def apply(self, batch: RiderBatch) -> Applied:
        """Apply the batch, or not, or tell a lie about it."""
        process, fate = self._process, self._fates.pop(batch.attempt, None) or self._process.dice.fate()
        await process.dice.linger()
        if fate is Fate.REFUSED:
            raise refusal(self.name, "commit")
        if fate is Fate.LATE:
            self._start(self._land_late(batch))
        if fate in (Fate.LATE, Fate.REQUEST_LOST):
            raise lost(self.name, batch.attempt)
        applied = process.land(batch) if process.is_still and process.answers_late() else None
        await process.awake()
        applied = applied or process.land(batch)
        if fate is Fate.REPLY_LOST:
            raise lost(self.name, batch.attempt)
        return applied

    async def _land_late(self, batch: RiderBatch) -> None:
        await asyncio.sleep(self._process.dice.moment())
        with contextlib.suppress(StoreError):  # it came too late: its attempt has been closed
            self._process.land(batch)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def settle(self, attempt: str) -> Applied | None:
        """Close an attempt."""
        await self._process.dice.before_settling(self.name, attempt)
        await self._process.awake()
        return self._memory.settle(attempt)

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records; an answer may be old when it arrives."""
        self._process.requests += 1
        await self._process.dice.before_reading(self.name)
        if self._process.is_still and self._process.answers_late():
            seen = self._memory.read(keys)
            await self._process.awake()
            return seen
        await self._process.awake()
        seen = self._memory.read(keys)
        await self._process.dice.linger()  # the answer, too, takes its time
        await self._process.awake()
        return seen

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of a range."""
        self._process.requests += 1
        await self._process.dice.before_reading(self.name)
        await self._process.awake()
        seen = self._memory.scan(start, end, limit=limit, reverse=reverse)
        await self._process.dice.linger()
        await self._process.awake()
        return seen

    def subscribe(self, prefixes: tuple[RecordKey, ...], subscriber: Subscriber) -> Callable[[], None]:
        """Listen, with some hints lost, doubled or late."""
        return self._memory.subscriptions.subscribe(prefixes, _Subscriber(subscriber, self._process))

    def notify(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Send hints; what becomes of them is decided where they arrive."""
        self._memory.subscriptions.notify(changed, wakes)

    async def another(self) -> Wire:
        """Open another handle of the same process."""
        await self._process.awake()
        return Wire(self._process)

    def liveness_token(self) -> str:
        """Return the name of the process, where deaths are seen."""
        return self.name if self._process.sees_deaths else ""

    def is_dead(self, token: str) -> bool:
        """Tell whether the process of that name has died."""
        return token in self._process.liveness_tokens and self._process.liveness_tokens[token].is_dead

    async def aclose(self) -> None:
        """Wait for what lands late."""
        await asyncio.gather(*self._late)


@final
class _Subscriber:
    """An subscriber that mishears."""

    __slots__ = ("_process", "_subscriber")

    def __init__(self, subscriber: Subscriber, process: Process) -> None:
        self._subscriber, self._process = subscriber, process

    def notify(self, about: RecordKey | None, moved: Record | None = None) -> None:
        """Pass a hint on: not at all, once or twice, now or later."""
        dice, faults = self._process.dice, self._process.faults
        if self._process.is_dead or dice.happens(faults.drop_hint):
            return
        if dice.happens(faults.double_hint):
            self._subscriber.notify(about, moved)
        if dice.happens(faults.delay_hint):
            asyncio.get_running_loop().call_later(dice.moment(), self._subscriber.notify, about, moved)
        else:
            self._subscriber.notify(about, moved)


@final
class Roster:
    """Which process each task of the loop belongs to: the one whose task or callback started it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop: Final = loop
        self._processes: Final[WeakKeyDictionary[asyncio.Task[Any], Process | None]] = WeakKeyDictionary()
        loop.set_task_factory(self._start)

    def _start(self, loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
        process, context = _process.get(), options.get("context")
        if context is not None:  # a context of its own, as the keeper's: what it starts belongs to the process, too
            context.run(_process.set, process)
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        self._processes[task] = process
        return task

    def left(self) -> list[str]:
        """Say which tasks of processes that live have not ended."""
        living = [task for task in self._loop.unfinished_tasks() if not self._is_dead(task)]
        return [str(task.get_coro()) for task in living if self._processes.get(task) is not None]

    def _is_dead(self, task: asyncio.Task[Any]) -> bool:
        process = self._processes.get(task)
        return process is not None and process.is_dead

"""One seed of durable locks: contenders in several processes, what goes wrong, and what must be true at the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final, cast, final

from msgspec import Struct

from holdfast.errors import HoldfastError, StoreError
from holdfast.stores.memory import Memory
from holdfast.stores.protocol import Conflict, Put
from holdfast.testing import VirtualClock
from tests.simulation.lock_process import Process, Roster
from tests.simulation.lock_watch import Attempt, LockWatch

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from holdfast.locks.hold import Hold, Holding
    from holdfast.space import Space
    from holdfast.testing import SimulatedLoop

CROWDED: Final = 0.02
"""How often there are more contenders than a step of a line has in sight."""

PATIENCE: Final = 120.0
"""Seconds after the last fault by which everybody has had a turn."""


class Lock(Struct, frozen=True):
    """A key and what is locked by it."""

    name: str
    kind: str
    permits: int | None = 1

    def on(self, space: Space) -> Any:
        """Return the lock in one process's space."""
        if self.kind == "mutex":
            return space.mutex(self.name)
        if self.kind == "semaphore":
            return space.semaphore(self.name, permits=self.permits or 1)
        return space.mode_lock(self.name, modes=("read", "append"), alone=("write",))


@final
class Site:
    """One process with its space."""

    def __init__(self, world: World, number: int) -> None:
        self.process: Final = Process(f"process {number}", world.chance.randrange(2**32), world.memory, world.watch.saw)
        self.process.sees_deaths, self.process.lifelines = world.sees_deaths, world.lifelines
        world.lifelines[self.process.name] = self.process
        self.space: Final = self.process.open(world.lease)


@final
class World:
    """Everything that one seed decides."""

    def __init__(self, seed: int) -> None:
        self.chance: Final = random.Random(seed)
        loop = cast("SimulatedLoop", asyncio.get_running_loop())
        self.memory: Final = Memory(clock=VirtualClock(loop))
        self.watch: Final = LockWatch(self.memory)
        self.roster: Final = Roster(loop)
        self.lease: Final = self.chance.uniform(0.5, 2.5)
        self.sees_deaths: Final = self.chance.random() < 0.2
        self.lifelines: Final[dict[str, Process]] = {}
        self.locks: Final = [self._lock(number) for number in range(self.chance.choice((1, 1, 2, 3)))]
        self.sites: Final = [Site(self, number) for number in range(self.chance.choice((2, 2, 3, 4)))]
        crowd = range(self.chance.randint(20, 30) if self.chance.random() < CROWDED else self.chance.randint(3, 8))
        self.contenders: Final = [Contender(self, self.chance.choice(self.sites), f"{number}") for number in crowd]

    def _lock(self, number: int) -> Lock:
        kind = self.chance.choice(("mutex", "mutex", "semaphore", "mode lock"))
        permits = {"mutex": 1, "semaphore": self.chance.randint(1, 4), "mode lock": None}[kind]
        lock = Lock(f"key {number}", kind, permits)
        self.watch.permits[lock.name] = permits
        self.watch.alone[lock.name] = ("write",) if permits is None else ()
        return lock

    def living(self) -> list[Site]:
        """Return the processes that have not died."""
        return [site for site in self.sites if not site.process.is_dead]

    # --- what goes wrong -----------------------------------------------------------------------------------------

    async def trouble(self) -> None:
        """Let a few things happen, one after the other."""
        for _ in range(self.chance.choice((0, 1, 1, 2, 3))):
            await asyncio.sleep(self.chance.uniform(0, 1.2))
            await self.chance.choice((self._death, self._death, self._stall, self._stall, self._force, self._resize))()

    async def _death(self) -> None:
        site = self.chance.choice(self.living())
        if len(self.living()) > 1:
            site.process.die()

    async def _stall(self) -> None:
        site = self.chance.choice(self.living())
        site.process.stall()
        await asyncio.sleep(self.lease * self.chance.uniform(0.2, 2.5))
        site.process.resume()

    async def _force(self) -> None:
        """Turn somebody out, as an operator does."""
        lock = self.chance.choice(self.locks)
        entries = self.watch.entries(lock.name)
        if entries:
            entry = self.chance.choice(entries)
            self.watch.attempts[entry.note].is_forced = True
            await self._operate(lock.on(self.chance.choice(self.living()).space).force_release(entry.id))

    async def _resize(self) -> None:
        """Change the number of permits; until that is done, the larger one counts."""
        lock = self.chance.choice(self.locks)
        if lock.kind != "semaphore":
            return
        before, permits = self.watch.permits[lock.name] or 0, self.chance.randint(1, 4)
        self.watch.permits[lock.name] = max(before, permits)
        if await self._operate(lock.on(self.chance.choice(self.living()).space).resize(permits)):
            self.watch.permits[lock.name] = permits

    async def _operate(self, work: Coroutine[Any, Any, object]) -> bool:
        try:
            async with asyncio.timeout(2 * self.lease):
                await work
        except (StoreError, TimeoutError):
            return False
        return True

    # --- from the first to the last ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Let everybody contend, then let the faults stop, and look at what is left."""
        crowd = {contender.site.process.start(contender.run()): contender for contender in self.contenders}
        for task, contender in crowd.items():
            contender.task = task
        await self.trouble()
        await asyncio.sleep(self.chance.uniform(0, 1))
        for site in self.sites:
            site.process.calm_down()
        await self._finished([task for task, each in crowd.items() if not each.site.process.is_dead])
        if not self.watch.problems:
            await self._rest()

    async def bury(self) -> None:
        """Let the tasks of the dead end: no simulation should leave any behind."""
        dead = [site for site in self.sites if site.process.is_dead]
        for site in dead:
            site.space._lines.is_closing = True
            site.process.bury()
        tasks = [each.task for each in self.contenders if each.task is not None and each.site in dead]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for site in dead:
            await site.space.aclose()

    async def _finished(self, living: list[asyncio.Task[None]]) -> None:
        """Everybody gets a turn, or gives up, once the faults have stopped."""
        if not living:
            return
        _, waiting = await asyncio.wait(living, timeout=PATIENCE)
        self.watch.demand(not waiting, f"liveness: {len(waiting)} wait for ever")
        for task in living:
            if task.done() and not task.cancelled() and (problem := task.exception()) is not None:
                raise problem

    async def _rest(self) -> None:
        """Nothing is left: no task, no record, and no place of anybody who lives."""
        await asyncio.sleep(2 * self.lease)
        dead = {site.process.name for site in self.sites if site.process.is_dead}
        for name in self.watch.lines:
            for entry in self.watch.entries(name):
                owner = self.watch.attempts[entry.note].process.name
                self.watch.demand(owner in dead, f"rest: {entry.note} is still in the line of {name}")
        for site in self.living():
            await site.process.start(site.space.aclose())
        await asyncio.sleep(0)
        self.watch.demand(not self.roster.left(), f"rest: tasks are left: {self.roster.left()}")
        await asyncio.sleep(self.lease)
        await self._tidy()
        rows = [row for row in self.watch.rows() if not (dead and "waiting" in row) and "turned-out" not in row]
        self.watch.demand(not rows, f"rest: records are left: {rows[:5]}")

    async def _tidy(self) -> None:
        """Take every lock once: what the dead have left goes, and the next one is served."""
        last = Site(self, 99)
        last.process.calm_down()
        for lock in self.locks:
            if self.watch.lines.get(lock.name, None) is None or self.watch.lines[lock.name].head is None:
                continue
            if lock.kind == "semaphore":
                self.watch.permits[lock.name] = lock.permits
                await lock.on(last.space).forget_size()
            contender = Contender(self, last, f"last/{lock.name}", asks_for_all=True)
            contender.task = last.process.start(contender.take(lock, {"timeout": 10 * self.lease}))
            try:
                await contender.task
            except HoldfastError as problem:
                self.watch.demand(False, f"liveness: {lock.name} is not free at the end: {type(problem).__name__}")
        await last.space.aclose()


@final
class Contender:
    """One task of one process that takes locks, writes by them, and gives up at times."""

    def __init__(self, world: World, site: Site, name: str, *, asks_for_all: bool = False) -> None:
        self.world, self.site, self.name, self._asks_for_all = world, site, name, asks_for_all
        self.chance: Final = random.Random(world.chance.random())
        self.task: asyncio.Task[None] | None = None
        self._attempts = 0

    async def run(self) -> None:
        """Take a lock a few times."""
        if self.chance.random() < 0.15:
            asyncio.get_running_loop().call_later(self.chance.uniform(0, 4), self._give_up)
        for _ in range(self.chance.choice((1, 1, 2))):
            await asyncio.sleep(self.chance.choice((0.0, self.chance.uniform(0, 2))))
            lock = self.chance.choice(self.world.locks)
            with contextlib.suppress(HoldfastError):  # too late, too heavy, taken, lost: all of it may be
                await self.take(lock, self._options())

    def _give_up(self) -> None:
        if self.task is not None and not self.site.process.is_dead:
            self.task.cancel()

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"on_lost": self.chance.choice(("cancel", "tell"))}
        if self.chance.random() < 0.4:
            options["timeout"] = self.chance.uniform(0, 3)
        if self.chance.random() < 0.1:
            options["max_hold"] = self.chance.uniform(0.1, 1)
        return options

    async def take(self, lock: Lock, options: dict[str, Any]) -> None:
        """Hold a lock for a while."""
        attempt = Attempt(f"{self.name}.{self._attempts}", self.site.process)
        self._attempts += 1
        self.world.watch.attempts[attempt.note] = attempt
        async with self._holding(lock, attempt, {**options, "note": attempt.note}) as hold:
            attempt.hold, attempt.entry, attempt.is_inside = hold, hold._place.entry.id, True
            try:
                self.world.watch.came_in(lock.name, attempt)
                await self._work(lock, attempt, hold)
            finally:
                attempt.is_inside = False

    def _holding(self, lock: Lock, attempt: Attempt, options: dict[str, Any]) -> Holding:
        on, most = lock.on(self.site.space), lock.permits or 1
        arguments: tuple[Any, ...] = ()
        if lock.kind == "semaphore":
            arguments = (most if self._asks_for_all else self.chance.randint(1, most),)
        elif lock.kind == "mode lock":
            arguments = ("write" if self._asks_for_all else self.chance.choice(("read", "read", "append", "write")),)
        attempt.waits = "timeout" in options or self.chance.random() < 0.8
        return cast("Holding", on.hold(*arguments, **options) if attempt.waits else on.try_hold(*arguments, **options))

    async def _work(self, lock: Lock, attempt: Attempt, hold: Hold) -> None:
        watch, process = self.world.watch, self.site.process
        longest = self.chance.choice((0.0, 0.3, 0.3, 1.5))
        for number in range(self.chance.randint(1, 3)):
            await asyncio.sleep(self.chance.uniform(0, longest))
            if process.is_dead or self.chance.random() < 0.5:
                await process.awake()  # not only its wire stands still, but all of it
            watch.goes_on(lock.name, attempt)
            watch.writes(lock.name, attempt)
            key = self.site.space.key("effect", lock.name, attempt.note, str(number))
            try:
                answer = await self.site.space.commit(Put(key, b""), hold.guard)
            except StoreError:
                continue
            if isinstance(answer, Conflict):
                watch.was_refused(lock.name, attempt)


async def contend(seed: int) -> str:
    """Run one seed, and fail with what was wrong; return what tells its steps from those of another."""
    world = World(seed)
    try:
        await world.run()
    finally:
        await world.bury()
    assert not world.watch.problems, world.watch.problems[0]
    return cast("SimulatedLoop", asyncio.get_running_loop()).trace.digest

"""One seed of durable locks: contenders in several processes, what goes wrong, and what must be true at the end."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final, cast, final

from msgspec import structs

from standfast.errors import StandfastError, StoreError
from standfast.locks import line_records, slot_line
from standfast.locks.registry import CLEARED_WITHIN
from standfast.stores.memory import CAPABILITIES, MemoryRecords
from standfast.testing import VirtualClock
from tests.simulation.lock_contender import Contender, Lock
from tests.simulation.lock_process import Process, Roster
from tests.simulation.lock_watch import LockWatch
from tests.simulation.mutant_hunt import replaced
from tests.simulation.worlds import play, settle_in

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from standfast.testing import SimulatedLoop

CROWDED: Final = 0.02
"""How often there are more contenders than a step of a line has in sight."""

PATIENCE: Final = 120.0
"""Seconds after the last fault by which everybody has had a turn."""


@final
class Site:
    """One process with its space."""

    def __init__(self, world: World, number: int) -> None:
        self.process: Final = settle_in(world, number)
        self.space: Final = self.process.open(world.lease)


@final
class World:
    """Everything that one seed decides."""

    def __init__(self, seed: int) -> None:
        self.chance: Final = random.Random(seed)
        loop = cast("SimulatedLoop", asyncio.get_running_loop())
        is_able = seed % 4 != 3  # some stores cannot choose between alternatives
        self.memory: Final = MemoryRecords(
            clock=VirtualClock(loop), capabilities=structs.replace(CAPABILITIES, alternatives=is_able)
        )
        self.watch: Final = LockWatch(self.memory)
        self.roster: Final = Roster(loop)
        self.lease: Final = self.chance.uniform(0.5, 2.5)
        self.sees_deaths: Final = self.chance.random() < 0.2
        self.liveness_tokens: Final[dict[str, Process]] = {}
        self.locks: Final = [self._lock(number) for number in range(self.chance.choice((1, 1, 2, 3)))]
        self.sites: Final = [Site(self, number) for number in range(self.chance.choice((2, 2, 3, 4)))]
        self.refuses: Final = any(site.process.faults.refuse for site in self.sites)
        crowd = range(self.chance.randint(20, 30) if self.chance.random() < CROWDED else self.chance.randint(3, 8))
        self.contenders: Final = [Contender(self, self.chance.choice(self.sites), f"{number}") for number in crowd]

    def _lock(self, number: int) -> Lock:
        kind = self.chance.choice(("mutex", "mutex", "semaphore", "semaphore", "mode lock"))
        permits = {"mutex": 1, "semaphore": self.chance.randint(2, 4), "mode lock": None}[kind]
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
            faults = (self._death, self._death, self._stall, self._stall, self._stutter, self._force)
            await self.chance.choice((*faults, self._resize, self._resize))()

    def _victim(self) -> Site:
        """Choose a process that lives; usually one that holds something."""
        living = self.living()
        busy = {attempt.process.name for attempt in self.watch.attempts.values() if attempt.is_inside}
        holding = [site for site in living if site.process.name in busy]
        return self.chance.choice(holding if holding and self.chance.random() < 0.7 else living)

    async def _death(self) -> None:
        site = self._victim()
        if len(self.living()) > 1:
            site.process.die()

    async def _stall(self) -> None:
        await self._cut_off(self._victim(), self.chance.uniform(0.2, 2.5))

    async def _stutter(self) -> None:
        """Stall twice: an answer gets through in between, and nothing that is asked because of it."""
        site = self._victim()
        await self._cut_off(site, self.chance.uniform(0.3, 0.9))
        await asyncio.sleep(self.chance.choice((0, self.chance.uniform(0, 0.5 * self.lease))))
        await self._cut_off(site, self.chance.uniform(0.5, 2))

    async def _cut_off(self, site: Site, leases: float) -> None:
        await site.process.stall_for(self.lease * leases)

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
        semaphores = [lock for lock in self.locks if lock.kind == "semaphore"]
        if not semaphores:
            return
        lock = self.chance.choice(semaphores)
        held = sum(holder.entry.weight for holder in self.watch.line(lock.name).holders)
        before, permits = self.watch.permits[lock.name] or 0, self.chance.choice((max(1, held - 1), 1, 2, 3, 4))
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

    async def discard(self) -> None:
        """Let the tasks of the dead end: no simulation should leave any behind."""
        dead = [site for site in self.sites if site.process.is_dead]
        for site in dead:
            site.space._lines.is_closing = True
            site.process.discard()
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
        swept_later = {"turned-out", "past", "waiting"} if dead or self.refuses else {"turned-out", "past"}
        rows = [str(row) for row in self.watch.rows() if row.parts[2] not in swept_later]
        self.watch.demand(not rows, f"rest: records are left: {rows[:5]}")

    async def _tidy(self) -> None:
        """Take every lock once: what the dead have left goes, and the next one is served."""
        last = Site(self, 99)
        last.process.calm_down()
        for lock in self.locks:
            if self.watch.lines.get(lock.name, None) is None or self.watch.lines[lock.name].head is None:
                continue
            if lock.kind == "semaphore":
                self.watch.permits[lock.name] = max(self.watch.permits[lock.name] or 0, lock.permits or 0)
                await lock.on(last.space).forget_size()
                self.watch.permits[lock.name] = lock.permits
            contender = Contender(self, last, f"last/{lock.name}", asks_for_all=True)
            contender.task = last.process.start(contender.take(lock, {"timeout": 10 * self.lease}))
            try:
                await contender.task
            except StandfastError as problem:
                self.watch.demand(False, f"liveness: {lock.name} is not free at the end: {type(problem).__name__}")
            if self.watch.line(lock.name).held:  # the one that let them fall has not deleted their records
                await last.process.start(self._clear(last, lock))
        await last.space.aclose()

    async def _clear(self, site: Site, lock: Lock) -> None:
        """Wait until a process has deleted what is left of the dead that were only counted."""
        await site.space._lines.reap(site.space._lines.line(lock.on(site.space)._address))
        await asyncio.sleep(CLEARED_WITHIN + 1)


async def contend(seed: int) -> str:
    """Run one seed, and fail with what was wrong; return what tells its steps from those of another."""
    return await play(World(seed))


async def contend_counted(seed: int) -> str:
    """Run one seed in which semaphores list no holder, or one, and only count the others, as limits do."""
    counted = ((line_records, "FEW_HOLDERS", seed % 2), (line_records, "LIMIT", "semaphore"))
    with replaced([*counted, (slot_line, "MOST_SLOTS", 0)]):
        return await play(World(seed))

"""One seed of arbitrated requests: servers that die, stall and mishear, and what must be true at the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final, cast, final

from standfast.errors import ArbiterUnavailableError, NotTheSoleServerError, StandfastError
from standfast.flows.arbiter.in_memory import LocalArbiter
from standfast.flows.arbiter.in_store import SharedArbiter
from standfast.flows.arbiter.protocol import Ask, QueueRules
from standfast.stores.memory import MemoryRecords
from standfast.testing import VirtualClock
from tests.simulation.lock_process import Process, Roster
from tests.simulation.request_visitor import Visitor
from tests.simulation.request_watch import RequestWatch
from tests.simulation.worlds import play, settle_in

if TYPE_CHECKING:
    from standfast.testing import SimulatedLoop

PATIENCE: Final = 180.0
"""Seconds after the last fault by which every request has ended."""

KEPT: Final = {"record", "effect", "stop", "superseded", "turned-out", "waiting", "past"}
"""What stays in the store for a while after all have ended."""


@final
class Site:
    """One process with its arbiter."""

    def __init__(self, world: World, number: int) -> None:
        self.process: Final = settle_in(world, number)
        self.space: Final = self.process.open(world.lease)
        self.arbiter: Final[Any] = LocalArbiter(self.space) if world.is_local else SharedArbiter(self.space)

    async def serve(self) -> None:
        """Open the arbiter; try again while the store has faults, or another server is there."""
        while True:
            try:
                await self.arbiter.__aenter__()
            except (ArbiterUnavailableError, NotTheSoleServerError):
                await asyncio.sleep(0.2)
            else:
                return

    async def leave(self) -> None:
        """Close the arbiter and the space, as far as the store lets it."""
        with contextlib.suppress(StandfastError):
            await self.arbiter.aclose()
        with contextlib.suppress(StandfastError):
            await self.space.aclose()


@final
class World:
    """Everything that one seed decides."""

    def __init__(self, seed: int, *, is_local: bool) -> None:
        self.chance: Final = random.Random(seed)
        self.is_local: Final = is_local
        loop = cast("SimulatedLoop", asyncio.get_running_loop())
        self.memory: Final = MemoryRecords(clock=VirtualClock(loop))
        self.watch: Final = RequestWatch(self.memory)
        self.roster: Final = Roster(loop)
        self.lease: Final = self.chance.uniform(0.5, 2.5)
        self.sees_deaths: Final = self.chance.random() < 0.3
        self.liveness_tokens: Final[dict[str, Process]] = {}
        self.keys: Final = [f"s-{number}" for number in range(self.chance.choice((1, 1, 2)))]
        self.sites: Final = [Site(self, number) for number in range(self.chance.choice((1, 2, 2, 3)))]
        crowd = range(self.chance.randint(2, 9))
        self.visitors: Final = [Visitor(self, self.chance.choice(self.sites), f"r{number}") for number in crowd]
        self._serving: Final[dict[asyncio.Task[None], Site]] = {}

    def living(self) -> list[Site]:
        """Return the processes that have not died."""
        return [site for site in self.sites if not site.process.is_dead]

    async def trouble(self) -> None:
        """Let a few things happen, one after the other."""
        for _ in range(self.chance.choice((0, 1, 1, 2, 3))):
            await asyncio.sleep(self.chance.uniform(0, 1.5))
            site = self._victim()
            if self.chance.random() < 0.5:
                if len(self.living()) > 1:
                    site.process.die()
            else:
                await site.process.stall_for(self.lease * self.chance.uniform(0.2, 2.5))

    def _victim(self) -> Site:
        """Choose a process that lives; usually one in which somebody has its turn."""
        living = self.living()
        busy = {visit.process.name for visit in self.watch.visits.values() if visit.is_inside}
        inside = [site for site in living if site.process.name in busy]
        return self.chance.choice(inside if inside and self.chance.random() < 0.8 else living)

    # --- from the first to the last ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Let everybody ask, then let the faults stop, and look at what is left."""
        self._serving.update((site.process.start(site.serve()), site) for site in self.sites)
        await asyncio.sleep(self.chance.uniform(0, 0.5))
        for visitor in self.visitors:
            visitor.task = visitor.site.process.start(visitor.run())
        await self.trouble()
        await asyncio.sleep(self.chance.uniform(0, 1))
        for site in self.sites:
            site.process.calm_down()
        await self._finished()
        if not self.watch.problems:
            await self._rest()

    async def _finished(self) -> None:
        asking = [each for each in self.visitors if not each.site.process.is_dead]
        living = [each.task for each in asking if each.task is not None]
        if not living:
            return
        _, waiting = await asyncio.wait(living, timeout=PATIENCE)
        self.watch.demand(not waiting, f"liveness: {len(waiting)} requests have no end")
        for task in living:
            if task.done() and not task.cancelled() and (problem := task.exception()) is not None:
                raise problem
        await asyncio.gather(*(each.stopping for each in asking if each.stopping is not None))

    async def _rest(self) -> None:
        """Every key is free again, and nothing is left of those who live."""
        serving = [task for task, site in self._serving.items() if not site.process.is_dead]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        for site in self.living():
            await site.process.start(site.leave())
        await asyncio.sleep(2 * self.lease)
        self.watch.demand(not self.roster.left(), f"rest: tasks are left: {self.roster.left()}")
        last = Site(self, 99)
        last.process.calm_down()
        await last.serve()
        for key in self.keys:
            await self._take(last, key)
        await last.leave()
        await asyncio.sleep(2 * self.lease)
        rows = [str(key) for key in self.memory._records if key.parts[2] not in KEPT and self._is_there(key)]
        self.watch.demand(not rows, f"rest: records are left: {rows[:5]}")

    def _is_there(self, key: Any) -> bool:
        return not self.memory._records[key].is_expired(self.memory.now())

    async def _take(self, site: Site, key: str) -> None:
        asked = Ask(
            id="last",
            address=("request", "acme", "session", key),
            action="last",
            rules=QueueRules(budget=10 * self.lease),
        )
        try:
            async with site.arbiter.hold(asked):
                return
        except StandfastError as problem:
            self.watch.demand(False, f"liveness: {key} is not free at the end: {problem!r}")

    async def discard(self) -> None:
        """Let the tasks of the dead end: no simulation should leave any behind."""
        dead = [site for site in self.sites if site.process.is_dead]
        for site in dead:
            site.space._lines.is_closing = True
            site.process.discard()
        visitors = [each for each in self.visitors if each.site in dead]
        tasks = [task for each in visitors for task in (each.task, each.stopping) if task is not None]
        for task in (*tasks, *self._serving):
            task.cancel()
        await asyncio.gather(*tasks, *self._serving, return_exceptions=True)
        for site in dead:
            await site.leave()


async def arbitrate(seed: int, *, is_local: bool) -> str:
    """Run one seed, and fail with what was wrong; return what tells its steps from those of another."""
    return await play(World(seed, is_local=is_local))


async def arbitrate_shared(seed: int) -> str:
    """With lines in the store."""
    return await arbitrate(seed, is_local=False)


async def arbitrate_local(seed: int) -> str:
    """With lines in the memory of one server after the other."""
    return await arbitrate(seed, is_local=True)

"""One seed of durable workflows with operators: what workers go through, while others do to runs what operators may.

Whatever an operator did to a run, it comes to an end, or waits for somebody and then ends when it is cancelled; nobody
is busy with nothing; what is started afterwards goes through; and nothing is held when all is over.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

from standfast.errors import RunNotFoundError, WorkflowError
from standfast.locks import line_records
from tests.simulation.mutant_hunt import replaced
from tests.simulation.workflow_operator import Operator
from tests.simulation.workflow_programs import CROWD, OPERATED, PLACES, POOL, crowded, guarded, impatient, keeper, turns
from tests.simulation.workflow_world import PATIENCE, TOLD, Plan, Site, World
from tests.simulation.worlds import play

if TYPE_CHECKING:
    from standfast.workflows.definition import Workflow

SOON: Final = 20.0
"""Seconds after the last fault by which every run has ended, or waits for somebody."""

BUSY: Final = 1_500
"""Requests that a process may send to the store in a second of virtual time, whatever happens."""

IDLE: Final = 40
"""Requests that a process may send in a second when there is nothing to do."""

FOR_SOMEBODY: Final = ("the signal ", "a predicate")
"""How it reads that a run waits for somebody."""


class OperatedWorld(World):
    """Everything that one seed decides."""

    programs: ClassVar[tuple[Workflow[..., Any], ...]] = (*OPERATED, *(guarded, keeper, impatient, turns) * 2)
    most_plans: ClassVar = 5

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        number = self.chance.choice((1, 1, 2))
        self.desks: Final = [Site(self, 100 + each, drive=False) for each in range(number)]
        self.operators: Final = [Operator(self, desk) for desk in self.desks]

    async def run(self) -> None:
        """Let operators act while runs are driven and things go wrong; then stop, and look at what has come of it."""
        await self.client.open()
        opening = [site.process.start(site.open()) for site in self.sites]
        await asyncio.wait(opening, timeout=self.lease, return_when=asyncio.FIRST_COMPLETED)
        watching = asyncio.ensure_future(self._count_requests())
        work = [self._try_to_start(plan) for plan in self.plans]
        doing = [asyncio.ensure_future(each) for each in (*work, *(each.act() for each in self.operators))]
        await self.trouble()
        if self.chance.random() < 0.2:
            self.desks[0].process.die()
        await asyncio.wait(doing[len(work) :], timeout=PATIENCE)
        for site in (*self.sites, *self.desks):
            site.process.calm_down()
        await asyncio.wait_for(asyncio.gather(*doing), PATIENCE)
        under_way = [task for desk in self.operators for task in desk.doing]
        if under_way:
            await asyncio.wait(under_way, timeout=SOON)
        await self.client.engine.space.semaphore("pool", permits=POOL).forget_size()
        await self._all_end()
        await self._afresh()
        if not self.watch.problems and self.chance.random() < 0.2:
            self.watch.is_erased = True
            await self.client.engine.erase(tenant="default")
            await self._afresh("anew")
        watching.cancel()
        if not self.watch.problems:
            await self._idle()
            await self.rest()

    async def _try_to_start(self, plan: Plan) -> None:
        """Start a run and send what it waits for, as far as operators leave anything to be sent to."""
        try:
            await self.start(plan)
        except WorkflowError as refused:
            self.watch.demand(self.watch.verbs(plan.id), f"outcome: {plan.id}: {refused}")

    async def _count_requests(self) -> None:
        """Nobody is busy with nothing: no process sends more requests than there can be reasons for."""
        before: dict[str, int] = {}
        while True:
            for site in (*self.sites, *self.desks, self.client):
                sent = site.process.requests - before.get(site.process.name, 0)
                before[site.process.name] = site.process.requests
                self.watch.demand(sent <= BUSY, f"spin: {site.process.name} sent {sent} requests in a second")
            await asyncio.sleep(1)

    # --- the end -------------------------------------------------------------------------------------------------

    async def _all_end(self) -> None:
        """Every run ends; those that wait for somebody do when they are cancelled."""
        for _ in range(8):
            open_runs = await self._unfinished(SOON)
            waiting = [run for run in open_runs if await self._waits_for_somebody(run)]
            for run in waiting:
                self.watch.operated(run, "cancel")
                await self.client.engine.cancel(run, "nobody comes")
            if not waiting:
                break
        for run in await self._unfinished(PATIENCE):
            info = await self.client.engine.get(run)
            self.watch.demand(
                False, f"liveness: {run} ({info.workflow}) is {info.status}, and waits for {info.waits_for!r}"
            )
        for plan in self.plans:
            if not self.watch.verbs(plan.id):
                await self.check(plan)

    async def _unfinished(self, within: float) -> list[str]:
        """Return the runs that have not ended when some time has passed."""
        deadline = asyncio.get_running_loop().time() + within
        while True:
            found = [run for run, state in self.watch.states.items() if not state.has_ended]
            if not found or asyncio.get_running_loop().time() >= deadline:
                return sorted(found)
            await asyncio.sleep(0.5)

    async def _waits_for_somebody(self, run: str) -> bool:
        try:
            info = await self.client.engine.get(run)
        except RunNotFoundError:
            return False
        return info.waits_for.startswith(FOR_SOMEBODY)

    async def _afresh(self, word: str = "fresh") -> None:
        """What is started when all is over goes through, and comes to what it must."""
        if self.watch.problems:
            return
        names = sorted({plan.name for plan in self.plans} | {"guarded", "queued"})
        plans = [Plan(f"{word}-{number}", name, 2, ["a", "b"] * (name in TOLD)) for number, name in enumerate(names)]
        await asyncio.wait_for(asyncio.gather(*map(self.start, plans)), PATIENCE)
        for plan in plans:
            await self.check(plan)

    async def _idle(self) -> None:
        """Whoever has nothing to do does next to nothing."""
        await asyncio.sleep(2)
        sites = [*self.living(), self.client]
        before = [site.process.requests for site in sites]
        await asyncio.sleep(5)
        for site, sent in zip(sites, before, strict=True):
            each = (site.process.requests - sent) / 5
            self.watch.demand(each <= IDLE, f"spin: {site.process.name} sends {each} requests a second for nothing")

    async def discard(self) -> None:
        """Let the tasks of the dead end."""
        for desk in self.desks:
            if desk.process.is_dead:
                desk.process.discard()
        await super().discard()


@final
class CrowdedWorld(OperatedWorld):
    """One in which limits list no run, or one, and only count the others."""

    programs: ClassVar = CROWD
    most_plans: ClassVar = 8
    limited: ClassVar = ("crowd", crowded)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.watch.allow("crowd", PLACES)


async def drive_crowd(seed: int) -> str:
    """Run one seed in which runs are only counted, and fail with what was wrong."""
    with replaced([(line_records, "FEW_HOLDERS", seed % 2)]):
        return await play(CrowdedWorld(seed))


async def drive_with_operators(seed: int) -> str:
    """Run one seed, and fail with what was wrong; return what tells its steps from those of another."""
    return await play(OperatedWorld(seed))

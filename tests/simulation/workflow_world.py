"""One seed of durable workflows: engines in several processes, what goes wrong, and what must be true at the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast, final

from msgspec import Struct

from standfast.errors import (
    ResultTimeoutError,
    RunCancelledError,
    StandfastError,
    UpdateTimeoutError,
    WorkflowTerminalError,
)
from standfast.stores.memory import MemoryRecords
from standfast.testing import VirtualClock
from standfast.workflows.capacity import WorkerLimits
from standfast.workflows.control import Unload
from standfast.workflows.engine import Engine
from tests.simulation.lock_process import CALM, Process
from tests.simulation.workflow_programs import OPERATED, WORKFLOWS, crowded, expected, guarded, queued
from tests.simulation.workflow_watch import WorkflowWatch
from tests.simulation.worlds import play, settle_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.testing import SimulatedLoop
    from standfast.workflows.definition import Workflow
    from standfast.workflows.steps import CurrentStep

PATIENCE: Final = 90.0
"""Seconds after the last fault by which every run has ended."""

TOLD: Final = ("collect", "tell", "keeper")
"""The workflows that wait for somebody."""


class Plan(Struct):
    """A run that is to be started, and what it is sent."""

    id: str
    name: str
    size: int
    sent: list[str]
    is_cancelled: bool = False

    @property
    def tags(self) -> tuple[str, ...]:
        """Some runs have tags, so that they are listed under these too."""
        return (self.name, "odd") if self.size % 2 else ()


@final
class Site:
    """One process with its engine."""

    def __init__(self, world: World, number: int, *, drive: bool = True, calm: bool = False) -> None:
        self.process: Final = settle_in(world, number)
        if calm or world.chance.random() < 0.6:
            self.process.calm_down()
        if self.process.faults is not CALM:
            world.watch.shaken.add(self.process.name)
        self.space: Final = self.process.open(world.lease)
        world.watch.presences[self.space.presence_name] = self.process
        linger = world.chance.choice((0, 0.05, 0.25))
        self.engine: Final = Engine(
            self.space,
            workflows=(*OPERATED, crowded),
            drive=drive,
            worker=WorkerLimits(linger=linger, quarantine_after=1_000),
        )
        self._watch: Final = world.watch
        self.is_leaving = False

    async def open(self) -> None:
        """Open the engine; try again if the store has faults."""
        while True:
            try:
                await self.engine.open()
            except StandfastError:
                await asyncio.sleep(0.05)
            else:
                self.engine.runtime.on_attempt = self._begins
                return

    async def leave(self) -> None:
        """Close the engine, as far as the store lets it."""
        with contextlib.suppress(StandfastError):
            await self.engine.aclose(grace=0.1)
        with contextlib.suppress(StandfastError):
            await self.space.aclose()

    def _begins(self, step: CurrentStep) -> None:
        if self.process.is_dead:
            raise Unload
        self._watch.begins(self.process, step)


class World:
    """Everything that one seed decides."""

    programs: ClassVar[tuple[Workflow[..., Any], ...]] = (*WORKFLOWS, guarded, queued)
    limited: ClassVar[tuple[str, Workflow[..., Any]]] = ("limit", queued)
    most_plans: ClassVar = 4

    def __init__(self, seed: int) -> None:
        self.chance: Final = random.Random(seed)
        loop = cast("SimulatedLoop", asyncio.get_running_loop())
        self.memory: Final = MemoryRecords(clock=VirtualClock(loop))
        self.watch: Final = WorkflowWatch(self.memory)
        self.lease: Final = self.chance.uniform(0.5, 1.5)
        self.sees_deaths: Final = self.chance.random() < 0.3
        self.liveness_tokens: Final[dict[str, Process]] = {}
        self.client: Final = Site(self, 0, drive=False, calm=True)
        self.sites: Final = [Site(self, number) for number in range(1, self.chance.choice((2, 2, 3)) + 1)]
        self.leaving: Final[dict[str, asyncio.Task[None]]] = {}
        self.plans: Final = [self._plan(number) for number in range(self.chance.randint(1, self.most_plans))]

    def _plan(self, number: int) -> Plan:
        name, size = self.chance.choice(self.programs).name, self.chance.randint(1, 4)
        sent = [f"{number}:{each}" for each in range(size)] if name in TOLD else []
        return Plan(f"run-{number}", name, size, sent)

    def living(self) -> list[Site]:
        """Return the processes that have not died."""
        return [site for site in self.sites if not site.process.is_dead and not site.is_leaving]

    # --- what goes wrong -----------------------------------------------------------------------------------------

    async def trouble(self) -> None:
        """Let a few things happen, one after the other."""
        for _ in range(self.chance.choice((0, 1, 1, 2, 3, 4))):
            await asyncio.sleep(self.chance.uniform(0, 0.8))
            faults = (self._death, self._death, self._stall, self._newcomer, self._departure)
            await self.chance.choice(faults)()

    async def _death(self) -> None:
        if len(self.living()) > 1:
            self.chance.choice(self.living()).process.die()

    async def _stall(self) -> None:
        """Let nothing of a process through for a while: its presence may lapse."""
        process = self.chance.choice(self.living()).process
        self.watch.shaken.add(process.name)
        await process.stall_for(self.lease * self.chance.uniform(0.2, 2.5))

    async def _newcomer(self) -> None:
        site = Site(self, len(self.sites) + 1)
        self.sites.append(site)
        site.process.start(site.open())
        await asyncio.sleep(0.01)

    async def _departure(self) -> None:
        """Stop a process in good order: it hands its runs back."""
        if len(self.living()) > 1:
            site = self.chance.choice(self.living())
            site.is_leaving = True
            self.watch.shaken.add(site.process.name)  # steps that take too long are cut short, and run again
            self.leaving[site.process.name] = site.process.start(site.leave())
            await asyncio.wait({self.leaving[site.process.name]}, timeout=3 * self.lease)

    # --- from outside --------------------------------------------------------------------------------------------

    async def ask(self, question: Callable[[Engine], Awaitable[Any]]) -> Any:
        """Ask some process; if it does not answer, ask one that does."""
        site = self.chance.choice(self.living())
        asking: asyncio.Task[Any] = site.process.start(_answered(question, site))
        await asyncio.wait({asking}, timeout=2 * self.lease)
        if asking.done() and not asking.exception():
            return asking.result()
        asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await question(self.client.engine)

    async def start(self, plan: Plan) -> None:
        """Start a run, and send what it waits for."""
        workflow = next(each for each in (*OPERATED, crowded) if each.name == plan.name)
        await asyncio.sleep(self.chance.uniform(0, 0.5))
        await self.ask(lambda engine: engine.start(workflow, plan.size, id=plan.id, tags=plan.tags))
        if plan.name == "tidy" and self.chance.random() < 0.6:
            await asyncio.sleep(self.chance.uniform(0, 1))
            plan.is_cancelled = True
            await self.ask(lambda engine: engine.cancel(plan.id, "no more"))
        for value in plan.sent:
            await asyncio.sleep(self.chance.uniform(0, 0.6))
            await self._send(plan, value)

    async def _send(self, plan: Plan, value: str) -> None:
        if plan.name != "tell":
            for _ in range(self.chance.choice((1, 1, 2))):
                await self.ask(lambda engine: engine.signal(plan.id, "item", value, signal_id=value))
            return
        while True:
            try:
                await self.ask(lambda engine: engine.update(plan.id, "say", value, update_id=value))
            except UpdateTimeoutError:
                continue
            except WorkflowTerminalError:
                return
            else:
                return

    # --- from the first to the last ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Let runs be driven while things go wrong, then let the faults stop, and look at what has become of them."""
        await self.client.open()
        opening = [site.process.start(site.open()) for site in self.sites]
        await asyncio.wait(opening, timeout=self.lease, return_when=asyncio.FIRST_COMPLETED)
        starting = [asyncio.ensure_future(self.start(plan)) for plan in self.plans]
        await self.trouble()
        for site in self.sites:
            site.process.calm_down()
        await asyncio.wait_for(asyncio.gather(*starting), PATIENCE)
        for plan in self.plans:
            await self.check(plan)
        if not self.watch.problems:
            await self.rest()

    async def check(self, plan: Plan) -> None:
        """Every run comes to its end, and to what it must come to."""
        run = self.client.engine.run(plan.id)
        try:
            result = await run.result(timeout=PATIENCE)
        except ResultTimeoutError:
            self.watch.demand(False, f"liveness: {plan.id} ({plan.name}) waits for {(await run.info()).waits_for}")
            return
        except RunCancelledError:
            self.watch.demand(plan.is_cancelled, f"outcome: {plan.id} was cancelled, and nobody had asked for it")
            return
        if plan.sent:
            result = sorted(result)
        wanted = expected(plan.name, plan.size, plan.sent)
        self.watch.demand(result == wanted, f"outcome: {plan.name} came to {result}, not to {wanted}")

    async def rest(self) -> None:
        """Nothing is left: nobody owns anything, and nobody looks for anything."""
        await asyncio.sleep(3 * self.lease + 3)
        rows = self.watch.rows("own", "ready", "grant", "held", "ticket")
        self.watch.demand(not rows, f"rest: {rows[:5]} are left")
        for site in self.living():
            self.leaving[site.process.name] = site.process.start(site.leave())
        await asyncio.wait(self.leaving.values(), timeout=PATIENCE)
        stuck = [name for name, task in self.leaving.items() if not task.done()]
        self.watch.demand(not stuck, f"liveness: {stuck} cannot be stopped")

    async def discard(self) -> None:
        """Let the tasks of the dead end: no simulation should leave any behind."""
        for site in self.sites:
            if site.process.is_dead:
                site.process.discard()
        await asyncio.sleep(0)


async def _answered(question: Callable[[Engine], Awaitable[Any]], site: Site) -> Any:
    return await question(site.engine)


async def drive(seed: int) -> str:
    """Run one seed, and fail with what was wrong; return what tells its steps from those of another."""
    return await play(World(seed))

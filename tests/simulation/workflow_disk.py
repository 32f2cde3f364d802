"""One seed of durable workflows on SQLite, whose threads are simulated: several processes, some of which die."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final, Literal, final

from standfast.errors import ResultTimeoutError, RunCancelledError, StandfastError
from standfast.stores.sqlite import SqliteOptions, open_sqlite
from standfast.testing import VirtualClock
from standfast.testing.workflows.effects import Effects
from standfast.testing.workflows.process import Process, Setup
from standfast.workflows.records import RunKeys, events_of
from tests.simulation.workflow_programs import WORKFLOWS, expected
from tests.simulation.workflow_world import PATIENCE, Plan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.workflows.engine import Engine


@final
class Disk:
    """Everything that one seed decides."""

    def __init__(self, seed: int, path: str) -> None:
        self.chance: Final = random.Random(seed)
        self._path: Final = path
        self._clock: Final = VirtualClock(asyncio.get_running_loop())
        self._dead: Final[set[str]] = set()
        self.effects: Final = Effects()
        self.processes: Final[list[Process]] = []
        self.plans: Final = [self._plan(number) for number in range(self.chance.randint(1, 3))]

    def _plan(self, number: int) -> Plan:
        name, size = self.chance.choice(WORKFLOWS).name, self.chance.randint(1, 3)
        sent = [f"{number}:{each}" for each in range(size)] if name in ("collect", "tell") else []
        return Plan(f"run-{number}", name, size, sent)

    async def open(self, *, drive: bool = True) -> Process:
        """Open another process on the file."""
        commits: Literal["loop", "thread"] = self.chance.choice(("loop", "thread"))
        store = await open_sqlite(self._path, SqliteOptions(commits=commits, hints="process"), clock=self._clock)
        linger = self.chance.choice((0, 0.05, 0.25))
        setup = Setup(WORKFLOWS, (), (), (), "default", linger, self._clock)
        number = len(self.processes)
        process = Process(number, setup, store, self._dead, drive=drive)
        self.processes.append(process)
        await process.engine.open()
        process.engine.runtime.on_attempt = lambda step: self.effects.began(step, number)
        return process

    def living(self) -> list[Process]:
        """Return the processes that drive runs."""
        return [each for each in self.processes[1:] if not each.life.is_dead]

    async def _ask(self, question: Callable[[Engine], Awaitable[Any]]) -> Any:
        """Ask a process that drives; if it dies meanwhile, ask the one that does not."""
        process = self.chance.choice(self.living())
        asking = asyncio.ensure_future(question(process.engine))
        either: set[asyncio.Future[Any]] = {asking, process.life.death}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return await asking
        asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await question(self.processes[0].engine)

    async def start(self, plan: Plan) -> None:
        """Start a run, and send what it waits for."""
        workflow = next(each for each in WORKFLOWS if each.name == plan.name)
        await self._ask(lambda engine: engine.start(workflow, plan.size, id=plan.id))
        if plan.name == "tidy" and self.chance.random() < 0.5:
            plan.is_cancelled = True
            await asyncio.sleep(self.chance.uniform(0, 1))
            await self._ask(lambda engine: engine.cancel(plan.id, "no more"))
        for value in plan.sent:
            await asyncio.sleep(self.chance.uniform(0, 0.5))
            await self._send(plan, value)

    async def _send(self, plan: Plan, value: str) -> None:
        if plan.name == "collect":
            await self._ask(lambda engine: engine.signal(plan.id, "item", value, signal_id=value))
        else:
            await self._ask(lambda engine: engine.update(plan.id, "say", value, update_id=value))

    async def run(self) -> None:
        """Let runs be driven while processes die, and look at what has become of them."""
        await self.open(drive=False)
        for _ in range(2):
            await self.open()
        starting = [asyncio.ensure_future(self.start(plan)) for plan in self.plans]
        for _ in range(self.chance.choice((0, 1, 2, 3))):
            await asyncio.sleep(self.chance.uniform(0, 0.8))
            process = self.chance.choice(self.living())
            process.life.die()
            await process.discard()
            await self.open()
        await asyncio.wait_for(asyncio.gather(*starting), PATIENCE)
        for plan in self.plans:
            await self._check(plan)
        await self._check_effects()

    async def _check(self, plan: Plan) -> None:
        run = self.processes[0].engine.run(plan.id)
        try:
            result = await run.result(timeout=PATIENCE)
        except ResultTimeoutError as late:
            raise AssertionError(f"liveness: {plan.name} waits for {(await run.info()).waits_for}") from late
        except RunCancelledError:
            assert plan.is_cancelled, f"outcome: {plan.id} was cancelled, and nobody had asked for it"
            return
        wanted = expected(plan.name, plan.size, plan.sent)
        assert (sorted(result) if plan.sent else result) == wanted, f"outcome: {plan.name} came to {result}"

    async def _check_effects(self) -> None:
        """An attempt was made twice only if the process died that made it first, and each is recorded once."""
        first: dict[tuple[str, str, int], int] = {}
        for each in self.effects.executions:
            attempt = (each.run, each.step, each.attempt)
            before = first.setdefault(attempt, each.process)
            excused = before == each.process or self.processes[before].life.is_dead
            assert excused, f"again: {attempt} was made by {before} and by {each.process}"
            first[attempt] = each.process
        space = self.processes[0].engine.space
        for run in {each.run for each in self.effects.executions}:
            steps = [event.id for event in await events_of(space, RunKeys(space, run)) if event.kind == "step"]
            assert len(steps) == len(set(steps)), f"history: {run} has recorded a step twice"

    async def aclose(self) -> None:
        """Close everything that is open."""
        for process in reversed(self.processes):
            if not process.life.is_dead:
                try:
                    await process.close()
                except StandfastError:
                    continue


async def drive_on_disk(seed: int, path: str) -> None:
    """Run one seed, and fail with what was wrong."""
    disk = Disk(seed, path)
    try:
        await disk.run()
    finally:
        await disk.aclose()

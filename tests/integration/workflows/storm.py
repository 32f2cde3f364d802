"""A storm: clients start runs and wait for their results, while workers are killed and replaced."""

from __future__ import annotations

import asyncio
import random
import signal
from itertools import count
from typing import TYPE_CHECKING, Any, Final, final

from standfast.clock import monotonic
from standfast.errors import OutcomeUnknownError, StoreBusyError, StoreUnavailableError
from tests.integration.workflows.checks import check, check_locks, records_of
from tests.integration.workflows.flows import SHAPES, adder, listener, payer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    import standfast as sf
    from tests.integration.workflows.ledger import Ledger
    from tests.integration.workflows.nursery import Nursery

WORKERS: Final = 8
CLIENTS: Final = 40
"""How many runs are under way at a time."""

PATIENCE: Final = 60.0
"""Seconds within which a run ends once nobody is killed any more."""


@final
class Storm:
    """Clients that start runs and wait for their results, while workers are killed and replaced.

    Clients that are ``patient`` ask again when the store cannot be reached, as an application would.
    """

    def __init__(self, engine: sf.Engine, nursery: Nursery, seed: int, *, lease: float, patient: bool = False) -> None:
        self._engine, self._nursery, self._lease, self._patient = engine, nursery, lease, patient
        has_sql = engine.space.store.capabilities.commit_with
        self._shapes: Final = [shape for shape in SHAPES if has_sql or shape is not payer]
        self._chooser: Final = random.Random(seed)
        self._over: Final = asyncio.Event()
        self._numbers: Final = count()
        self.started: Final[list[str]] = []
        self.waiting: Final[set[str]] = set()
        self.dismissed: Final[set[int]] = set()

    async def client(self) -> None:
        """Start runs one after another, and check what each returns."""
        while not self._over.is_set():
            shape, number = self._chooser.choice(self._shapes), self._chooser.randint(1, 4)
            run = await self.start(shape, number)
            self.started.append(run.id)
            for place in range(number if shape in (listener, adder) else 0):
                await (self._signal if shape is listener else self._update)(run, place)
            self.waiting.add(run.id)
            assert await self.ask(run.result) == expected(shape.name, number), run.id
            self.waiting.discard(run.id)

    async def start(self, workflow: sf.Workflow[..., Any], *given: object) -> sf.Run[Any]:
        """Start a run, once."""
        key = f"start {next(self._numbers)}"
        run: sf.Run[Any] = await self.ask(lambda: self._engine.start(workflow, *given, idempotency_key=key))
        return run

    async def ask(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Ask for something, again and again if clients are patient."""
        while True:
            try:
                return await call()
            except (StoreUnavailableError, OutcomeUnknownError, StoreBusyError):
                if not self._patient:
                    raise
                await asyncio.sleep(0.05)

    async def _signal(self, run: sf.Run[Any], place: int) -> None:
        await asyncio.sleep(self._chooser.uniform(0, 0.05))  # they come at any moment
        for _ in range(self._chooser.randint(1, 2)):
            await self.ask(lambda: run.signal("go", place, signal_id=f"signal {place}"))

    async def _update(self, run: sf.Run[Any], place: int) -> None:
        answers = [
            await self.ask(lambda: run.update("add", place, update_id=f"update {place}", timeout=PATIENCE))
            for _ in range(self._chooser.randint(1, 2))
        ]
        assert set(answers) == {place + 1}, f"{run.id}: {answers}"

    async def strike(self) -> None:
        """Let everybody work for a random while, then kill one; now and then ask another one to leave.

        Half of them have to be up before: on a busy machine nothing would be done in between.
        """
        await self._nursery.are_ready(WORKERS // 2)
        await asyncio.sleep(self._chooser.uniform(0, 0.2))  # killed at any moment
        self._nursery.kill(self._chooser.choice(self._nursery.alive))
        if self._chooser.random() < 0.1:
            leaver = self._chooser.choice(self._nursery.alive)
            if leaver in self._nursery.ready:
                self._nursery.dismiss(leaver)
                self.dismissed.add(leaver)
        await self._nursery.spawn(WORKERS - len(self._nursery.alive), lease=self._lease)

    async def last(self, clients: list[asyncio.Task[None]]) -> None:
        """Start no more runs, and wait until those that were started have ended."""
        self._over.set()
        _, lost = await asyncio.wait(clients, timeout=PATIENCE)
        for task in lost:
            task.cancel()
        ended = await asyncio.gather(*clients, return_exceptions=True)
        told = [(await self._engine.get(run), await self._engine.history(run)) for run in self.waiting]
        assert not lost, f"{len(lost)} runs were lost: {told}"
        assert [each for each in ended if each is not None] == [], told


def expected(shape: str, number: int) -> object:
    """Return what a run of a shape must return."""
    if shape in ("listener", "adder"):
        return list(range(number))
    if shape == "payer":
        return [1] * number
    return {"side_by_side": sum(range(number)), "parent": number + 1 + 1}.get(shape, number)


async def run_storm(
    engine: sf.Engine,
    nursery: Nursery,
    ledger: Ledger,
    kills: Iterable[int],
    *,
    seed: int,
    lease: float = 30.0,
    clients: int = CLIENTS,
) -> str:
    """Kill and replace workers for as long as ``kills`` lasts; check everything, and return what there was of it."""
    storm = Storm(engine, nursery, seed, lease=lease)
    await nursery.spawn_ready(WORKERS, lease=lease)
    waiting = [asyncio.create_task(storm.client()) for _ in range(clients)]
    for _ in kills:
        await storm.strike()
        if any(client.done() for client in waiting):
            break  # something is wrong: say so at once
    over_at = monotonic()
    await storm.last(waiting)
    took = monotonic() - over_at

    found = check(ledger.entries(), await records_of(engine))
    assert found.problems == ()
    assert check_locks(ledger.entries()) == []
    await check_deaths(nursery, storm.dismissed)
    await nothing_is_left(engine.space)
    about = f"{found.attempts} attempts of steps, {found.duplicates} done again, {found.interrupted} interrupted"
    return f"{len(storm.started)} runs, {about}, {found.late} late; the last of them ended after {took:.1f} s"


async def check_deaths(nursery: Nursery, dismissed: set[int]) -> None:
    """Check that nobody died who was not killed."""
    for pid in tuple(nursery.ended):
        assert await nursery.gone_with(pid) == (0 if pid in dismissed else -signal.SIGKILL)
    assert set(nursery.gone) == nursery.ended


async def nothing_is_left(space: sf.Space) -> None:
    """Wait until no run is owned, ready or due: everything has ended."""
    kinds = [space.key(kind) for kind in ("own", "ready", "timer")]
    async with asyncio.timeout(PATIENCE), space.watch(*kinds) as watch:
        while any([(await space.scan(*kind.within(), limit=1)).records for kind in kinds]):
            await watch.wait(0.2)

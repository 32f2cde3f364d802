"""What the tests of workflows stand on: engines on one store, time that passes, and workers that are lost."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

from standfast.clock import SYSTEM_CLOCK, monotonic
from standfast.locks import registry
from standfast.space import Space
from standfast.testing.conformance.ground import SharedStoreGround, shortest_lease
from standfast.testing.conformance.locks.wire import Wire
from standfast.testing.conformance.workflows.samples import DONE, WORKFLOWS
from standfast.workflows import inbox, queries, worker
from standfast.workflows.capacity import WorkerLimits
from standfast.workflows.engine import Engine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from standfast.stores import Store
    from standfast.testing.simulation import VirtualClock
    from standfast.workflows.queries import RunInfo
    from standfast.workflows.run import Run

SOON: Final = 15.0
"""How long anything may take at most that ought to happen at once, in seconds."""

BRIEF: Final = 0.3
"""A lease that is waited for in real time, in seconds, if the store takes such a short one."""

LEASE: Final = 30.0
"""A lease that only the clock of a test lets lapse."""

LOOKS: Final = (
    (registry, "POLL_EVERY"),
    (worker, "POLL_EVERY"),
    (queries, "LOOK_EVERY"),
    (inbox, "LOOK_EVERY"),
)
"""How often processes look by themselves. Where hints do not arrive, tests let them look more often than that."""


class OpenEngine(Protocol):
    """Opens an engine on the data of the test, as another process would."""

    async def __call__(
        self,
        *workflows: Any,
        through: Callable[[Store], Store] | None = None,
        lease: float = 3_600.0,
        **options: Any,
    ) -> Engine:
        """Open it: with all sample workflows and these, over a store that is wrapped by ``through``."""
        ...


class WorkflowGround(SharedStoreGround):
    """The fixtures of the suite. A subclass provides ``open_another``, and ``clock`` if it can."""

    @pytest.fixture
    def done(self) -> list[str]:
        """What the steps of the sample workflows did, in order."""
        DONE.clear()
        return DONE

    @pytest.fixture
    async def open_engine(
        self,
        open_another: Callable[[], Awaitable[Store]],
        clock: VirtualClock | None,
        done: list[str],  # noqa: ARG002 -- what was done before is forgotten
        monkeypatch: pytest.MonkeyPatch,
    ) -> AsyncGenerator[OpenEngine]:
        """Open engines on one store, in a namespace that no other test uses, and close them in the end."""
        namespace = f"workflows-{uuid.uuid4().hex}"
        async with contextlib.AsyncExitStack() as opened:

            async def open_it(
                *workflows: Any,
                through: Callable[[Store], Store] | None = None,
                lease: float = 3_600.0,
                linger: float = 0.02,
                **options: Any,
            ) -> Engine:
                store = await open_another()
                if store.capabilities.wakes == "poll":
                    look_often(monkeypatch)
                opened.push_async_callback(store.aclose)
                seen = store if through is None else through(store)
                space = Space(seen, namespace=namespace, lease=lease, clock=clock or SYSTEM_CLOCK)
                opened.push_async_callback(space.aclose)
                known = [*WORKFLOWS, *workflows]
                engine = Engine(space, workflows=known, worker=WorkerLimits(linger=linger), **options)
                opened.push_async_callback(engine.aclose, grace=0)
                await engine.open()
                return engine

            yield open_it

    @pytest.fixture
    async def engine(self, open_engine: OpenEngine) -> Engine:
        """A process that drives runs."""
        return await open_engine()

    @pytest.fixture
    async def client(self, open_engine: OpenEngine) -> Engine:
        """A process that only starts runs and talks to them."""
        return await open_engine(drive=False)

    @pytest.fixture
    async def doomed(
        self, open_engine: OpenEngine, client: Engine, clock: VirtualClock | None
    ) -> AsyncGenerator[Doomed]:
        """A worker that the test loses."""
        wire, store = Wire(), client.space.store
        lease = max(BRIEF if clock is None else LEASE, store.capabilities.shortest_lease)
        engine = await open_engine(through=wire.around, lease=lease)
        yield Doomed(engine, wire, lease, clock)
        wire.mend()

    @pytest.fixture
    async def short_lived(self, doomed: Doomed, clock: VirtualClock | None, patience: float) -> Doomed:
        """A worker that the test loses, unless that takes too long on this store."""
        if clock is None:
            shortest_lease(doomed.engine.space.store, BRIEF, patience)
        return doomed


class Doomed:
    """A worker that can be lost: cut off from the store without a word, until its lease is over.

    Attributes:
        engine: Its engine.
        lease: How long others wait for it, in seconds.
    """

    def __init__(self, engine: Engine, wire: Wire, lease: float, clock: VirtualClock | None) -> None:
        self.engine: Final = engine
        self.lease: Final = lease
        self._wire, self._clock = wire, clock

    async def lose(self) -> None:
        """Cut it off, and let its lease lapse."""
        self._wire.cut()
        if self._clock is None:
            await asyncio.sleep(self.lease)
        else:
            self._clock.advance(self.lease)

    def find(self) -> None:
        """Connect it again."""
        self._wire.mend()


def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all processes look for what no hint tells them of more often than a second apart."""
    for module, name in LOOKS:
        monkeypatch.setattr(module, name, 0.02)


async def let_pass(seconds: float, clock: VirtualClock | None, *engines: Engine) -> None:
    """Let time pass: the test's clock is advanced, and engines look; a real one is waited for."""
    if clock is None:
        await asyncio.sleep(seconds)
        return
    clock.advance(seconds)
    for engine in engines:
        if engine.worker is not None:
            engine.worker.poll_now()


async def result_of(run: Run[Any]) -> Any:
    """Return what a run returns, or raise what it raises, soon."""
    return await run.result(timeout=SOON)


async def until(run: Run[Any], *statuses: str) -> RunInfo:
    """Return how a run is, once it is in one of these states."""
    deadline = monotonic() + SOON
    while (info := await run.info()).status not in statuses:
        if monotonic() > deadline:
            pytest.fail(f"it is {info.status}, and not {' or '.join(statuses)}")
        await asyncio.sleep(0.001)
    return info


async def waits(run: Run[Any]) -> RunInfo:
    """Return how a run is, once everything in it waits."""
    return await until(run, "suspended")


async def eventually(holds: Callable[[], Awaitable[object]]) -> None:
    """Return when ``holds`` does, for what is done in the background."""
    deadline = monotonic() + SOON
    while not await holds():
        if monotonic() > deadline:
            pytest.fail("it did not come about in time")
        await asyncio.sleep(0.001)

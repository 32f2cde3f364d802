"""Standfast's workflows as one of the contestants, on an event loop that stays up between the rounds."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import standfast as sf
from benchmarks._workflow_limit import Values
from benchmarks._workflow_windows import tasks

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from benchmarks._workflow_windows import Window
    from standfast.hooks import Hook
    from standfast.space import Space

T = TypeVar("T")

numbers = itertools.count()
gate = asyncio.Event()
KINDS: Final = ("run", "life", "own", "step")
looking_at: list[dict[str, list[bytes]]] = []
spaces: list[Space] = []


@sf.step
async def add_one(number: int) -> int:
    """Do what the peers' step does."""
    return number + 1


@sf.workflow
async def add(ctx: sf.Context, number: int, steps: int) -> int:
    """Take so many steps."""
    for _ in range(steps):
        number = await ctx.step(add_one, number)
    return number


@sf.step
async def pass_the_gate(number: int) -> int:
    """Wait, once, until everybody has queued."""
    await gate.wait()
    return number + 1


@sf.workflow(concurrency=sf.Limit(1, key=lambda order: order[0], on_limit="queue"))
async def in_turn(ctx: sf.Context, order: tuple[str, int]) -> int:
    """Take one step, while nobody else of the same key does."""
    return await ctx.step(pass_the_gate, order[1])


@sf.step
async def look(run_id: str) -> None:
    """See what is written of a run while it runs."""
    looking_at.append(await records(run_id))


@sf.workflow(name="see")  # as long a name as that of ``add``, and the same arguments: its records are as long
async def looking(ctx: sf.Context, number: int, steps: int) -> int:
    """Take steps as ``add`` does, and between the first and the last one look at the records of this run."""
    number = await ctx.step(add_one, number)
    await ctx.step(look, ctx.run_id)
    for _ in range(steps - 1):
        number = await ctx.step(add_one, number)
    return number


async def records(run_id: str) -> dict[str, list[bytes]]:
    """Return what is kept of a run, by the kind of the records."""
    found: dict[str, list[bytes]] = {}
    for kind in KINDS:
        page = await spaces[-1].scan(*spaces[-1].key(kind).within(), limit=100)
        found[kind] = [page.records[key].value for key in page.records if run_id in key.parts]
    return found


class Ours:
    """Standfast on a store: one engine that starts runs and drives them itself."""

    def __init__(self, url: str, hooks: Sequence[Hook] = ()) -> None:
        self._runner = asyncio.Runner()
        self._engine = self._run(self._open(url, hooks))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def _open(self, url: str, hooks: Sequence[Hook]) -> sf.Engine:
        engine = sf.Engine(url, workflows=[add, in_turn, looking], hooks=hooks)
        return await engine.__aenter__()

    def runs(self, at_once: int, steps: int, seconds: float) -> Window:
        """Keep so many tasks busy with runs."""

        async def run() -> None:
            number = next(numbers)
            handle = await self._engine.start(add, number, steps)
            assert await handle.result() == number + steps

        return self._run(tasks(run, at_once, seconds))

    def queue(self, runs: int) -> float:
        """Return how many runs of one step a second take turns, once all of them have queued."""
        return self._run(self._queue(runs))

    async def _queue(self, runs: int) -> float:
        global gate  # noqa: PLW0603 -- workflows are functions of a module, and each engine has a loop of its own
        gate = asyncio.Event()
        handles = await asyncio.gather(*(self._engine.start(in_turn, ("bench", number)) for number in range(runs)))
        started = time.perf_counter()
        gate.set()
        results = await asyncio.gather(*(handle.result() for handle in handles))
        assert sorted(results) == list(range(1, runs + 1))
        return runs / (time.perf_counter() - started)

    def values(self) -> Values:
        """Return what the records of a run hold, so that the limit writes as much."""
        return self._run(self._values())

    async def _values(self) -> Values:
        spaces.append(self._engine.runtime.space)
        handle = await self._engine.start(looking, 7_000, 5)
        await handle.result()
        during, after = looking_at[-1], await records(handle.id)
        header, life, owner = (during[kind][0] for kind in ("run", "life", "own"))
        return Values(header, life, owner, after["step"][0], after["step"][-1], after["life"][0])

    def close(self) -> None:
        """Close the engine and the loop."""
        self._run(self._engine.__aexit__(None, None, None))
        self._runner.close()

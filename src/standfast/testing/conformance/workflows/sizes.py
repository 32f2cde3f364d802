"""Sizes: values as large as the store takes, and histories that need many records."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.codec import MAX_BYTES
from standfast.errors import RunFailedError, StandfastError, UnsuitableStoreError
from standfast.testing.conformance.workflows.ground import WorkflowGround, result_of, until, waits
from standfast.testing.conformance.workflows.samples import acts, collects

if TYPE_CHECKING:
    from standfast.testing.conformance.workflows.ground import OpenEngine

OVERHEAD = 12_000
"""Bytes that are left for what is stored beside a value, and for a seal around it."""


async def make(size: int) -> str:
    """Return a text of that length."""
    return "x" * size


@sf.workflow
async def carries(ctx: sf.Context, sizes: list[int], text: str = "") -> list[int]:
    """Record large results, wait, and say how large they are after a replay."""
    made = [await ctx.step(make, size) for size in sizes]
    await ctx.wait_signal("go")
    return [len(each) for each in (*made, text)]


@sf.workflow
async def spreads(ctx: sf.Context, sizes: list[int]) -> list[int]:
    """Record large results of branches that end at the same time, wait, and say how large they are after a replay."""
    made = await ctx.gather(*(ctx.step(f"make {n}", make, size) for n, size in enumerate(sizes)))
    await ctx.wait_signal("go")
    return [len(each) for each in made]


@sf.workflow
async def swells(ctx: sf.Context, size: int) -> str:
    """Return something large."""
    return await ctx.step(make, size)


@sf.workflow
async def measures(ctx: sf.Context, count: int) -> list[int]:
    """Say how large signals are."""
    return [len(await ctx.wait_signal("item")) for _ in range(count)]


def seven(_sql: Any) -> int:
    """Do nothing in the transaction, and answer seven."""
    return 7


def refuses(_sql: Any) -> int:
    """Undo the transaction."""
    raise LookupError("no")


@sf.workflow
async def transacts(ctx: sf.Context) -> list[Any]:
    """Work in the store's own transactions."""
    found: list[Any] = [await ctx.transaction(seven)]
    try:
        await ctx.transaction(refuses)
    except LookupError as problem:
        found.append(str(problem))
    await ctx.wait_signal("go")
    return [*found, await ctx.transaction(seven)]


def room(engine: sf.Engine) -> int:
    """Return the size of a value that the store certainly takes."""
    return min(engine.space.store.capabilities.max_value_bytes, MAX_BYTES) - OVERHEAD


class SizeCases(WorkflowGround):
    """Much, and many."""

    async def test_a_large_result_comes_back_whole(self, open_engine: OpenEngine, client: sf.Engine) -> None:
        """Almost as much as the store takes in one value."""
        engine = await open_engine(swells)
        size = room(engine)
        run = await engine.start(swells, size)

        assert len(await result_of(run)) == size
        assert len((await client.get(run.id)).result) == size

    async def test_a_result_that_is_too_large_is_told(self, open_engine: OpenEngine) -> None:
        """The run fails; it does not hang, and others go on."""
        engine = await open_engine(swells)
        with pytest.raises(StandfastError):
            await result_of(await engine.start(swells, 3 * MAX_BYTES))
        assert await result_of(await engine.start(acts, ["a"])) == ["did a"]

    async def test_large_results_of_steps_are_replayed(self, open_engine: OpenEngine) -> None:
        """Together they are far more than one record holds."""
        engine = await open_engine(carries, linger=0)
        size = room(engine) // 2
        run = await engine.start(carries, [size] * 6, "y" * size)
        await waits(run)
        await run.signal("go")

        assert await result_of(run) == [size] * 7

    async def test_large_results_of_branches_that_end_at_once_are_replayed(self, open_engine: OpenEngine) -> None:
        """Together they are more than some stores take in one commit."""
        engine = await open_engine(spreads, linger=0)
        sizes = [room(engine) // 2] * 16
        run = await engine.start(spreads, sizes)
        await waits(run)
        await run.signal("go")

        assert await result_of(run) == sizes

    async def test_a_long_history_is_replayed(self, open_engine: OpenEngine, done: list[str]) -> None:
        """More steps than one record holds; each was done once."""
        engine = await open_engine(linger=0)
        names = [str(n) for n in range(450)]
        run = await engine.start(acts, names)
        assert len(await result_of(run)) == 450

        assert done == names
        assert [entry.id for entry in await run.history() if entry.kind == "step"] == names

    async def test_a_history_that_many_commits_wrote_is_replayed(self, open_engine: OpenEngine) -> None:
        """Each wait is written by itself."""
        engine = await open_engine(linger=0)
        run = await engine.start(collects, 12)
        for number in range(12):
            await run.signal("item", number)
            await until(run, "suspended", "completed")

        assert await result_of(run) == list(range(12))

    async def test_large_signals_arrive_whole(self, open_engine: OpenEngine) -> None:
        """Several at once are more than one commit takes."""
        engine = await open_engine(measures)
        size = room(engine)
        run = await engine.start(measures, 4)
        await asyncio.gather(*(run.signal("item", "x" * size) for _ in range(4)))

        assert await result_of(run) == [size] * 4

    async def test_a_large_input_comes_back_whole(self, open_engine: OpenEngine) -> None:
        """Almost as much as the store takes in one value."""
        engine = await open_engine(carries)
        size = room(engine)
        run = await engine.start(carries, [], "y" * size)
        await run.signal("go")
        assert await result_of(run) == [size]


class TransactionCases(WorkflowGround):
    """Work in the store's own transactions."""

    async def test_a_transaction_is_recorded_with_its_work(self, open_engine: OpenEngine) -> None:
        """Once, also when it raised: a replay gets what is recorded."""
        engine = await open_engine(transacts, linger=0)
        if not engine.space.store.capabilities.commit_with:
            pytest.skip("this store shares no transaction with the caller's work")
        run = await engine.start(transacts)
        await waits(run)
        await run.signal("go")

        assert await result_of(run) == [7, "no", 7]
        kinds = [entry.id for entry in await run.history() if entry.kind == "transaction"]
        assert kinds == ["seven", "refuses", "seven#2"]

    async def test_a_store_without_transactions_says_so(self, open_engine: OpenEngine) -> None:
        """Before anything is done."""
        engine = await open_engine(transacts)
        if engine.space.store.capabilities.commit_with:
            pytest.skip("this store shares its transactions")
        with pytest.raises(RunFailedError) as caught:
            await result_of(await engine.start(transacts))
        assert isinstance(caught.value.__cause__, UnsuitableStoreError)

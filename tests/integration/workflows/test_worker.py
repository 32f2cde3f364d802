"""Workers and their runs: handed back, left to others, quarantined, and gone on with elsewhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import holdfast as hf
from holdfast.events import RunDeposed

if TYPE_CHECKING:
    from holdfast.events import Event


async def test_a_run_is_started_at_the_time_of_the_store(url: str) -> None:
    """Also the first one of an engine that drives nothing and has heard nothing from the store yet."""

    @hf.workflow
    async def flow(_ctx: hf.Context) -> None: ...

    async with hf.open(url) as space, hf.Engine(url, drive=False) as engine:
        before = (await space.read(space.key("any"))).at
        run = await engine.start(flow)

        assert before <= (await run.info()).started_at <= (await space.read(space.key("any"))).at


async def test_branches_that_are_handed_back_are_not_cancelled(url: str) -> None:
    """A worker that stops lets steps end, and what comes after them is not done but left to the next worker."""
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        began.set()
        await go_on.wait()
        return "slow"

    @hf.workflow
    async def flow(ctx: hf.Context) -> list[str]:
        async def branch() -> str:
            await ctx.wait_signal("go")
            return await ctx.step("quick", lambda: "quick")

        return await ctx.gather(ctx.step(slow), branch())

    async with hf.Engine(url, workflows=[flow]) as first:
        run = await first.start(flow, id="run")
        await began.wait()
        stopping = asyncio.create_task(first.aclose())
        async with hf.Engine(url, workflows=[flow], drive=False) as other:
            await other.signal("run", "go")
        go_on.set()
        await stopping

    async with hf.Engine(url, workflows=[flow]) as second:
        assert await second.result(run.id, timeout=20) == ["slow", "quick"]
        assert "cancelled" not in [entry.kind for entry in await second.history(run.id)]


async def test_a_run_that_ends_while_it_is_written_is_not_driven_again(url: str) -> None:
    """Its last commit waits for the one that is under way, instead of being taken for a loser."""
    told: list[Event] = []
    calls = 0

    async def step(turns: int) -> None:
        nonlocal calls
        calls += 1
        for _ in range(turns):
            await asyncio.sleep(0)

    @hf.workflow
    async def flow(ctx: hf.Context) -> None:
        await ctx.gather(*(ctx.step(step, turns) for turns in (1, 8, 30, 100)))

    async with hf.Engine(url, workflows=[flow], hooks=[told.append]) as engine:
        runs = [await engine.start(flow) for _ in range(50)]
        await asyncio.gather(*(run.result(timeout=30) for run in runs))

    assert [event for event in told if isinstance(event, RunDeposed)] == []
    assert calls == 4 * len(runs)

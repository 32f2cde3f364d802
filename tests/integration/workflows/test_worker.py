"""Workers and their runs: handed back, left to others, quarantined, and gone on with elsewhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.events import RunDeposed
from tests.integration.cli.programs import answer
from tests.integration.workflows.flows import changing_1, changing_2, in_a_row, kills_its_worker
from tests.integration.workflows.ledger import written

if TYPE_CHECKING:
    from pathlib import Path

    from standfast.events import Event
    from tests.integration.workflows.ledger import Ledger
    from tests.integration.workflows.nursery import Nursery


SLACK = 1_000_000
"""Microseconds that an estimate of the store's time may be off, on a machine with its hands full."""


async def test_a_run_is_started_at_the_time_of_the_store(url: str) -> None:
    """Also the first one of an engine that drives nothing and has heard nothing from the store yet."""

    @sf.workflow
    async def flow(_ctx: sf.Context) -> None: ...

    async with sf.open(url) as space, sf.Engine(url, drive=False) as engine:
        before = (await space.read(space.key("any"))).at
        run = await engine.start(flow)

        started_at = (await run.info()).started_at  # as near as the engine can tell: an answer takes a while
        assert before - SLACK <= started_at <= (await space.read(space.key("any"))).at + SLACK


async def test_branches_that_are_handed_back_are_not_cancelled(url: str) -> None:
    """A worker that stops lets steps end, and what comes after them is not done but left to the next worker."""
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        began.set()
        await go_on.wait()
        return "slow"

    @sf.workflow
    async def flow(ctx: sf.Context) -> list[str]:
        async def branch() -> str:
            await ctx.wait_signal("go")
            return await ctx.step("quick", lambda: "quick")

        return await ctx.gather(ctx.step(slow), branch())

    async with sf.Engine(url, workflows=[flow]) as first:
        run = await first.start(flow, id="run")
        await began.wait()
        stopping = asyncio.create_task(first.aclose())
        async with sf.Engine(url, workflows=[flow], drive=False) as other:
            await other.signal("run", "go")
        go_on.set()
        await stopping

    async with sf.Engine(url, workflows=[flow]) as second:
        assert await second.result(run.id, timeout=20) == ["slow", "quick"]
        assert "cancelled" not in [entry.kind for entry in await second.history(run.id)]


async def test_a_long_step_keeps_no_other_run(url: str) -> None:
    """While a worker that stops waits for a step, the runs that have none are in other hands already."""
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        began.set()
        await go_on.wait()

    @sf.workflow
    async def busy(ctx: sf.Context) -> None:
        await ctx.gather(ctx.step(slow), ctx.wait_signal("never", timeout="1 day"))

    @sf.workflow
    async def waits(ctx: sf.Context) -> str:
        return str(await ctx.wait_signal("go"))

    async with sf.Engine(url, workflows=[busy, waits]) as first, sf.Engine(url, workflows=[waits]) as second:
        await first.start(busy, id="busy")
        await first.start(waits, id="waits")
        await began.wait()
        stopping = asyncio.create_task(first.aclose(grace="1 hour"))
        await second.signal("waits", "go", "on")
        assert await second.result("waits", timeout=20) == "on"

        go_on.set()
        await asyncio.wait_for(stopping, 20)
        assert [entry.id for entry in await second.history("busy") if entry.kind == "step"] == ["g1.0/slow"]
        assert (await second.get("busy")).owner == ""


async def test_a_run_that_ends_while_it_is_written_is_not_driven_again(url: str) -> None:
    """Its last commit waits for the one that is under way, instead of being taken for a loser."""
    told: list[Event] = []
    calls = 0

    async def step(turns: int) -> None:
        nonlocal calls
        calls += 1
        for _ in range(turns):
            await asyncio.sleep(0)

    @sf.workflow
    async def flow(ctx: sf.Context) -> None:
        await ctx.gather(*(ctx.step(step, turns) for turns in (1, 8, 30, 100)))

    async with sf.Engine(url, workflows=[flow], hooks=[told.append]) as engine:
        runs = [await engine.start(flow) for _ in range(50)]
        await asyncio.gather(*(run.result(timeout=30) for run in runs))

    assert [event for event in told if isinstance(event, RunDeposed)] == []
    assert calls == 4 * len(runs)


async def is_so(run: sf.Run[Any], engine: sf.Engine, status: str) -> None:
    """Wait until a run is in a state."""
    async with asyncio.timeout(40), engine.space.watch(engine.space.key("life", run.id)) as watch:
        while (await run.info()).status != status:
            await watch.wait(0.1)


@pytest.mark.heavy
async def test_a_run_that_kills_its_workers_is_quarantined_and_can_be_released(
    engine: sf.Engine, nursery: Nursery, url: str, tmp_path: Path
) -> None:
    """Other runs go on, the command shows which one it is, and lets it go on when its code is mended."""
    antidote = tmp_path / "antidote"
    await nursery.spawn_ready(4, deaths=3)
    bad = await engine.start(kills_its_worker, str(antidote), id="bad")
    others = [await engine.start(in_a_row, 5) for _ in range(20)]
    await is_so(bad, engine, "quarantined")

    assert [await run.result(timeout=30) for run in others] == [5] * 20
    assert sorted(nursery.gone.values()) == [7, 7, 7]
    code, said = answer(url, "runs", "list", "--status", "quarantined")
    assert (code, "an operator to retry it: 3 workers in a row died with it" in said) == (0, True)
    antidote.touch()
    assert answer(url, "runs", "retry", "bad", "--yes")[0] == 0
    assert await bad.result(timeout=30) == "survived"


@pytest.mark.heavy
async def test_a_run_waits_for_a_worker_with_its_code(engine: sf.Engine, nursery: Nursery, ledger: Ledger) -> None:
    """One that has another version, or not the workflow at all, leaves it and says so, and goes on with others."""
    await nursery.spawn_ready(names="changing2,in_a_row")
    old, new = await engine.start(changing_1), await engine.start(changing_2)
    for run in (old, new):
        await run.signal("go")
    assert await new.result(timeout=30) == "new"
    assert await (await engine.start(in_a_row, 1)).result(timeout=30) == 1
    await written(ledger, what="event", key=old.id, name="RunLeftAlone")
    assert (await old.info()).status == "pending"

    await nursery.spawn_ready(names="changing1")
    assert await old.result(timeout=30) == "old"


@pytest.mark.heavy
async def test_a_run_in_the_middle_waits_for_its_code_to_return(
    engine: sf.Engine, nursery: Nursery, ledger: Ledger
) -> None:
    """Its worker is gone, new code came and left it alone; when the old code is back it goes on where it was."""
    (first,) = await nursery.spawn_ready(names="changing1")
    run = await engine.start(changing_1)
    await written(ledger, what="end", key=f"{run.id}:work")
    nursery.kill(first)
    await nursery.spawn_ready(names="changing2")
    await run.signal("go")
    await written(ledger, what="event", key=run.id, name="RunLeftAlone")

    await nursery.spawn_ready(names="changing1")
    assert await run.result(timeout=30) == "old"
    assert [entry.id for entry in await run.history()] == ["work", "signal:go", "work#2"]

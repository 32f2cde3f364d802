"""The commit that ends a run claims the next one, if this process knows all that it takes."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import RunCancelledError
from standfast.stores.group_commit import GroupedStore
from standfast.workflows.runtime import LARGEST_QUEUED, MOST_QUEUED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

gate: list[asyncio.Event] = []
begun: list[str] = []


@sf.step
async def pass_the_gate(name: str) -> str:
    """Say that it has begun, and wait until the test goes on."""
    begun.append(name)
    await gate[-1].wait()
    return name


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def in_turn(ctx: sf.Context, name: str) -> str:
    """Pass the gate, one after the other."""
    return await ctx.step(pass_the_gate, name)


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def renamed(ctx: sf.Context, name: str) -> str:
    """Pass the gate, and answer what it is called then."""
    names = [name]
    ctx.on_update("name", names.append)
    await ctx.step(pass_the_gate, name)
    return names[-1]


WORKFLOWS: list[sf.Workflow[..., Any]] = [in_turn, renamed]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    gate.append(asyncio.Event())
    begun.clear()


@pytest.fixture
async def engine(url: str) -> AsyncIterator[sf.Engine]:
    """An engine with limited workflows."""
    async with sf.Engine(url, workflows=WORKFLOWS) as opened:
        yield opened


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the store was asked for what."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        real = getattr(GroupedStore, name)

        async def asked(store: GroupedStore, *args: Any, **options: Any) -> Any:
            counted[name.removesuffix("_unchecked")] += 1
            return await real(store, *args, **options)

        monkeypatch.setattr(GroupedStore, name, asked)

    for name in ("commit", "commit_unchecked", "update", "read", "scan"):
        count(name)
    monkeypatch.setattr(GroupedStore, "commit_at_once", GroupedStore.commit_unchecked)
    return counted


async def until_begun(*names: str) -> None:
    """Wait until just these have begun."""
    while begun != list(names):  # noqa: ASYNC110 -- a step tells nobody
        await asyncio.sleep(0.001)


async def start(engine: sf.Engine, workflow: Any, number: int) -> list[sf.Run[str]]:
    """Start runs one after the other; the first has its turn when this returns."""
    runs: list[sf.Run[str]] = [await engine.start(workflow, f"{each:03}") for each in range(number)]
    await until_begun("000")
    return runs


async def results(runs: list[sf.Run[str]]) -> list[str]:
    """Open the gate, and wait for all runs."""
    gate[-1].set()
    return await asyncio.gather(*(run.result() for run in runs))


async def test_a_turn_is_one_commit_and_no_look(engine: sf.Engine, calls: Counter[str]) -> None:
    """The end of a run, its leaving and the claim of the next one are one, and nothing is read for it."""
    runs = await start(engine, in_turn, 20)
    calls.clear()

    await runs[0].info()
    gate[-1].set()
    await until_begun(*[f"{each:03}" for each in range(20)])

    assert calls["update"] <= 1  # the last one finds nobody waiting
    assert calls["commit"] <= 20
    assert calls["read"] <= 5  # of the worker's own, and of the look above


async def test_news_that_was_looked_at_before_the_turn_is_not_lost(engine: sf.Engine) -> None:
    """An update of a run in line is answered when the run has its turn, though a worker took its flag away before."""
    runs = await start(engine, renamed, 2)
    update = asyncio.ensure_future(runs[1].update("name", "new"))
    flag = engine.space.key("ready", runs[1].id)
    async with engine.space.watch(flag) as watch:
        while (await engine.space.read(flag)).get(flag) is None:
            await watch.wait(0.1)
        while (await engine.space.read(flag)).get(flag) is not None:
            await watch.wait(0.1)
    gate[-1].set()
    gate.append(asyncio.Event())  # the second one stays in its step

    await asyncio.wait_for(update, 5)
    assert await results(runs) == ["000", "new"]


async def test_a_run_that_was_cancelled_in_line_is_not_claimed(engine: sf.Engine) -> None:
    """What is known of it is not so any more: it ends, and the one behind it has its turn."""
    runs = await start(engine, in_turn, 3)
    await runs[1].cancel("no longer needed")

    gate[-1].set()

    assert await runs[2].result() == "002"
    with pytest.raises(RunCancelledError):
        await runs[1].result()
    assert begun == ["000", "002"]


async def test_a_run_that_another_process_has_put_in_between_keeps_its_place(url: str) -> None:
    """Whoever has started them, they begin in the order of their starts."""
    async with sf.Engine(url, workflows=WORKFLOWS) as one, sf.Engine(url, workflows=WORKFLOWS) as other:
        first = await one.start(in_turn, "000")
        await until_begun("000")
        engines = (one, other, one, one, other, other, one, one)
        runs = [first, *[await each.start(in_turn, f"{at:03}") for at, each in enumerate(engines, 1)]]

        assert await results(runs) == begun == [f"{at:03}" for at in range(9)]


async def test_little_is_kept_in_mind(engine: sf.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with large inputs are read when their turn comes, and so are all but the last ones of many."""
    monkeypatch.setattr("standfast.workflows.runtime.MOST_QUEUED", 3)
    runs = await start(engine, in_turn, 6)
    assert list(engine.runtime.queued) == [run.id for run in runs[3:]]
    large = await engine.start(in_turn, "x" * LARGEST_QUEUED)

    assert large.id not in engine.runtime.queued
    assert MOST_QUEUED <= 10_000
    assert len(await results([*runs, large])) == 7
    assert not engine.runtime.queued

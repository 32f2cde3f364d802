"""A store that fails now and then, under a worker that lives on."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import StoreError
from standfast.events import Event, WorkerFails
from standfast.space import Space
from standfast.stores.url import open_store
from standfast.testing.faults import Faults, FaultyStore
from tests.unit.workflows.engines import DONE, act

if TYPE_CHECKING:
    from pathlib import Path


@sf.workflow
async def acts_often(ctx: sf.Context, name: str) -> None:
    """Act several times, and hold a lock meanwhile now and then."""
    for number in range(5):
        await ctx.step(act, f"{name}-{number}-before")
        async with ctx.mutex(name):
            await ctx.step(act, f"{name}-{number}-within")


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def acts_in_turn(ctx: sf.Context, name: str) -> None:
    """Act once, one run after the other."""
    await ctx.step(act, name)


WORKFLOWS = [acts_often, acts_in_turn]


async def opened(engine: sf.Engine) -> None:
    """Open an engine, whose store may fail on the way."""
    for _ in range(50):
        with suppress(StoreError):
            return await engine.open()
    raise AssertionError("the store fails always")


@pytest.mark.parametrize(
    "faults",
    [Faults(refuse=0.2), Faults(lose_request=0.2), Faults(lose_reply=0.2), Faults(land_late=0.2)],
    ids=["refuses", "loses requests", "loses replies", "is late"],
)
async def test_what_a_step_did_is_kept_though_the_store_fails(faults: Faults) -> None:
    """As long as its process is taken for alive, a step that has ended is recorded, and does not run again."""
    DONE.clear()
    inner = await open_store("memory://")
    worker = sf.Engine(Space(FaultyStore(await inner.another(), seed=1, faults=faults)), workflows=WORKFLOWS)
    async with sf.Engine(Space(inner), workflows=WORKFLOWS, drive=False) as client:
        runs = [await client.start(each, f"{each.name}-{n}") for each in WORKFLOWS for n in range(3)]
        await opened(worker)
        for run in runs:
            await run.result(timeout=30)
        with suppress(StoreError):
            await worker.aclose()
    assert [name for name, count in Counter(DONE).items() if count > 1] == []


async def test_a_worker_whose_store_is_gone_says_so_once(tmp_path: Path) -> None:
    """Nobody else would: it asks by itself, and goes on trying."""
    told = asyncio.Queue[Event]()
    path = tmp_path / "store.db"
    engine = sf.Engine(f"sqlite:///{path}", workflows=WORKFLOWS, hooks=[told.put_nowait])
    await engine.open()
    path.unlink()
    async with asyncio.timeout(10):
        while not isinstance(event := await told.get(), WorkerFails):
            pass
    assert event.problem.startswith("StoreGoneError")
    with suppress(StoreError):
        await engine.aclose()
    assert told.empty()

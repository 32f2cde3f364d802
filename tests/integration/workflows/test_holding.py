"""Locks of runs whose worker is killed: still held, and still in line."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import WouldWaitError
from standfast.stores.protocol import Put
from standfast.workflows.records import CHUNKS, Chunk, RunKeys, events_of
from tests.fork_server import forked_exec
from tests.integration.workflows.nursery import ROOT
from tests.integration.workflows.programs.lock_holder import holds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.heavy  # real processes: once, on the default interpreter


@asynccontextmanager
async def worker(url: str) -> AsyncIterator[None]:
    """A process that drives runs, and is killed without a warning at the end of the block."""
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    process = await forked_exec(
        sys.executable, "-m", "tests.integration.workflows.programs.lock_holder", url,
        stdout=asyncio.subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def reached(engine: sf.Engine, run_id: str, status: str) -> None:
    """Wait until a run is in a state."""
    async with engine.space.watch(engine.space.key("life", run_id)) as watch:
        while (await engine.get(run_id)).status != status:
            await watch.wait(0.5)


async def suspended(engine: sf.Engine, run_id: str) -> None:
    """Wait until a run waits."""
    await reached(engine, run_id, "suspended")


async def test_a_killed_worker_takes_no_lock_of_a_run_with_it(tmp_path: object) -> None:
    """Its runs hold and wait on while nobody drives them, and go on in order with the next worker."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with sf.Engine(url, workflows=[holds], drive=False) as engine:
        inside = engine.state.workflow("holds", "inside", type=list[str])
        async with worker(url):
            first = await engine.start(holds, id="a")
            await suspended(engine, "a")
            second = await engine.start(holds, id="b")
            await suspended(engine, "b")
            assert await inside.get() == ["+a"]

        with pytest.raises(WouldWaitError):
            async with engine.space.mutex("k").try_hold():
                pass

        async with worker(url):
            await second.signal("go")
            await first.signal("go")
            assert await first.result() < await second.result()
        assert await inside.get() == ["+a", "-a", "+b", "-b"]
        async with engine.space.mutex("k").try_hold():
            pass


async def standfast(*words: str, url: str) -> str:
    """Run the command as an operator does; return what it prints."""
    process = await forked_exec(
        sys.executable, "-m", "standfast", *words,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "STANDFAST_STORE": url},
    )  # fmt: skip
    told, _ = await process.communicate()
    assert process.returncode == 0
    return told.decode()


async def test_a_run_whose_lock_is_released_before_it_noticed_ends_with_the_next_worker(tmp_path: object) -> None:
    """An operator releases the lock twice while no worker is up: the run that had it for a moment enters again."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with sf.Engine(url, workflows=[holds], drive=False) as engine:
        inside = engine.state.workflow("holds", "inside", type=list[str])
        async with worker(url):
            await engine.start(holds, id="a")
            await suspended(engine, "a")
            second = await engine.start(holds, id="b")
            await suspended(engine, "b")
        for _ in range(2):
            assert "released" in await standfast("locks", "release", "k", "--yes", url=url)
        async with worker(url):
            await second.signal("go")
            assert await second.result(timeout=30) > 0
            assert "completed" in await standfast("runs", "show", "b", url=url)
        assert await inside.get() == ["+a", "+b", "-b"]


async def test_a_run_that_can_record_nothing_any_more_is_shown_and_goes_on_when_it_is_retried(tmp_path: object) -> None:
    """A worker puts it aside after a few tries; the operator finds it in the list, and lets it go on."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with sf.Engine(url, workflows=[holds], drive=False) as engine:
        async with worker(url):
            run = await engine.start(holds, id="a")
            await suspended(engine, "a")
        keys = RunKeys(engine.space, "a")
        marks = await events_of(engine.space, keys)
        await engine.space.commit(Put(keys.chunk(len(marks)), CHUNKS.encode(Chunk(()))))  # as an early version did
        await run.signal("go")
        async with worker(url):
            await reached(engine, "a", "quarantined")
            assert "a" in await standfast("runs", "list", "--status", "quarantined", url=url)
            assert "an operator" in await standfast("runs", "show", "a", url=url)
            await standfast("runs", "retry", "a", "--yes", url=url)
            assert await run.result(timeout=30) > 0

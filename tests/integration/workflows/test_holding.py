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
from tests.integration.workflows.nursery import ROOT
from tests.integration.workflows.programs.holding import holds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.heavy  # real processes: once, on the default interpreter


@asynccontextmanager
async def worker(url: str) -> AsyncIterator[None]:
    """A process that drives runs, and is killed without a warning at the end of the block."""
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.workflows.programs.holding", url,
        stdout=asyncio.subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def suspended(engine: sf.Engine, run_id: str) -> None:
    """Wait until a run waits."""
    async with engine.space.watch(engine.space.key("life", run_id)) as watch:
        while (await engine.get(run_id)).status != "suspended":
            await watch.wait(0.5)


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

"""Start limits among real processes that are killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import standfast as sf
from standfast.errors import WorkflowConcurrencyLimitExceededError
from tests.fork_server import forked_exec
from tests.integration.workflows.programs.limited import WORKFLOWS, alone, in_turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT: Final = Path(__file__).resolve().parents[3]


@asynccontextmanager
async def worker(url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that drives runs; it is killed at the end, if it was not before."""
    process = await forked_exec(
        sys.executable, "-m", "tests.integration.workflows.programs.limited", url, stdout=asyncio.subprocess.PIPE,
        cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def test_a_place_survives_kill_9_of_the_process_that_drives_its_run(url: str) -> None:
    """Nobody else gets it while the run is unfinished; when another process has completed it, it is free."""
    async with sf.Engine(url, workflows=WORKFLOWS, drive=False) as engine:
        async with worker(url) as process:
            run = await engine.start(alone, "a")
            async with engine.space.watch(engine.space.key("life", run.id)) as watch:
                while not (await run.info()).owner:
                    await watch.wait(0.5)
            process.send_signal(signal.SIGKILL)
            await process.wait()
        with pytest.raises(WorkflowConcurrencyLimitExceededError):
            await engine.start(alone, "b")

        async with worker(url):
            await run.signal("go", "!")
            assert await run.result(timeout=30) == "a!"
        assert (await engine.start(alone, "b")).is_new


@pytest.mark.heavy
async def test_a_queue_goes_on_in_order_while_its_workers_are_killed(url: str, tmp_path: Path, seed: int) -> None:
    """Every run has its turn, none before its time; only one that was cut off in its step does that again."""
    chance, path = random.Random(seed), tmp_path / "log"
    names = [f"{number:03}" for number in range(60)]
    async with sf.Engine(url, workflows=WORKFLOWS, drive=False) as engine:
        runs = [await engine.start(in_turn, str(path), name) for name in names]
        for _ in range(4):
            async with worker(url):
                done = sum([(await run.info()).status == "completed" for run in runs])
                await runs[min(done + chance.randrange(12), len(runs) - 1)].result(timeout=30)
        async with worker(url):
            await asyncio.gather(*(run.result(timeout=30) for run in runs))

        written = path.read_text().split()
        assert written == sorted(written)
        assert set(written) == set(names)
        assert not (await engine.space.scan(*engine.space.key("line").within(), limit=10)).records

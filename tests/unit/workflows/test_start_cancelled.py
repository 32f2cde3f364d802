"""Whoever asks for a run and goes away does not hear whether it was started; if it was, it begins all the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import standfast as sf

if TYPE_CHECKING:
    from pathlib import Path

TURNS = 40
"""More turns of the loop than a start takes."""


@sf.workflow
async def plain(_ctx: sf.Context) -> str:
    """Need no place in a line."""
    return "done"


@sf.workflow(concurrency=100)
async def limited(_ctx: sf.Context) -> str:
    """Need a place in a line."""
    return "done"


async def start_for(engine: sf.Engine, workflow: sf.Workflow[..., str], turns: int) -> None:
    """Start a run, and go away after so many turns of the loop."""
    task = asyncio.ensure_future(engine.start(workflow, id=f"run-{turns}"))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})


@pytest.mark.parametrize("workflow", [plain, limited])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_run_begins_though_its_start_was_cancelled(
    tmp_path: Path, store: str, workflow: sf.Workflow[..., str]
) -> None:
    """It need not wait for the lease of the very worker that has it."""
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path / 'a.db'}"
    async with sf.Engine(url, workflows=[plain, limited], lease="1 hour") as engine:
        for turns in range(TURNS):
            await start_for(engine, workflow, turns)
        started = (await engine.list()).runs

        results = await asyncio.gather(*(engine.result(run.id, timeout="10 seconds") for run in started))

    assert results == ["done"] * len(started) != []

"""A program with an engine that is stopped by Ctrl-C while a step is under way."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.events import WorkerWaits
from tests.fork_server import ForkedPopen

if TYPE_CHECKING:
    from pathlib import Path

    from standfast.events import Event

PROGRAM = """
import asyncio, sys
import standfast as sf

async def stay():
    print("staying", flush=True)
    await asyncio.sleep(0.2)

@sf.workflow
async def stays(ctx):
    await ctx.step(stay)

async def main():
    async with sf.Engine(sys.argv[1], workflows=[stays]) as engine:
        await (await engine.start(stays, id="order-7")).result()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT])
def test_a_program_says_what_it_waits_for(tmp_path: Path, number: signal.Signals) -> None:
    """On stderr, without a hook or a log being set up: which step of which run and for how long."""
    program = ForkedPopen(
        [sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path}/store.db"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "staying\n"
    program.send_signal(number)
    _, said = program.communicate(timeout=40)
    assert "waiting up to 5 s for what is under way: order-7 (stay); then it is cancelled" in said
    assert "Ctrl-C once more" not in said  # only a command that hears the signal may promise that


async def test_hooks_are_told_what_is_waited_for() -> None:
    """An engine that is closed at rest waits for nothing and says nothing."""
    told: list[Event] = []
    async with sf.Engine("memory://", hooks=[told.append]):
        pass
    assert not [event for event in told if isinstance(event, WorkerWaits)]

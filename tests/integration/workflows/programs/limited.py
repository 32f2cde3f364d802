"""A process that drives workflows with start limits, until it is killed: ``python -m ... URL FILE``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import holdfast as hf


@hf.step
def note(path: str, name: str) -> str:
    """Add a line to a file outside of the store."""
    with Path(path).open("a") as file:
        file.write(f"{name}\n")
    return name


@hf.workflow(concurrency=1)
async def alone(ctx: hf.Context, name: str) -> str:
    """Wait for a signal, one run at a time."""
    return f"{name}{await ctx.wait_signal('go')}"


@hf.workflow(concurrency=hf.Limit(1, on_limit="queue"))
async def in_turn(ctx: hf.Context, path: str, name: str) -> str:
    """Leave a line in a file, one after the other."""
    return await ctx.step(note, path, name)


WORKFLOWS: list[hf.Workflow[..., str]] = [alone, in_turn]


async def main(url: str) -> None:
    """Drive runs for ever."""
    async with hf.Engine(url, workflows=WORKFLOWS):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

"""A process that drives workflows with start limits, until it is killed: ``python -m ... URL FILE``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import standfast as sf


@sf.step
def note(path: str, name: str) -> str:
    """Add a line to a file outside of the store."""
    with Path(path).open("a") as file:
        file.write(f"{name}\n")
    return name


@sf.workflow(concurrency=1)
async def alone(ctx: sf.Context, name: str) -> str:
    """Wait for a signal, one run at a time."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def in_turn(ctx: sf.Context, path: str, name: str) -> str:
    """Leave a line in a file, one after the other."""
    return await ctx.step(note, path, name)


WORKFLOWS: list[sf.Workflow[..., str]] = [alone, in_turn]


async def main(url: str) -> None:
    """Drive runs for ever."""
    async with sf.Engine(url, workflows=WORKFLOWS):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

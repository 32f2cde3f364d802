"""A process that drives workflows which hold locks, until it is killed: ``python -m ... URL``."""

from __future__ import annotations

import asyncio
import sys

import standfast as sf


@sf.workflow
async def holds(ctx: sf.Context) -> int:
    """Hold a lock until a signal comes, and count those who did."""
    async with ctx.mutex("k") as hold:
        await ctx.state.workflow("inside", type=list[str]).append(f"+{ctx.run_id}")
        await ctx.wait_signal("go")
        await ctx.state.workflow("inside", type=list[str]).append(f"-{ctx.run_id}")
        return hold.fence


async def main(url: str) -> None:
    """Drive runs for ever."""
    async with sf.Engine(url, workflows=[holds]):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

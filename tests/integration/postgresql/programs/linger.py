"""A worker with a workflow whose step says that it began, and takes as long as the worker lives: ``linger URL``."""

from __future__ import annotations

import asyncio
from typing import Final

import standfast as sf
from standfast.clock import monotonic
from tests.integration.locks.programs.contend import commands
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, say

LEASE: Final = 30.0
KILLS: Final = 1_000  # more than the test has: its workers die for no fault of the run


@sf.step
async def last() -> None:
    """Say so, and wait for the end."""
    say("began", monotonic())
    await asyncio.Event().wait()


@sf.workflow
async def linger(ctx: sf.Context) -> None:
    """Take one step."""
    await ctx.step(last)


async def main(url: str) -> None:
    """Work until the test has ended."""
    told = await commands()
    async with sf.Engine(url, workflows=[linger], lease=LEASE, worker=sf.admin.WorkerLimits(quarantine_after=KILLS)):
        say("ready")
        await told.read()


if __name__ == "__main__":
    asyncio.run(main(*ARGUMENTS))

"""Forks processes that all start the run ``one`` at the same moment, and signal it. Says who has started it."""

from __future__ import annotations

import asyncio
import os
import sys

import standfast as sf
from standfast.cli.launcher import die_with


@sf.workflow
async def gathers(ctx: sf.Context, count: int) -> list[str]:
    """Take so many signals."""
    return [await ctx.wait_signal("item") for _ in range(count)]


async def race(url: str, number: int, of: int, signals: int) -> None:
    """Start the run and signal it; every fifth process also drives what it finds."""
    async with sf.Engine(url, workflows=[gathers], drive=number % 5 == 0) as engine:
        run = await engine.start(gathers, of * signals, id="one")
        os.write(1, b"new\n" if run.is_new else b"old\n")
        names = [f"{number}-{n}" for n in range(signals)]
        twice = [name for name in names for _ in range(2)]
        await asyncio.gather(*(run.signal("item", name, signal_id=name) for name in twice))


def bear(go: tuple[int, int], url: str, number: int, of: int, signals: int) -> int:
    """Fork a process that waits until nobody holds the other end of the pipe any more."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with(parent)
        os.close(go[1])
        os.read(go[0], 1)
        asyncio.run(race(url, number, of, signals))
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> int:
    """Fork them, let them go, and return how many have failed."""
    url, count, signals = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    go = os.pipe()
    pids = [bear(go, url, number, count, signals) for number in range(count)]
    os.close(go[1])
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)


if __name__ == "__main__":
    sys.exit(main())

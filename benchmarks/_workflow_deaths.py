"""What the death of a worker costs: one process is killed in the middle of a run, another one goes on with it.

Started as a program, it is one of the two. Instants are nanoseconds of the monotonic clock, which processes share.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from typing import TYPE_CHECKING, Final

import standfast as sf
from benchmarks._lock_contender import heard, say
from benchmarks._lock_crowd import Process

if TYPE_CHECKING:
    from pathlib import Path

MODULE: Final = "benchmarks._workflow_deaths"
STEP_TAKES: Final = 0.005
ALIVE_FOR: Final = (0.05, 0.1)  # seconds in which steps are taken before the kill
PATIENCE: Final = 30.0

is_mortal = False


@sf.step
async def beat(_number: int) -> bool:
    """Say when it is run. Whoever will not be killed wants no more steps after the first one."""
    say(time.monotonic_ns())
    await asyncio.sleep(STEP_TAKES)
    return is_mortal


@sf.workflow
async def march(ctx: sf.Context) -> int:
    """Take steps until one of them says that it is enough."""
    number = 0
    while await ctx.step(beat, number):
        number += 1
    return number


async def work(path: str, role: str) -> None:
    """Be one of the two; the one that will die starts the run."""
    global is_mortal  # noqa: PLW0603 -- a process is one or the other, for as long as it lives
    is_mortal = role == "mortal"
    async with sf.Engine(f"sqlite:///{path}", workflows=[march]) as engine:
        say("ready")
        if is_mortal:
            await engine.start(march)
        while await heard():
            pass


class Deaths:
    """One who stays, and one after another who dies."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "deaths.db")
        self._heir = self._start("heir")

    def _start(self, role: str) -> Process:
        process = Process(sys.executable, MODULE)
        process.tell(self._path)
        process.tell(role)
        assert process.hear() == "ready"
        return process

    def takeover(self) -> float:
        """Kill a worker in the middle of a run; return the milliseconds until the other one runs the next step."""
        mortal = self._start("mortal")
        try:
            mortal.hear()
            time.sleep(random.uniform(*ALIVE_FOR))
            killed_at = mortal.kill()
            return float(self._heir.hear() - killed_at) / 1e6
        finally:
            mortal.close()

    def close(self) -> None:
        """Let the one who stays end."""
        self._heir.close()


async def main() -> None:
    """Hear which file it is about, and which of the two to be."""
    await work((await heard()).strip(), (await heard()).strip())


if __name__ == "__main__":
    asyncio.run(main())

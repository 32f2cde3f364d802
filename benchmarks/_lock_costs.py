"""What holding costs beyond taking: renewals while many locks are held, and what a key leaves behind."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Final

import standfast as sf
from benchmarks._lock_contender import until

if TYPE_CHECKING:
    from pathlib import Path

    from standfast.space import Space

HEARTBEAT: Final = 0.05
WATCHED_FOR: Final = 0.6
COMMITS: Final = "SELECT sum(count) FROM counters WHERE handle <> ''"
LEFT: Final = "SELECT count(*) FROM records WHERE expires_at IS NULL"
TOGETHER: Final = 50


READ: Final = """
import sys
import apsw

connection = apsw.Connection(sys.argv[1], flags=apsw.SQLITE_OPEN_READONLY)
print(connection.execute(sys.argv[2]).get)
"""


async def number(path: Path, query: str) -> int:
    """Ask the file itself, past Standfast: in another process, since a second connection in this one is refused."""
    pipe = asyncio.subprocess.PIPE
    reader = await asyncio.create_subprocess_exec(sys.executable, "-c", READ, str(path), query, stdout=pipe)
    printed, _ = await reader.communicate()
    return int(printed)


async def renewals(path: Path, locks: int) -> float:
    """Return the transactions a second that it takes to go on holding so many locks."""
    over = asyncio.Event()
    held = 0

    async def hold(name: str) -> None:
        nonlocal held
        async with space.mutex(name).hold():
            held += 1
            await over.wait()

    async with sf.open(f"sqlite:///{path}", lease=1.0, heartbeat=HEARTBEAT) as space, asyncio.TaskGroup() as group:
        for each in range(locks):
            group.create_task(hold(f"held-{each}"))
        await until(lambda: held == locks, every=0.01)
        before, started = await number(path, COMMITS), time.monotonic()
        await asyncio.sleep(WATCHED_FOR)
        rate = (await number(path, COMMITS) - before) / (time.monotonic() - started)
        over.set()
    return rate


async def _use(space: Space, numbers: range) -> None:
    async def once(number: int) -> None:
        async with space.mutex(f"idle-{number}").hold():
            pass

    for first in range(numbers.start, numbers.stop, TOGETHER):
        await asyncio.gather(*map(once, range(first, first + TOGETHER)))
    for _ in range(3):  # what is known of the last commits should not be of fifty keys
        await once(-1)


async def idle_records(path: Path) -> float:
    """Return the records that stay in the store for each key that was held once."""
    async with sf.open(f"sqlite:///{path}") as space:
        await _use(space, range(200))
        return await number(path, LEFT) / 200

"""Runs that sleep: what a million of them cost a worker, and how long those that are due wait among them.

Falling asleep one by one would take minutes, so one run is put to sleep by the engine and its records are copied under
other names and other times, in bulk. Started as a program, it is the worker.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import apsw

import standfast as sf
from benchmarks.harness import ROOT
from standfast.ids import new_id
from standfast.keys import RecordKey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE: Final = "benchmarks._workflow_sleepers"
DUE: Final = 1_000
DUE_IN: Final = 6.0  # seconds, in which those that will be due fall asleep, and their worker is replaced by another
SETTLED_IN: Final = 0.5
BATCH: Final = 50_000

woken: list[float] = []


@sf.workflow
async def nap(ctx: sf.Context, until: datetime) -> None:
    """Sleep, and note when it is over."""
    await ctx.sleep_until(until)
    woken.append(time.time())


# --- putting them to sleep ----------------------------------------------------------------------------------------


class Wakings(NamedTuple):
    """How late runs were that were due at the same moment, in ms: the middle one, and the last one."""

    p50: float
    last: float


async def one_sleeper(path: Path) -> str:
    """Put a run to sleep; return its id."""
    async with sf.Engine(f"sqlite:///{path}", workflows=[nap]) as engine:
        handle = await engine.start(nap, datetime.now(UTC) + timedelta(days=300))
        await all_asleep(engine)
        return str(handle.id)


async def all_asleep(engine: sf.Engine) -> None:
    """Wait until a worker has nothing in memory any more."""
    while engine.runtime.loaded:  # noqa: ASYNC110 -- what is waited for must not be slowed down by telling
        await asyncio.sleep(0.01)


def multiply(path: Path, sleeper: str, count: int) -> None:
    """Copy the records of a sleeping run, each time with another id and another time to wake up, in the same order."""
    connection = apsw.Connection(str(path))
    connection.pragma("synchronous", "off")
    rows: Any = connection.execute("SELECT key, value FROM records WHERE instr(key, ?)", (sleeper.encode(),))
    found: list[tuple[bytes, bytes]] = rows.fetchall()
    due = due_of(found)
    names = [new_id().encode() for _ in range(count)]
    version: Any = connection.execute("SELECT count FROM counters WHERE handle = ''").get
    for key, value in found:
        copies = _copies((key, value), sleeper.encode(), due, names, version)
        while batch := [row for row, _ in zip(copies, range(BATCH), strict=False)]:
            with connection:
                connection.executemany("INSERT INTO records VALUES (?, ?, NULL, ?)", batch)
        version += count
    connection.execute("UPDATE counters SET count = ? WHERE handle = ''", (version,))
    connection.close()


def due_of(found: list[tuple[bytes, bytes]]) -> bytes:
    """Return the digits of the instant at which a run is due, as its record of the timer index has them, if any."""
    timers = RecordKey("default", "default", "timer")
    key = next((key for key, _ in found if key.startswith(timers)), None)
    return b"" if key is None else RecordKey.from_encoded(key).parts[-2].encode()


def _copies(
    row: tuple[bytes, bytes], sleeper: bytes, due: bytes, names: list[bytes], version: int
) -> Iterator[tuple[bytes, int, bytes]]:
    for number, name in enumerate(names, start=1):
        copy = [text.replace(sleeper, name) for text in row]
        if due:
            at = b"%016d" % (int(due) + number)
            copy = [text.replace(due, at) for text in copy]
        yield copy[0], version + number, copy[1]


# --- the worker ---------------------------------------------------------------------------------------------------


def own_memory() -> int:
    """Return the kB of memory that this process has to itself."""
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 -- one line of a file of the kernel
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))


async def memory(path: str) -> int:
    """Return what a worker needs that has nothing to do at the moment."""
    async with sf.Engine(f"sqlite:///{path}", workflows=[nap]):
        await asyncio.sleep(SETTLED_IN)
        return own_memory()


async def wake(path: str) -> Wakings:
    """Put some to sleep among the others, replace their worker, and see how late they wake up."""
    until = datetime.now(UTC) + timedelta(seconds=DUE_IN)
    async with sf.Engine(f"sqlite:///{path}", workflows=[nap]) as engine:
        await asyncio.gather(*(engine.start(nap, until) for _ in range(DUE)))
        await all_asleep(engine)
    assert datetime.now(UTC) < until, "they fell asleep too slowly"
    async with sf.Engine(f"sqlite:///{path}", workflows=[nap]):
        while len(woken) < DUE:  # noqa: ASYNC110 -- what is measured must not be slowed down by telling
            await asyncio.sleep(0.02)
    late = [(at - until.timestamp()) * 1000 for at in woken]
    assert min(late) >= 0
    return Wakings(statistics.median(late), max(late))


class Sleepers:
    """Files with as many sleeping runs as wanted, and workers on them, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def memory(self, count: int) -> float:
        """Return the MB that a worker needs with so many runs asleep."""
        return float(self._worker("memory", count)) / 1000

    def wake(self, count: int) -> Wakings:
        """Return how late those that are due wake up among so many that are not."""
        return Wakings(*self._worker("wake", count))

    def _worker(self, role: str, count: int) -> Any:  # noqa: ANN401 -- whatever JSON the process answers
        command = [sys.executable, "-m", MODULE, role, str(self._file(count))]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120)
        return json.loads(done.stdout)

    def _file(self, count: int) -> Path:
        path = self._folder / f"asleep-{count}.db"
        if not path.exists():
            sleeper = asyncio.run(one_sleeper(path))
            multiply(path, sleeper, count)
        return path


if __name__ == "__main__":
    print(json.dumps(asyncio.run({"memory": memory, "wake": wake}[sys.argv[1]](sys.argv[2]))))

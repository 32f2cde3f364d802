"""DBOS in an environment of its own: ``python -m benchmarks._workflow_dbos file.db wal 0.01``, or the URL of a server.

Workflows are called from plain threads, which is the fastest of the ways it documents here: started from asyncio, or by
a handle, it does less in the same time. The console log is off.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import sys
import time
from typing import Any, Final

from dbos import DBOS

from benchmarks._workflow_windows import Window, serve, threads

QUEUE: Final = "one-at-a-time"
WARM_UP: Final = 0.3  # seconds
A_DAY: Final = 86_400.0

numbers = itertools.count()
enqueued: list[int] = []
finished: list[int] = []


def _add_one(number: int) -> int:
    return number + 1


async def _nap(number: int) -> int:
    await DBOS.sleep_async(A_DAY)
    return number


def _in_turn(number: int) -> int:
    result: int = add_one(number)
    finished.append(result)
    return result


add_one: Any = DBOS.step(name="add_one")(_add_one)
nap: Any = DBOS.workflow(name="nap")(_nap)
in_turn: Any = DBOS.workflow(name="in_turn")(_in_turn)


def _add(number: int, steps: int) -> int:
    for _ in range(steps):
        number = add_one(number)
    return number


add: Any = DBOS.workflow(name="add")(_add)


def run(steps: int) -> None:
    """Run a workflow, and see that its result is right."""
    number = next(numbers)
    assert add(number, steps) == number + steps


def runs(at_once: int, steps: int, seconds: float) -> Window:
    """Keep so many threads busy with runs; connections and threads are there before the window opens."""
    threads(lambda: run(steps), at_once, min(WARM_UP, seconds))
    return threads(lambda: run(steps), at_once, seconds)


def queue(backlog: int, seconds: float) -> float:
    """Return how many runs of one step a second get their turn in a queue, while nothing is being put into it."""
    for _ in range(backlog - (len(enqueued) - len(finished))):
        number = next(numbers)
        DBOS.enqueue_workflow(QUEUE, in_turn, number)
        enqueued.append(number)
    before, started = len(finished), time.perf_counter()
    time.sleep(seconds)
    return (len(finished) - before) / (time.perf_counter() - started)


async def _start_naps(count: int) -> None:
    for number in range(count):
        await DBOS.start_workflow_async(nap, number)
    await asyncio.sleep(0.5)


def sleepers(count: int) -> float:
    """Return the kB that a sleeping run adds to its worker."""
    before = own_memory()
    asyncio.run(_start_naps(count))
    return (own_memory() - before) / count


def own_memory() -> int:
    """Return the kB of memory that this process has to itself."""
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 -- one line of a file of the kernel
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))


def prefer_wal(path: str) -> None:
    """Make the file before DBOS does, with a write-ahead log, which it then keeps."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    connection.close()


def journal_mode(path: str) -> str:
    """Tell which journal the file has."""
    connection = sqlite3.connect(path)
    mode: str = connection.execute("PRAGMA journal_mode").fetchone()[0]
    connection.close()
    return mode


def main(path: str, journal: str, poll: str) -> None:
    """Launch DBOS on a file or a server, and answer orders."""
    url = path if "://" in path else f"sqlite:///{path}"
    is_file = path != url
    if is_file and journal == "wal":
        prefer_wal(path)
    quiet = {"console_log_level": "CRITICAL", "log_level": "CRITICAL"}
    config: Any = {"name": "bench", "system_database_url": url, **quiet}
    DBOS(config=config)
    DBOS.launch()
    assert not is_file or journal_mode(path) == ("wal" if journal == "wal" else "delete")
    if poll:
        interval = {} if poll == "default" else {"polling_interval_sec": float(poll)}
        DBOS.register_queue(QUEUE, global_concurrency=1, **interval)
    try:
        serve({"runs": runs, "queue": queue, "sleepers": sleepers})
    finally:
        sys.stdout.flush()
        os._exit(0)  # a thousand runs asleep are not waited for


if __name__ == "__main__":
    main(*sys.argv[1:])

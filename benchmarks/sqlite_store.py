"""The SQLite store: durable commits a second, fairness between processes, hints, reads, and what idling costs."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import standfast as sf
from benchmarks import _sqlite_processes as processes
from benchmarks._sqlite_limit import HOT, Limit, key_of, value
from benchmarks.harness import Row, Subject, at_least, finish, plainly_at_least, plainly_at_most
from standfast.stores import Commit, Decision, Put

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from benchmarks._sqlite_processes import Storm
    from benchmarks.harness import Bar
    from standfast.space import Space
    from standfast.stores import Snapshot

T = TypeVar("T")

NOTES = """\
Both sides are durable: WAL with `synchronous=FULL`, on a file that Standfast made, with its schema and its log.
The limit is a plain loop over the driver, without asyncio: for a commit one guard is read and one row written, for a
transaction the counters of versions and attempts; *n* tasks are *n* commits in one transaction. Every write has a new
value. The peer of several processes is the same loop in each of them with SQLite's busy handler for a queue."""

COMMITS = {1: 600, 10: 3_000, 100: 10_000, 1_000: 20_000}
STORM_SECONDS = 2.0
READS = 3_000
RINGS = 300


class Ours:
    """Standfast in one process, on an event loop that stays up between the rounds."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self.space: Space = self.run(self._open(url))
        self._versions: dict[int, int] = {}
        self._number = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the loop."""
        return self._runner.run(work)

    async def _open(self, url: str) -> Space:
        return await sf.open(url)

    async def _commit(self, task: int, times: int) -> None:
        key, version, commit = key_of[task], self._versions.get(task, 0), self.space.commit
        for number in range(self._number, self._number + times):
            verdict = await commit(Put(key, value(task, number), version))
            assert type(verdict) is Commit
            version = verdict.versions[key]
        self._versions[task] = version

    async def commits(self, tasks: int, times: int) -> None:
        """Let tasks commit one after another, each to a record of its own."""
        await asyncio.gather(*(self._commit(task, times) for task in range(tasks)))
        self._number += times

    async def updates(self, tasks: int, times: int) -> None:
        """Let tasks count up one record."""
        key = HOT

        def count(seen: Snapshot) -> Decision[int]:
            record = seen.get(key)
            number = int(record.value) + 1 if record else 1
            return Decision(number, (Put(key, b"%d" % number, seen.version(key)),))

        async def task() -> None:
            for _ in range(times):
                await self.space.update((key,), count)

        await asyncio.gather(*(task() for _ in range(tasks)))

    async def reads(self, times: int) -> None:
        """Read one record again and again."""
        for _ in range(times):
            await self.space.read(key_of[0])

    def close(self) -> None:
        """Close the store and the loop."""
        self.run(self.space.aclose())
        self._runner.close()


def repeat(work: Callable[[], object], times: int) -> None:
    """Do the same again and again."""
    for _ in range(times):
        work()


def rate(work: Callable[[], object], operations: int) -> float:
    """Do work that is made of operations; return how many of them it did a second."""
    started = time.perf_counter()
    work()
    return operations / (time.perf_counter() - started)


class OneProcess:
    """The rows about one process."""

    def __init__(self, folder: Path) -> None:
        self.ours, self.limit = Ours(f"sqlite:///{folder / 'ours.db'}"), Limit(str(folder / "limit.db"))

    def rows(self) -> list[Row]:
        """Return the rows in the order they are shown."""
        hot = Row(
            "100 tasks update one record", "updates/s", lambda: self._updates(100), lambda: self._bare_updates(100)
        )
        read = Row("reading one record", "µs", lambda: 1e6 / self._reads(), lambda: 1e6 / self._bare_reads())
        return [*(self._commit_row(tasks) for tasks in COMMITS), hot, read]

    def _commit_row(self, tasks: int) -> Row:
        what = f"{tasks:,} task{'s' * (tasks > 1)}"
        times = COMMITS[tasks] // tasks

        def standfast() -> float:
            return rate(lambda: self.ours.run(self.ours.commits(tasks, times)), tasks * times)

        def limit() -> float:
            return rate(lambda: repeat(lambda: self.limit.commit(range(tasks)), times), tasks * times)

        return Row(what, "commits/s", standfast, limit, bar=at_least(0.5) if tasks == 100 else None)

    def _updates(self, tasks: int) -> float:
        return rate(lambda: self.ours.run(self.ours.updates(tasks, 100)), tasks * 100)

    def _bare_updates(self, tasks: int) -> float:
        return rate(lambda: repeat(lambda: self.limit.update(tasks), 100), tasks * 100)

    def _reads(self) -> float:
        return rate(lambda: self.ours.run(self.ours.reads(READS)), READS)

    def _bare_reads(self) -> float:
        return rate(lambda: repeat(lambda: self.limit.read(0), READS), READS)


class Crowd:
    """The rows about several processes that commit flat out; all of them are figures of the same storms."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._size = folder, size
        self._storms: dict[str, list[Storm]] = {"standfast": [], "bare": []}
        self._given: dict[str, int] = {}

    def _storm(self, role: str, figure: str) -> Storm:
        """Return the next storm that this figure has not been taken from, raging a new one if there is none."""
        number = self._given.get(f"{role} {figure}", 0)
        self._given[f"{role} {figure}"] = number + 1
        storms = self._storms[role]
        if number == len(storms):
            path = self._folder / f"{role}-{self._size}.db"
            storms.append(processes.storm(path, processes=self._size, seconds=STORM_SECONDS, role=role))
        return storms[number]

    def rows(self) -> list[Row]:
        """Return the rows in the order they are shown."""
        return [
            self._row("the lowest share", "of an equal share", lambda storm: storm.lowest_share, plainly_at_least(0.5)),
            self._row(
                "p99 in terms of p50", "times", lambda s: s.percentile(99) / s.percentile(50), plainly_at_most(20)
            ),
            self._row("Jain's index", "1 is fair", lambda storm: storm.jain),
            self._row("a commit, p50", "ms", lambda storm: storm.percentile(50)),
            self._row("a commit, p99", "ms", lambda storm: storm.percentile(99)),
            self._row("together", "commits/s", lambda storm: storm.rate),
        ]

    def _row(self, what: str, unit: str, figure: Callable[[Storm], float], bar: Bar | None = None) -> Row:
        def measure(role: str) -> Callable[[], float]:
            return lambda: figure(self._storm(role, what))

        title = f"{self._size} processes: {what}"
        return Row(title, unit, measure("standfast"), peers={"busy handler": measure("bare")}, bar=bar, rounds=5)


class Hints:
    """The rows about hints from one process to another, all of them figures of the same rounds."""

    def __init__(self, folder: Path, ours: Ours) -> None:
        self._path, self._ours = folder / "ours.db", ours
        self._rounds: list[list[tuple[float, float]]] = []
        self._given: dict[str, int] = {}

    def rows(self) -> list[Row]:
        """Return the rows in the order they are shown."""
        return [
            self._row("hint, from durable to heard, p50", 1, 50, plainly_at_most(1.0)),
            self._row("hint, from durable to heard, p99", 1, 99),
            self._row("hint, from commit() to heard, p50", 0, 50),
            self._row("hint, from commit() to heard, p99", 0, 99),
        ]

    def _row(self, what: str, index: int, percent: int, bar: Bar | None = None) -> Row:
        def measure() -> float:
            number = self._given.get(what, 0)
            self._given[what] = number + 1
            if number == len(self._rounds):
                self._rounds.append(self._ours.run(processes.hear_rings(self._ours.space, self._path, RINGS)))
            ordered = sorted(pair[index] for pair in self._rounds[number])
            return ordered[len(ordered) * percent // 100]

        return Row(what, "ms", measure, bar=bar, rounds=5)


def idle_rows(folder: Path) -> list[Row]:
    """Return the rows about watches that hear nothing: what a hundred of them cost a process."""

    def cpu() -> float:
        return processes.idle_cost(folder / "idle.db", watches=100, seconds=3.0)[0] * 1000

    def memory() -> float:
        return processes.idle_cost(folder / "idle.db", watches=100, seconds=0.0)[1] / 100

    return [
        Row("100 idle watches, CPU", "ms a second", cpu, rounds=5),
        Row("an idle watch, memory", "kB", memory, rounds=5),
    ]


def main() -> None:
    """Measure everything, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="standfast-bench-") as name:
        folder = Path(name)
        alone = OneProcess(folder)
        subject = Subject("sqlite_store", "The SQLite store", notes=NOTES)
        crowds = [row for size in (2, 8) for row in Crowd(folder, size).rows()]
        for row in [*alone.rows(), *crowds, *Hints(folder, alone.ours).rows(), *idle_rows(folder)]:
            subject.add(row)
        try:
            finish(subject)
        finally:
            alone.ours.close()


if __name__ == "__main__":
    main()

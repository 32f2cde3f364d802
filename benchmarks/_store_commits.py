"""Durable commits a second on a server, by one process: Standfast's, and the same rows without it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from benchmarks._store_limit import open_bare
from benchmarks.harness import Row
from benchmarks.sqlite_store import Ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks._store_limit import Bare
    from benchmarks.harness import Bar, Measure

TASKS: Final = (1, 10, 100, 1_000)
WINDOW: Final = 0.15  # seconds
ROUNDS: Final = 5


class Paced:
    """Work that is done as often as fits a window, going by how long it took before."""

    def __init__(self, work: Callable[[int], object]) -> None:
        self._work, self._times = work, 0

    def __call__(self) -> float:
        """Return how often the work is done a second, over at least half a window."""
        if not self._times:
            self._work(1)  # which connects
            self._times = 2
        while True:
            started = time.perf_counter()
            self._work(self._times)
            took = time.perf_counter() - started
            rate = self._times / took
            self._times = max(1, round(rate * WINDOW))
            if took >= WINDOW / 2:
                return rate


class Commits:
    """The rows about one server. Connections are made when the first of them is measured."""

    def __init__(self, server: str, url: str, alone: Bar | None = None) -> None:
        self._server, self._url, self._alone = server, url, alone
        self._ours: Ours | None = None
        self._bare: Bare | None = None

    def rows(self) -> Iterable[Row]:
        """Return a row for each number of tasks."""
        for tasks in TASKS:
            what = f"{self._server}: {tasks:,} task{'s' * (tasks > 1)}"
            bar = self._alone if tasks == 1 else None
            yield Row(what, "commits/s", self._standfast(tasks), self._limit(tasks), bar=bar, rounds=ROUNDS)

    def _open(self) -> tuple[Ours, Bare]:
        if self._ours is None or self._bare is None:
            self._ours = Ours(self._url)
            self._bare = self._ours.run(open_bare(self._url))
        return self._ours, self._bare

    def _standfast(self, tasks: int) -> Measure:
        def commit(times: int) -> None:
            ours, _ = self._open()
            ours.run(ours.commits(tasks, times))

        return _scaled(Paced(commit), tasks)

    def _limit(self, tasks: int) -> Measure:
        async def commits(times: int) -> None:
            _, bare = self._open()
            for _ in range(times):
                await bare.commit(range(tasks))

        return _scaled(Paced(lambda times: self._open()[0].run(commits(times))), tasks)

    def close(self) -> None:
        """Close the connections."""
        if self._ours is not None and self._bare is not None:
            self._ours.run(self._bare.aclose())
            self._ours.close()


def _scaled(measure: Measure, factor: int) -> Measure:
    return lambda: measure() * factor

"""Locks across processes: what a hold costs, how fast and how fairly it is handed over, and what a death costs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import random
import statistics
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import standfast as sf
from benchmarks._lock_contender import HELD_FOR
from benchmarks._lock_costs import idle_records, renewals
from benchmarks._lock_crowd import Crowd
from benchmarks._lock_limit import LockLimit, records_of_a_hold
from benchmarks._lock_ours import NAME
from benchmarks.harness import (
    Row,
    Subject,
    at_least,
    at_most,
    finish,
    peer_environment,
    plainly_at_least,
    plainly_at_most,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from benchmarks._lock_crowd import Process, Storm
    from benchmarks.harness import Bar, Measure
    from standfast.space import Space

T = TypeVar("T")

NOTES = """\
Standfast is on SQLite, in WAL with `synchronous=FULL`: in order, fenced and durable at once; no peer is any of these.
The limit of a pair is two durable commits, by a plain loop over the driver, that write and take away the same records;
else it is `flock(2)`, blocking. In a hand-over one process waits while the other lets go, 5 to 55 ms later; *one
bare commit* is what the disk alone takes after such a pause. The contenders ask, let go
and ask again at once. *Passed over*: of a hundred grants, how many went past somebody who had asked more than 1 ms
earlier; *by ticket*: the same by the numbers that the lock gave out. *Again*: how many went to the one who had just let
go. The peers' calls block, in processes that do nothing else, with documented defaults; redis-py also polls at 1 ms."""

PEERS = ("filelock", "portalocker", "tooz", "redis", "python-redis-lock", "psycopg2-binary", "psycopg[binary]")
ON_REDIS = ("redis-py Lock", "python-redis-lock")
OURS, FLOCK = "SQLite", "flock"
CONTENDERS = 20
PAIRS, PAIR_SECONDS = 300, 0.15
PING_PONG_SECONDS = 0.5
STORM_SECONDS = 0.8
FLOCK_STORM_SECONDS = 0.2  # it is taken 300,000 times a second
KILLS = 12
PAUSES = 12
ROUNDS = 5


class Pairs:
    """Acquire and release with nobody else there, by Standfast and by its limit, both in this process."""

    def __init__(self, folder: Path) -> None:
        self._runner = asyncio.Runner()
        self._space: Space = self._run(self._open(f"sqlite:///{folder / 'pairs.db'}"))
        self._limit = LockLimit(str(folder / "limit.db"), self._run(records_of_a_hold(self._space)))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def _open(self, url: str) -> Space:
        return await sf.open(url)

    async def _holds(self) -> float:
        mutex, started = self._space.mutex(NAME), time.perf_counter()
        for _ in range(PAIRS):
            async with mutex.hold():
                pass
        return PAIRS / (time.perf_counter() - started)

    def standfast(self) -> float:
        """Return pairs a second."""
        return self._run(self._holds())

    def limit(self) -> float:
        """Return pairs of durable commits a second."""
        started = time.perf_counter()
        for _ in range(PAIRS):
            self._limit.pair()
        return PAIRS / (time.perf_counter() - started)

    def commit_after_a_pause(self) -> float:
        """Return the milliseconds of one durable commit, the other half of a pair, when nothing was written lately."""
        taken: list[float] = []
        for _ in range(PAUSES):
            time.sleep(random.uniform(*HELD_FOR))
            started = time.perf_counter()
            self._limit.pair()
            taken.append((time.perf_counter() - started) * 1000 / 2)
        return statistics.median(taken)

    def close(self) -> None:
        """Close the store and the loop."""
        self._run(self._space.aclose())
        self._runner.close()


class Contest:
    """The rows about several processes: everybody's lock is contended for in the same ways."""

    def __init__(self, folder: Path, *crowds: Crowd) -> None:
        self._folder, self._where = folder, str(folder / "contest")
        self._crowds = {name: crowd for crowd in crowds for name in crowd.names}
        self._names = [name for name in self._crowds if name not in {OURS, FLOCK, "memory", "URL"}]
        self._storms: dict[tuple[str, int], list[Storm]] = {}
        self._given: dict[tuple[str, int, str], int] = {}

    def _peers(self, measure: Callable[[str], float]) -> dict[str, Measure]:
        """Return a measure for each peer."""

        def of(name: str) -> Measure:
            return lambda: measure(name)

        return {name: of(name) for name in self._names}

    @property
    def absent(self) -> Mapping[str, str]:
        """Who could not be asked, and why."""
        if not self._names:
            return {}
        return {} if os.environ.get("STANDFAST_REDIS_URL") else dict.fromkeys(ON_REDIS, "no server")

    def _row(self, what: str, unit: str, measure: Callable[[str], float], bar: Bar | None = None) -> Row:
        """Return a row that everybody takes part in."""
        ours, flock, peers = (lambda: measure(OURS)), (lambda: measure(FLOCK)), self._peers(measure)
        return Row(what, unit, ours, flock, peers, bar, ROUNDS, self.absent)

    def pairs_row(self, pairs: Pairs) -> Row:
        """Return the row about one process that is alone."""

        def measure(lock: str) -> float:
            return self._crowds[lock].pairs(lock, self._where, PAIR_SECONDS)

        peers = {"flock(2)": lambda: measure(FLOCK), **self._peers(measure)}
        return Row(
            "alone", "pairs/s", pairs.standfast, pairs.limit, peers, bar=at_least(0.7), rounds=7, absent=self.absent
        )

    def hand_over_rows(self, pairs: Pairs) -> Iterable[Row]:
        """Return the rows about two processes."""

        def measure(lock: str) -> float:
            return self._crowds[lock].ping_pong(lock, self._where, PING_PONG_SECONDS, self._folder / "board")

        row = self._row("2 processes: hand-over, p50", "ms", measure, plainly_at_most(1.5))
        yield dataclasses.replace(row, peers={"one bare commit": pairs.commit_after_a_pause, **row.peers})

        def flat_out(lock: str) -> float:
            return self._storm(lock, 2, "hand-over").hand_over

        what = "2 processes, asking again at once: hand-over, p50"
        yield Row(what, "ms", lambda: flat_out(OURS), lambda: flat_out(FLOCK), bar=plainly_at_most(1.2), rounds=ROUNDS)

    def crowd_rows(self) -> Iterable[Row]:
        """Return the rows about twenty processes; all of them are figures of the same storms."""

        def row(what: str, unit: str, figure: Callable[[Storm], float], bar: Bar | None = None) -> Row:
            def measure(lock: str) -> float:
                return figure(self._storm(lock, CONTENDERS, what))

            return self._row(f"{CONTENDERS} processes: {what}", unit, measure, bar)

        yield row("together", "acquisitions/s", lambda storm: storm.rate, plainly_at_least(450))
        yield row("Jain's index", "1 is fair", lambda storm: storm.jain, plainly_at_least(0.99))
        yield row("again", "%", lambda storm: storm.again)
        yield row("passed over", "%", lambda storm: storm.out_of_order)

        def by_ticket() -> float:
            share = self._storm(OURS, CONTENDERS, "by ticket").out_of_line
            assert share is not None
            return share

        what = f"{CONTENDERS} processes: passed over, by ticket"
        yield Row(what, "%", by_ticket, bar=plainly_at_most(0), rounds=ROUNDS)

    def _storm(self, lock: str, size: int, figure: str) -> Storm:
        """Return the next storm that this figure has not been taken from, raging a new one if there is none."""
        number = self._given.get((lock, size, figure), 0)
        self._given[lock, size, figure] = number + 1
        storms = self._storms.setdefault((lock, size), [])
        if number == len(storms):
            seconds = FLOCK_STORM_SECONDS if lock == FLOCK else STORM_SECONDS
            storms.append(self._crowds[lock].storm(lock, self._where, size, seconds))
        return storms[number]

    def takeover_rows(self) -> Iterable[Row]:
        """Return the rows about the death of a holder; both are figures of the same kills."""

        @cache
        def kills(lock: str) -> list[float]:
            return [self._crowds[lock].takeover(lock, self._where) for _ in range(KILLS)]

        def row(what: str, figure: Callable[[list[float]], float]) -> Row:
            def measure(lock: str) -> float:
                return figure(kills(lock))

            title = f"takeover after `kill -9`, {what} of {KILLS}"
            return Row(
                title, "ms", lambda: measure(OURS), lambda: measure(FLOCK), bar=plainly_at_most(200), rounds=ROUNDS
            )

        yield row("p50", statistics.median)
        yield row("the longest", max)


class Lengths:
    """The rows about how the cost of a hand-over grows with the line: each line stands in a process of its own."""

    def __init__(self, folder: Path, crowd: Crowd) -> None:
        self._folder, self._crowd = folder, crowd
        self._lines: dict[tuple[str, int], Process] = {}

    def rows(self) -> Iterable[Row]:
        """Return one row for each store."""
        for store in (OURS, "memory"):
            yield self._row(store)

    def _row(self, store: str) -> Row:
        short = {"10 waiters": lambda: self._measure(store, 10)}
        what = f"one hand-over, 10,000 waiters, {store}"
        return Row(
            what, "µs", lambda: self._measure(store, 10_000), peers=short, bar=at_most(2, of="10 waiters"), rounds=7
        )

    def _measure(self, store: str, length: int) -> float:
        line = self._lines.get((store, length)) or self._begin(store, length)
        line.tell("go")
        return float(line.hear())

    def _begin(self, store: str, length: int) -> Process:
        line = self._lines[store, length] = self._crowd.start()
        line.order("stand", store, str(self._folder / f"line-{length}"), length=length, rounds=20)
        line.begin()
        assert line.hear() == "standing"
        return line

    def close(self) -> None:
        """End the lines; nobody waits until ten thousand have left one by one."""
        for line in self._lines.values():
            line.kill()
            line.close()


def cost_rows(folder: Path) -> Iterable[Row]:
    """Return the rows about what holding costs, beyond taking."""

    def held(locks: int) -> float:
        return asyncio.run(renewals(folder / "held.db", locks))

    one = {"1 lock": lambda: held(1)}
    what = "1,000 locks held, a heartbeat of 50 ms"
    yield Row(what, "commits/s", lambda: held(1_000), peers=one, bar=at_most(1.5, of="1 lock"), rounds=ROUNDS)
    left = "an idle key, in the store"
    yield Row(left, "records", lambda: asyncio.run(idle_records(folder / "idle.db")), bar=plainly_at_most(0), rounds=5)


def crowds() -> Iterable[Crowd]:
    """Start Standfast's processes, those of the limit, and those of the peers if they can be had."""
    python = peer_environment("locks", *PEERS)
    yield Crowd(sys.executable, "benchmarks._lock_ours", CONTENDERS)
    yield Crowd(sys.executable, "benchmarks._lock_flock", CONTENDERS)
    if python is not None:
        yield Crowd(str(python), "benchmarks.lock_peers", CONTENDERS)


def main() -> None:
    """Measure everything, in a folder that is gone afterwards."""
    subject = Subject("locks", "Locks across processes", notes=NOTES)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="standfast-bench-")))
        ours, *others = crowds()
        for crowd in (ours, *others):
            stack.callback(crowd.close)
        pairs, lengths = Pairs(folder), Lengths(folder, ours)
        for part in (pairs, lengths):
            stack.callback(part.close)
        contest = Contest(folder, ours, *others)
        rows = (contest.hand_over_rows(pairs), contest.crowd_rows(), contest.takeover_rows(), lengths.rows())
        for row in (contest.pairs_row(pairs), *(row for some in rows for row in some), *cost_rows(folder)):
            subject.add(row)
        finish(subject)


if __name__ == "__main__":
    main()

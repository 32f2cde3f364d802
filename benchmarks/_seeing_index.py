"""Lists and counts of runs at three sizes against the bare query, and the cost of the index of runs."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from unittest.mock import patch

import apsw
from msgspec import Raw

import standfast as sf
from benchmarks._workflow_ours import Ours
from benchmarks.harness import Row, at_least, plainly_at_most
from standfast.clock import MICROSECONDS, Instant
from standfast.workflows.lanes import INDEXINGS, Indexing
from standfast.workflows.records import HEADERS, RUN_STATES, Header, RunKeys, RunState

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from contextlib import ExitStack
    from pathlib import Path

    from standfast.workflows.queries import Page
    from standfast.workflows.records import Status

T = TypeVar("T")

SIZES: Final = tuple(map(int, os.environ.get("STANDFAST_BENCH_RUNS", "10000 100000 1000000").split()))
PAGE: Final = 100
WINDOW: Final = 1_000
"""How many runs are started in the time that is asked for: a second."""

LONG: Final = 100_000_000
"""Microseconds that every third run took; the others took half a millisecond."""

BEGAN: Final = 1_750_000_000_000_000
AT_ONCE, RUNS, SECONDS = 50, 1_000, 0.5
_BARE: Final = "SELECT id, header, state FROM runs WHERE status = ? ORDER BY changed_at DESC LIMIT ?"
_BARE_STARTS: Final = (
    "SELECT id, header, state FROM runs WHERE started_at >= ? AND started_at < ? ORDER BY started_at DESC LIMIT ?"
)
_BARE_COUNT: Final = "SELECT count(*) FROM (SELECT 1 FROM runs WHERE status = ? LIMIT ?)"


def status_of(number: int) -> Status:
    """Return how the run of a number ended: a tenth failed."""
    return "failed" if number % 10 == 7 else "suspended" if number % 100 == 3 else "completed"


class Stored:
    """A store with so many runs, written in bulk, and a plain table with the same ones."""

    def __init__(self, folder: Path, size: int) -> None:
        self._runner, self._size = asyncio.Runner(), size
        self._url = f"sqlite:///{folder}/runs-{size}.db"
        self.run(self._make())
        rows = list(self._rows(size))
        self._write(f"{folder}/runs-{size}.db", rows)
        self._bare = apsw.Connection(f"{folder}/bare-{size}.db")
        self._bare.pragma("journal_mode", "WAL")
        self._fill(size)
        self.engine: sf.Engine = self.run(self._open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the event loop of the store."""
        return self._runner.run(work)

    async def _make(self) -> None:
        async with sf.open(self._url) as space:
            self._space = space

    async def _open(self) -> sf.Engine:
        return await sf.Engine(self._url, drive=False).__aenter__()

    def _records(self, number: int) -> tuple[RunKeys, Header, RunState]:
        at, name = Instant(BEGAN + 1_000 * number), f"workflow-{number % 10}"
        keys = RunKeys(self._space, f"0197{number:08x}-7000-8000-000000000000")
        order = Raw(b'{"order":{"id":%d,"customer":"somebody","lines":[1,2,3]}}' % number)
        header = Header(name, "", order, at, tags=("red",) if number % 20 < 2 else ())
        ended_at = Instant(at + (500 if number % 3 else LONG))
        return keys, header, RunState(status_of(number), name, "", ended_at, claims=1, result=Raw(b"17"))

    def _rows(self, size: int) -> Iterator[tuple[bytes, bytes]]:
        for number in range(size):
            keys, header, state = self._records(number)
            yield bytes(keys.header), HEADERS.encode(header)
            yield bytes(keys.state), RUN_STATES.encode(state)
            for key, value in keys.listed(state, header).items():
                yield bytes(key), value
        for name in ("runs", "begun"):
            yield bytes(self._space.key("indexed", name)), INDEXINGS.encode(Indexing(is_done=True))

    def _write(self, path: str, rows: list[tuple[bytes, bytes]]) -> None:
        rows.sort()
        file = apsw.Connection(path)
        with file:
            last = file.execute("SELECT count FROM counters WHERE handle = ''").get
            numbered = ((key, last + number, value) for number, (key, value) in enumerate(rows, 1))
            file.executemany("INSERT OR REPLACE INTO records (key, version, value) VALUES (?, ?, ?)", numbered)
            file.execute("UPDATE counters SET count = ? WHERE handle = ''", (last + len(rows),))
        file.close()

    def _fill(self, size: int) -> None:
        columns = "id TEXT, workflow TEXT, status TEXT, started_at INTEGER, changed_at INTEGER, header BLOB, state BLOB"
        runs = map(self._records, range(size))
        with self._bare:
            self._bare.execute(f"CREATE TABLE runs ({columns})")
            self._bare.executemany(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    (
                        keys.id,
                        state.workflow,
                        state.status,
                        head.started_at,
                        state.changed_at,
                        HEADERS.encode(head),
                        RUN_STATES.encode(state),
                    )
                    for keys, head, state in runs
                ),
            )
            self._bare.execute("CREATE INDEX by_status ON runs (status, changed_at)")
            self._bare.execute("CREATE INDEX by_start ON runs (started_at)")

    def page(self) -> float:
        """Return the milliseconds for the first page of those that failed, the newest first."""
        began = time.perf_counter()
        page = self.run(self.engine.list(status="failed", newest_first=True, limit=PAGE))
        assert len(page.runs) == PAGE
        return (time.perf_counter() - began) * 1e3

    def bare_page(self) -> float:
        """Return the same for the bare query."""
        began = time.perf_counter()
        assert len(self._bare.execute(_BARE, ("failed", PAGE)).fetchall()) == PAGE
        return (time.perf_counter() - began) * 1e3

    def count(self) -> float:
        """Return the milliseconds to count those that failed, up to a thousand."""
        began = time.perf_counter()
        assert str(self.run(self.engine.count(status="failed", most=999))) == "999+"
        return (time.perf_counter() - began) * 1e3

    def bare_count(self) -> float:
        """Return the same for the bare query."""
        began = time.perf_counter()
        assert self._bare.execute(_BARE_COUNT, ("failed", 1_000)).get == 1_000
        return (time.perf_counter() - began) * 1e3

    def window(self, place: float) -> tuple[int, int]:
        """Return a second of starts: the oldest at 0, the newest at 1."""
        first = BEGAN + 1_000 * int(place * (self._size - WINDOW))
        return first, first + 1_000 * WINDOW

    def by_start(self, place: float = 0.5, **filters: str) -> float:
        """Return the milliseconds for a page of those that were started in a second, the newest first."""
        began = time.perf_counter()
        assert len(self.run(self._list_starts(place, **filters)).runs) == PAGE
        return (time.perf_counter() - began) * 1e3

    async def _list_starts(self, place: float = 0.5, **filters: str) -> Page:
        after, before = (datetime.fromtimestamp(at / MICROSECONDS, UTC) for at in self.window(place))
        asked: Any = {"started_after": after, "started_before": before, **filters}
        return await self.engine.list(newest_first=True, limit=PAGE, **asked)

    def bare_by_start(self, place: float = 0.5) -> float:
        """Return the same for the bare query."""
        began = time.perf_counter()
        assert len(self._bare.execute(_BARE_STARTS, (*self.window(place), PAGE)).fetchall()) == PAGE
        return (time.perf_counter() - began) * 1e3

    def count_starts(self) -> float:
        """Return the milliseconds to count those that were started in a second."""
        after, before = (datetime.fromtimestamp(at / MICROSECONDS, UTC) for at in self.window(0.5))
        began = time.perf_counter()
        assert str(self.run(self.engine.count(started_after=after, started_before=before))) == f"{WINDOW:,}"
        return (time.perf_counter() - began) * 1e3

    def pause(self, *, by_start: bool = False) -> float:
        """Return for how many milliseconds another task did not have its turn at the most, during a page."""
        if by_start:
            return self.run(self._pause(self._list_starts()))
        return self.run(self._pause(self.engine.list(status="failed", newest_first=True, limit=PAGE)))

    async def _pause(self, page: Coroutine[Any, Any, Page]) -> float:
        longest, last = 0.0, time.perf_counter()

        async def ask() -> None:
            nonlocal longest, last
            while True:
                last = time.perf_counter()
                await asyncio.sleep(0)
                longest = max(longest, time.perf_counter() - last)

        asking = asyncio.create_task(ask())
        await asyncio.sleep(0)
        await page
        asking.cancel()
        return longest * 1e3

    def close(self) -> None:
        """Close everything."""
        self.run(self.engine.aclose())
        self._bare.close()
        self._runner.close()


@sf.step
async def add_one(number: int) -> int:
    """Do nothing to speak of."""
    return number + 1


@sf.workflow
async def five(ctx: sf.Context, number: int) -> int:
    """Take five steps."""
    for _ in range(5):
        number = await ctx.step(add_one, number)
    return number


class Cost:
    """One engine, whose runs are listed or not."""

    def __init__(self, folder: Path) -> None:
        self._runner = asyncio.Runner()
        self._engine = self._runner.run(sf.Engine(f"sqlite:///{folder}/cost.db", workflows=[five]).__aenter__())
        self._ours = Ours(f"sqlite:///{folder}/rate.db", ())

    def listed(self) -> float:
        """Return the microseconds of CPU time that a run takes."""
        return self._runner.run(self._spent())

    def unlisted(self) -> float:
        """Return the same without the records of the index."""
        with patch.object(RunKeys, "listed", lambda *_: {}):
            return self._runner.run(self._spent())

    async def _spent(self) -> float:
        numbers = itertools.count()

        async def some() -> None:
            while next(numbers) < RUNS:
                await (await self._engine.start(five, 1)).result()

        began = time.process_time()
        await asyncio.gather(*(some() for _ in range(AT_ONCE)))
        return (time.process_time() - began) / RUNS * 1e6

    def rate(self) -> float:
        """Return how many runs a second there are, a hundred at a time."""
        return self._ours.runs(100, 5, SECONDS).rate

    def unlisted_rate(self) -> float:
        """Return the same without the records of the index."""
        with patch.object(RunKeys, "listed", lambda *_: {}):
            return self.rate()

    def close(self) -> None:
        """Close the engines."""
        self._ours.close()
        self._runner.run(self._engine.aclose())
        self._runner.close()


def _by_start(stored: Stored, of: str) -> Iterator[Row]:
    """Yield the rows of pages and counts of a second of starts."""
    for what, place in (("newest", 1.0), ("middle", 0.5), ("oldest", 0.0)):
        ours, bare = partial(stored.by_start, place), partial(stored.bare_by_start, place)
        yield Row(f"a page of a second of starts, the {what}, {of}", "ms", ours, bare, bar=plainly_at_most(20))
    asked: dict[str, Any] = {
        "those that failed": {"status": "failed"},
        "of a workflow": {"workflow": "workflow-1"},
        "with a tag": {"tag": "red"},
    }
    for what, filters in asked.items():
        ours = partial(stored.by_start, **filters)
        yield Row(f"a page of a second of starts, {what}, {of}", "ms", ours, bar=plainly_at_most(20))
    yield Row(f"a count of a second of starts {of}", "ms", stored.count_starts, bar=plainly_at_most(20))
    pause = partial(stored.pause, by_start=True)
    yield Row(f"longest pause during a page of a second of starts {of}", "ms", pause, bar=plainly_at_most(5))


def rows(stack: ExitStack, folder: Path) -> Iterator[Row]:
    """Yield the rows of this part."""
    for size in SIZES:
        stored, of = Stored(folder, size), f"of {size:,} runs"
        stack.callback(stored.close)
        page = plainly_at_most(20) if size == max(SIZES) else None
        yield Row(f"first page by status {of}", "ms", stored.page, stored.bare_page, bar=page)
        yield Row(f"a count up to a thousand {of}", "ms", stored.count, stored.bare_count)
        yield from _by_start(stored, of)
        yield Row(f"longest pause during a page {of}", "ms", stored.pause, bar=plainly_at_most(5))


def cost_rows(stack: ExitStack, folder: Path) -> Iterator[Row]:
    """Yield what the records of the index cost."""
    cost = Cost(folder)
    stack.callback(cost.close)
    what = "100 at a time, 5 steps, with the index and without"
    yield Row(what, "runs/s", cost.rate, cost.unlisted_rate, bar=at_least(0.97), rounds=41, by_round=True)
    what = "a run of five steps, with the index and without"
    yield Row(what, "us CPU", cost.listed, cost.unlisted, rounds=25)

"""Lists and counts of requests at three sizes: a page of those that failed, and a count, on SQLite."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Final

import apsw
from msgspec import Raw

import standfast as sf
from benchmarks.harness import Row, plainly_at_most
from standfast.clock import Instant
from standfast.flows.records import NOTHING, REQUESTS, RequestKeys, RequestRecord
from standfast.flows.request_list import begin_index, count_requests, list_requests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack
    from pathlib import Path

SIZES: Final = tuple(map(int, os.environ.get("STANDFAST_BENCH_REQUESTS", "100 1000 100000").split()))
PAGE: Final = 10
BEGAN: Final = 1_750_000_000_000_000
ACTIONS: Final = 10


class StoredRequests:
    """A store with so many requests of ten actions, written in bulk; a tenth of them failed."""

    def __init__(self, folder: Path, size: int) -> None:
        self._runner = asyncio.Runner()
        path = f"{folder}/requests-{size}.db"
        self._runner.run(self._make(f"sqlite:///{path}"))
        self._write(path, size)
        self._space = self._runner.run(sf.open(f"sqlite:///{path}").__aenter__())

    async def _make(self, url: str) -> None:
        async with sf.open(url) as space:
            await begin_index(space)
            self._space = space

    def _rows(self, size: int) -> Iterator[tuple[bytes, bytes]]:
        for number in range(size):
            at = Instant(BEGAN + 1_000 * number)
            status = "failed" if number % 10 == 7 else "completed"
            record = RequestRecord(
                "shop",
                f"action-{number % ACTIONS}",
                status,  # type: ignore[arg-type] # two of the statuses
                at,
                started_at=Instant(at + 200),
                ended_at=Instant(at + 700),
                user="somebody",
                transport="http",
                policy="queue",
                verdict="queued" if number % 3 else "run",
                result=Raw(b'{"id":17}'),
            )
            keys = RequestKeys(self._space, "default", f"0197{number:011x}-00000000000000000000000000000000")
            yield bytes(keys.record), REQUESTS.encode(record)
            yield bytes(keys.listed(record)[0]), NOTHING

    def _write(self, path: str, size: int) -> None:
        file = apsw.Connection(path)
        with file:
            last = file.execute("SELECT count FROM counters WHERE handle = ''").get
            rows = sorted(self._rows(size))
            numbered = ((key, last + number, value) for number, (key, value) in enumerate(rows, 1))
            file.executemany("INSERT OR REPLACE INTO records (key, version, value) VALUES (?, ?, ?)", numbered)
            file.execute("UPDATE counters SET count = ? WHERE handle = ''", (last + len(rows),))
        file.close()

    def page(self) -> float:
        """Return the milliseconds for the first page of those that failed."""
        began = time.perf_counter()
        page = self._runner.run(list_requests(self._space, "default", status=["failed"], limit=PAGE))
        assert len(page.requests) == PAGE
        return (time.perf_counter() - began) * 1e3

    def of_action(self) -> float:
        """Return the same for one action and one verdict."""
        began = time.perf_counter()
        asked = list_requests(self._space, "default", limit=5, flow="shop", action="action-7", verdict="queued")
        page = self._runner.run(asked)
        assert len(page.requests) == 5
        return (time.perf_counter() - began) * 1e3

    def count(self) -> float:
        """Return the milliseconds to count those that failed, up to a thousand."""
        began = time.perf_counter()
        assert self._runner.run(count_requests(self._space, "default", status=["failed"])).number
        return (time.perf_counter() - began) * 1e3

    def close(self) -> None:
        """Close the store."""
        self._runner.run(self._space.aclose())
        self._runner.close()


def rows(stack: ExitStack, folder: Path) -> Iterator[Row]:
    """Yield the rows of this part."""
    for size in SIZES:
        stored, of = StoredRequests(folder, size), f"of {size:,} requests"
        stack.callback(stored.close)
        yield Row(f"ten that failed {of}", "ms", stored.page, bar=plainly_at_most(20))
        yield Row(f"five of an action and a verdict {of}", "ms", stored.of_action, bar=plainly_at_most(20))
        yield Row(f"a count up to a thousand {of}", "ms", stored.count, bar=plainly_at_most(20))

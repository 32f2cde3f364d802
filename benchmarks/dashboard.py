"""The dashboard: the server time of every page on a large store, of a long run, and what a hundred viewers cost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw
import httpx
from msgspec import Raw

import standfast as sf
from benchmarks._dashboard_process import TOKEN
from benchmarks.harness import Row, Subject, finish, plainly_at_most
from standfast.clock import MICROSECONDS, Instant
from standfast.web.dashboard import Dashboard
from standfast.workflows.lanes import INDEXINGS, Indexing
from standfast.workflows.records import HEADERS, RUN_STATES, Header, RunKeys, RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from standfast.workflows.records import Status

SIZE: Final = int(os.environ.get("STANDFAST_BENCH_RUNS", "1000000"))
WAITING: Final = 10_000
STEPS: Final = 10_000
VIEWERS: Final = 100
SECONDS: Final = 10.0
TIMES: Final = 30
"""How often each page is opened to see how long it takes by the clock."""

NOTES: Final = """\
Runs of ten workflows are written into a SQLite file in bulk, a tenth of them failed, over the last day; 10,000 tasks
wait in one line. *Server time* of a page is CPU time of the process, with all its threads and without a network. *By
the clock* is the median and the worst of 30 times, one after the other; on a machine with other work it says how busy
that is. Of a long run the page shows the last part of its 10,000 steps, and reads no more. *Viewers*: one process makes
runs of five steps, fifty at a time; another one serves the dashboard to real SSE connections, all on the first screen,
each of which fetches the page whenever it is told to. Calls are reads, scans and commits of the store; the share is
those of the dashboard of those of the load."""


def status_of(number: int) -> Status:
    """Return how the run of a number is: a tenth failed."""
    return "failed" if number % 10 == 7 else "suspended" if number % 100 == 3 else "completed"


@sf.step
async def add_one(number: int) -> int:
    """Do nothing to speak of."""
    return number + 1


@sf.workflow
async def long(ctx: sf.Context, steps: int) -> int:
    """Take many steps under a lock."""
    async with ctx.mutex("books"):
        for number in range(steps):
            await ctx.step(f"step-{number}", add_one, number)
    return steps


class Page:
    """Opens a page again and again: its CPU time, and how long that took by the clock."""

    def __init__(self, runner: asyncio.Runner, http: httpx.AsyncClient, path: str) -> None:
        self._runner, self._http, self._path = runner, http, path
        self.walls: Final[list[float]] = []

    async def _get(self) -> float:
        began, at = time.process_time(), time.perf_counter()
        answer = await self._http.get(self._path)
        self.walls.append((time.perf_counter() - at) * 1e3)
        assert answer.status_code == 200, answer.text
        return (time.process_time() - began) * 1e3

    def __call__(self) -> float:
        """Return the milliseconds of CPU time of one time."""
        return self._runner.run(self._get())

    def times(self, number: int) -> list[float]:
        """Return how many milliseconds each of that number of times took by the clock, the shortest first."""
        self.walls.clear()
        for _ in range(number):
            self()
        return sorted(self.walls)


class Large:
    """A store with many runs and many waiters, and a dashboard on it."""

    def __init__(self, folder: Path) -> None:
        self._runner = asyncio.Runner()
        self._url = f"sqlite:///{folder}/large.db"
        self._runner.run(self._make(f"{folder}/large.db"))
        self._runner.run(self._open())

    async def _make(self, path: str) -> None:
        async with sf.open(self._url) as space:
            began = (await space.read(space.key("worker"))).at - 86_400 * MICROSECONDS
            rows = sorted(self._rows(space, began))
        file = apsw.Connection(path)
        with file:
            last = file.execute("SELECT count FROM counters WHERE handle = ''").get
            numbered = ((key, last + number, value) for number, (key, value) in enumerate(rows, 1))
            file.executemany("INSERT OR REPLACE INTO records (key, version, value) VALUES (?, ?, ?)", numbered)
            file.execute("UPDATE counters SET count = ? WHERE handle = ''", (last + len(rows),))
        file.close()

    def _rows(self, space: sf.Space, began: int) -> Iterator[tuple[bytes, bytes]]:
        for number in range(SIZE):
            at, name = Instant(began + 86_400 * MICROSECONDS * number // SIZE), f"workflow-{number % 10}"
            keys = RunKeys(space, f"0197{number:08x}-7000-8000-000000000000")
            header = Header(name, "", Raw(b'{"order":{"id":%d,"customer":"somebody"}}' % number), at)
            state = RunState(status_of(number), name, "", Instant(at + 500), claims=1, result=Raw(b"17"))
            yield bytes(keys.header), HEADERS.encode(header)
            yield bytes(keys.state), RUN_STATES.encode(state)
            for key, value in keys.listed(state, header).items():
                yield bytes(key), value
        yield bytes(space.key("indexed", "runs")), INDEXINGS.encode(Indexing(is_done=True))

    async def _open(self) -> None:
        self._engine = await sf.Engine(self._url, workflows=[long]).__aenter__()
        await (await self._engine.start(long, STEPS, id="long")).result()
        space = self._engine.space
        self._waiting = [asyncio.create_task(self._wait(space)) for _ in range(WAITING + 1)]
        while (await space.explain("crowded")).waiting < WAITING:  # noqa: ASYNC110 -- until all stand in line
            await asyncio.sleep(0.1)
        who = sf.Principal("default", "ann")
        dashboard = Dashboard(self._engine, authenticate=lambda _: who, access=lambda _: "all")
        self._http = httpx.AsyncClient(transport=httpx.ASGITransport(dashboard), base_url="http://ops.test")

    async def _wait(self, space: sf.Space) -> None:
        async with space.mutex("crowded").hold():
            await asyncio.Event().wait()

    def page(self, path: str) -> Page:
        """Return what measures a page."""
        return Page(self._runner, self._http, path)

    def close(self) -> None:
        """Leave the line, and close everything."""
        self._runner.run(self._close())
        self._runner.close()

    async def _close(self) -> None:
        for each in self._waiting:
            each.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)
        await self._http.aclose()
        await self._engine.aclose()


class Viewers:
    """A process that loads a store, one that serves a dashboard on it, and viewers."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        url = f"sqlite:///{folder}/viewed.db"
        self._load, self._serve = (self._start(stack, what, url) for what in ("load", "serve"))
        self._runner = stack.enter_context(asyncio.Runner())
        self._port = self._told(self._serve)["port"]

    def _start(self, stack: contextlib.ExitStack, what: str, url: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks._dashboard_process", what, url]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(process.wait)
        stack.callback(process.kill)
        self._told(process)
        return process

    def _told(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        told: dict[str, Any] = json.loads(process.stdout.readline())
        return told

    def measure(self, viewers: int) -> dict[str, float]:
        """Return what the dashboard and the load asked of the store, and the CPU time of the dashboard, a second."""
        return self._runner.run(self._measure(viewers))

    async def _measure(self, viewers: int) -> dict[str, float]:
        fetched = [0] * viewers
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self._port}",
            headers={"authorization": f"Bearer {TOKEN}"},
            limits=httpx.Limits(max_connections=None),
            timeout=60,
        ) as http:
            looking = [asyncio.create_task(self._look(http, fetched, number)) for number in range(viewers)]
            while not all(fetched):  # noqa: ASYNC110 -- until all look
                await asyncio.sleep(0.1)
            before, began = [self._told(each) for each in (self._load, self._serve)], sum(fetched)
            await asyncio.sleep(SECONDS)
            after, ended = [self._told(each) for each in (self._load, self._serve)], sum(fetched)
            for each in looking:
                each.cancel()
            await asyncio.gather(*looking, return_exceptions=True)
        took = after[0]["at"] - before[0]["at"]
        load, dashboard = ((after[n]["calls"] - before[n]["calls"]) / took for n in (0, 1))
        cpu = (after[1]["cpu"] - before[1]["cpu"]) / took
        return {"load": load, "dashboard": dashboard, "cpu": cpu * 100, "fetched": (ended - began) / took}

    async def _look(self, http: httpx.AsyncClient, fetched: list[int], number: int) -> None:
        async with http.stream("GET", "/live") as stream:
            async for line in stream.aiter_lines():
                if line == "event: changed":
                    (await http.get("/", headers={"standfast-part": "main"})).raise_for_status()
                    fetched[number] += 1


PAGES: Final = {
    "now": "/",
    "runs": "/runs",
    "runs that failed": "/runs?status=failed",
    "runs of an hour": "/runs?started_after=2+hours&started_before=1+hour",
    "a count before many are deleted": "/act/runs.purge?status=failed",
    "lines": "/lines",
    "a line with 10,000 waiting": "/line?at=1&at=&at=crowded",
    "a run of 10,000 steps": "/run?id=long",
    "why": "/why?run=long",
    "flows": "/flows",
    "schedules": "/schedules",
    "limits": "/limits",
    "workers": "/workers",
    "store": "/store",
    "audit": "/audit",
}


def main() -> None:
    """Measure pages, then viewers."""
    subject = Subject("dashboard", "The dashboard", notes=NOTES)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="standfast-bench-")))
        viewers = Viewers(stack, folder)
        seen = {count: viewers.measure(count) for count in (1, VIEWERS)}
        print(json.dumps(seen))
        for count, found in seen.items():
            some = "1 viewer" if count == 1 else f"{count} viewers"
            share = plainly_at_most(1) if count > 1 else None
            shares = 100 * found["dashboard"] / found["load"]
            subject.add(Row(f"{some}: share of the calls of the load", "%", _value(shares), bar=share, rounds=1))
            subject.add(Row(f"{some}: calls of the dashboard", "1/s", _value(found["dashboard"]), rounds=1))
            subject.add(Row(f"{some}: CPU of the dashboard", "% of a core", _value(found["cpu"]), rounds=1))
            subject.add(Row(f"{some}: parts of pages fetched", "1/s", _value(found["fetched"]), rounds=1))
        stack.pop_all().close()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="standfast-bench-")))
        large = Large(folder)
        stack.callback(large.close)
        for name, path in PAGES.items():
            page = large.page(path)
            page()  # templates are compiled, and the file is in memory
            walls = page.times(TIMES)
            middle, worst = walls[len(walls) // 2], walls[-1]
            subject.add(Row(f"{name}, server time", "ms", page, bar=plainly_at_most(100)))
            subject.add(Row(f"{name}, by the clock", "ms", _value(middle), bar=plainly_at_most(100), rounds=1))
            subject.add(Row(f"{name}, by the clock, the worst of {TIMES}", "ms", _value(worst), rounds=1))
        finish(subject)


def _value(figure: float) -> Callable[[], float]:
    return lambda: figure


if __name__ == "__main__":
    main()

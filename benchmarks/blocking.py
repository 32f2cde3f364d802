"""Blocking code: what the hop to the background loop adds to a call, and to an uncontended pair."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import standfast as sf
from benchmarks.harness import Row, Subject, finish, plainly_at_most
from standfast import blocking
from standfast.blocking._portal import background, call

if TYPE_CHECKING:
    from collections.abc import Callable

NOTES = """\
A pair is to take a mutex that nobody else wants and to give it back, in microseconds. The limit is the same pair
with `await`, on an event loop and a file of its own. A hop hands the background loop nothing to do and waits for it;
a pair makes two of them."""

PAIRS, HOPS = 300, 2_000


def blocking_pair(space: blocking.Space) -> Callable[[], float]:
    """Measure a pair from a thread without a loop."""
    mutex = space.mutex("pair")

    def measure() -> float:
        started_at = time.perf_counter()
        for _ in range(PAIRS):
            with mutex.hold():
                pass
        return (time.perf_counter() - started_at) / PAIRS * 1e6

    return measure


def async_pair(runner: asyncio.Runner, url: str) -> Callable[[], float]:
    """Measure a pair with ``await``."""

    async def opened() -> sf.Space:
        return await sf.open(url)

    mutex = runner.run(opened()).mutex("pair")

    async def measure() -> float:
        started_at = time.perf_counter()
        for _ in range(PAIRS):
            async with mutex.hold():
                pass
        return (time.perf_counter() - started_at) / PAIRS * 1e6

    return lambda: runner.run(measure())


def hop() -> float:
    """Measure a hop to the loop and back."""

    async def nothing() -> None:
        pass

    here = background()
    started_at = time.perf_counter()
    for _ in range(HOPS):
        call(here, nothing)
    return (time.perf_counter() - started_at) / HOPS * 1e6


def main() -> None:
    """Measure pairs in memory and on SQLite, and the hop alone."""
    subject = Subject("blocking", "Blocking code", command="make bench SUBJECT=blocking", notes=NOTES)
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        subject.add(Row("a hop to the background loop", "us", standfast=hop, bar=plainly_at_most(100)))
        for name, url in (("in memory", "memory://"), ("on SQLite", f"sqlite:///{Path(folder)}/")):
            ours, limit = blocking_pair(blocking.open(f"{url}ours")), async_pair(runner, f"{url}limit")
            subject.add(Row(f"an uncontended pair {name}", "us", standfast=ours, limit=limit))
        finish(subject)


if __name__ == "__main__":
    main()

"""Turns: many runs that want one key, beside as many that each want one of their own.

``ctx.mutex`` wanted by 200 and 800 runs at once, runs of a workflow with a limit of one, and requests that queue for
one key. Whoever takes turns cannot work side by side, so the bar is half of what the same work does on distinct keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

import standfast as sf
from benchmarks.growth import table
from benchmarks.harness import machine_facts, write_section
from standfast.ids import new_id
from tests import services

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

CROWDS: Final = tuple(map(int, os.environ.get("STANDFAST_BENCH_CROWDS", "200 800").split()))
ROUNDS: Final = int(os.environ.get("STANDFAST_BENCH_ROUNDS", "3"))
SERVERS: Final = {"postgresql": "PostgreSQL", "redis": "Valkey"}
LEAST: Final = 0.5

NOTES: Final = """\
One process that starts the runs at once and drives them; a run takes one step while it has its turn. *Ratio* is to the
same work with a key for each run, in the same round; the bar is 0.5. Every figure is the median of the rounds, *CPU* is
that of the whole process for each run, its start included."""


@sf.step
async def add_one(number: int) -> int:
    """Take the step that every run takes."""
    return number + 1


@sf.workflow
async def with_mutex(ctx: sf.Context, key: str, number: int) -> int:
    """Take one step while a mutex is held."""
    async with ctx.mutex(key):
        return await ctx.step(add_one, number)


@sf.workflow(concurrency=sf.Limit(1, key=lambda order: order[0], on_limit="queue"))
async def in_turn(ctx: sf.Context, order: tuple[str, int]) -> int:
    """Take one step while no other run of the same key does."""
    return await ctx.step(add_one, order[1])


class Figure(NamedTuple):
    """Runs a second, and the CPU of each in milliseconds."""

    rate: float
    cpu: float


async def _mutexes(engine: sf.Engine, keys: list[str]) -> None:
    handles = await asyncio.gather(*[engine.start(with_mutex, key, at) for at, key in enumerate(keys)])
    await asyncio.gather(*[handle.result() for handle in handles])


async def _limits(engine: sf.Engine, keys: list[str]) -> None:
    handles = await asyncio.gather(*[engine.start(in_turn, (key, at)) for at, key in enumerate(keys)])
    await asyncio.gather(*[handle.result() for handle in handles])


KINDS: Final[dict[str, Callable[[sf.Engine, list[str]], Awaitable[None]]]] = {
    "`ctx.mutex`": _mutexes,
    "a limit of 1, queued": _limits,
}


async def measure(url: str, kind: str, keys: list[str]) -> Figure:
    """Return how fast runs that want these keys are done, by an engine that has just been opened."""
    async with sf.Engine(url, workflows=[with_mutex, in_turn]) as engine:
        await KINDS[kind](engine, [new_id()] * 5)
        began, cpu = time.perf_counter(), time.process_time()
        await KINDS[kind](engine, keys)
        took, used = time.perf_counter() - began, time.process_time() - cpu
    return Figure(len(keys) / took, 1000 * used / len(keys))


def compare(url: str, kind: str, crowd: int) -> tuple[list[str], bool]:
    """Return a line of the table, and whether the bar is reached."""
    apart: list[Figure] = []
    together: list[Figure] = []
    for _ in range(ROUNDS):
        apart.append(asyncio.run(measure(url, kind, [new_id() for _ in range(crowd)])))
        together.append(asyncio.run(measure(url, kind, [new_id()] * crowd)))
    ratio = statistics.median(one.rate / many.rate for one, many in zip(together, apart, strict=True))
    cells = [f"{statistics.median(each.rate for each in figures):,.0f}" for figures in (apart, together)]
    cells += [f"{statistics.median(each.cpu for each in figures):.2f}" for figures in (apart, together)]
    return [kind, f"{crowd}", *cells, f"{ratio:.2f}", "yes" if ratio >= LEAST else "**no**"], ratio >= LEAST


def stores(stack: contextlib.ExitStack) -> Iterator[tuple[str, str]]:
    """Yield each store to measure: its name and its URL."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    for kind in os.environ.get("STANDFAST_BENCH_SERVERS", " ".join(("sqlite", *SERVERS))).split():
        if kind == "sqlite":
            yield "SQLite", f"sqlite:///{folder / 'turns.db'}"
            continue
        try:
            yield SERVERS[kind], stack.enter_context(services.private(kind)).url
        except pytest.skip.Exception as problem:
            print(f"!! left out: {problem}", file=sys.stderr)


def main() -> int:
    """Measure every store, write the section, and return 1 if a bar is missed and that matters."""
    rows: list[list[str]] = []
    missed = False
    with contextlib.ExitStack() as stack:
        for name, url in stores(stack):
            for kind in KINDS:
                for crowd in CROWDS:
                    cells, is_met = compare(url, kind, crowd)
                    missed |= not is_met
                    rows.append([name, *cells])
                    print(" | ".join(rows[-1]), flush=True)
    titles = ["store", "what", "runs", "own keys, runs/s", "one key, runs/s", "CPU, own keys, ms", "CPU, one key, ms"]
    facts = f"`make bench SUBJECT=turns` · {machine_facts()} · {ROUNDS} rounds"
    parts = ["## Turns", facts, NOTES, table([*titles, "ratio", "met?"], rows)]
    if not os.environ.get("STANDFAST_BENCH_DRY"):
        write_section("turns", "\n\n".join(parts))
    return int(missed and "--strict" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())

"""Processes that want to write at the same time: each gets its share, and nobody's event loop stands still."""

from __future__ import annotations

import asyncio
import statistics
from typing import TYPE_CHECKING

import pytest

from standfast.clock import monotonic
from standfast.stores import Commit, Put
from tests.integration.sqlite.loop_watch import LoopWatch
from tests.integration.sqlite.programs.dialogue import key
from tests.sizes import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.integration.sqlite.conftest import Open, Start

SECONDS = 2.0


def shares_of(parts: Sequence[float]) -> list[float]:
    """Return each part in proportion to a fair one."""
    return [each * len(parts) / sum(parts) for each in parts]


@pytest.mark.heavy
@pytest.mark.parametrize("processes", [2, 8])
@pytest.mark.parametrize("tasks", [1, 20])
def test_processes_flat_out_get_fair_shares(url: str, start: Start, processes: int, tasks: int) -> None:
    """No process gets less than half of its share, nor waits much longer than the others do.

    Time in which a process had no processor does not count: eight that are flat out share the cores with whatever runs.
    """
    seconds = size(full=10, quick=2)
    children = [start("flat_out", url, n, seconds, tasks) for n in range(processes)]
    assert [child.hear() for child in children] == [["ready"]] * processes
    for child in children:
        child.tell("go")
    told = [[float(word) for word in child.hear(seconds=120)] for child in children]

    counts, medians, tails, worst, waits = zip(*told, strict=True)
    speeds = [count / max(seconds - wait, seconds / 10) for count, wait in zip(counts, waits, strict=True)]
    shares = map(max, shares_of(counts), shares_of(speeds))
    middle, tail, usual_tail = statistics.median(medians), max(tails), statistics.median(tails)
    print(f"{processes} processes x {tasks} tasks: {sum(counts) / seconds:.0f} commits/s")
    least = min(shares)
    print(f"least share {least:.2f}, p50 {middle:.4f} s, p99 {tail:.4f} s, worst {max(worst):.4f} s")
    assert least >= 1 / 2
    assert tail <= max(5 * usual_tail, 0.1)


@pytest.mark.parametrize("mode", ["auto", "loop", "thread"])
async def test_the_loop_goes_on_while_another_process_has_the_turn(
    url: str, start: Start, opened: Open, mode: str
) -> None:
    """While commits wait a second for another process, timers of this one run on time and reads are answered."""
    store = await opened(f"{url}?commits={mode}")
    other = start("hold", url)
    assert other.hear() == ["ready"]
    gaps: list[float] = []
    for attempt in range(3):  # a busy machine stalls now and then, whatever the code does
        assert other.ask("hold") == ["inside"]
        commits = [asyncio.create_task(store.commit(Put(key("waiting", attempt, n), b""))) for n in range(20)]
        async with LoopWatch() as ticking:
            began = monotonic()
            while monotonic() - began < 1.0:
                await asyncio.wait(commits, timeout=0.01)
                await store.read(key("waiting", attempt, 0))
        assert not any(commit.done() for commit in commits)
        assert other.ask("let go") == ["outside"]
        assert all(isinstance(verdict, Commit) for verdict in await asyncio.gather(*commits))
        gaps.append(ticking.longest_gap)
        print(f"longest gap {gaps[-1]:.4f} s")
        if gaps[-1] < 0.05:
            break

    assert min(gaps) < 0.05


async def test_the_loop_goes_on_while_others_commit_flat_out(url: str, start: Start, opened: Open) -> None:
    """Beside four busy processes a loop that commits as well is never held up for long."""
    store = await opened(url)
    children = [start("flat_out", url, n, SECONDS, 5) for n in range(4)]
    assert [child.hear() for child in children] == [["ready"]] * 4
    for child in children:
        child.tell("go")

    async with LoopWatch(every=0.005) as ticking:
        began = monotonic()
        for number in range(10_000):
            await store.commit(Put(key("mine", number), b""))
            if monotonic() - began > SECONDS:
                break

    print(f"longest gap {ticking.longest_gap * 1e3:.1f} ms in {ticking.ticks} ticks beside four busy processes")
    assert ticking.longest_gap < 0.5

"""Processes that share one SQLite file, for the benchmark: who gets how many turns, and how soon hints arrive.

Started as a program, it is one of those processes: it gets its orders as JSON and answers in JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
import tracemalloc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import standfast as sf
from benchmarks._sqlite_limit import Limit, key_of, value
from standfast.stores import Commit, Put

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from standfast.space import Space

READY_IN = 0.5  # seconds that processes have to get to the starting line after the last one has opened the file


@dataclass(frozen=True)
class Storm:
    """What came of some processes that committed as fast as they could."""

    counts: list[int]
    latencies: list[float]
    seconds: float

    @property
    def rate(self) -> float:
        """Commits a second, all together."""
        return sum(self.counts) / self.seconds

    @property
    def lowest_share(self) -> float:
        """What the unluckiest process got, in terms of an equal share."""
        return min(self.counts) / statistics.mean(self.counts)

    @property
    def jain(self) -> float:
        """Jain's index of fairness: 1 if all got the same, 1/n if one got everything."""
        return sum(self.counts) ** 2 / (len(self.counts) * sum(count**2 for count in self.counts))

    def percentile(self, percent: int) -> float:
        """Return how many milliseconds a commit took, at a percentile over all processes."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] * 1000


def start(role: str, **orders: object) -> subprocess.Popen[str]:
    """Start a process of this module."""
    command = [sys.executable, "-m", "benchmarks._sqlite_processes", role, json.dumps(orders)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def tell(process: subprocess.Popen[str], word: object) -> None:
    """Send a process a line."""
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> Any:  # noqa: ANN401 -- whatever JSON the process answers
    """Wait for a line of a process."""
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def storm(path: Path, *, processes: int, seconds: float, role: str = "standfast") -> Storm:
    """Let processes commit flat out for the same seconds, each to a record of its own."""
    crowd = [start(role, path=str(path), task=task, seconds=seconds) for task in range(processes)]
    for process in crowd:
        assert hear(process) == "ready"
    begin = time.monotonic() + READY_IN
    for process in crowd:
        tell(process, begin)
    answers: list[list[float]] = [hear(process) for process in crowd]
    for process in crowd:
        process.communicate(timeout=60)
    return Storm([len(answer) for answer in answers], [one for answer in answers for one in answer], seconds)


async def hear_rings(space: Space, path: Path, times: int) -> list[tuple[float, float]]:
    """Hear another process commit; return the milliseconds since it asked for each commit, and since it was durable."""
    process = start("ring", path=str(path), times=times)
    assert hear(process) == "ready"
    heard: dict[int, int] = {}
    async with space.watch(key_of[0]) as watch:
        tell(process, "go")
        while await watch.wait(timeout=0.5) is not None:
            at = time.monotonic_ns()
            record = (await space.read(key_of[0])).get(key_of[0])
            heard.setdefault(int(record.value) if record else 0, at)
    durable_at = dict(hear(process))
    process.communicate(timeout=60)
    pairs = [(at, asked, durable_at[asked]) for asked, at in heard.items() if asked in durable_at]
    assert len(pairs) > times / 2, f"only {len(pairs)} of {times} commits were heard one by one"
    return [((at - asked) / 1e6, max(0, at - durable) / 1e6) for at, asked, durable in pairs]


def idle_cost(path: Path, *, watches: int, seconds: float) -> tuple[float, float]:
    """Return the CPU seconds a second and the kilobytes that idle watches cost a process."""
    process = start("idle", path=str(path), watches=watches, seconds=seconds)
    cpu, memory = hear(process)
    process.communicate(timeout=60)
    return cpu, memory


# --- inside a process ---------------------------------------------------------------------------------------------


def say(word: object) -> None:
    """Answer with a line of JSON."""
    print(json.dumps(word), flush=True)


def until_begin() -> float:
    """Wait for the common begin and return it."""
    say("ready")
    begin = float(sys.stdin.readline())
    time.sleep(max(0.0, begin - time.monotonic()))
    return begin


async def commit_flat_out(path: str, task: int, seconds: float) -> None:
    """Commit one after another, each with a guard, and answer with how long each one took."""
    async with sf.open(f"sqlite:///{path}?busy=60s") as space:
        key, version, latencies = key_of[task], (await space.read(key_of[task])).version(key_of[task]), []
        end = until_begin() + seconds
        while (asked := time.monotonic()) < end:
            verdict = await space.commit(Put(key, value(task, time.monotonic_ns()), version))
            assert isinstance(verdict, Commit)
            version = verdict.versions[key]
            latencies.append(time.monotonic() - asked)
        say(latencies)


async def commit_bare_flat_out(path: str, task: int, seconds: float) -> None:
    """Do the same on the bare driver, with SQLite's own busy handler for a queue."""
    limit = await asyncio.to_thread(Limit, path, busy_seconds=60.0)
    limit.adopt(task)
    latencies: list[float] = []
    end = until_begin() + seconds
    while (asked := time.monotonic()) < end:
        limit.commit(range(task, task + 1))
        latencies.append(time.monotonic() - asked)
    say(latencies)


async def ring(path: str, times: int) -> None:
    """Commit now and then; answer with when each commit was asked for and when it was durable."""
    async with sf.open(f"sqlite:///{path}") as space:
        say("ready")
        sys.stdin.readline()
        stamps: list[tuple[int, int]] = []
        key, version = key_of[0], (await space.read(key_of[0])).version(key_of[0])
        for _ in range(times):
            asked = time.monotonic_ns()
            verdict = await space.commit(Put(key, b"%d" % asked, version))
            assert isinstance(verdict, Commit)
            version = verdict.versions[key]
            stamps.append((asked, time.monotonic_ns()))
            await asyncio.sleep(0.003)
        say(stamps)


async def idle(path: str, watches: int, seconds: float) -> None:
    """Watch records that nobody changes; answer with the CPU and the memory that this takes."""
    async with sf.open(f"sqlite:///{path}") as space, contextlib.AsyncExitStack() as stack:
        tracemalloc.start()
        for number in range(watches):
            await stack.enter_async_context(space.watch(space.key("idle", str(number))))
        memory = tracemalloc.get_traced_memory()[0] / 1000
        tracemalloc.stop()
        cpu = time.process_time()
        await asyncio.sleep(seconds)
        say([(time.process_time() - cpu) / (seconds or 1), memory])


ROLES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "standfast": commit_flat_out,
    "bare": commit_bare_flat_out,
    "ring": ring,
    "idle": idle,
}

if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[1]](**json.loads(sys.argv[2])))

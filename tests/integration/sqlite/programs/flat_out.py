"""Commits as fast as it can for some seconds: ``flat_out URL NAME SECONDS TASKS``.

Says how often it did, how long it took (p50, p99 and the worst), and for how many seconds it waited for a processor.
"""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path

from standfast.clock import monotonic
from standfast.stores import Commit, Put
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say, told


def waited_for_processor() -> float:
    """Return for how many seconds the threads of this process could run and had no processor; 0 if nothing says so."""
    found = Path("/proc/self/task").glob("*/schedstat")
    return sum(int(each.read_text(encoding="ascii").split()[1]) for each in found) / 1e9


async def main(url: str, name: str, seconds: float, tasks: int) -> None:
    """Wait for the word, then commit."""
    store = await open_store(url)
    times: list[float] = []

    async def commit(task: int) -> None:
        version, began = 0, monotonic()
        deadline = began + seconds
        while began < deadline:
            verdict = await store.commit(Put(key("flat-out", name, task), b"x" * 100, expected=version))
            assert isinstance(verdict, Commit)
            version = verdict.versions[key("flat-out", name, task)]
            times.append(monotonic() - began)
            began = monotonic()

    say("ready")
    told()
    waited = waited_for_processor()
    await asyncio.gather(*(commit(task) for task in range(tasks)))
    waited = waited_for_processor() - waited
    await store.aclose()
    hundredths = statistics.quantiles(times, n=100)
    say(len(times), hundredths[49], hundredths[98], max(times), waited)


if __name__ == "__main__":
    asyncio.run(main(ARGUMENTS[0], ARGUMENTS[1], float(ARGUMENTS[2]), int(ARGUMENTS[3])))

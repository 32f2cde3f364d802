"""One process that contends for a mutex or a semaphore of a space: what a hold costs with all that a lock has.

Arguments: URL, name of the lock, a file (not used), seconds, how long each hold lasts, and for a semaphore how many
permits it has. It says ``ready``, waits for a line, and answers in JSON. What is counted are calls of the store.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import standfast as sf
from standfast.stores import Conflict
from standfast.stores.group_commit import GroupedStore

if TYPE_CHECKING:
    from collections.abc import Callable

WRITES, READS = ("commit", "_carry"), ("read", "scan")
"""Where all ways to write pass, those for changes of our own making included, and all to read."""


def count_calls(count: dict[str, int]) -> None:
    """Count from now on what stores are asked, and what they refuse."""
    for name in (*WRITES, *READS):
        setattr(
            GroupedStore, name, _counted(getattr(GroupedStore, name), count, "choices" if name in WRITES else "reads")
        )


def _counted(call: Callable[..., Any], count: dict[str, int], name: str) -> Callable[..., Any]:
    async def count_it(*args: Any, **options: Any) -> Any:  # noqa: ANN401 -- whatever the call takes and returns
        count[name] += 1
        answer = await call(*args, **options)
        count["refused"] += isinstance(answer, Conflict)
        return answer

    return count_it


async def contend(url: str, line: str, seconds: float, hold: float, permits: int | None = None) -> None:
    """Take the lock, again and again."""
    count = {"choices": 0, "refused": 0, "reads": 0}
    count_calls(count)
    async with sf.open(url) as space:
        lock, holds = space.mutex(line) if permits is None else space.semaphore(line, permits=permits), 0
        async with lock.hold():
            print("ready", flush=True)
        begin = float(await asyncio.to_thread(sys.stdin.readline))
        await asyncio.sleep(begin - time.monotonic())
        count.update(dict.fromkeys(count, 0))
        cpu = time.process_time()
        while time.monotonic() < begin + seconds:
            async with lock.hold():
                holds += 1
                if hold:
                    await asyncio.sleep(hold)
        report: dict[str, Any] = count | {"holds": holds, "again": 0, "cpu": time.process_time() - cpu, "handovers": []}
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    asyncio.run(contend(sys.argv[1], sys.argv[2], float(sys.argv[4]), float(sys.argv[5]), *map(int, sys.argv[6:])))

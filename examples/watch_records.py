"""Wait for a record to change: watch first, then read, and wait only if it is not yet as wanted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import standfast as sf
from standfast.stores import Put

if TYPE_CHECKING:
    from standfast.keys import RecordKey

URL = "sqlite:///jobs.db"


async def wait_for(space: sf.Space, key: RecordKey, wanted: bytes) -> None:
    """Return when the record has the wanted value."""
    async with space.watch(key) as watch:
        while (record := (await space.read(key)).get(key)) is None or record.value != wanted:
            await watch.wait(timeout=5)  # a hint may be lost, so look now and then anyway


async def work() -> None:
    """Do a job in two steps, over a handle of its own."""
    async with sf.open(URL) as space:
        job = space.key("job", "42")
        print("the worker begins")
        await space.commit(Put(job, b"running"))
        print("the worker is done")
        await space.commit(Put(job, b"done", expected=(await space.read(job)).version(job)))


async def main() -> None:
    """Wait for the job of somebody else."""
    async with sf.open(URL) as space, asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(wait_for(space, space.key("job", "42"), b"done"))
        tasks.create_task(work())
        await waiting
        print("the waiter has seen it")


asyncio.run(main())

# Output:
# the worker begins
# the worker is done
# the waiter has seen it

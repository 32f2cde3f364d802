"""One process that contends for a bare mutex on the store's own operations: enter, wait for the notification, leave.

It has no presence, no line and no lock object: it shows what the seam allows. Arguments: URL, name of the mutex, a file
to share, seconds, and how long each hold lasts. It says ``ready``, waits for a line, and answers in JSON.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks._mutex_contender import count_calls
from standfast.ids import new_id
from standfast.keys import RecordKey
from standfast.stores import Alternative, Append, Choice, Conflict, Delete, Empty, MoveFirst, Present, Stamped
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from standfast.stores import GroupedStore, Watch

LOST_AFTER: Final = 1.0  # seconds without a notification after which the grant is read
SHARED: Final = struct.Struct("=qq")  # when the last holder began to leave, and its fence


class Contender:
    """One who wants the mutex."""

    def __init__(self, store: GroupedStore, line: str, shared: mmap.mmap, hold: float) -> None:
        self._store, self._shared, self._hold = store, shared, hold
        self._name, self._number = new_id(), 0
        key = RecordKey("bench", line)
        self._grant, self._tickets, self._inboxes = key.child("grant", "0"), key.child("ticket"), key.child("inbox")
        self._handovers: list[float] = []
        self._holds = self._again = self._reads = self._lost = 0
        self.counts = {"choices": 0, "refused": 0, "reads": 0}
        count_calls(self.counts)

    async def run(self, until: float) -> dict[str, Any]:
        """Hold it again and again until then."""
        async with self._store.watch(self._inboxes.child(self._name)) as watch:
            print("ready", flush=True)
            begin = float(await asyncio.to_thread(sys.stdin.readline))
            await asyncio.sleep(max(0.0, begin - time.monotonic()))
            self.counts.update(dict.fromkeys(self.counts, 0))
            cpu, end = time.process_time(), time.monotonic() + until
            while time.monotonic() < end:
                await self._leave(await self._enter(watch))
            return {
                "holds": self._holds,
                "again": self._again,
                "lost": self._lost,
                "handovers": self._handovers,
                "cpu": time.process_time() - cpu,
                **self.counts,
            }

    async def _enter(self, watch: Watch) -> int:
        self._number += 1
        entry = f"{self._name}.{self._number}".encode()
        done = await self._store.choose(
            Alternative((Stamped(self._grant, entry),)),
            Alternative((Present(self._grant), Append(self._tickets, entry, RecordKey(self._name)))),
        )
        assert isinstance(done, Choice), done
        waited = done.index == 1
        fence = await self._granted(watch, entry) if waited else done.version
        left_at, last = SHARED.unpack_from(self._shared)
        assert fence > last, f"fence {fence} after {last}"
        if waited:
            self._handovers.append((time.monotonic_ns() - left_at) / 1e6)
        self._holds += 1
        self._again += not waited
        if self._hold:
            await asyncio.sleep(self._hold)
        return fence

    async def _granted(self, watch: Watch, entry: bytes) -> int:
        while True:
            heard = await watch.wait(LOST_AFTER)
            for record in heard.moved if heard is not None else ():
                if record.value.endswith(entry):
                    return record.version
            if heard is None:
                self._lost += 1
                found = (await self._store.read(self._grant)).get(self._grant)
                if found is not None and found.value.endswith(entry):
                    return found.version

    async def _leave(self, fence: int) -> None:
        SHARED.pack_into(self._shared, 0, time.monotonic_ns(), fence)
        done = await self._store.choose(
            Alternative((MoveFirst(self._tickets, self._grant, fence, self._inboxes),)),
            Alternative((Empty(self._tickets), Delete(self._grant, fence))),
        )
        assert not isinstance(done, Conflict), done


async def _contend(url: str, line: str, memory: mmap.mmap, seconds: float, hold: float) -> None:
    store = await open_store(url)
    try:
        print(json.dumps(await Contender(store, line, memory, hold).run(seconds)), flush=True)
    finally:
        await store.aclose()


def _main(url: str, line: str, shared: str, seconds: str, hold: str) -> None:
    with Path(shared).open("r+b") as file, mmap.mmap(file.fileno(), SHARED.size) as memory:
        asyncio.run(_contend(url, line, memory, float(seconds), float(hold)))


if __name__ == "__main__":
    _main(*sys.argv[1:])

"""Commits without pause until it is told that the store was moved; says what it was told of each commit."""

from __future__ import annotations

import asyncio
import sys

from standfast.errors import StoreMovedError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from standfast.stores.url import open_store


async def write(url: str, name: str) -> None:
    """Create one record after the other, several at a time."""
    store = await open_store(url)
    numbers = iter(range(1_000_000))

    async def commit_all() -> None:
        for number in numbers:
            try:
                done = await store.commit(Put(RecordKey(f"space-{number % 3}", name, f"{number:07d}"), b"value"))
            except StoreMovedError:
                print("refused", number, flush=True)
                return
            if isinstance(done, Commit):
                print("written", number, flush=True)

    await asyncio.gather(*(commit_all() for _ in range(5)))
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(write(*sys.argv[1:]))

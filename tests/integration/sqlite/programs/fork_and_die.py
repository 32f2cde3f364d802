"""Opens a store and forks a child that opens the same file and counts until told to stop: ``fork_and_die URL``.

The parent dies as soon as the child has the file open, without closing anything. The child says how far it came.
"""

from __future__ import annotations

import asyncio
import os
import select

from standfast.stores import Put
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.count import increment_folded
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say


async def in_child(url: str, is_open: int) -> None:
    """Open the file that the parent has open, and go on when it is gone."""
    store = await open_store(url)
    os.write(is_open, b".")
    say("ready")
    increments = 0
    while not select.select([0], [], [], 0)[0]:
        await increment_folded(store, key("folded"))
        increments += 1
    await store.aclose()
    say("acknowledged", increments)


async def main(url: str) -> None:
    """Open, fork, and die without a word."""
    store = await open_store(url)
    await store.commit(Put(key("before"), b"the fork"))
    opened, is_open = os.pipe()
    if not os.fork():
        asyncio.run(in_child(url, is_open))
        os._exit(0)
    os.read(opened, 1)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(ARGUMENTS[0]))

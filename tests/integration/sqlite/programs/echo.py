"""Watches ``ping`` and answers each change with the same value at ``pong``: ``echo URL``."""

from __future__ import annotations

import asyncio

from standfast.stores import Put
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say

PING, PONG = key("ping"), key("pong")


async def main(url: str) -> None:
    """Answer for ever."""
    store = await open_store(url)
    async with store.watch(PING) as watch:
        say("ready")
        while True:
            await watch.wait()
            found = await store.read(PING, PONG)
            await store.commit(Put(PONG, found.records[PING].value, expected=found.version(PONG)))


if __name__ == "__main__":
    asyncio.run(main(ARGUMENTS[0]))

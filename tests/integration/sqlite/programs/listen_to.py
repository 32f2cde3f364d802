"""Watches one prefix and says the first hint, as hex: ``listen_to URL NAME``."""

from __future__ import annotations

import asyncio

from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say


async def main(url: str, name: str) -> None:
    """Watch until the first hint."""
    store = await open_store(url)
    async with store.watch(key(name)) as watch:
        say("ready")
        hint = None
        while hint is None or not hint.about:
            hint = await watch.wait(20)
        say(*(about.hex() for about in hint.about))
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(main(*ARGUMENTS))

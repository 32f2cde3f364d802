"""Says the store's time once for each line it is told: ``tell_time URL``."""

from __future__ import annotations

import asyncio

from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say, told


async def main(url: str) -> None:
    """Tell the time when asked."""
    store = await open_store(url)
    say("ready")
    while told():
        say((await store.read(key("any"))).at)
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(main(ARGUMENTS[0]))

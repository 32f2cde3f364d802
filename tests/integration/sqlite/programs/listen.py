"""Watches many prefixes and says what it hears: ``listen URL WATCHES SLOW_CHECK PREFIX ...``.

Told ``wait SECONDS`` it waits for a hint on its first watch, and says whether one came, what it was about and how much
processor time waiting took. Every watch after the first listens to a prefix of its own below the given one. The slow
check comes every so many seconds: a process whose loop stood still would hear of it before it hears its doorbell.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from standfast.stores.sqlite import backend as slow_check
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say, told


async def main(url: str, watches: int, every: float, *prefix: str) -> None:
    """Watch, and report when asked."""
    slow_check.SLOW_CHECK = every  # type: ignore[misc] # final for everyone but a test
    store = await open_store(url)
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(store.watch(key(*prefix)))
        for number in range(1, watches):
            await stack.enter_async_context(store.watch(key(*prefix, f"own-{number}")))
        say("ready")
        while words := told():
            spent = time.process_time()
            hint = await first.wait(float(words[1]))
            heard = sorted("/".join(about.parts) for about in hint.about) if hint else ["nothing"]
            say(time.process_time() - spent, *(heard or ["everything"]))
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(main(ARGUMENTS[0], int(ARGUMENTS[1]), float(ARGUMENTS[2]), *ARGUMENTS[3:]))

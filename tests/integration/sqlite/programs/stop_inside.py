"""Stops itself with SIGSTOP inside its write transaction, once told to: ``stop_inside URL``."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from standfast.stores import Decision, Put
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say, told

if TYPE_CHECKING:
    from standfast.stores import Snapshot


def stop_and_decide(_: Snapshot) -> Decision[str]:
    """Stop this process while it has the turn and an open transaction."""
    os.kill(os.getpid(), signal.SIGSTOP)
    return Decision("continued", (Put(key("stopped"), b"continued"),))


async def main(url: str) -> None:
    """Open, wait for the word, stop inside, report."""
    store = await open_store(url)
    say("ready")
    told()
    decided = await store.update((key("stopped"),), stop_and_decide)
    say(decided.answer)
    told()
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(main(ARGUMENTS[0]))

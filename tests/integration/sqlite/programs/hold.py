"""Holds the turn to write inside its transaction until told to let go, again and again: ``hold URL``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from standfast.stores import Decision, Put
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say, told

if TYPE_CHECKING:
    from standfast.stores import Snapshot


def hold(snapshot: Snapshot) -> Decision[None]:
    """Wait for the word inside the transaction."""
    say("inside")
    told()
    return Decision(None, (Put(key("held"), b"", expected=snapshot.version(key("held"))),))


async def main(url: str) -> None:
    """Hold whenever told to."""
    store = await open_store(f"{url}?commits=loop")
    say("ready")
    while told():
        await store.update((key("held"),), hold)
        say("outside")
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(main(ARGUMENTS[0]))

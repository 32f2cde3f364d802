"""Opens a store when told to and commits once: ``open_at_once URL NAME``. Everything is loaded before it says so."""

from __future__ import annotations

import asyncio

import standfast.stores.sqlite  # noqa: F401 -- loaded before the race begins
from standfast.errors import StandfastError
from standfast.stores import Put
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say, told


async def main(url: str, name: str) -> None:
    """Wait for the word, open, commit, report."""
    say("ready")
    told()
    try:
        store = await open_store(url)
        await store.commit(Put(key("opener", name), b"here"))
        await store.aclose()
    except StandfastError as problem:
        say(type(problem).__name__, problem)
    else:
        say("done")


if __name__ == "__main__":
    asyncio.run(main(*ARGUMENTS))

"""Forks in the midst of a transaction: ``fork_inside URL``. Says what opening came to in the child, then commits."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from standfast.errors import StandfastError, StoreClosedError
from standfast.stores import Decision, Put
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say

if TYPE_CHECKING:
    from standfast.stores import Snapshot


async def in_child(url: str) -> None:
    """Try to open the same file."""
    try:
        await open_store(url)
    except StandfastError as problem:
        is_forked = isinstance(problem, StoreClosedError) and "fork" in str(problem)
        say("child", "forked" if is_forked else type(problem).__name__)
    else:
        say("child", "opened")


def fork_and_decide(_: Snapshot) -> Decision[None]:
    """Fork while this process holds the write lock."""
    pid = os.fork()
    if not pid:
        asyncio.run(in_child(ARGUMENTS[0]))
        os._exit(0)
    os.waitpid(pid, 0)
    return Decision(None, (Put(key("parent"), b""),))


async def main(url: str) -> None:
    """Fork inside a transaction of its own, and finish it."""
    store = await open_store(f"{url}?commits=thread")
    await store.update((key("parent"),), fork_and_decide)
    await store.commit(Put(key("later"), b""))
    await store.aclose()
    say("parent", "done")


if __name__ == "__main__":
    asyncio.run(main(ARGUMENTS[0]))

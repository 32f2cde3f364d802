"""Opens a store, forks, and lets the child try what it inherited: ``fork URL HOW EXIT``.

HOW is ``os`` or ``multiprocessing``; EXIT is ``quietly`` (as a crash would) or ``properly`` (closing everything it has,
as the end of an ``async with`` does). The child says one line for each thing it tries; the parent then says what it
can still do.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from typing import TYPE_CHECKING

from standfast.errors import StandfastError, StoreClosedError
from standfast.stores import Decision, Put
from standfast.stores.sqlite import backend as slow_check
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say, told

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.stores import Store, Watch


def attempts(store: Store) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return everything that one can try with a store."""
    return {
        "read": lambda: store.read(key("before")),
        "scan": lambda: store.scan(*key().within(), limit=1),
        "commit": lambda: store.commit(Put(key("inherited"), b"")),
        "update": lambda: store.update((key("inherited"),), lambda _: Decision(None, (Put(key("inherited"), b""),))),
        "settle": lambda: store.settle("any.1/0"),
        "another": store.another,
        "watch": lambda: store.watch(key()).wait(0),
    }


async def in_child(inherited: Store, watch: Watch, url: str, how_to_exit: str) -> None:
    """Try what was inherited, then open the same file anew and use it."""
    for name, attempt in attempts(inherited).items():
        try:
            await attempt()
        except StandfastError as problem:
            is_forked = isinstance(problem, StoreClosedError) and "fork" in str(problem)
            say(name, "forked" if is_forked else type(problem).__name__)
        else:
            say(name, "worked")
    own = await open_store(url)
    found = await own.read(key("before"))
    await own.commit(Put(key("child"), found.records[key("before")].value))
    await own.commit(Put(key("after", "child"), b""))
    await own.aclose()
    say("own", "worked")
    if how_to_exit == "properly":
        await watch.__aexit__(None, None, None)
        await inherited.aclose()


def child(store: Store, watch: Watch, url: str, how_to_exit: str) -> None:
    """Be the child, outside of the loop that it shares with its parent."""
    asyncio.run(in_child(store, watch, url, how_to_exit))


def fork(store: Store, watch: Watch, url: str, how: str, how_to_exit: str) -> int:
    """Fork and return the child's exit status."""
    if how == "os":
        pid = os.fork()
        if not pid:
            child(store, watch, url, how_to_exit)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    process = multiprocessing.get_context("fork").Process(target=child, args=(store, watch, url, how_to_exit))
    process.start()
    process.join()
    return process.exitcode or 0


async def main(url: str, how: str, how_to_exit: str) -> None:
    """Be the parent."""
    slow_check.SLOW_CHECK = 60.0  # type: ignore[misc] # what is heard is heard by doorbell
    store = await open_store(url)
    await store.commit(Put(key("before"), b"the fork"))
    async with store.watch(key("after")) as watch:
        say("status", fork(store, watch, url, how, how_to_exit))
        hint = await watch.wait(5)
        say("hint", len(hint.about) if hint else 0)
        await store.commit(Put(key("parent"), (await store.read(key("child"))).records[key("child")].value))
        say("parent", "worked")
        told()
        hint = await watch.wait(5)
        say("heard", len(hint.about) if hint else 0)
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(main(*ARGUMENTS))

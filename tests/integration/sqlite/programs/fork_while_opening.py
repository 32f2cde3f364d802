"""Forks while another thread opens a further handle: ``fork_while_opening URL``. Says what the child could do."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING
from unittest import mock

from standfast.errors import StandfastError
from standfast.stores import Put
from standfast.stores.liveness import run_in_forked_child
from standfast.stores.sqlite.database import read_anchor
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say

if TYPE_CHECKING:
    from standfast.clock import Clock
    from standfast.stores.sqlite.connection import SqliteConnection
    from standfast.stores.sqlite.database import StoreTime

LONG = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400000) SELECT max(i) FROM n"

inside = threading.Event()
told: list[str] = []


def read_slowly(connection: SqliteConnection, clock: Clock) -> StoreTime | None:
    """Stay inside SQLite for a while, as on a slow disk, before the file is open."""
    inside.set()
    connection.execute(LONG).get  # noqa: B018 -- the property runs it
    return read_anchor(connection, clock)


async def in_child(url: str) -> None:
    """Open the same file and write to it."""
    try:
        store = await open_store(url)
        await store.commit(Put(key("child"), b""))
        await store.aclose()
    except StandfastError as problem:
        say("child", type(problem).__name__)
    else:
        say("child", "wrote")


async def main(url: str) -> None:
    """Fork in the midst of an opening."""
    store = await open_store(url)
    with mock.patch("standfast.stores.sqlite.read_anchor", read_slowly):
        another = asyncio.create_task(store.another())
        await asyncio.to_thread(inside.wait)
        fork(url)
        await (await another).aclose()
    await store.aclose()
    say("parent", "done")


def fork(url: str) -> None:
    """Fork, and wait for the child. It works in a thread of its own: this one has its parent's event loop."""
    pid = os.fork()
    if not pid:
        thread = threading.Thread(target=lambda: asyncio.run(in_child(url)))
        thread.start()
        thread.join()
        say("told", *told)
        os._exit(0)
    say("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


run_in_forked_child(lambda: told.append("the-child"))  # the last of them: what comes before must not get in its way

if __name__ == "__main__":
    asyncio.run(main(ARGUMENTS[0]))

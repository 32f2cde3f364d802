"""Forks while a thread is inside SQLite where no fork waits for it: ``fork_unseen URL``.

Says what opening the file came to in the child, then commits in the parent.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from standfast.errors import StandfastError, StoreClosedError
from standfast.stores import Put
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say

ENDLESS = "WITH RECURSIVE n(i) AS (VALUES(0) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


async def in_child(url: str) -> None:
    """Try to open the same file."""
    try:
        await open_store(url)
    except StandfastError as problem:
        is_forked = isinstance(problem, StoreClosedError) and "fork" in str(problem)
        say("child", "forked" if is_forked else type(problem).__name__)
    else:
        say("child", "opened")


async def main(url: str) -> None:
    """Fork beside the thread, end that, and commit."""
    store: Any = await open_store(url)
    connection = store.backend._database._writer  # as a statement would use it that has forgotten its section
    inside, over = threading.Event(), threading.Event()

    def note() -> bool:
        inside.set()
        return over.is_set()

    def count() -> None:
        try:
            connection.execute(ENDLESS)
        except Exception:  # noqa: BLE001 -- it is interrupted at the end
            return

    connection.set_progress_handler(note, 1_000)
    thread = threading.Thread(target=count)
    thread.start()
    inside.wait()
    pid = os.fork()
    if not pid:
        asyncio.run(in_child(url))
        os._exit(0)
    os.waitpid(pid, 0)  # noqa: ASYNC222 -- the loop has nothing else to do
    over.set()
    thread.join()
    connection.set_progress_handler(None)
    await store.commit(Put(key("parent"), b""))
    await store.aclose()
    say("parent", "done")


if __name__ == "__main__":
    asyncio.run(main(ARGUMENTS[0]))

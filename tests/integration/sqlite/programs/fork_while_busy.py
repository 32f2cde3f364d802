"""Forks again and again while threads of the same process commit and read flat out: ``fork_while_busy URL FORKS``.

Each child opens the file itself and increments once. Says how many children did, and how often the threads did.
"""

from __future__ import annotations

import asyncio
import os
import threading

from standfast.stores.url import open_store
from tests.integration.sqlite.programs.count import increment_folded
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say

everyone_is_open = threading.Barrier(3)  # a fork while a thread imports something would leave the import locked
over = threading.Event()
counted: list[int] = []


async def count_until_over(url: str) -> None:
    """Commit and read on a loop and a handle of this thread's own."""
    store = await open_store(url)
    everyone_is_open.wait()
    done = 0
    while not over.is_set():
        await increment_folded(store, key("folded"))
        await store.read(key("folded"))
        done += 1
    await store.aclose()
    counted.append(done)


async def count_once(url: str) -> None:
    """Be the child."""
    store = await open_store(url)
    await increment_folded(store, key("folded"))
    await store.aclose()


def fork_once(url: str) -> bool:
    """Fork a child that counts once; tell whether it could."""
    pid = os.fork()
    if not pid:
        try:
            asyncio.run(count_once(url))
        except BaseException as problem:  # noqa: BLE001 -- whatever it is, the test must hear of it
            say("child", repr(problem))
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def main(url: str, forks: int) -> None:
    """Run two threads and fork beside them."""
    modes = ("?commits=thread", "?commits=auto")
    threads = [threading.Thread(target=asyncio.run, args=(count_until_over(url + mode),)) for mode in modes]
    for thread in threads:
        thread.start()
    everyone_is_open.wait()
    children = sum(fork_once(url) for _ in range(forks))
    over.set()
    for thread in threads:
        thread.join()
    say("children", children, "threads", sum(counted))


if __name__ == "__main__":
    main(ARGUMENTS[0], int(ARGUMENTS[1]))

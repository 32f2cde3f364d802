"""Open a store in many processes at once, as soon as all of them are there; say how many did.

Arguments: the URL, and how many.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback

from standfast.keys import RecordKey
from standfast.stores import Put
from standfast.stores.url import open_store


async def commit(url: str, name: str) -> None:
    """Open, commit, read and close."""
    store = await open_store(f"{url}&timeout=20s&connect_timeout=20s")  # all of them share a machine
    key = RecordKey("opened", name)
    await store.commit(Put(key, b""))
    assert (await store.read(key)).get(key) is not None
    await store.aclose()


def child(url: str, name: str, start: int) -> int:
    """Wait for the start, then do it; return how to end."""
    os.read(start, 1)
    try:
        asyncio.run(commit(url, name))
    except BaseException:  # noqa: BLE001 -- the process ends here
        traceback.print_exc()
        return 1
    return 0


def main(url: str, count: int) -> int:
    """Start them, let them go, and return how many did not succeed."""
    start, go = os.pipe()
    children: list[int] = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            os.close(go)
            os._exit(child(url, str(number), start))
        children.append(pid)
    os.close(go)
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in children)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], int(sys.argv[2])))

"""Opens a store, says its liveness token, and lives on: ``live URL``.

``severed TOKEN`` tells whether that is severed; ``close`` closes the store and lives on; ``again`` opens another
handle, closes it, and says the token; ``fork`` makes a child that opens the store itself, says its number and its
own token, and lives until it hears a word; ``fork-and-exit`` makes one that closes all it has and ends; ``exec``
starts another program that lives on with whatever it inherits. Each is answered with a line. It ends without closing
anything.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, say, told

if TYPE_CHECKING:
    from standfast.stores import GroupedStore


async def live_on(url: str) -> None:
    """Be a forked child that lives longer than its parent."""
    store = await open_store(url)
    say(os.getpid(), store.liveness_token())
    told()
    await store.aclose()


async def again(store: GroupedStore) -> None:
    """Open another handle, and close it."""
    other = await store.another()
    await other.aclose()
    say(store.liveness_token())


def fork(url: str) -> None:
    """Fork a child that lives on."""
    if not os.fork():
        asyncio.run(live_on(url))
        os._exit(0)


def fork_and_exit() -> None:
    """Fork a child that ends as programs do, closing every descriptor that it has."""
    pid = os.fork()
    if not pid:
        os.closerange(3, 256)
        os._exit(0)
    say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


async def main(url: str) -> None:
    """Open, say so, and do as told."""
    store = await open_store(url)
    say(store.liveness_token())
    while words := told():
        if words == ["close"]:
            await store.aclose()
            say("closed")
        elif words[0] == "severed":
            say(store.is_dead(words[1]))
        elif words == ["again"]:
            await again(store)
        elif words == ["fork"]:
            fork(url)
        elif words == ["fork-and-exit"]:
            fork_and_exit()
        elif words == ["exec"]:  # it ends with its input, which is this program's
            program = "import sys; print('started', flush=True); sys.stdin.read()"
            subprocess.Popen([sys.executable, "-c", program], close_fds=False)  # noqa: ASYNC220 -- the loop has nothing else to do


if __name__ == "__main__":
    asyncio.run(main(ARGUMENTS[0]))

"""Tries to commit once for each line it is told, and says what came of it: ``commit_once URL``.

It answers ``done SECONDS`` or ``ERROR SECONDS MESSAGE``. When there are no more lines it ends without closing anything.
"""

from __future__ import annotations

import asyncio

from holdfast.clock import monotonic
from holdfast.errors import HoldfastError
from holdfast.stores import Put
from holdfast.stores.opening import open_store
from tests.integration.sqlite.programs.talking import ARGUMENTS, key, say, told


async def main(url: str) -> None:
    """Open and commit, once a line."""
    store = await open_store(url)
    say("ready")
    while words := told():
        began = monotonic()
        try:
            await store.commit(Put(key(*words), b"here"))
        except HoldfastError as problem:
            say(type(problem).__name__, monotonic() - began, problem)
        else:
            say("done", monotonic() - began)


if __name__ == "__main__":
    asyncio.run(main(ARGUMENTS[0]))

"""Opens a store and does what it is told, one line at a time: ``obey URL``.

``commit NAME [BYTES]``, ``read NAME``, ``count NAME``, ``open [URL]``, ``close``, ``limit BYTES`` (of any file it
writes) and ``run COMMAND ...``. It answers ``done SECONDS ANSWER`` or ``ERROR SECONDS MESSAGE``, and ends without
closing anything.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
from typing import TYPE_CHECKING, final

from standfast.clock import monotonic
from standfast.errors import StandfastError
from standfast.stores import Put
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, key, say, told

if TYPE_CHECKING:
    from standfast.stores import GroupedStore


@final
class Servant:
    """What can be asked for."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: GroupedStore | None = None

    @property
    def store(self) -> GroupedStore:
        """The open store."""
        assert self._store is not None
        return self._store

    async def open(self, url: str = "") -> str:
        """Open the store, or another one."""
        self._store = await open_store(url or self._url)
        return "open"

    async def close(self) -> str:
        """Close the store."""
        await self.store.aclose()
        return "closed"

    async def commit(self, name: str, size: str = "4") -> str:
        """Create a record of some size."""
        return type(await self.store.commit(Put(key(name), b"x" * int(size)))).__name__

    async def read(self, name: str) -> str:
        """Return the size of a record."""
        record = (await self.store.read(key(name))).get(key(name))
        return str(record and len(record.value))

    async def count(self, name: str) -> str:
        """Return how many of the records ``NAME-0``, ``NAME-1`` ... are there, up to the first that is not."""
        found = 0
        while (await self.store.read(key(f"{name}-{found}"))).records:
            found += 1
        return str(found)

    async def limit(self, size: str) -> str:
        """Let no file of this process grow beyond a size; ``-1`` for no limit."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), resource.RLIM_INFINITY))
        return "limited"

    async def run(self, *command: str) -> str:
        """Run a command in the namespaces of this process."""
        return str(subprocess.run(command, check=False).returncode)  # noqa: ASYNC221 -- the loop has nothing else to do

    async def obey(self, words: list[str]) -> None:
        """Do what one line says, and say what came of it."""
        began = monotonic()
        try:
            answer = await getattr(self, words[0])(*words[1:])
        except StandfastError as problem:
            say(type(problem).__name__, monotonic() - began, problem)
        else:
            say("done", monotonic() - began, answer)


async def main(url: str) -> None:
    """Open, then obey."""
    servant = Servant(url)
    await servant.obey(["open"])
    while words := told():
        await servant.obey(words)


if __name__ == "__main__":
    asyncio.run(main(ARGUMENTS[0]))

"""A wire to the server that breaks at a chosen statement: before it arrives, or after, so that its answer is lost."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.parse
from typing import TYPE_CHECKING, Final, Literal, Self, final

if TYPE_CHECKING:
    from collections.abc import Iterable


@final
class LossyWire:
    """A proxy on loopback.

    Attributes:
        breaks: How often it breaks yet, and how.
        broken: How often it has.
    """

    def __init__(self, server: str, statement: bytes) -> None:
        self._parts: Final = urllib.parse.urlsplit(server)
        self._statement: Final = statement
        self._listening: asyncio.Server | None = None
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self.breaks: list[Literal["before", "after"]] = []
        self.broken = 0

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._take, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._listening is not None
        self._listening.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """The server's URL, by way of this wire."""
        assert self._listening is not None
        port = self._listening.sockets[0].getsockname()[1]
        host = self._parts.netloc.rpartition("@")
        return self._parts._replace(netloc=f"{host[0]}{host[1]}127.0.0.1:{port}").geturl()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        theirs, ours = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        back = asyncio.create_task(_pump(theirs, writer))
        try:
            await self._forward(reader, ours, back)
        finally:
            back.cancel()
            _close((ours, writer))

    async def _forward(
        self, reader: asyncio.StreamReader, ours: asyncio.StreamWriter, back: asyncio.Task[None]
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                how = self.breaks.pop(0) if self._statement in data and self.breaks else None
                if how is not None:
                    self.broken += 1
                    back.cancel()
                if how == "before":
                    return
                ours.write(data)
                await ours.drain()
                if how == "after":
                    return


async def _pump(theirs: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await theirs.read(65_536):
            writer.write(data)
            await writer.drain()
    _close((writer,))


def _close(writers: Iterable[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.close()

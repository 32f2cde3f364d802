"""A wire to a server that can lose what it carries."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Wire:
    """Carries bytes between a client and a server, connection by connection."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""
        self.lose_replies = 0
        """How many answers are lost from now on: the server has done it, and the connection breaks."""
        self.lose_requests = 0
        """How many requests are lost from now on, together with their connection."""

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either end closes it."""
        there, back = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        self._ends |= {writer, back}
        self._tasks |= {asyncio.create_task(self._pass_on(reader, back, "lose_requests"))}
        await self._pass_on(there, writer, "lose_replies")

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, losing: str) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                left = getattr(self, losing)
                if left:
                    setattr(self, losing, left - 1)
                    self.cut()
                    return
                target.write(data)
                await target.drain()
        target.close()

    def cut(self) -> None:
        """Break all connections."""
        for end in self._ends:
            end.close()
        self._ends.clear()


@contextlib.asynccontextmanager
async def wire_to(url: str) -> AsyncGenerator[Wire]:
    """Open a wire; its ``url`` is what ``url`` is at the other end."""
    wire = Wire(url)
    async with await asyncio.start_server(wire.carry, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        wire.url = url.replace(urlsplit(url).netloc, f"127.0.0.1:{port}")
        yield wire
        wire.cut()

"""An application on a real port, and a line to it that can be cut."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, final

import uvicorn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.web.app import App


@asynccontextmanager
async def served(app: App) -> AsyncIterator[Line]:
    """Serve an application on this machine."""
    options: dict[str, Any] = {"log_level": "warning", "lifespan": "off", "ws": "websockets-sansio"}
    server = uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=1, **options))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line = Line(listener.getsockname()[1])
        async with app, await asyncio.start_server(line.carry, "127.0.0.1", 0) as listening:
            serving = asyncio.ensure_future(server.serve([listener]))
            line.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            line.token = app.token
            try:
                yield line
            finally:
                server.should_exit = True
                await asyncio.gather(line.close(), serving)


@final
class Line:
    """What lies between a browser and a server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_up = asyncio.Event()
        self._is_up.set()
        self.url = self.token = ""

    def page(self, flow: str) -> str:
        """Return the address of a chat as a server shows it: with the token, which the browser gets a cookie for."""
        return f"{self.url}/chat/{flow}/?token={self.token}"

    def cut(self) -> None:
        """Break all connections; those that come wait until the line is mended."""
        self._is_up.clear()
        for end in self._ends:
            end.transport.abort()

    def mend(self) -> None:
        """Let connections through again."""
        self._is_up.set()

    async def close(self) -> None:
        """Break all connections for good."""
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        self._ends.add(writer)
        try:
            await self._is_up.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            ends.append(back)
            self._ends.add(back)
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            for end in ends:
                self._ends.discard(end)
                end.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()

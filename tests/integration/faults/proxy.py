"""A proxy between a client and a server that loses, cuts, holds and delays what it carries."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

Direction = Literal["request", "reply"]


class Fault(Struct, frozen=True):
    """What happens to the ``number``-th piece that travels in a direction, counted from 1 over all connections.

    ``lose``: it vanishes and the connection is closed; a lost reply was a request that the server has carried out.
    ``reset``: half of it arrives, then both ends see the connection reset.
    ``swallow``: it vanishes, nothing is carried any more on any connection, and nobody is told.
    """

    direction: Direction
    number: int
    how: Literal["lose", "reset", "swallow"]

    def __str__(self) -> str:
        return f"{self.how} {self.direction} {self.number}"


class Proxy:
    """Carries bytes between clients and one server."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self.url = ""
        self.fault: Fault | None = None
        self.carried: dict[Direction, int] = {"request": 0, "reply": 0}
        self.struck = 0

    def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either end closes it."""
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(self._server.hostname, self._server.port)
        except OSError:
            _reset(writer)
            return
        self._ends |= {writer, back}
        try:
            await asyncio.gather(
                self._pass_on("request", reader, back, writer), self._pass_on("reply", there, writer, back)
            )
        finally:
            for end in (writer, back):
                self._ends.discard(end)
                end.close()

    async def _pass_on(
        self,
        direction: Direction,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        other: asyncio.StreamWriter,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 20):
                await self._open.wait()
                self.carried[direction] += 1
                fault = self.fault
                if fault is not None and (fault.direction, fault.number) == (direction, self.carried[direction]):
                    self.struck += 1
                    self._strike(fault, data, target, other)
                    return
                target.write(data)
                await target.drain()
        target.close()

    def _strike(self, fault: Fault, data: bytes, target: asyncio.StreamWriter, other: asyncio.StreamWriter) -> None:
        if fault.how == "swallow":
            self.swallow()
            return
        if fault.how == "lose":
            target.close()
            other.close()
            return
        target.write(data[: len(data) // 2])
        _reset(target)
        _reset(other)

    def cut(self) -> None:
        """Break every connection."""
        for end in tuple(self._ends):
            _reset(end)

    def swallow(self) -> None:
        """Carry nothing from now on, and break nothing: nobody is told."""
        self._open.clear()

    def carry_on(self) -> None:
        """Carry again, what was held back first."""
        self._open.set()

    async def aclose(self) -> None:
        """Stop carrying."""
        self.carry_on()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


def _reset(end: asyncio.StreamWriter) -> None:
    """Close a connection so that the other end sees a reset."""
    raw: socket.socket | None = end.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.transport.abort()


@contextlib.asynccontextmanager
async def proxy_to(url: str) -> AsyncGenerator[Proxy]:
    """Open a proxy; its ``url`` is ``url`` with the proxy's port."""
    proxy = Proxy(url)
    server = await asyncio.start_server(proxy.carry, "127.0.0.1")
    parts = urlsplit(url)
    port = server.sockets[0].getsockname()[1]
    netloc = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    proxy.url = parts._replace(netloc=f"{netloc}127.0.0.1:{port}").geturl()
    try:
        yield proxy
    finally:
        server.close()
        await proxy.aclose()

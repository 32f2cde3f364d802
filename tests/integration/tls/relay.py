"""TLS in front of servers whose programs were built without it: a relay that encrypts and passes everything on."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator

SSL_REQUEST: Final = bytes.fromhex("0000000804d2162f")
"""With what a client of PostgreSQL asks for TLS, on a connection that begins without it."""


@final
class Relay:
    """Decrypts what clients send to one server. A client of PostgreSQL that does not ask for TLS is sent away."""

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        self._server, self._context = urlsplit(url), context
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.ports: set[int] = set()
        """From where the server sees what was encrypted on its way here."""

    @property
    def is_asked(self) -> bool:
        """Whether a connection begins without TLS."""
        return self._server.scheme == "postgresql"

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection until either end closes it."""
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, EOFError):
            if self.is_asked:
                if await reader.readexactly(len(SSL_REQUEST)) != SSL_REQUEST:
                    return
                writer.write(b"S")
                await writer.start_tls(self._context)
            there, back = await asyncio.open_connection(self._server.hostname, self._server.port)
            self.ports.add(back.get_extra_info("sockname")[1])
            with contextlib.closing(back):
                await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))

    async def aclose(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    target.close()


@contextlib.asynccontextmanager
async def relay_to(url: str, context: ssl.SSLContext) -> AsyncGenerator[Relay]:
    """Open a relay to the server of ``url``."""
    relay = Relay(url, context)
    server = await asyncio.start_server(relay.take, "127.0.0.1", ssl=None if relay.is_asked else context)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        await relay.aclose()

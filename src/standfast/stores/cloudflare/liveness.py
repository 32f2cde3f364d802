"""Liveness on Durable Objects: a WebSocket that falls with its process, so that others see soon that it has died.

A process opens a WebSocket to the object of the whole store and names a number with it. The object tells others which
numbers no open WebSocket has; see :mod:`standfast.stores.remote.liveness`. A machine that is cut off is seen when
Cloudflare notices that its connection is gone; until then, and otherwise, leases decide.
"""

from __future__ import annotations

import asyncio
import functools
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, final

import aiohttp

from standfast.errors import StoreError, UnsuitableStoreError
from standfast.stores.cloudflare.connection import (
    STORE,
    CloudflareOptions,
    ObjectSocket,
    close_session,
    connect,
    new_session,
)
from standfast.stores.liveness import now
from standfast.stores.remote.liveness import CONNECTED_WITHIN, SILENT_FOR, LivenessServer, abandon_socket

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

_ERRORS: Final = (StoreError, aiohttp.ClientError, ConnectionError, TimeoutError)
_BITS: Final = (1 << 64) - 1


def liveness_server(options: CloudflareOptions, store: str) -> LivenessServer:
    """Return where sessions are opened; ``store`` is what the object of the whole store says of itself."""
    opened = functools.partial(open_liveness_session, options, store)
    return LivenessServer("c1", store, f"{options.url}/{options.prefix}", opened, _ERRORS, lambda _: False)


@asynccontextmanager
async def open_liveness_session(options: CloudflareOptions, store: str) -> AsyncGenerator[CloudflareLivenessSession]:
    """Open a session for the length of a block. It is refused if another store is there by now."""
    session = new_session(options)
    liveness = CloudflareLivenessSession(session, options, store)
    try:
        yield liveness
    finally:
        await liveness.aclose()
        await close_session(session, options)


@final
class CloudflareLivenessSession:
    """One WebSocket, opened when its number is known.

    Attributes:
        tried_at: When it last answered.
    """

    ends_at: float = math.inf

    def __init__(self, session: aiohttp.ClientSession, options: CloudflareOptions, store: str) -> None:
        self._session, self._options, self._store = session, options, store
        self._socket: ObjectSocket | None = None
        self._told: Callable[[], object] | None = None
        self.tried_at = now()

    @property
    def is_lost(self) -> bool:
        """Whether it has ended."""
        return self._socket is not None and self._socket.is_lost

    def when_lost(self, tell: Callable[[], object]) -> None:
        """Call ``tell`` when it ends."""
        self._told = tell
        if self._socket is not None:
            self._socket.when_lost(tell)

    async def attach(self, number: int) -> None:
        """Open the WebSocket with a number. An older one of this process does no harm."""
        options = self._options
        async with asyncio.timeout(max(CONNECTED_WITHIN, options.connect_timeout)):
            ws = await connect(self._session, options, options.authorization(), STORE, _text(number))
        self._socket = ObjectSocket(ws, options.name, SILENT_FOR, lambda _: None)
        found: str = (await self._socket.ask("about")).fields[0]
        if found != self._store:
            raise UnsuitableStoreError(options.name, "another store is at this address now")
        if self._told is not None:
            self._socket.when_lost(self._told)

    async def unattached(self, numbers: Sequence[int]) -> set[int]:
        """Return the numbers that no open WebSocket has; with none, only try this one."""
        if self._socket is None:
            raise ConnectionError("the session is not attached")
        found: list[str] = []
        if numbers:
            reply = await self._socket.ask("unattached", [_text(number) for number in numbers])
            found = reply.fields[0]
        else:
            await self._socket.ping()
        self.tried_at = now()
        return {number for number in numbers if _text(number) in found}

    async def aclose(self) -> None:
        """Close the WebSocket."""
        if self._socket is not None:
            await self._socket.aclose()

    def abandon(self) -> None:
        """Let go of the socket in a forked child, without a word to the worker."""
        if self._socket is not None:
            abandon_socket(self._socket.socket)


def _text(number: int) -> str:
    return f"{number & _BITS:016x}"

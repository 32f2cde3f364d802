"""Liveness on Redis and Valkey: a subscription that falls with its connection, so that a death is seen soon.

A process subscribes to a channel that is named after its token, over a connection of its own. ``PUBSUB NUMSUB`` tells
others which of those channels have a subscriber; see :mod:`standfast.stores.remote.liveness`. In a cluster each node
knows of its own subscribers only, so there leases decide.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, final

from standfast.errors import StoreError, UnsuitableStoreError
from standfast.stores.liveness import now
from standfast.stores.redis.connection import LOSSES, REFUSALS, code_of
from standfast.stores.redis.scripts import RedisKeys, pack
from standfast.stores.remote.liveness import CONNECTED_WITHIN, SILENT_FOR, LivenessServer, abandon_socket

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from standfast.stores.redis.cluster import Place, ScriptCaller
    from standfast.stores.redis.connection import Dialer, RedisConnection, RedisOptions, Reply
    from standfast.stores.redis.sentinel import SentinelFinder


PING_EVERY: Final = 1.0
"""Seconds between two questions if the server is still the primary: it does not tell when it becomes a replica."""

SUBSCRIBER_PING_EVERY: Final = 5.0

_ERRORS: Final = (StoreError, *REFUSALS, *LOSSES, TimeoutError)


async def find_store_id(calls: ScriptCaller, options: RedisOptions) -> str:
    """Return what tells the store from all others, drawn by the first who asks; empty if subscribers are not told."""
    keys, pool = _keys(options), await calls.routes.pool(0)
    answer = await calls.ask(pool, "PUBSUB", "NUMSUB")
    if isinstance(answer, Exception):
        if code_of(answer) == "NOPERM":
            return ""
        raise calls.refused(answer)
    for command in (("SET", keys.head + b":id", secrets.token_hex(16), "NX"), ("GET", keys.head + b":id")):
        answer = await calls.ask(pool, *command)
        if isinstance(answer, Exception):
            raise calls.refused(answer)
    return "" if answer is None else str(answer, "ascii", "replace")


def liveness_server(
    dialer: Dialer, options: RedisOptions, store: str, finder: SentinelFinder | None = None
) -> LivenessServer:
    """Return where sessions are opened; ``store`` is what :func:`find_store_id` has found."""
    hosts = ",".join(f"{host}:{port}" for host, port in options.hosts)
    return LivenessServer(
        "r1",
        store,
        f"{hosts}/{options.sentinel}/{options.database}",
        functools.partial(open_liveness_session, dialer, options, store, finder),
        _ERRORS,
        lambda error: code_of(error) == "LOADING",
        PING_EVERY,
        options.grace,
    )


def _keys(options: RedisOptions) -> RedisKeys:
    return RedisKeys(b"", options.prefix, options.database, one_slot=True)


@asynccontextmanager
async def open_liveness_session(
    dialer: Dialer, options: RedisOptions, store: str, finder: SentinelFinder | None = None
) -> AsyncGenerator[RedisLivenessSession]:
    """Open a session for the length of a block. It is refused if another store, or a replica, is there by now."""
    async with contextlib.AsyncExitStack() as stack:
        async with asyncio.timeout(CONNECTED_WITHIN):
            place = options.hosts[0] if finder is None else await finder.find()
            asking, subscribed = [await _dial(dialer, place, stack) for _ in range(2)]
            session = RedisLivenessSession(asking, subscribed, _keys(options), SILENT_FOR if finder is None else 1.0)
            found = await session.ask(pack("GET", _keys(options).head + b":id"))
            if found != store.encode() or not await session.is_primary():
                raise UnsuitableStoreError(dialer.name, "another store is at this address, or a replica of it")
        if finder is not None:
            stack.callback(finder.listen(session.server_moved))
            if finder.found is not None and finder.found.place != place:
                raise UnsuitableStoreError(dialer.name, "another server has become the primary")
        yield session
        await session.aclose()


async def _dial(dialer: Dialer, place: Place, stack: contextlib.AsyncExitStack) -> RedisConnection:
    connection = await dialer.dial(*place)
    stack.push_async_callback(connection.aclose)
    return connection


@final
class RedisLivenessSession:
    """Two connections: a subscriber may ask for nothing else. It is lost when either of them is.

    Args:
        asking: For questions.
        subscribed: For the subscription.
        keys: Those of the store.
        answers_within: After how many seconds without an answer it is lost. With sentinels, a second: by then another
            server may be the primary, where others look for this process.

    Attributes:
        tried_at: When it last answered.
    """

    ends_at: float = math.inf

    def __init__(
        self, asking: RedisConnection, subscribed: RedisConnection, keys: RedisKeys, answers_within: float = SILENT_FOR
    ) -> None:
        self._asking, self._subscribed, self._keys = asking, subscribed, keys
        self._answers_within: Final = answers_within
        self._loop: Final = asyncio.get_running_loop()
        self._reading: asyncio.Task[None] | None = None
        self._confirmed: Final = asyncio.Event()
        self._told: Callable[[], object] | None = None
        self._pinged_at = self.tried_at = now()
        self.is_lost = False

    def server_moved(self) -> None:
        """End it: another server has taken over. Called on any thread."""
        with contextlib.suppress(RuntimeError):  # that loop is closed
            self._loop.call_soon_threadsafe(self._lose)

    def _lose(self) -> None:
        self.is_lost = True
        self._asking.abort()
        if self._told is not None:
            self._told()

    def when_lost(self, tell: Callable[[], object]) -> None:
        """Call ``tell`` when it ends."""
        self._told = tell
        if self.is_lost:
            tell()

    async def attach(self, number: int) -> None:
        """Subscribe to the channel of a number. An older subscription of this process does no harm."""
        self._subscribed.send(pack("SUBSCRIBE", self._channel(number)))
        self._reading = asyncio.get_running_loop().create_task(self._read())
        async with asyncio.timeout(SILENT_FOR):
            confirmed = asyncio.create_task(self._confirmed.wait())
            try:
                await asyncio.wait({confirmed, self._reading}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                confirmed.cancel()
        if not self._confirmed.is_set():
            raise ConnectionError("the server ended the connection, or refused the subscription")

    async def _read(self) -> None:
        """Read until the connection breaks or is silent although it was pinged."""
        try:
            while True:
                async with asyncio.timeout(SILENT_FOR):
                    await self._subscribed.receive()
                self._confirmed.set()
        except (*REFUSALS, *LOSSES, TimeoutError):
            self._lose()

    async def unattached(self, numbers: Sequence[int]) -> set[int]:
        """Return the numbers whose channels have no subscriber; with none, ask if the server is still the primary."""
        if now() - self._pinged_at >= SUBSCRIBER_PING_EVERY:
            self._pinged_at = now()
            self._subscribed.send(pack("PING"))
        found = set[int]()
        if numbers:
            counts = await self.ask(pack("PUBSUB", "NUMSUB", *map(self._channel, numbers)))
            found = {number for number, count in zip(numbers, counts[1::2], strict=True) if not count}
        elif not await self.is_primary():
            raise ConnectionError("the server has become a replica")
        self.tried_at = now()
        return found

    async def is_primary(self) -> bool:
        """Return True if the server takes writes, or does not say."""
        try:
            answer = await self.ask(pack("ROLE"))
        except REFUSALS as refusal:
            if code_of(refusal) != "NOPERM":
                raise
            return True
        return bool(answer) and answer[0] == b"master"

    async def ask(self, command: bytes) -> Reply:
        """Return the answer to a command; a refusal is raised."""
        [answer] = await self._asking.exchange(command, 1, self._loop.time() + self._answers_within)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _channel(self, number: int) -> bytes:
        return b"%balive:%016x" % (self._keys.channel, number & (1 << 64) - 1)

    async def aclose(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    def abandon(self) -> None:
        """Let go of the sockets in a forked child, without a word to the server."""
        for connection in (self._asking, self._subscribed):
            abandon_socket(connection.socket)

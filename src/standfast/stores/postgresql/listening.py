"""Hearing what the server pushes: a connection that listens, looked after for as long as the handle is open."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final, final

from standfast.errors import StoreError
from standfast.stores.postgresql.calls import channels, data_of
from standfast.stores.postgresql.connecting import FIRST_PAUSE, LONGEST_PAUSE, hang_up
from standfast.stores.postgresql.trouble import DRIVER_ERRORS, translate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.stores.postgresql.connecting import Connection, Session
    from standfast.stores.postgresql.options import Options
    from standfast.stores.remote.server import Listener

KEEPALIVE: Final = 10.0
"""How many seconds a dead connection, whose end nobody was told of, can go unnoticed."""


@final
class Ears:
    """The listening connection of one handle. It is opened with the first topic."""

    def __init__(self, options: Options, name: str, open_session: Callable[[], Awaitable[Session]]) -> None:
        self._options, self._name, self._open = options, name, open_session
        self._loop: Final = asyncio.get_running_loop()
        self._random: Final = random.Random()  # noqa: S311 -- spreads out who connects when
        self._lock: Final = asyncio.Lock()
        self._wanted: frozenset[str] = frozenset()
        self._heard: set[str] = set()
        self._connection: Connection | None = None
        self._listener: Listener | None = None
        self._lost: Final = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    def listen(self, listener: Listener) -> None:
        """Hand what is heard to ``listener``."""
        self._listener = listener

    async def want(self, topics: frozenset[bytes]) -> None:
        """Listen to just these topics; return when the server does."""
        self._wanted = frozenset(channels(self._options.schema, topics))
        try:
            await self._catch_up()
        except DRIVER_ERRORS as problem:
            raise translate(problem, self._name) from problem
        if self._keeping is None:
            self._keeping = self._loop.create_task(self._keep())

    async def _catch_up(self) -> None:
        """Listen to what is wanted, over a new connection if need be; then whatever was said meanwhile is lost."""
        async with self._lock:
            try:
                is_new = self._connection is None or self._connection.is_closed()
                connection = await self._connected() if is_new else self._connection
                await self._tune(connection)
            except BaseException:  # also if it is cancelled: it is in the middle of something
                self._lose()
                raise
        if is_new and self._keeping is not None and self._listener is not None:
            self._listener.take_loss()

    async def _connected(self) -> Connection:
        self._lose()
        connection: Connection = (await self._open()).connection
        self._connection, self._heard = connection, set()
        self._lost.clear()
        connection.add_termination_listener(self._ended)
        return connection

    async def _tune(self, connection: Any) -> None:  # noqa: ANN401 -- the driver's own
        """Every statement has the time limit of the connection; there may be a thousand of them."""
        wanted = self._wanted
        for channel in wanted - self._heard:
            await connection.add_listener(channel, self._take)
            self._heard.add(channel)
        for channel in self._heard - wanted:
            await connection.remove_listener(channel, self._take)
            self._heard.discard(channel)

    # --- what is heard -----------------------------------------------------------------------------------------

    def _take(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        if self._listener is not None:
            self._listener.take(data_of(str(payload)))

    def _ended(self, connection: Any) -> None:  # noqa: ANN401 -- the driver's own
        if connection is self._connection:
            self._lost.set()

    # --- looking after it --------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Notice a connection that is gone, and listen again."""
        pause = FIRST_PAUSE
        while True:
            if await self._is_fine():
                pause = FIRST_PAUSE
                continue
            try:
                await self._catch_up()
            except (*DRIVER_ERRORS, StoreError):
                await asyncio.sleep(self._random.uniform(pause / 2, pause))
                pause = min(LONGEST_PAUSE, pause * 2)

    async def _is_fine(self) -> bool:
        """Wait for a while; tell whether the connection is there at the end of it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KEEPALIVE):
                await self._lost.wait()
        try:
            async with self._lock:
                if self._connection is None or self._connection.is_closed() or self._lost.is_set():
                    return False
                await self._connection.execute("SELECT", timeout=self._options.timeout)
        except Exception:  # noqa: BLE001 -- whatever it is, this connection is not fine, and another one is needed
            self._lose()
            return False
        return True

    def _lose(self) -> None:
        connection, self._connection = self._connection, None
        self._lost.set()
        if connection is not None:
            connection.terminate()

    async def aclose(self) -> None:
        """Stop listening."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        connection, self._connection = self._connection, None
        if connection is not None:
            await hang_up(connection)

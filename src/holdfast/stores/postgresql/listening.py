"""Hearing what the server pushes: a connection that listens, looked after for as long as the handle is open."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final, final

from holdfast.errors import StoreError
from holdfast.stores.postgresql.calls import channels, data_of
from holdfast.stores.postgresql.connecting import FIRST_PAUSE, LONGEST_PAUSE, hang_up
from holdfast.stores.postgresql.trouble import DRIVER_ERRORS, translate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.stores.postgresql.connecting import Connection, Session
    from holdfast.stores.postgresql.options import Options
    from holdfast.stores.remote.server import Listener

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
            async with self._lock:
                await self._catch_up()
        except DRIVER_ERRORS as problem:
            self._lose()
            raise translate(problem, self._name) from problem
        if self._keeping is None:
            self._keeping = self._loop.create_task(self._keep())

    async def _catch_up(self) -> None:
        if self._connection is None or self._connection.is_closed():
            session = await self._open()
            self._connection, self._heard = session.connection, set()
            self._lost.clear()
            session.connection.add_termination_listener(self._ended)
        connection = self._connection
        assert connection is not None  # noqa: S101 -- for the type checker
        async with asyncio.timeout(self._options.timeout):
            for channel in self._wanted - self._heard:
                await connection.add_listener(channel, self._take)
                self._heard.add(channel)
            for channel in self._heard - self._wanted:
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
        """Notice a connection that is gone, and listen again; then whatever was said meanwhile is lost."""
        pause = FIRST_PAUSE
        while True:
            if await self._is_fine():
                pause = FIRST_PAUSE
                continue
            try:
                async with self._lock:
                    await self._catch_up()
            except (*DRIVER_ERRORS, StoreError):
                self._lose()
                await asyncio.sleep(self._random.uniform(pause / 2, pause))
                pause = min(LONGEST_PAUSE, pause * 2)
                continue
            if self._listener is not None:
                self._listener.take_loss()

    async def _is_fine(self) -> bool:
        """Wait for a while; tell whether the connection is there at the end of it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KEEPALIVE):
                await self._lost.wait()
        if self._connection is None or self._connection.is_closed() or self._lost.is_set():
            self._lose()
            return False
        try:
            async with self._lock:
                await self._connection.execute("", timeout=self._options.timeout)
        except DRIVER_ERRORS:
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

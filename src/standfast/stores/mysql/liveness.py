"""Liveness on MySQL and MariaDB: a named lock that falls with a session, so that a death is seen soon.

The session takes the lock that is named after the process's token; see :mod:`standfast.stores.remote.liveness`. Named
locks belong to one server and are not replicated, so a token names its server, and no other one judges it.
"""

from __future__ import annotations

import functools
import hashlib
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, final

from asyncmy import errors as driver
from msgspec import structs

from standfast.stores.liveness import now
from standfast.stores.mysql.connection import DRIVER_ERRORS, IDENTITY, code_of, connect
from standfast.stores.remote.liveness import CONNECTED_WITHIN, SILENT_FOR, LivenessServer, abandon_socket

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from standfast.stores.mysql.connection import MysqlConnection, MysqlOptions


IDLE_FOR: Final = 60
"""After how many seconds without a question the server ends a session, well after the client has given up by itself."""

REFUSES_SESSIONS: Final = frozenset({1053, 1077, 1079})
"""What a server says that is shutting down."""


async def find_server_id(connection: MysqlConnection, seconds: float) -> str:
    """Return what tells this server from all others. Raises what the driver raises."""
    [[[identity]]] = await connection.run(f"SELECT {IDENTITY}", seconds)
    return str(identity)


def liveness_server(options: MysqlOptions, server_id: str) -> LivenessServer:
    """Return where sessions are opened."""
    return LivenessServer(
        "m1",
        f"{server_id}/{options.database}/{options.prefix}",
        options.place,
        functools.partial(open_liveness_session, options, server_id),
        DRIVER_ERRORS,
        lambda error: code_of(error) in REFUSES_SESSIONS,
        grace=options.grace,
    )


@asynccontextmanager
async def open_liveness_session(options: MysqlOptions, server_id: str) -> AsyncGenerator[MysqlLivenessSession]:
    """Open a session for the length of a block. It is refused if another server is at the other end by now."""
    within = min(options.connect_timeout, CONNECTED_WITHIN)
    connection = await connect(structs.replace(options, connect_timeout=within))
    try:
        await connection.run(f"SET SESSION wait_timeout={IDLE_FOR}", within)
        if await find_server_id(connection, within) != server_id:
            raise driver.OperationalError(2013, "another server is at this address by now")
        protocol, transport = await connection.connection.connect()  # it is connected, so these are returned
        session = MysqlLivenessSession(connection, protocol, transport, f"{options.database}/{options.prefix}")
        yield session
        if not session.is_lost:
            await connection.aclose()
    finally:
        connection.drop()


@final
class MysqlLivenessSession:
    """A session of the server itself. Get it with :func:`open_liveness_session`.

    Attributes:
        tried_at: When it last answered.
    """

    ends_at: float = math.inf

    def __init__(self, connection: MysqlConnection, protocol: Any, transport: Any, store: str) -> None:  # noqa: ANN401 -- the driver has types in name only
        self._connection: Final = connection
        self._transport: Final = transport
        self._store: Final = hashlib.blake2b(store.encode(), digest_size=8).hexdigest()
        self._told: Callable[[], object] | None = None
        self._is_lost = False
        self.tried_at = now()
        # The driver notices that the server has ended a session only when it next asks; here it must be known at once.
        for name in ("eof_received", "connection_lost"):
            setattr(protocol, name, functools.partial(self._ended, getattr(protocol, name)))

    def _ended(self, also: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401 -- what the transport expects
        self._is_lost = True
        if self._told is not None:
            self._told()
        return also(*args)

    @property
    def is_lost(self) -> bool:
        """Whether it has ended."""
        return self._is_lost or not self._connection.is_alive

    def when_lost(self, tell: Callable[[], object]) -> None:
        """Call ``tell`` when it ends."""
        self._told = tell
        if self.is_lost:
            tell()

    async def attach(self, number: int) -> None:
        """Take the lock of a number; if it is taken, then by an older session of ours, which is ended."""
        lock = self._lock(number)
        [[[taken]]] = await self._run(f"SELECT GET_LOCK({lock}, 0)")
        if not taken:
            [[[other]]] = await self._run(f"SELECT IS_USED_LOCK({lock})")
            if other is not None:
                await self._run(f"KILL CONNECTION {int(other)}")
            [[[taken]]] = await self._run(f"SELECT GET_LOCK({lock}, 1)")
        if not taken:
            raise driver.OperationalError(2013, "an older session of this process has the lock of its token")

    async def unattached(self, numbers: Sequence[int]) -> set[int]:
        """Return the numbers whose locks are free."""
        free = ",".join(f"IS_FREE_LOCK({self._lock(number)})" for number in numbers)
        [[found]] = await self._run(f"SELECT {free or '1'}")
        self.tried_at = now()
        return {number for number, is_free in zip(numbers, found, strict=False) if is_free}

    async def _run(self, statement: str) -> Any:  # noqa: ANN401 -- rows of the driver
        return await self._connection.run(statement, SILENT_FOR)

    def _lock(self, number: int) -> str:
        return f"'sf:{self._store}:{number & (1 << 64) - 1:016x}'"

    def abandon(self) -> None:
        """Let go of the socket in a forked child, without a word to the server."""
        abandon_socket(self._transport.get_extra_info("socket"))

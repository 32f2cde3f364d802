"""The session that a lifeline is tied to."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, final

import asyncpg

from standfast.stores.postgresql.calls import Calls
from standfast.stores.postgresql.connecting import hang_up
from standfast.stores.proving import now

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from standfast.stores.postgresql.connecting import Connection
    from standfast.stores.postgresql.options import Options

SILENT_FOR: Final = 20.0
"""After how many seconds without an answer the session counts as lost here."""

SETTINGS: Final = {
    "application_name": "standfast lifeline",
    # Only after half a minute does the server give up a client that it cannot reach, well after the client has
    # given up by itself; until then a lease decides.
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "idle_session_timeout": "0",
    "statement_timeout": "0",
    "lock_timeout": "500",
}

CONNECTED_WITHIN: Final = 1.0

_TIE: Final = "SELECT pg_advisory_lock($1)"
_UNTIED: Final = "SELECT number FROM unnest($1::bigint[]) AS l (number) WHERE pg_try_advisory_xact_lock_shared(number)"
_END_OLD: Final = """
SELECT pg_terminate_backend(pid) FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock' AND granted AND pid <> pg_backend_pid()
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (classid::bigint << 32 | objid::bigint) = $1
"""


@final
class LifelineSession:
    """A session of the server itself. Get it with :func:`open_lifeline_session`.

    Attributes:
        tried_at: When it last answered.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self._told: Callable[[], object] | None = None
        self._is_lost = False
        self.tried_at = now()
        connection.add_termination_listener(self._ended)

    @property
    def is_lost(self) -> bool:
        """Whether it has ended."""
        return self._is_lost or self._connection.is_closed()

    def _ended(self, _connection: object) -> None:
        self._is_lost = True
        if self._told is not None:
            self._told()

    def when_lost(self, tell: Callable[[], object]) -> None:
        """Call ``tell`` when it ends."""
        self._told = tell
        if self.is_lost:
            tell()

    async def tie(self, number: int) -> None:
        """Lock a number, which nobody else uses: if it is locked, then by an older session of ours."""
        try:
            await self._connection.execute(_TIE, number, timeout=SILENT_FOR)
        except asyncpg.LockNotAvailableError:
            await self._connection.execute(_END_OLD, number, timeout=SILENT_FOR)
            await self._connection.execute(_TIE, number, timeout=SILENT_FOR)

    async def untied(self, numbers: Sequence[int]) -> set[int]:
        """Return those numbers that nobody has locked."""
        rows = await self._connection.fetch(_UNTIED, numbers, timeout=SILENT_FOR)
        self.tried_at = now()
        return {row[0] for row in rows}

    def abandon(self) -> None:
        """Let go of the socket in a forked child, without a word to the server."""
        transport: Any = getattr(self._connection, "_transport", None)
        socket = None if transport is None else transport.get_extra_info("socket")
        if socket is not None and socket.fileno() >= 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(
                nothing, socket.fileno(), inheritable=False
            )  # the number stays taken: objects that we inherited close it
            os.close(nothing)


@asynccontextmanager
async def open_lifeline_session(options: Options, store: str) -> AsyncGenerator[LifelineSession]:
    """Open a session for the length of a block; errors are the driver's.

    It is refused if a pooler is in between, or if another store is at the other end by now.
    """
    target = options.listening or options.target
    within = min(options.connect_timeout, CONNECTED_WITHIN)
    async with asyncio.timeout(within):
        connection: Connection = await asyncpg.connect(
            host=target.host,
            port=target.port,
            user=target.user,
            password=target.password,
            database=target.database,
            ssl=target.tls or False,
            timeout=within,
            command_timeout=SILENT_FOR,
            statement_cache_size=10,
            server_settings=SETTINGS,
        )
    try:
        look = f"SELECT pg_backend_pid(), pg_is_in_recovery(), ({Calls(options.schema).store_here})"
        row = await connection.fetchrow(look)
        if row is None or tuple(row) != (connection.get_server_pid(), False, store):
            raise asyncpg.InterfaceError("this is not a session of the store's own server")
        session = LifelineSession(connection)
        yield session
        if not session.is_lost:
            await hang_up(connection)
    finally:
        connection.terminate()

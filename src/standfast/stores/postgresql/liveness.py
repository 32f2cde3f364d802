"""Liveness on PostgreSQL: an advisory lock that falls with a session, so that others see soon that a process has died.

The session locks the number of the process's token; see :mod:`standfast.stores.remote.liveness`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, final

import asyncpg

from standfast.errors import StoreError
from standfast.stores.liveness import now
from standfast.stores.postgresql.connection import DRIVER_ERRORS, code_of, epoch_of, hang_up
from standfast.stores.postgresql.statements import PostgresStatements
from standfast.stores.remote.liveness import CONNECTED_WITHIN, SILENT_FOR, LivenessServer, abandon_socket

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from standfast.stores.postgresql.connection import PostgresOptions, PostgresTarget
    from standfast.stores.postgresql.statements import Connection
    from standfast.stores.remote.failover import PrimaryTracker


# --- the session that a token is attached to ------------------------------------------------------------------------

SETTINGS: Final = {
    "application_name": "standfast liveness",
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

_ATTACH: Final = "SELECT pg_advisory_lock($1)"
_UNATTACHED: Final = (
    "SELECT number FROM unnest($1::bigint[]) AS l (number) WHERE pg_try_advisory_xact_lock_shared(number)"
)
_END_OLD: Final = """
SELECT pg_terminate_backend(pid) FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock' AND granted AND pid <> pg_backend_pid()
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (classid::bigint << 32 | objid::bigint) = $1
"""


@final
class PostgresLivenessSession:
    """A session of the server itself. Get it with :func:`open_liveness_session`.

    Attributes:
        tried_at: When it last answered.
    """

    ends_at: float = math.inf

    def __init__(self, connection: Connection) -> None:
        self._connection: Final = connection
        self._loop: Final = asyncio.get_running_loop()
        self._told: Callable[[], object] | None = None
        self._is_lost = False
        self.tried_at = now()
        connection.add_termination_listener(self._ended)

    def server_moved(self) -> None:
        """End it: another server has taken over, or what was acknowledged is gone. Called on any thread."""
        with contextlib.suppress(RuntimeError):  # that loop is closed
            self._loop.call_soon_threadsafe(self._ended, None)

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

    async def attach(self, number: int) -> None:
        """Lock a number that only this process uses: if it is locked, then by an older session of ours."""
        try:
            await self._connection.execute(_ATTACH, number, timeout=SILENT_FOR)
        except asyncpg.LockNotAvailableError:
            await self._connection.execute(_END_OLD, number, timeout=SILENT_FOR)
            await self._connection.execute(_ATTACH, number, timeout=SILENT_FOR)

    async def unattached(self, numbers: Sequence[int]) -> set[int]:
        """Return the numbers that are not locked."""
        rows = await self._connection.fetch(_UNATTACHED, numbers, timeout=SILENT_FOR)
        self.tried_at = now()
        return {row[0] for row in rows}

    def abandon(self) -> None:
        """Let go of the socket in a forked child, without a word to the server."""
        transport: Any = getattr(self._connection, "_transport", None)
        abandon_socket(None if transport is None else transport.get_extra_info("socket"))


@asynccontextmanager
async def open_liveness_session(
    options: PostgresOptions, store: str, tracker: PrimaryTracker
) -> AsyncGenerator[PostgresLivenessSession]:
    """Open a session for the length of a block; errors are the driver's.

    It is refused if a pooler is in between, if another store is at the other end by now, or a server that was replaced.
    """
    target = options.listening or _primary_of(options, tracker)
    within = min(options.connect_timeout, CONNECTED_WITHIN)
    async with asyncio.timeout(within):
        connection: Connection = await asyncpg.connect(
            **target.arguments(),
            timeout=within,
            command_timeout=SILENT_FOR,
            statement_cache_size=10,
            server_settings=SETTINGS,
        )
    try:
        look = f"SELECT pg_backend_pid(), pg_is_in_recovery(), ({PostgresStatements(options.schema).store_here})"
        row = await connection.fetchrow(look)
        if row is None or tuple(row) != (connection.get_server_pid(), False, store):
            raise asyncpg.InterfaceError("this is not a session of the store's own server")
        tracker.meet(await epoch_of(connection, target, SILENT_FOR), {}, {})
        session = PostgresLivenessSession(connection)
        unlisten = tracker.listen(session.server_moved)
        try:
            yield session
        finally:
            unlisten()
        if not session.is_lost:
            await hang_up(connection)
    finally:
        connection.terminate()


def _primary_of(options: PostgresOptions, tracker: PrimaryTracker) -> PostgresTarget:
    """Return the host that the other connections lead to."""
    place = "" if tracker.epoch is None else tracker.epoch.place
    return next((each for each in options.targets if f"{each.host}:{each.port}" == place), options.target)


REFUSES_SESSIONS: Final = "57P03"


def liveness_server(options: PostgresOptions, store: str, tracker: PrimaryTracker) -> LivenessServer:
    """Return where sessions are opened; ``store`` is what the server says of itself."""
    targets = (options.listening,) if options.listening else options.targets
    return LivenessServer(
        "p1",
        store,
        ",".join(f"{target.host}:{target.port}" for target in targets),
        functools.partial(open_liveness_session, options, store, tracker),
        (*DRIVER_ERRORS, StoreError),
        lambda error: code_of(error) == REFUSES_SESSIONS,
        grace=options.grace,
    )

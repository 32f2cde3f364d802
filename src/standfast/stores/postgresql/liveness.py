"""Liveness on PostgreSQL: an advisory lock that falls with a session, so that others see soon that a process has died.

Each process that is asked for its token has one session of its own on the server, on a thread of its own, and locks a
number there that was drawn at random. The locks of others are checked over the same session, while they are waited for.
What a lost session means, and when, is in :mod:`standfast.stores.liveness`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
import threading
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, final

import asyncpg

from standfast.stores.liveness import ProcessLiveness, Suspicion, now, run_in_forked_child
from standfast.stores.postgresql.connection import DRIVER_ERRORS, code_of, hang_up
from standfast.stores.postgresql.statements import PostgresStatements
from standfast.threads import start_loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from standfast.stores.postgresql.connection import PostgresOptions
    from standfast.stores.postgresql.statements import Connection


# --- the session that a token is attached to ------------------------------------------------------------------------

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
class LivenessSession:
    """A session of the server itself. Get it with :func:`open_liveness_session`.

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
        socket = None if transport is None else transport.get_extra_info("socket")
        if socket is not None and socket.fileno() >= 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(
                nothing, socket.fileno(), inheritable=False
            )  # the number stays taken: objects that we inherited close it
            os.close(nothing)


@asynccontextmanager
async def open_liveness_session(options: PostgresOptions, store: str) -> AsyncGenerator[LivenessSession]:
    """Open a session for the length of a block; errors are the driver's.

    It is refused if a pooler is in between, or if another store is at the other end by now.
    """
    target = options.listening or options.target
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
        session = LivenessSession(connection)
        yield session
        if not session.is_lost:
            await hang_up(connection)
    finally:
        connection.terminate()


# --- tokens: an advisory lock that falls with a session, so that others see soon that a process has died --------

LOOK_EVERY: Final = 0.2
"""Seconds between two looks at the tokens that are asked about, while all of them are attached."""

SUSPECT_EVERY: Final = 0.05
"""Seconds between two looks while one of them is not."""

LOOKS_AT: Final = 250
"""How many tokens are checked in a second, at the most; with very many of them the checks get rarer."""

ASKED_FOR: Final = 3.0
"""For how many seconds after it was asked about a token is checked."""

PING_EVERY: Final = 5.0
"""After how many seconds without anything else to ask the session is tried."""

FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 3.0
REFUSES_SESSIONS: Final = "57P03"

_TOKEN: Final = re.compile(r"p1:([0-9a-f]{16}):([0-9a-f]{16}):([0-9]{1,10})", re.ASCII)
"""Format, store, the number that is locked, and the process for people to read."""


@final
class PostgresLiveness:
    """What this process shows of itself on one store, and what it sees of others. All its handles share one.

    Get it with :func:`join_liveness`, and :meth:`leave` when done. Its methods may be called on any thread.
    """

    def __init__(self, options: PostgresOptions, store: str) -> None:
        self._options: Final = options
        self._store: Final = store
        self._mark: Final = hashlib.blake2b(store.encode(), digest_size=8).hexdigest()
        self._lock: Final = threading.Lock()
        self._proof: ProcessLiveness | None = None
        self._asked: Final[dict[str, float]] = {}
        self._suspicions: Final[dict[str, Suspicion]] = {}
        self._dead: Final[set[str]] = set()
        self._thread: threading.Thread | None = None
        self._ended: Future[None] = Future()
        self._wake: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: LivenessSession | None = None
        self._stopping = False
        self.users = 0

    # --- for the handles -------------------------------------------------------------------------------------

    def liveness_token(self) -> str:
        """Return this process's token; it is being attached if it is not."""
        with self._lock:
            self._begin()
            return self._current().token

    def is_dead(self, text: str) -> bool:
        """Return True if a process is known to have died; from now on that is checked for a while."""
        if text in self._dead:
            return True
        found = _TOKEN.fullmatch(text)
        if found is None or found[1] != self._mark:
            return False
        with self._lock:
            if self._proof is not None and text == self._proof.token:
                return False
            is_new = text not in self._asked
            self._asked[text] = now()
            self._begin()
            if is_new:
                self._wake_thread()
        return False

    def _current(self) -> ProcessLiveness:
        if self._proof is None or self._proof.left() <= 0:
            number = secrets.token_hex(8)
            self._proof = ProcessLiveness(f"p1:{self._mark}:{number}:{os.getpid()}")
        return self._proof

    def _begin(self) -> None:
        if self._thread is None and not self._stopping:
            self._thread = start_loop(self._main, "lifeline")

    def _wake_thread(self) -> None:
        if self._loop is not None and self._wake is not None:
            with contextlib.suppress(RuntimeError):  # it is just coming to its end
                self._loop.call_soon_threadsafe(self._wake.set)

    async def leave(self) -> None:
        """Let go of it; the last one ends the session, and thereby severs the token."""
        with _all_lock:
            self.users -= 1
            if self.users > 0:
                return
            for key in [key for key, lives in _all.items() if lives is self]:
                del _all[key]
        with self._lock:
            self._stopping = True
            thread = self._thread
            self._wake_thread()
        if thread is not None:
            await asyncio.wrap_future(self._ended)
            thread.join()

    def abandon(self) -> None:
        """Let go, in a forked child, of the session that the parent has: else it would live as long as the child."""
        if self._session is not None:
            self._session.abandon()

    # --- on the thread ---------------------------------------------------------------------------------------

    async def _main(self) -> None:
        with self._lock:
            self._wake = asyncio.Event()
            self._loop = asyncio.get_running_loop()
        try:
            pause = FIRST_PAUSE
            while not self._stopping:
                with self._lock:
                    proof = self._current()
                pause = FIRST_PAUSE if await self._live(proof) else min(LONGEST_PAUSE, pause * 2)
                await self._rest(pause if proof.left() <= 0 else min(pause, SUSPECT_EVERY))
        finally:
            with self._lock:
                self._loop = self._wake = None
            self._ended.set_result(None)

    async def _live(self, proof: ProcessLiveness) -> bool:
        """Keep a token attached for as long as a session lasts; False if it could not be attached."""
        was_attached = False
        try:
            async with open_liveness_session(self._options, self._store) as session:
                self._session = session
                try:
                    await session.attach(_number(proof.token))
                    was_attached = proof.attach()
                    while was_attached and not self._stopping and not session.is_lost:
                        await self._check(session)
                finally:
                    proof.lose()
        except DRIVER_ERRORS as error:
            if code_of(error) == REFUSES_SESSIONS:
                proof.excuse()
        finally:
            self._session = None
            for suspicion in self._suspicions.values():
                suspicion.forget()
        return was_attached

    async def _check(self, session: LivenessSession) -> None:
        """Rest for a while, or until something happens; then check the tokens asked about, or try the session."""
        await self._rest(self._seconds_to_rest(), session)
        asked = self._asked_about()
        if self._stopping or session.is_lost:
            return
        if not asked:
            if now() - session.tried_at >= PING_EVERY:
                await session.unattached([])
            return
        asked_at = now()
        unattached = await session.unattached([_number(text) for text in asked])
        self._note(asked, unattached, asked_at, now())

    def _seconds_to_rest(self) -> float:
        if not self._asked:
            return PING_EVERY
        is_suspicious = any(suspicion.is_there for suspicion in self._suspicions.values())
        return max(SUSPECT_EVERY if is_suspicious else LOOK_EVERY, len(self._asked) / LOOKS_AT)

    async def _rest(self, seconds: float, session: LivenessSession | None = None) -> None:
        wake = self._wake
        if wake is None or self._stopping:
            return
        wake.clear()
        if session is not None:
            session.when_lost(wake.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wake.wait()

    def _asked_about(self) -> list[str]:
        """Return the tokens that are asked about, and forget the others."""
        latest = now() - ASKED_FOR
        with self._lock:
            for text in [text for text, at in self._asked.items() if at < latest]:
                del self._asked[text]
                self._suspicions.pop(text, None)
            return list(self._asked)

    def _note(self, asked: Sequence[str], unattached: set[int], asked_at: float, answered_at: float) -> None:
        for text in asked:
            suspicion = self._suspicions.setdefault(text, Suspicion())
            is_attached = _number(text) not in unattached
            suspicion.look(is_attached=is_attached, asked_at=asked_at, answered_at=answered_at)
            if suspicion.is_certain:
                self._dead.add(text)
                with self._lock:
                    self._asked.pop(text, None)
                del self._suspicions[text]


def _number(token: str) -> int:
    """Return the number that a token locks: of 64 bits, with a sign."""
    return int.from_bytes(bytes.fromhex(token.split(":")[2]), signed=True)


_all: Final[dict[tuple[str, str, int], PostgresLiveness]] = {}
_all_lock = threading.Lock()


def join_liveness(options: PostgresOptions, store: str) -> PostgresLiveness:
    """Return what the handles of this process on a store share.

    Args:
        options: Where the server is.
        store: What tells the store from all others, as the server says it.
    """
    target = options.listening or options.target
    key = store, target.host, target.port
    with _all_lock:
        lives = _all.get(key)
        if lives is None:
            lives = _all[key] = PostgresLiveness(options, store)
        lives.users += 1
        return lives


def _in_child() -> None:
    global _all_lock  # noqa: PLW0603 -- another thread of the parent may have held it
    _all_lock = threading.Lock()
    for lives in _all.values():
        lives.abandon()
    _all.clear()


run_in_forked_child(_in_child)

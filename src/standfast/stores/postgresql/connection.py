"""One connection, opened when it is needed and again when it is lost."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import itertools
import random
from typing import TYPE_CHECKING, Any, Final, final

import asyncpg
from msgspec import Struct

from standfast.clock import Instant
from standfast.errors import (
    OutcomeUnknownError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.keys import RecordKey
from standfast.stores.protocol import ABSENT, Record, Snapshot
from standfast.stores.remote.server import WriteRefused, Written
from standfast.stores.transfer import EXPORTED, moved_error
from standfast.stores.url import tls_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence

    from standfast.stores.postgresql import PostgresOptions, PostgresTarget
    from standfast.stores.remote.server import Intent, Listener, Message, Row

    Connection = asyncpg.Connection[asyncpg.Record]
    Rows = list[asyncpg.Record]
    Run = Callable[..., Awaitable[Rows]]
    Fields = Iterable[Any]
    """A row, as any driver returns it."""


# --- errors of the driver and of the server, translated once, at the edge ------------------------------------------

DRIVER_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""Whatever the driver raises when a connection is opened or used; a ``TimeoutError`` is an ``OSError``."""

ATTEMPT_CLOSED: Final = "SF001"
CREATED_MEANWHILE: Final = "SF002"
STALE: Final = "SF003"
FROZEN: Final = "SF004"
TRY_AGAIN: Final = frozenset({CREATED_MEANWHILE, "40001", "40P01", "55P03"})
"""Nothing was written, and the same might succeed at once: lost races, deadlocks, locks that were not to be had."""

_BY_CODE: Final[Mapping[str, tuple[type[StoreError], str]]] = {
    "28P01": (UnsuitableStoreError, "it refused the user or the password; correct them"),
    "28000": (UnsuitableStoreError, "it refuses this user; see its pg_hba.conf"),
    "3D000": (UnsuitableStoreError, "it has no such database; create it, or name another one"),
    "3F000": (UnsuitableStoreError, "it has no such schema; let its owner open the store once, or allow migrate=true"),
    "42P01": (UnsuitableStoreError, "its tables are missing; let their owner open the store once"),
    "42883": (UnsuitableStoreError, "its functions are missing; let their owner open the store once"),
    "42501": (UnsuitableStoreError, "this user lacks a privilege; let the owner of the schema call its grant_to(user)"),
    "25006": (StoreReadOnlyError, "it is read-only, perhaps a replica; name the primary"),
    "53100": (StoreFullError, "its disk is full; free some space and retry"),
    "53300": (StoreUnavailableError, "it has too many connections; raise max_connections, or put a pooler in front"),
    "57P03": (StoreUnavailableError, "it is starting or stopping; retry"),
    "57014": (StoreUnavailableError, "it cancelled the statement, perhaps after its statement_timeout; retry"),
    "40001": (StoreUnavailableError, "others changed the same rows at the same time; nothing was written; retry"),
    "40P01": (StoreUnavailableError, "it ended a deadlock by undoing this transaction; nothing was written; retry"),
    "55P03": (StoreUnavailableError, "a lock was not to be had in time, see its lock_timeout; retry"),
    "SF002": (StoreUnavailableError, "a key was created at the same time; nothing was written; retry"),
    "57P01": (StoreUnavailableError, "an administrator ended the session; retry"),
    "25P03": (
        StoreUnavailableError,
        "its idle_in_transaction_session_timeout ended the transaction; raise it for this user",
    ),
    "25P04": (StoreUnavailableError, "its transaction_timeout ended the transaction; raise it"),
    "25P02": (StoreError, "an error in an earlier statement had ended the transaction; nothing was written"),
    "2200H": (StoreError, "its versions are used up"),
    "XX001": (StoreCorruptError, "its data is damaged; restore it from a backup"),
    "XX002": (StoreCorruptError, "an index is damaged; rebuild it with REINDEX"),
}

_SURE_AT_LOGIN: Final = frozenset({"28P01", "28000", "3D000", "53300", "57P03"})
_OVER: Final = frozenset({"FATAL", "PANIC"})


def code_of(problem: BaseException) -> str:
    """Return the SQLSTATE of an error; empty if it has none."""
    return getattr(problem, "sqlstate", None) or ""


def translate(problem: BaseException, name: str) -> StoreError:
    """Return the error for something that was certainly not written."""
    if isinstance(problem, StoreError):
        return problem
    code = code_of(problem)
    if code == FROZEN:
        return moved_error(name, int(getattr(problem, "detail", None) or EXPORTED))
    if code in _BY_CODE:
        kind, advice = _BY_CODE[code]
        return kind(name, advice)
    if isinstance(problem, TimeoutError):
        return StoreUnavailableError(name, "it did not answer in time; retry")
    if isinstance(problem, OSError | asyncpg.PostgresConnectionError | asyncpg.InterfaceError):
        why = tls_error(str(problem)) or "it cannot be reached"
        return StoreUnavailableError(name, f"{why} ({_words(problem)}); retry")
    return StoreUnavailableError(name, f"PostgreSQL failed: {_words(problem)} ({code or type(problem).__name__})")


def translate_write(problem: BaseException, name: str) -> StoreError:
    """Return the error for a write that was sent: unknown, unless the server itself said that it failed.

    An error that ends the session does not say it: it may come after the transaction was committed.
    """
    code = code_of(problem)
    if code in _SURE_AT_LOGIN or (is_answer(problem) and code != "40003"):
        return translate(problem, name)
    return OutcomeUnknownError(name, f"no answer came: {_words(problem)}")


def is_answer(problem: BaseException) -> bool:
    """Tell whether the server itself said that a statement failed, and goes on with the session."""
    if not isinstance(problem, asyncpg.PostgresError) or isinstance(problem, asyncpg.PostgresConnectionError):
        return False
    severity = getattr(problem, "severity_en", None) or getattr(problem, "severity", None) or ""
    return severity not in _OVER


def _words(problem: BaseException) -> str:
    if isinstance(problem, TimeoutError):
        return "it took too long"
    return next(iter(str(problem).splitlines()), "") or type(problem).__name__


# --- one connection, opened when it is needed and again when it is lost --------------------------------------------

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 3.0
CLOSED_WITHIN: Final = 2.0
OLDEST: Final = 140_000

_LOOK: Final = (
    "SELECT pg_backend_pid(), current_setting('server_version_num')::int, pg_is_in_recovery(),"
    " current_setting('fsync')::bool AND current_setting('full_page_writes')::bool"
)
_SETTINGS: Final = (
    "SET default_transaction_isolation = 'read committed'; SET enable_seqscan = off; SET jit = off;"
    " SET plan_cache_mode = force_generic_plan"
)


class PostgresSession(Struct, frozen=True):
    """What a connection is like."""

    connection: Any
    is_direct: bool
    """Whether it is one session of the server; behind a pooler each transaction may be another one."""
    syncs: bool


async def dial(target: PostgresTarget, options: PostgresOptions, name: str) -> PostgresSession:
    """Open a connection and look at what is at its other end; raise a ``StoreError`` if it is of no use."""
    try:
        async with asyncio.timeout(options.connect_timeout):
            connection: Connection = await asyncpg.connect(
                host=target.host,
                port=target.port,
                user=target.user,
                password=target.password,
                database=target.database,
                ssl=target.tls or False,
                timeout=options.connect_timeout,
                command_timeout=options.timeout,  # for whatever the driver sends by itself
                statement_cache_size=0,
                server_settings={"application_name": "standfast"},
            )
    except DRIVER_ERRORS as problem:
        raise translate(problem, name) from None  # its traceback has the password
    try:
        return await _look(connection, options, name)
    except BaseException as problem:
        connection.terminate()
        if isinstance(problem, DRIVER_ERRORS):
            raise translate(problem, name) from problem
        raise


async def _look(connection: Connection, options: PostgresOptions, name: str) -> PostgresSession:
    row = await connection.fetchrow(_LOOK, timeout=options.timeout)
    pid, version, is_replica, syncs = row or (0, 0, False, False)
    if version < OLDEST:
        raise UnsuitableStoreError(name, f"it is PostgreSQL {version // 10_000}; {OLDEST // 10_000} or later is needed")
    if is_replica:
        raise StoreReadOnlyError(name, "it is a replica, which cannot be written to; name the primary")
    is_direct = options.pooler == "none" or (options.pooler == "auto" and pid == connection.get_server_pid())
    if is_direct:
        await connection.execute(_SETTINGS, timeout=options.timeout)
    return PostgresSession(connection, is_direct, syncs)


@final
class PostgresConnection:
    """One connection for one purpose. PostgresStatements take turns.

    Args:
        options: Time limits.
        name: The store as shown to people.
        open_session: Opens the connection.
    """

    def __init__(
        self, options: PostgresOptions, name: str, open_session: Callable[[], Awaitable[PostgresSession]]
    ) -> None:
        self._options, self._name, self._open = options, name, open_session
        self._loop: Final = asyncio.get_running_loop()
        self._lock: Final = asyncio.Lock()
        self._waiting = 0
        self._session: PostgresSession | None = None
        self._prepared: dict[str, Run] = {}
        self._random: Final = random.Random()  # noqa: S311 -- spreads out who connects when
        self._failures, self._not_before = 0, 0.0
        self._closing: Final[set[asyncio.Task[None]]] = set()
        self._is_closed = False

    def adopt(self, session: PostgresSession) -> None:
        """Use a connection that is open already."""
        self._session = session

    # --- calling -----------------------------------------------------------------------------------------------

    async def call(self, statement: str, *parameters: Any) -> Rows:  # noqa: ANN401 -- whatever the statement takes
        """Run a statement that changes nothing, or that may as well be run twice: as it is if the connection ends."""
        ended: BaseException | None = None
        for _ in range(2):
            async with self.turn() as session:
                try:
                    return await self.run(session, statement, parameters)
                except DRIVER_ERRORS as problem:
                    self._judge(problem)
                    if is_answer(problem) or isinstance(problem, TimeoutError):
                        raise translate(problem, self._name) from problem
                    ended = problem
        raise translate(ended or OSError(), self._name) from ended

    async def write(self, statement: str, *parameters: Any) -> Rows:  # noqa: ANN401 -- whatever the statement takes
        """Run a statement that must not be run twice; the server's own refusals are raised as they are."""
        await self._take_turn()  # as turn() does, without a generator around every commit
        try:
            return await self._write(await self._ready(), statement, parameters)
        except asyncio.CancelledError:
            self._drop()
            raise
        finally:
            self._lock.release()

    async def _write(self, session: PostgresSession, statement: str, parameters: Sequence[Any]) -> Rows:
        try:
            run = self._prepared.get(statement) or await self._prepare(session, statement)
        except DRIVER_ERRORS as problem:
            self._judge(problem)
            raise translate(problem, self._name) from problem
        try:
            return await run(*parameters, timeout=self._options.timeout)
        except DRIVER_ERRORS as problem:
            self._judge(problem)
            if isinstance(problem, asyncpg.PostgresError):
                raise
            raise translate_write(problem, self._name) from problem

    async def _prepare(self, session: PostgresSession, statement: str) -> Run:
        """Return what runs a statement on the connection, and keep it for the next time."""
        if session.is_direct:
            name = f"standfast_{len(self._prepared)}"  # without one, the driver sends the text anew each time
            prepared = await session.connection.prepare(statement, name=name, timeout=self._options.timeout)
            run: Run = prepared.fetch
        else:
            run = functools.partial(session.connection.fetch, statement)
        self._prepared[statement] = run
        return run

    async def run(self, session: PostgresSession, statement: str, parameters: Sequence[Any]) -> Rows:
        """Run a statement in the caller's turn; errors are the driver's."""
        run = self._prepared.get(statement) or await self._prepare(session, statement)
        rows: Rows = await run(*parameters, timeout=self._options.timeout)
        return rows

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncGenerator[PostgresSession]:
        """Wait for a turn on the connection, and for the connection."""
        await self._take_turn()
        try:
            yield await self._ready()
        except asyncio.CancelledError:
            self._drop()  # it is in the middle of something
            raise
        finally:
            self._lock.release()

    async def _take_turn(self) -> None:
        if not self._waiting and not self._lock.locked():
            await self._lock.acquire()
            return
        self._waiting += 1
        try:
            async with asyncio.timeout(self._options.timeout):
                await self._lock.acquire()
        except TimeoutError:
            raise StoreUnavailableError(self._name, "the connection was in use for too long; retry") from None
        finally:
            self._waiting -= 1

    # --- connecting --------------------------------------------------------------------------------------------

    async def _ready(self) -> PostgresSession:
        if self._is_closed:
            raise StoreClosedError(self._name, "it was closed; open a new one")
        if self._session is not None and not self._session.connection.is_closed():
            return self._session
        self._drop()
        await self._wait_until_allowed()
        try:
            self._session = await self._open()
        except StoreError:
            self._failures += 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self._failures, 10))
            self._not_before = self._loop.time() + self._random.uniform(pause / 2, pause)
            raise
        self._failures = 0
        return self._session

    async def _wait_until_allowed(self) -> None:
        pause = self._not_before - self._loop.time()
        if pause > 0:
            await asyncio.sleep(pause)

    def _judge(self, problem: BaseException) -> None:
        """Give the connection up after anything that was not an answer of the server, or was its last."""
        if not is_answer(problem):
            self._drop()

    def drop(self) -> None:
        """Give the connection up; the next call opens another one."""
        self._drop()

    def _drop(self) -> None:
        session, self._session = self._session, None
        self._prepared = {}
        if session is not None:
            task = self._loop.create_task(hang_up(session.connection))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close the connection."""
        self._is_closed = True
        self._drop()
        if self._closing:
            await asyncio.wait(self._closing)


async def hang_up(connection: Connection) -> None:
    """Close a connection, in good manners if there is somebody at the other end; what it was doing is cancelled."""
    try:
        async with asyncio.timeout(CLOSED_WITHIN):
            await connection.close(timeout=CLOSED_WITHIN)
    except Exception:  # noqa: BLE001 -- whatever it is, there is nobody to tell and nothing left to do
        connection.terminate()
    except BaseException:
        connection.terminate()
        raise


# --- the calls of the store's SQL functions: their text, their parameters, and what their answers mean -------------
#
# Nothing here knows a driver: the same calls can be made over any connection to the database.

_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_READ: Final = (
    f"SELECT t.at, r.key, r.value, r.version, r.expires_at FROM (SELECT {_NOW} AS at OFFSET 0) AS t"  # noqa: S608 -- of two constants
    " LEFT JOIN @.records AS r ON r.key = ANY ($1::bytea[]) AND (r.expires_at IS NULL OR r.expires_at > t.at)"
)
_SCAN: Final = (
    f"SELECT t.at, r.key, r.value, r.version, r.expires_at FROM (SELECT {_NOW} AS at OFFSET 0) AS t"  # noqa: S608 -- of two constants
    " LEFT JOIN LATERAL (SELECT * FROM @.records AS r WHERE r.key >= $1 AND r.key < $2"
    " AND (r.expires_at IS NULL OR r.expires_at > t.at) ORDER BY r.key LIMIT $3) AS r ON true ORDER BY r.key"
)
_WRITTEN: Final = 0


@final
class PostgresStatements:
    """The texts of all statements, for one schema."""

    __slots__ = (
        "audience",
        "close_attempt",
        "forget",
        "hold",
        "look_closely",
        "mark",
        "next_generation",
        "notify",
        "raise_versions",
        "read",
        "reserve",
        "scan",
        "scan_back",
        "store_here",
        "subscribe",
        "sweep",
        "write",
    )

    def __init__(self, schema: str) -> None:
        at = functools.partial(_in, schema)
        self.write: Final = at(
            "SELECT * FROM @.write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)"
        )
        self.hold: Final = at("SELECT * FROM @.hold($1, $2, $3, $4)")
        self.look_closely: Final = at("SELECT * FROM @.look_closely($1, $2, $3)")
        self.close_attempt: Final = at("SELECT * FROM @.close_attempt($1, $2)")
        self.reserve: Final = at("SELECT nextval('@.versions'::regclass) FROM generate_series(1, $1::int)")
        self.forget: Final = at(
            "WITH gone AS (DELETE FROM @.topics WHERE handle = $1) DELETE FROM @.attempts WHERE handle = $1"
        )
        self.read: Final = at(_READ)
        self.scan: Final = at(_SCAN)
        self.scan_back: Final = at(_SCAN.replace("ORDER BY r.key", "ORDER BY r.key DESC"))
        self.sweep: Final = at("SELECT @.sweep($1)")
        self.subscribe: Final = at("SELECT @.subscribe($1, $2, $3)")
        self.next_generation: Final = at("SELECT nextval('@.generations'::regclass)")
        self.audience: Final = at("SELECT * FROM @.audience()")
        self.notify: Final = (
            "SELECT pg_notify(m.channel, m.payload) FROM unnest($1::text[], $2::text[]) AS m (channel, payload)"
        )
        # What handles have written is counted in the same transactions; a sequence would run ahead of them.
        self.mark: Final = at("SELECT bit_xor(hashtextextended(handle || number, 0)) FROM @.attempts")
        self.raise_versions: Final = at("SELECT @.raise_versions()")
        self.store_here: Final = at("SELECT @.store_here()")


def _in(schema: str, statement: str) -> str:
    return statement.replace("@", f'"{schema}"')


# --- writing -----------------------------------------------------------------------------------------------------


def write_parameters(intent: Intent, schema: str) -> tuple[Any, ...]:
    """Return the parameters of ``write`` for an intent."""
    guards, puts, messages = intent.guards, intent.puts, intent.messages
    keys, expected = list(guards), list(guards.values())
    absent = expected.count(ABSENT)
    rows: Sequence[Row | None] = puts
    locks, draws, made = None, [row.draw + 1 for row in puts], absent
    if len(puts) != len(keys):  # else all of them are put, in the same order
        locks, rows, draws = _beside_others(keys, intent)
        made = sum([guards[row.key] == ABSENT for row in puts]) if absent else 0
    ends = [None if row is None else row.expires_at for row in rows]
    return (
        intent.handle,
        intent.number,
        keys,
        expected,
        len(expected) - absent,
        locks,
        [None if row is None else row.value for row in rows],
        draws,
        None if ends.count(None) == len(ends) else ends,
        made,
        len(puts) - made,
        len(intent.deletes),
        intent.draws,
        intent.exact or None,
        intent.after,
        intent.before,
        [channel(schema, message.topic) for message in messages] or None,
        [payload(message) for message in messages] or None,
    )


def _beside_others(keys: Sequence[RecordKey], intent: Intent) -> tuple[list[int] | None, list[Row | None], list[int]]:
    """Return how to lock the keys, what to put at each, and what becomes of each, where some are not put."""
    puts, gone = {row.key: row for row in intent.puts}, frozenset(intent.deletes)
    rows = [puts.get(key) for key in keys]
    draws = [row.draw + 1 if row is not None else -1 if key in gone else 0 for key, row in zip(keys, rows, strict=True)]
    return lock_runs([draw != 0 for draw in draws]), rows, draws


def lock_runs(writes: Sequence[bool]) -> list[int] | None:
    """Say how to lock keys in their order: so many to write (positive), so many to compare (negative), and so on.

    None: all of them are to be written.
    """
    if all(writes):
        return None
    lengths = [(is_written, len(list(run))) for is_written, run in itertools.groupby(writes)]
    return [length if is_written else -length for is_written, length in lengths]


def written(answer: Fields, intent: Intent) -> Written | WriteRefused:
    """Return what ``write`` answered."""
    status, at, drawn, generation, *lost = answer
    if status == _WRITTEN:
        return Written(Instant(at), tuple(drawn), generation)
    return WriteRefused(Instant(at), lost_records(list(intent.guards), lost))


def lost_records(keys: Sequence[RecordKey], lost: Fields) -> dict[RecordKey, Record | None]:
    """Return the live records of the keys whose guards did not hold."""
    places, values, versions, ends = lost
    current: dict[RecordKey, Record | None] = {}
    for place, value, version, end in zip(places or (), values or (), versions or (), ends or (), strict=True):
        key = keys[place - 1]
        current[key] = None if version is None else Record(key, value, version, None if end is None else Instant(end))
    return current


# --- reading -----------------------------------------------------------------------------------------------------


def records(rows: Iterable[Fields]) -> tuple[Instant, dict[RecordKey, Record]]:
    """Return the time and the records of ``read`` or ``scan``."""
    at, found = 0, dict[RecordKey, Record]()
    for at, encoded, value, version, ends in rows:  # noqa: B007 -- the time is the same in all of them
        if encoded is not None:
            key = RecordKey.from_encoded(encoded)
            found[key] = Record(key, value, version, None if ends is None else Instant(ends))
    return Instant(at), found


def page(rows: Iterable[Fields], limit: int, *, reverse: bool) -> Snapshot:
    """Return a page of a scan that was asked for one record more than fits."""
    at, found = records(rows)
    if len(found) <= limit:
        return Snapshot(at, found)
    found.popitem()
    last = next(reversed(found))
    return Snapshot(at, found, last if reverse else last.successor())


# --- hints -------------------------------------------------------------------------------------------------------


def channel(schema: str, topic: bytes) -> str:
    """Return the name of the channel of a topic: short enough for PostgreSQL, whatever the topic is."""
    digest = hashlib.blake2b(topic, digest_size=20, key=schema.encode())
    return f"sf_{digest.hexdigest()}"


def channels(schema: str, topics: Iterable[bytes]) -> Mapping[str, bytes]:
    """Return the channels of topics."""
    return {channel(schema, topic): topic for topic in topics}


def payload(message: Message) -> str:
    """Return the data of a message as text, which is what a channel takes."""
    return base64.b64encode(message.data).decode()


def data_of(text: str) -> bytes:
    """Return the data of a message that was heard; what nobody of us sent means: look at everything."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


# --- hearing what the server pushes: a connection that listens, looked after for as long as the handle is open -----

KEEPALIVE: Final = 10.0
"""How many seconds a dead connection, whose end nobody was told of, can go unnoticed."""


@final
class PostgresSubscriber:
    """The listening connection of one handle. It is opened with the first topic."""

    def __init__(
        self, options: PostgresOptions, name: str, open_session: Callable[[], Awaitable[PostgresSession]]
    ) -> None:
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

"""Connections to PostgreSQL: options, errors, one connection for one purpose, and one that is notified."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, cast, final

import asyncpg
from asyncpg.protocol import NO_TIMEOUT
from msgspec import Struct, structs

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
from standfast.stores.address import Address, is_identifier, tls_error
from standfast.stores.backend import EXPORTED, moved_error
from standfast.stores.liveness import GRACE
from standfast.stores.postgresql.statements import channels, data_of
from standfast.stores.remote.connection import ConnectBackoff, note_place, place_of
from standfast.stores.remote.failover import PrimaryTracker, ServerEpoch
from standfast.stores.remote.liveness import take_grace

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterable, Mapping, Sequence

    from standfast.stores.postgresql.statements import Connection
    from standfast.stores.remote.server import Listener

    Rows = list[asyncpg.Record]
    Run = Callable[..., Awaitable[Rows]]
    Fields = Iterable[Any]
    """A row, as any driver returns it."""


# --- options: where the server is, and how it is to be used --------------------------------------------------------

PORT: Final = 5432
OPTION_NAMES: Final = (
    "schema",
    "timeout",
    "connect_timeout",
    "pooler",
    "listen",
    "migrate",
    "liveness",
    "grace",
    "tls",
    "tls_ca",
)


class PostgresTarget(Struct, frozen=True):
    """Where to connect, and as whom. Its ``repr`` shows no password."""

    host: str
    port: int
    user: str | None
    password: str | Callable[[], str] | None
    database: str | None
    tls: ssl.SSLContext | None

    def __repr__(self) -> str:
        return f"PostgresTarget({self.host}:{self.port}/{self.database})"

    def arguments(self) -> dict[str, Any]:
        """Return what the driver needs to connect there."""
        return {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "database": self.database,
            "ssl": self.tls or False,
        }


class PostgresOptions(Struct, frozen=True):
    """How to use the server.

    Attributes:
        target: Where it is; perhaps a pooler in front of it.
        listening: Where to listen for notifications: without a pooler in between. None: as ``target``.
        schema: The schema that everything of this store lies in.
        timeout: The most seconds that a call may take.
        connect_timeout: The most seconds that connecting may take.
        pooler: ``transaction`` if sessions end with transactions; ``auto`` finds out.
        migrate: Whether to create or change the schema where that is needed; otherwise it is only looked at.
        liveness: Whether others may see by a session of this process that it has died, where there is a direct one.
        others: More servers, where a URL names several: the one of them that takes writes is used.
        grace: For how many seconds this process may be without its liveness session before it is taken for dead.
    """

    target: PostgresTarget
    listening: PostgresTarget | None = None
    schema: str = "standfast"
    timeout: float = 5.0
    connect_timeout: float = 5.0
    pooler: Literal["auto", "none", "transaction"] = "auto"
    migrate: bool = True
    liveness: bool = True
    others: tuple[PostgresTarget, ...] = ()
    grace: float = GRACE

    @property
    def targets(self) -> tuple[PostgresTarget, ...]:
        """All servers of which one is the primary."""
        return (self.target, *self.others)

    def shown(self, target: PostgresTarget) -> str:
        """Return the address of a server for an error, if the store's name leaves open which one it is."""
        return f"{target.host}:{target.port}" if self.others or target == self.listening else ""

    def __post_init__(self) -> None:
        """Refuse a name that would have to be escaped, or that PostgreSQL would cut off."""
        if not is_identifier(self.schema):
            raise ValueError("a schema is up to 31 of a-z, 0-9 and _, beginning with no digit")


def read_options(address: Address) -> PostgresOptions:
    """Read the URL of a server."""
    (host, port), *others = address.hosts(PORT)
    password = None if address.password is None else lambda: address.password or ""  # asked for each connection
    target = PostgresTarget(host, port, address.user, password, address.path() or None, address.tls(default=False))
    listen = address.take_text("listen")
    pooler = address.take_choice("pooler", ("auto", "none", "transaction"), "auto")
    options = PostgresOptions(
        target,
        listening=_listening(address, target, listen) if listen else None,
        schema=address.take_identifier("schema", "standfast"),
        timeout=address.take_limit("timeout"),
        connect_timeout=address.take_limit("connect_timeout"),
        pooler="transaction" if pooler == "transaction" else "none" if pooler == "none" else "auto",
        migrate=address.take_flag("migrate", default=True),
        liveness=address.take_flag("liveness", default=True),
        others=tuple(structs.replace(target, host=host, port=port) for host, port in others),
        grace=take_grace(address),
    )
    address.finish(*OPTION_NAMES)
    return options


def _listening(address: Address, target: PostgresTarget, listen: str) -> PostgresTarget:
    """Return the target of ``listen=``: ``host:port``, or a URL whose parts replace those of the main one."""
    try:
        parts = urllib.parse.urlsplit(listen if "://" in listen else f"//{listen}")
        direct = structs.replace(target, host=parts.hostname or target.host, port=parts.port or PORT)
    except ValueError:
        raise address.refuse("listen is host:port, or a URL") from None
    if parts.username is not None:
        direct = structs.replace(direct, user=urllib.parse.unquote(parts.username))
    if parts.password is not None:
        direct = structs.replace(direct, password=urllib.parse.unquote(parts.password))
    database = urllib.parse.unquote(parts.path.removeprefix("/"))
    return structs.replace(direct, database=database) if database else direct


# --- errors of the driver and of the server, translated once, at the edge ------------------------------------------

DRIVER_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""Whatever the driver raises when a connection is opened or used; a ``TimeoutError`` is an ``OSError``."""

ATTEMPT_CLOSED: Final = "SF001"
CREATED_MEANWHILE: Final = "SF002"
STALE: Final = "SF003"
FROZEN: Final = "SF004"
READ_ONLY: Final = "25006"
TRY_AGAIN: Final = frozenset({CREATED_MEANWHILE, "40001", "40P01", "55P03"})
"""Nothing was written, and the same might succeed at once: lost races, deadlocks, locks that were not granted."""

_BY_CODE: Final[Mapping[str, tuple[type[StoreError], str]]] = {
    "28P01": (UnsuitableStoreError, "it refused the user or the password; correct them"),
    "28000": (UnsuitableStoreError, "it refuses this user; see its pg_hba.conf"),
    "3D000": (UnsuitableStoreError, "it has no such database; create it, or name another one"),
    "3F000": (UnsuitableStoreError, "it has no such schema; let its owner open the store once, or allow migrate=true"),
    "42P01": (UnsuitableStoreError, "its tables are missing; let their owner open the store once"),
    "42883": (UnsuitableStoreError, "its functions are missing; let their owner open the store once"),
    "42501": (UnsuitableStoreError, "this user lacks a privilege; let the owner of the schema call its grant_to(user)"),
    READ_ONLY: (StoreReadOnlyError, "it is read-only, perhaps a replica; name the primary"),
    "53100": (StoreFullError, "its disk is full; free some space and retry"),
    "53300": (StoreUnavailableError, "it has too many connections; raise max_connections, or put a pooler in front"),
    "57P03": (StoreUnavailableError, "it is starting or stopping; retry"),
    "57014": (StoreUnavailableError, "it cancelled the statement, perhaps after its statement_timeout; retry"),
    "40001": (StoreUnavailableError, "others changed the same rows at the same time; nothing was written; retry"),
    "40P01": (StoreUnavailableError, "it ended a deadlock by undoing this transaction; nothing was written; retry"),
    "55P03": (StoreUnavailableError, "a lock was not granted in time, see its lock_timeout; retry"),
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


_STALLED: Final = "retry, and if writes alone hang, see if a synchronous standby does not answer (pg_stat_replication)"


def code_of(error: BaseException) -> str:
    """Return the SQLSTATE of an error; empty if it has none."""
    return getattr(error, "sqlstate", None) or ""


def translate(error: BaseException, name: str) -> StoreError:
    """Return the error for something that was certainly not written."""
    if isinstance(error, StoreError):
        return error
    code = code_of(error)
    if code == FROZEN:
        return moved_error(name, int(getattr(error, "detail", None) or EXPORTED))
    place = place_of(error)
    if code in _BY_CODE:
        kind, advice = _BY_CODE[code]
        return kind(name, f"{place}{advice}")
    if isinstance(error, TimeoutError):
        return StoreUnavailableError(name, f"{place}it did not answer in time; {_STALLED}")
    if isinstance(error, OSError | asyncpg.PostgresConnectionError | asyncpg.InterfaceError):
        why = tls_error(str(error)) or "it cannot be reached"
        return StoreUnavailableError(name, f"{place}{why} ({_words(error)}); retry")
    return StoreUnavailableError(name, f"{place}PostgreSQL failed: {_words(error)} ({code or type(error).__name__})")


def translate_write(error: BaseException, name: str) -> StoreError:
    """Return the error for a write that was sent: unknown, unless the server itself said that it failed.

    An error that ends the session does not say it: it may come after the transaction was committed.
    """
    code = code_of(error)
    if code in _SURE_AT_LOGIN or (is_answer(error) and code != "40003"):
        return translate(error, name)
    hint = f"; {_STALLED}" if isinstance(error, TimeoutError) else ""
    return OutcomeUnknownError(name, f"{place_of(error)}no answer came: {_words(error)}{hint}")


def is_answer(error: BaseException) -> bool:
    """Return True if the server itself said that a statement failed, and goes on with the session."""
    if not isinstance(error, asyncpg.PostgresError) or isinstance(error, asyncpg.PostgresConnectionError):
        return False
    severity = getattr(error, "severity_en", None) or getattr(error, "severity", None) or ""
    return severity not in _OVER


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    return next(iter(str(error).splitlines()), "") or type(error).__name__


# --- one connection, opened when it is needed and again when it is lost --------------------------------------------

CLOSED_WITHIN: Final = 2.0
OLDEST: Final = 140_000

_LOOK: Final = (
    "SELECT pg_backend_pid(), current_setting('server_version_num')::int, pg_is_in_recovery(),"
    " current_setting('fsync')::bool AND current_setting('full_page_writes')::bool"
)
# Not part of the above: some services that speak PostgreSQL refuse it, and then a failover is not told by it.
_EPOCH: Final = (
    "SELECT (pg_control_system()).system_identifier::text,"
    " ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int"
)
# For direct sessions; that of liveness has settings of its own.
_SETTINGS: Final = (
    "SET default_transaction_isolation = 'read committed'; SET enable_seqscan = off; SET jit = off;"
    " SET plan_cache_mode = force_generic_plan"
)


_FAILOVER: Final = (
    "SELECT (SELECT count(*) FROM pg_stat_replication)::int, current_setting('synchronous_standby_names'),"
    " current_setting('synchronous_commit')"
)


async def failover_loss(connection: Connection, timeout: float) -> str:
    """Return what a standby that takes over may lack, and the setting that prevents it; empty if nothing is known."""
    try:
        row = await connection.fetchrow(_FAILOVER, timeout=timeout)
    except asyncpg.PostgresError:
        return ""
    standbys, names, waits = row or (0, "", "on")
    if not names:
        if not standbys:
            return ""
        return (
            "its standbys get a commit after it was answered, so one that takes over may lack the last ones: set"
            " synchronous_standby_names, for example to 'ANY 1 (*)'"
        )
    if waits in {"off", "local"}:
        return f"synchronous_commit={waits} does not wait for a standby: set it to on for this user"
    return ""


class PostgresSession(Struct, frozen=True):
    """What a connection is like."""

    connection: Any
    is_direct: bool
    """Whether it is one session of the server; behind a pooler each transaction may be another one."""
    syncs: bool
    epoch: ServerEpoch
    """Which server is at the other end, and on which timeline."""
    moves: int = 0
    """As :attr:`PrimaryTracker.moves` was when it was opened."""


async def dial(target: PostgresTarget, options: PostgresOptions, name: str) -> PostgresSession:
    """Open a connection and look at what is at its other end; raise a ``StoreError`` if it is of no use."""
    try:
        async with asyncio.timeout(options.connect_timeout):
            connection: Connection = await asyncpg.connect(
                **target.arguments(),
                timeout=options.connect_timeout,
                command_timeout=options.timeout,  # for whatever the driver sends by itself
                statement_cache_size=0,  # a pooler knows none of them; ours are prepared by name where they may be
                server_settings={"application_name": "standfast"},
            )
    except DRIVER_ERRORS as error:
        note_place(error, options.shown(target))
        raise translate(error, name) from None  # its traceback has the password
    try:
        return await _look(connection, target, options, name)
    except BaseException as error:
        connection.terminate()
        if isinstance(error, DRIVER_ERRORS):
            note_place(error, options.shown(target))
            raise translate(error, name) from error
        raise


OTHERS_WITHIN: Final = 0.5
"""For how many seconds other hosts are waited for when one was found that takes writes: it may have been replaced."""


async def dial_primary(options: PostgresOptions, name: str) -> PostgresSession:
    """Connect to the one of the hosts that takes writes; to the one on the latest timeline, if several seem to."""
    if not options.others:
        return await dial(options.target, options, name)
    asked = [asyncio.ensure_future(dial(target, options, name)) for target in options.targets]
    found: list[PostgresSession] = []
    problems: list[StoreError] = []
    try:
        pending = set(asked)
        while pending:
            within = OTHERS_WITHIN if found else None
            done, pending = await asyncio.wait(pending, timeout=within, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            for each in done:
                try:
                    found.append(each.result())
                except StoreError as error:
                    problems.append(error)
        best = max(found, key=lambda session: session.epoch.number, default=None)
        if best is not None:
            found.remove(best)
            return best
    finally:
        for each in asked:
            each.cancel()
        for session in found:
            session.connection.terminate()
    if all(isinstance(error, StoreReadOnlyError) for error in problems):
        raise StoreReadOnlyError(name, "all of its hosts are replicas; name the primary, too")
    refused = next((error for error in problems if isinstance(error, UnsuitableStoreError)), None)
    told = "; ".join([error.problem for error in problems])
    raise refused or StoreUnavailableError(name, f"none of its hosts takes writes: {told}")


async def _look(connection: Connection, target: PostgresTarget, options: PostgresOptions, name: str) -> PostgresSession:
    row = await connection.fetchrow(_LOOK, timeout=options.timeout)
    pid, version, is_replica, syncs = row or (0, 0, False, False)
    if version < OLDEST:
        raise UnsuitableStoreError(name, f"it is PostgreSQL {version // 10_000}; {OLDEST // 10_000} or later is needed")
    if is_replica:
        place = f"{target.host}:{target.port}"
        raise StoreReadOnlyError(name, f"{place} is a replica, which cannot be written to; name the primary")
    is_direct = options.pooler == "none" or (options.pooler == "auto" and pid == connection.get_server_pid())
    if is_direct:
        await connection.execute(_SETTINGS, timeout=options.timeout)
    return PostgresSession(connection, is_direct, syncs, await epoch_of(connection, target, options.timeout))


async def epoch_of(connection: Connection, target: PostgresTarget, timeout: float) -> ServerEpoch:
    """Ask a primary which server it is and on which timeline; nothing but its address if it does not say."""
    place = f"{target.host}:{target.port}"
    try:
        row = await connection.fetchrow(_EPOCH, timeout=timeout)
    except asyncpg.PostgresError:
        return ServerEpoch(place=place)
    system, timeline = row or ("", 0)
    return ServerEpoch(system, timeline, place)


@final
class PostgresConnection:
    """One connection for one purpose. Calls take turns.

    Args:
        options: Time limits.
        name: The store as shown to people.
        open_session: Opens the connection.
        tracker: Knows which server is the primary: a connection to another one is not used any more.
    """

    def __init__(
        self,
        options: PostgresOptions,
        name: str,
        open_session: Callable[[], Awaitable[PostgresSession]],
        tracker: PrimaryTracker,
    ) -> None:
        self._options, self._name, self._open, self._tracker = options, name, open_session, tracker
        self._loop: Final = asyncio.get_running_loop()
        self._lock: Final = asyncio.Lock()
        self._waiting = 0
        self._session: PostgresSession | None = None
        self._prepared: dict[str, Run] = {}
        self._backoff: Final = ConnectBackoff()
        self._closing: Final[set[asyncio.Task[None]]] = set()
        self._is_closed = False
        self._waiter: asyncio.Future[Any] | None = None  # what the call waits for that no task waits for
        self._watchdog: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._unlisten: Final = tracker.listen(self._server_moved)

    def _server_moved(self) -> None:
        """Leave a server that was replaced, if nothing is under way; else the next call does. Called on any thread."""
        with contextlib.suppress(RuntimeError):  # that loop is closed
            self._loop.call_soon_threadsafe(self._drop_old)

    def _drop_old(self) -> None:
        session = self._session
        if session is not None and session.moves != self._tracker.moves and not self._lock.locked():
            self._drop()

    def adopt(self, session: PostgresSession) -> None:
        """Use a connection that is open already."""
        self._session = session

    @property
    def is_direct(self) -> bool:
        """Whether it is open, and leads to a session that is kept."""
        return self._session is not None and self._session.is_direct

    def is_prepared(self, statement: str) -> bool:
        """Return True if a statement has been run on the connection that is open."""
        return statement in self._prepared

    # --- calling ---------------------------------------------------------------------------------------------

    async def call(self, statement: str, *parameters: Any) -> Rows:  # noqa: ANN401 -- whatever the statement takes
        """Run a statement that changes nothing, or that may as well be run twice: as it is if the connection ends."""
        ended: BaseException | None = None
        for _ in range(2):
            async with self.turn() as session:
                try:
                    return await self.run(session, statement, parameters)
                except DRIVER_ERRORS as error:
                    self._judge(error)
                    if is_answer(error) or isinstance(error, TimeoutError):
                        raise translate(error, self._name) from error
                    ended = error
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
        except DRIVER_ERRORS as error:
            self._judge(error)
            raise translate(error, self._name) from error
        try:
            return await run(*parameters, timeout=self._options.timeout)
        except DRIVER_ERRORS as error:
            failed = self._write_error(error)
            if failed is error:
                raise
            raise failed from error

    def write_soon(
        self, statement: str, parameters: Sequence[Any], arrive: Callable[[Rows | Exception], None]
    ) -> asyncio.Future[Any] | None:
        """Do as :meth:`write` does, without a task that waits; return None if the connection is not at hand.

        Otherwise return what the driver waits for. ``arrive`` is called from the loop, by the first callback of that
        (if it waits but once), with what :meth:`write` would have returned or raised.
        """
        session, run = self._session, self._prepared.get(statement)
        if run is None or session is None or not session.is_direct or self._is_closed:
            return None
        if self._waiting or self._lock.locked() or not self._is_usable(session):
            return None
        try:  # noqa: SIM105 -- on the way of every commit, where a context manager takes longer
            self._lock.acquire().send(None)
        except StopIteration:  # it is free, and taken at once
            pass
        self._due_at = self._loop.time() + self._options.timeout
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._options.timeout, self._watch)
        call = run(*parameters, timeout=NO_TIMEOUT)  # it is watched here: a timer of the driver's for each takes longer
        return self._go_on(cast("Coroutine[Any, Any, Rows]", call), arrive, None)

    def _go_on(
        self,
        call: Coroutine[Any, Any, Rows],
        arrive: Callable[[Rows | Exception], None],
        waited: asyncio.Future[Any] | None,
    ) -> asyncio.Future[Any] | None:
        """Run a call of the driver up to where it waits, as a task would, and go on when that is there.

        The driver waits for futures of its own and for nothing else. It asks for no current task.
        """
        answer: Rows | Exception
        try:
            waiter: asyncio.Future[Any] = call.send(None)
        except StopIteration as ended:
            answer = ended.value
        except DRIVER_ERRORS as error:
            answer = self._write_error(error)
        except asyncio.CancelledError:  # by the watchdog
            answer = self._write_error(TimeoutError())
        except BaseException:  # Ctrl-C, say: the loop gets it, and no rider may be left waiting
            self._waiter = None
            self._drop()
            self._lock.release()
            arrive(OutcomeUnknownError(self._name, "it was interrupted"))
            raise
        else:
            self._waiter = waiter
            waiter._asyncio_future_blocking = False  # noqa: SLF001 -- as a task does with what it waits for
            waiter.add_done_callback(functools.partial(self._go_on, call, arrive))
            return waiter
        self._waiter = None
        self._lock.release()
        if waited is not None:
            try:
                arrive(answer)
            except Exception as error:
                arrive(error)  # no rider may be left waiting; one that has its answer is not told again
                raise
            return None
        over = self._loop.create_future()  # it failed before it was sent, and is told later
        over.add_done_callback(lambda _: arrive(answer))
        over.set_result(None)
        return over

    def _write_error(self, error: BaseException) -> Exception:
        self._judge(error)
        if isinstance(error, asyncpg.PostgresError):
            return error
        failed = translate_write(error, self._name)
        failed.__cause__ = error
        return failed

    def _watch(self) -> None:
        """End the call that no task waits for if it takes too long. One timer serves all calls: hardly any does."""
        self._watchdog = None
        if self._waiter is None:
            return
        left = self._due_at - self._loop.time()
        if left > 0:
            self._watchdog = self._loop.call_later(left, self._watch)
        else:
            self._waiter.cancel()

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

    # --- connecting ------------------------------------------------------------------------------------------

    async def _ready(self) -> PostgresSession:
        if self._is_closed:
            raise StoreClosedError(self._name, "it was closed; open a new one")
        session = self._session
        self._tracker.check()
        if session is not None and self._is_usable(session):
            return session
        self._drop()
        await self._backoff.wait()
        try:
            self._session = await self._open()
        except StoreError:
            self._backoff.failed()
            raise
        self._backoff.succeeded()
        return self._session

    def _is_usable(self, session: PostgresSession) -> bool:
        tracker = self._tracker
        return session.moves == tracker.moves and not tracker.is_rewound and not session.connection.is_closed()

    def _judge(self, error: BaseException) -> None:
        """Give the connection up after anything that was not an answer of the server, or was its last.

        Also if it takes no writes any more: the address may lead to another server by now.
        """
        if self._options.others and self._session is not None:
            note_place(error, self._session.epoch.place)
        if not is_answer(error) or code_of(error) == READ_ONLY:
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
        self._unlisten()
        self._is_closed = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._drop()
        if self._closing:
            await asyncio.wait(self._closing)


async def hang_up(connection: Connection) -> None:
    """Close a connection, in good order if the server answers; what it was doing is cancelled."""
    try:
        async with asyncio.timeout(CLOSED_WITHIN):
            await connection.close(timeout=CLOSED_WITHIN)
    except Exception:  # noqa: BLE001 -- whatever it is, there is nothing left to do
        connection.terminate()
    except BaseException:
        connection.terminate()
        raise


# --- notifications: a connection that listens, opened again for as long as the handle is open ----------------------

KEEPALIVE: Final = 10.0
"""How many seconds a dead connection, whose end was not reported, can go unnoticed."""


@final
class PostgresSubscriber:
    """The listening connection of one handle. It is opened with the first topic."""

    def __init__(
        self,
        options: PostgresOptions,
        name: str,
        open_session: Callable[[], Awaitable[PostgresSession]],
        tracker: PrimaryTracker,
    ) -> None:
        self._options, self._name, self._open = options, name, open_session
        self._loop: Final = asyncio.get_running_loop()
        self._tracker, self._moves = tracker, 0
        self._unlisten: Final = tracker.listen(self._server_moved)
        self._backoff: Final = ConnectBackoff()
        self._lock: Final = asyncio.Lock()
        self._wanted: frozenset[str] = frozenset()
        self._listened: set[str] = set()
        self._connection: Connection | None = None
        self._listener: Listener | None = None
        self._lost: Final = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    def listen(self, listener: Listener) -> None:
        """Hand what is pushed to ``listener``."""
        self._listener = listener

    async def want(self, topics: frozenset[bytes]) -> None:
        """Listen to just these topics; return when the server does."""
        self._wanted = frozenset(channels(self._options.schema, topics))
        try:
            await self._catch_up()
        except DRIVER_ERRORS as error:
            raise translate(error, self._name) from error
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
        session = await self._open()
        connection: Connection = session.connection
        self._connection, self._listened, self._moves = connection, set(), session.moves
        self._lost.clear()
        connection.add_termination_listener(self._ended)
        return connection

    async def _tune(self, connection: Any) -> None:  # noqa: ANN401 -- the driver's own
        """Every statement has the time limit of the connection; there may be a thousand of them."""
        wanted = self._wanted
        for channel in wanted - self._listened:
            await connection.add_listener(channel, self._take)
            self._listened.add(channel)
        for channel in self._listened - wanted:
            await connection.remove_listener(channel, self._take)
            self._listened.discard(channel)

    # --- what is received ---------------------------------------------------------------------------------------

    def _take(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        if self._listener is not None:
            self._listener.take(data_of(str(payload)))

    def _ended(self, connection: Any) -> None:  # noqa: ANN401 -- the driver's own
        if connection is self._connection:
            self._lost.set()

    def _server_moved(self) -> None:
        """Listen to the server that has taken over. Called on any thread."""
        with contextlib.suppress(RuntimeError):  # that loop is closed
            self._loop.call_soon_threadsafe(self._lose_old)

    def _lose_old(self) -> None:
        if self._moves != self._tracker.moves:
            self._lose()

    # --- reconnecting ----------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Notice a connection that is gone, and listen again."""
        while True:
            if await self._is_fine():
                self._backoff.succeeded()
                continue
            try:
                await self._catch_up()
            except (*DRIVER_ERRORS, StoreError):
                self._backoff.failed()
                await self._backoff.wait()

    async def _is_fine(self) -> bool:
        """Wait for a while; return True if the connection is there at the end of it."""
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
        self._unlisten()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        connection, self._connection = self._connection, None
        if connection is not None:
            await hang_up(connection)

"""Connections to MySQL and MariaDB: options, errors, a time limit on everything, and the settings that are refused."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, cast, final

from asyncmy import errors as driver
from asyncmy.connection import Connection
from asyncmy.constants.CLIENT import FOUND_ROWS
from msgspec import Struct, structs

from standfast.errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreGoneError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.address import is_this_machine, tls_error
from standfast.stores.liveness import GRACE
from standfast.stores.remote.connection import ConnectionPool, note_place, place_of
from standfast.stores.remote.failover import ServerEpoch
from standfast.stores.remote.liveness import take_grace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from standfast.stores.address import Address
    from standfast.stores.remote.failover import PrimaryTracker


# --- options: what a URL says, and the names of the tables ---------------------------------------------------------

PORT: Final = 3306
OPTION_NAMES: Final = ("prefix", "timeout", "connect_timeout", "pool", "migrate", "liveness", "grace", "tls", "tls_ca")
LONGEST_TIMEOUT: Final = 300.0

_UNFIT: Final = re.compile(r"[`\x00-\x1f]")


class MysqlTables(Struct, frozen=True):
    """The tables, quoted, as they stand in statements."""

    records: str
    attempts: str
    facts: str
    plain: tuple[str, ...]
    """The same without quotes."""

    @classmethod
    def of(cls, prefix: str) -> Self:
        """Return the names that begin with ``prefix``, which was checked."""
        plain = (f"{prefix}_records", f"{prefix}_attempts", f"{prefix}_facts")
        records, attempts, facts = (f"`{name}`" for name in plain)
        return cls(records, attempts, facts, plain)


class MysqlOptions(Struct, frozen=True):
    """Where the server is and how to treat it. Its ``repr`` shows no secret."""

    name: str
    """The URL, without secrets."""
    host: str
    port: int
    user: str
    password: Callable[[], str]
    """Asked for every new connection."""
    database: str
    prefix: str
    timeout: float
    connect_timeout: float
    pool: int
    migrate: bool
    tls: ssl.SSLContext | None
    liveness: bool = True
    """Whether others see soon that this process has died."""
    grace: float = GRACE
    """For how many seconds this process may be without its liveness session before it is taken for dead."""
    others: tuple[tuple[str, int], ...] = ()
    """More hosts and ports, where a URL names several: the one of them that takes writes is used."""

    def __repr__(self) -> str:
        return f"<MysqlOptions {self.name}>"

    @property
    def place(self) -> str:
        """The host and the port."""
        return f"{self.host}:{self.port}"

    def each_host(self, first: str = "") -> list[MysqlOptions]:
        """Return these options with each of the hosts as theirs, the one at ``first`` before the others."""
        every = [self, *(structs.replace(self, host=host, port=port) for host, port in self.others)]
        return sorted(every, key=lambda each: each.place != first)

    @property
    def names(self) -> MysqlTables:
        """The tables."""
        return MysqlTables.of(self.prefix)


def read_options(address: Address) -> MysqlOptions:
    """Take everything that a URL may say.

    Raises:
        InvalidUrlError: It says something else, or not enough.
    """
    (host, port), *others = address.hosts(PORT)
    database, user = address.path(), address.user
    if not user:
        raise address.refuse("name the user, in front of the host and an @")
    if not database or "/" in database or _UNFIT.search(database):
        raise address.refuse("name the database, behind the host: /database")
    options = MysqlOptions(
        name=address.name,
        host=host,
        port=port,
        user=user,
        password=lambda: address.password or "",
        database=database,
        prefix=address.take_identifier("prefix", "standfast"),
        timeout=address.take_limit("timeout", longest=LONGEST_TIMEOUT),
        connect_timeout=address.take_limit("connect_timeout", longest=LONGEST_TIMEOUT),
        pool=address.take_count("pool", 4, most=100),
        migrate=address.take_flag("migrate", default=True),
        tls=address.tls(default=False),
        liveness=address.take_flag("liveness", default=True),
        grace=take_grace(address),
        others=tuple(others),
    )
    address.finish(*OPTION_NAMES)
    return options


# --- errors of the server and its driver, translated once, at the edge ---------------------------------------------

NULL_REFUSED: Final = 1048
"""A column that cannot be NULL was to become NULL: how a guarded statement stops a transaction."""

DUPLICATE: Final = 1062
DEADLOCK: Final = 1213
LOCK_TIMEOUT: Final = 1205
NO_TABLE: Final = 1146
NOT_ALLOWED: Final = frozenset({1044, 1142, 1143, 1227, 1370})
"""What the server says to a user who lacks a privilege."""

NOT_SENT: Final = frozenset({0, 2006})
"""What the driver says when it could not even send: the server has not seen it."""

WOULD_SHOW_PASSWORD: Final = 2061
"""What we say ourselves when logging in would show the password on the network."""

LOST: Final = NOT_SENT | {2013}
"""What it says when the connection is gone."""

_BUSY: Final = "others hold the same rows; nothing was written"
_DENIED: Final = "the user may not do this; docs/how-to/run-on-mysql.md lists the privileges that are needed"
_LOGIN: Final = "the server does not accept this user and password from here"
_EXPOSED: Final = "it wants the password in the clear, and the connection has no TLS; add ?tls=true to the URL"
_READ_ONLY: Final = "the server takes no writes: it is a replica or was set read_only; connect to the primary"
_FULL: Final = "the server has no room left"
_LIMIT: Final = "the server takes no more connections for now (max_connections, max_user_connections)"
_AWAY: Final = "the connection was lost"

_ERRORS: Final[Mapping[int, tuple[type[StoreError], str]]] = {
    DEADLOCK: (StoreBusyError, _BUSY),
    LOCK_TIMEOUT: (StoreBusyError, _BUSY),
    DUPLICATE: (StoreBusyError, _BUSY),
    NULL_REFUSED: (StoreBusyError, _BUSY),
    **dict.fromkeys(NOT_ALLOWED, (UnsuitableStoreError, _DENIED)),
    **dict.fromkeys((1045, 1130, 1251, 1698, 1820, 1862, 2059, 3118), (UnsuitableStoreError, _LOGIN)),
    WOULD_SHOW_PASSWORD: (UnsuitableStoreError, _EXPOSED),
    1049: (UnsuitableStoreError, "there is no such database; create it first"),
    1665: (UnsuitableStoreError, "binlog_format=STATEMENT cannot record what is written here; set it to ROW"),
    **dict.fromkeys((1290, 1792, 1836, 3100), (StoreReadOnlyError, _READ_ONLY)),
    **dict.fromkeys((1021, 1041, 1114, 3675), (StoreFullError, _FULL)),
    NO_TABLE: (StoreGoneError, "a table is missing; open the store anew to have it made"),
    **dict.fromkeys((1040, 1203, 1226), (StoreUnavailableError, _LIMIT)),
    **dict.fromkeys((0, 1053, 1077, 1079, 1317, 1927, 2006, 2013, 2055, 3169), (StoreUnavailableError, _AWAY)),
    2003: (StoreUnavailableError, "cannot connect"),
}
"""Everything that means: it was not done. What is not here may come from a commit that was."""

_UNCERTAIN: Final = frozenset({1053, 1077, 1079, 1317, 1927, 2013, 2055, 3169})
"""What may be said although a transaction was just committed: the connection ended, or the statement was killed."""


def code_of(error: BaseException) -> int:
    """Return the number that the server or the driver gave an error; -1 if it has none."""
    code = error.args[0] if isinstance(error, driver.Error) and error.args else -1
    return code if isinstance(code, int) else -1


def is_certain(error: BaseException) -> bool:
    """Return True if a transaction that ended with ``error`` was certainly not committed."""
    code = code_of(error)
    return code in _ERRORS and code not in _UNCERTAIN


def translated(error: BaseException, name: str) -> StoreError:
    """Return what to raise for an error of the driver."""
    code, place = code_of(error), place_of(error)
    if advice := tls_error(_shown(error)):
        return StoreUnavailableError(name, f"{place}{advice} ({_shown(error)})")
    if code in _ERRORS:
        kind, text = _ERRORS[code]
        return kind(name, f"{place}{text} ({_shown(error)})")
    if isinstance(error, (OSError, TimeoutError, EOFError)):
        return StoreUnavailableError(name, f"{place}{_AWAY} ({_shown(error)})")
    return StoreError(name, f"{place}{_shown(error)}")


def _shown(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not error.args:
        return "no answer in time"
    if isinstance(error, driver.Error):
        return " ".join(str(each) for each in error.args)[:300]
    return f"{type(error).__name__}: {error}"[:300]


# --- connections ---------------------------------------------------------------------------------------------------

Rows: TypeAlias = "tuple[tuple[Any, ...], ...]"

LONGEST_WAIT: Final = 3
"""For how many seconds a statement waits for a lock at most, before the whole transaction is tried again."""

CLOSED_WITHIN: Final = 1.0

DRIVER_ERRORS: Final = (driver.Error, OSError, TimeoutError, EOFError)
"""What a driver may raise for a connection that fails; ``TimeoutError`` comes from the limits set here."""

_SESSION: Final = (
    "SET SESSION sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',time_zone='+00:00',"
    "innodb_lock_wait_timeout={wait},lock_wait_timeout={wait};"
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
)
"""Strict, so that nothing is cut or replaced silently; read committed, so that every statement sees the latest."""


@final
class MysqlConnection:
    """One connection, used by one caller at a time."""

    __slots__ = ("_place", "belongs_to", "connection")

    def __init__(self, connection: Any, place: str = "") -> None:  # noqa: ANN401 -- the driver has types in name only
        self.connection: Final = connection
        self._place: Final = place
        self.belongs_to: tuple[PrimaryTracker, int] | None = None

    async def run(self, statements: str, seconds: float, answers: list[Rows] | None = None) -> list[Rows]:
        """Run statements in one round trip; return what each of them returned.

        The first that fails ends it: its error is raised, and those after it are not run. By then ``answers`` has
        what was returned before.
        """
        answers = [] if answers is None else answers
        try:
            async with asyncio.timeout(seconds):
                cursor = self.connection.cursor()
                await cursor.execute(statements)
                answers.append(await _rows(cursor))
                while await cursor.nextset():
                    answers.append(await _rows(cursor))
        except DRIVER_ERRORS as error:
            note_place(error, self._place)
            raise
        return answers

    async def undo(self, seconds: float) -> None:
        """Roll back; if there is nothing left to talk to, the server has done so, or will."""
        try:
            await self.run("ROLLBACK", seconds)
        except DRIVER_ERRORS:
            self.drop()

    @property
    def is_alive(self) -> bool:
        """Whether the driver has not seen it end, and its server was not replaced by another one."""
        if self.belongs_to is not None and self.belongs_to[0].moves != self.belongs_to[1]:
            return False
        return bool(self.connection.connected)

    def drop(self) -> None:
        """Cut the connection; the server undoes what was not committed."""
        self.connection.close()

    async def discard(self) -> None:
        """Cut the connection."""
        self.drop()

    async def aclose(self) -> None:
        """Say goodbye and close."""
        with contextlib.suppress(*DRIVER_ERRORS):
            async with asyncio.timeout(CLOSED_WITHIN):
                await self.connection.ensure_closed()
        self.drop()


async def _rows(cursor: Any) -> Rows:  # noqa: ANN401 -- the driver has types in name only
    return tuple(await cursor.fetchall()) if cursor.description else ()


def session_of(options: MysqlOptions) -> str:
    """Return the statements that put every setting of a session in place."""
    wait = min(LONGEST_WAIT, max(1, round(options.timeout * 0.6)))  # the server gives up before the caller does
    return _SESSION.format(wait=wait)


_SHOWS_IT: Final = frozenset({"mysql_clear_password", "dialog", "mysql_old_password"})
"""Ways to log in that send the password as it is, or as good as that."""

_TAKES_ANY_KEY: Final = "sha256_password"
"""One that encrypts it with whatever key it is offered."""

_NO_KEY: Final = b"none: a key that comes over a network without TLS may be forged"


@final
class _PlainConnection(Connection):
    """A connection without TLS. The server says how to log in, and an attacker on the way may say it in its place.

    So the password is never sent as it is; nor, to another machine, encrypted with a key that came from there.
    """

    async def _get_server_information(self) -> None:
        await cast("Any", super())._get_server_information()  # noqa: SLF001 -- a step of the driver, overridden here
        self._check(cast("Any", self)._auth_plugin_name)  # noqa: SLF001 -- what that step found

    async def _process_auth(self, plugin_name: bytes, packet: object) -> object:
        self._check(plugin_name.decode("ascii", "replace"))
        return await cast("Any", super())._process_auth(plugin_name, packet)  # noqa: SLF001 -- a step of the driver

    def _check(self, way: str) -> None:
        if way in _SHOWS_IT or (way == _TAKES_ANY_KEY and not is_this_machine(cast("Any", self)._host)):  # noqa: SLF001 -- the driver's
            raise driver.OperationalError(WOULD_SHOW_PASSWORD, f"it asked for {way}")


async def connect(options: MysqlOptions) -> MysqlConnection:
    """Open a connection with every setting in place. Raises what the driver raises."""
    is_exposed = options.tls is None and not is_this_machine(options.host)
    async with asyncio.timeout(options.connect_timeout):
        kind = cast("Any", Connection if options.tls else _PlainConnection)  # the driver has types in name only
        connection = kind(
            host=options.host,
            port=options.port,
            user=options.user,
            password=options.password().encode(),  # the driver would take text for Latin-1
            database=options.database,
            ssl=options.tls,
            autocommit=True,
            client_flag=FOUND_ROWS,
            program_name="standfast",
            server_public_key=_NO_KEY if is_exposed else None,
        )
        try:
            await connection.connect()
        except (ValueError, RuntimeError) as error:
            if not is_exposed:
                raise
            said = "it asked for the password, encrypted with a key of its own"  # the driver could not use ours
            raise driver.OperationalError(WOULD_SHOW_PASSWORD, said) from error
        link = MysqlConnection(connection, options.place if options.others else "")
        try:
            await link.run(session_of(options), options.connect_timeout)
        except BaseException:
            link.drop()
            raise
    return link


IDENTITY: Final = "CONCAT_WS('/',@@hostname,@@port,@@server_id,@@datadir)"
"""What tells a server from all others, those that replicate it included."""


@final
class MysqlPool:
    """The connections of one handle. All of them lead to the server that its tracker takes for the primary.

    Args:
        options: Where it is.
        size: How many there may be at a time.
        tracker: Shared by the handles that came from one.
    """

    def __init__(self, options: MysqlOptions, size: int, tracker: PrimaryTracker) -> None:
        self._options, self.tracker = options, tracker
        self._pool: Final = ConnectionPool(options.name, size, self._dial)

    async def _dial(self) -> MysqlConnection:
        """Connect to the host that took writes the last time, else to the first that does."""
        problems: list[StoreError] = []
        known = self.tracker.epoch
        for options in self._options.each_host("" if known is None else known.place):
            try:
                return await self._dial_one(options)
            except (StoreUnavailableError, StoreReadOnlyError) as error:
                if not options.others:
                    raise
                problems.append(error)
        told = "; ".join(error.problem for error in problems)
        raise StoreUnavailableError(self._options.name, f"none of its hosts takes writes: {told}")

    async def _dial_one(self, options: MysqlOptions) -> MysqlConnection:
        try:
            link = await connect(options)
        except DRIVER_ERRORS as error:
            note_place(error, options.place if options.others else "")
            raise translated(error, self._options.name) from error
        try:
            await self._meet(link, options)
        except DRIVER_ERRORS as error:
            link.drop()
            raise translated(error, self._options.name) from error
        except BaseException:
            link.drop()
            raise
        return link

    async def _meet(self, link: MysqlConnection, options: MysqlOptions) -> None:
        """See that the server takes writes, and that it has what was acknowledged."""
        expected = self.tracker.expected()
        looks = [f"SELECT {IDENTITY},@@read_only"]
        if expected:
            handles = ",".join(f"x'{handle.encode().hex()}'" for handle in expected)
            found = f"SELECT handle,number FROM {options.names.attempts}"  # noqa: S608 -- a checked name
            looks.append(f"{found} WHERE handle IN ({handles})")
        [(server, is_read_only)], *rows = await link.run(";".join(looks), options.timeout)
        place, is_open = options.place, self.tracker.epoch is not None
        if is_read_only and (is_open or options.others):  # else all its settings are looked at next
            problem = f"{place} is read_only, perhaps a replica; perhaps another one is taking over: retry"
            raise StoreUnavailableError(options.name, problem)
        counted = {bytes(handle).decode(): int(number) for each in rows for handle, number in each}
        link.belongs_to = self.tracker, self.tracker.meet(ServerEpoch(str(server), place=place), expected, counted)

    def borrow(self) -> AbstractAsyncContextManager[MysqlConnection]:
        """Lend a connection; one that comes back with an exception is cut."""
        self.tracker.check()
        return self._pool.borrow()

    async def ask(self, statements: str, seconds: float | None = None) -> Sequence[Rows]:
        """Run statements that may be run twice, and once more if the connection was dead.

        Raises:
            StoreError: They failed.
        """
        seconds = self._options.timeout if seconds is None else seconds
        for is_last in (False, True):
            try:
                async with self.borrow() as connection:
                    return await connection.run(statements, seconds)
            except DRIVER_ERRORS as error:
                if is_last or code_of(error) not in LOST:
                    raise translated(error, self._options.name) from error
            await self._pool.drop_idle()  # the server went away, and all of them with it
        raise AssertionError  # the second try returns or raises

    async def aclose(self) -> None:
        """Close the connections that are not in use; the others are cut when they come back."""
        await self._pool.aclose()
        await asyncio.sleep(0)  # those that were cut close their sockets on the next turn of the loop


# --- settings of a server that break or weaken what a store promises -----------------------------------------------

SMALLEST_PACKET: Final = 4_000_000
"""The smallest ``max_allowed_packet`` into which every statement fits."""

_ASKED: Final = (
    "binlog_format",
    "group_replication_single_primary_mode",
    "innodb_flush_log_at_trx_commit",
    "innodb_read_only",
    "log_bin",
    "max_allowed_packet",
    "read_only",
    "sync_binlog",
    "version",
    "wsrep_on",
)
_OLDEST: Final = {"MariaDB": (10, 6), "MySQL": (8, 0)}


async def settings_of(link: MysqlConnection, options: MysqlOptions) -> Mapping[str, str]:
    """Ask for the settings that matter."""
    named = ",".join(f"'{name}'" for name in _ASKED)
    try:
        [rows] = await link.run(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({named})", options.timeout)
    except DRIVER_ERRORS as error:
        raise translated(error, options.name) from error
    return {str(name).lower(): str(value) for name, value in rows}


def check(settings: Mapping[str, str], name: str) -> None:
    """Refuse a server that cannot keep the promises.

    Raises:
        UnsuitableStoreError: It is too old, or is set up in a way in which commits are not what they seem.
        StoreReadOnlyError: It takes no writes.
    """
    if flaw := _flaw(settings):
        raise UnsuitableStoreError(name, flaw)
    if _is_on(settings, "read_only") or _is_on(settings, "innodb_read_only"):
        raise StoreReadOnlyError(name, "the server is a replica or was set read_only; connect to the primary")


def weakness_of(settings: Mapping[str, str]) -> str:
    """Return which settings let the server answer before a commit is on its disk; empty if none does."""
    names = ["innodb_flush_log_at_trx_commit"]
    if _is_on(settings, "log_bin"):
        names.append("sync_binlog")
    return " and ".join(f"{name}={settings[name]}" for name in names if settings.get(name, "1") != "1")


def packet_of(settings: Mapping[str, str]) -> int:
    """Return how many bytes the server takes at once."""
    return int(settings.get("max_allowed_packet", "0"))


def _flaw(settings: Mapping[str, str]) -> str:
    said = settings.get("version", "")
    brand = "MariaDB" if "mariadb" in said.lower() else "MySQL"
    numbers = said.split("-", maxsplit=1)[0].split(".")
    version = tuple(int(number) for number in numbers[:2] if number.isdigit())
    if version < _OLDEST[brand]:
        needed = ".".join(map(str, _OLDEST[brand]))
        return f"it is {brand} {said}; {needed} is the oldest that can be used"
    if packet_of(settings) < SMALLEST_PACKET:
        return f"max_allowed_packet is {packet_of(settings):,} bytes; at least {SMALLEST_PACKET:,} are needed"
    if _is_on(settings, "log_bin") and settings.get("binlog_format", "ROW").upper() == "STATEMENT":
        return "binlog_format=STATEMENT cannot record what is written here; set it to ROW"
    if _is_on(settings, "wsrep_on") or settings.get("group_replication_single_primary_mode", "ON").upper() == "OFF":
        return "it is a cluster with several primaries, where a lock on a row holds on one of them only"
    return ""


def _is_on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "OFF").upper() in {"ON", "1"}


PATIENT: Final = 60_000
"""A primary that waits for fewer milliseconds for a replica soon commits without one."""


async def failover_loss(link: MysqlConnection, seconds: float) -> str:
    """Return what a replica that takes over may lack, and the setting that prevents it; empty if nothing is known.

    Raises what the driver raises.
    """
    status = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Slaves_connected','Rpl_semi_sync_master_status')"
    waits = "SHOW GLOBAL VARIABLES LIKE 'rpl_semi_sync_master_timeout'"
    told = {
        str(name).lower(): str(value) for rows in await link.run(f"{status};{waits}", seconds) for name, value in rows
    }
    if told.get("slaves_connected", "0") == "0":
        return ""
    if told.get("rpl_semi_sync_master_status", "OFF").upper() != "ON":
        return (
            "its replicas get a commit after it was answered, so one that takes over may lack the last ones: set"
            " rpl_semi_sync_master_enabled=ON, and rpl_semi_sync_slave_enabled=ON on the replicas"
        )
    patience = int(told.get("rpl_semi_sync_master_timeout", "0"))
    if patience < PATIENT:
        return (
            f"it waits {patience:,} ms for a replica and then commits without one, which a failover may lose: set"
            " rpl_semi_sync_master_timeout to an hour or more (3600000)"
        )
    return ""

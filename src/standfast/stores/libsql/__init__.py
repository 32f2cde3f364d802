"""A store on a libSQL server (sqld, Turso): SQLite's semantics over the network."""

from __future__ import annotations

import re
import ssl
from base64 import b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import StoreBusyError, StoreReadOnlyError, UnsuitableStoreError
from standfast.events import StoreNotDurable
from standfast.stores.libsql.hrana import (
    HranaBatch,
    HranaFailure,
    LibsqlConnection,
    if_first_but_not,
    if_ok,
    is_busy,
    is_constraint,
    is_missing_table,
    translate,
)
from standfast.stores.libsql.server import LibsqlServer
from standfast.stores.remote.backend import open_remote

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.group_commit import GroupedStore
    from standfast.stores.url import Address


# --- what the URL of a libSQL server says --------------------------------------------------------------------------

SECURE_PORT: Final = 443
PLAIN_PORT: Final = 8080
_PREFIX: Final = re.compile(r"[a-z_][a-z0-9_]{0,30}")
_KNOWN: Final = ("tls", "tls_ca", "timeout", "connect_timeout", "pool", "prefix", "migrate", "durable", "authToken")


class LibsqlOptions(Struct, frozen=True):
    """Where the server is, and how to talk to it. No secret is in it, only the way to one."""

    name: str
    """The URL as it may be shown."""
    url: str
    authorization: Callable[[], str | None]
    """Returns the header that opens the door, as it is now."""
    tls: ssl.SSLContext | None
    timeout: float = 5.0
    connect_timeout: float = 5.0
    pool: int = 8
    prefix: str = "standfast_"
    migrate: bool = True
    durable: str = "check"


def read_options(address: Address) -> LibsqlOptions:
    """Read a URL: ``libsql://[:token@]host[:port][?tls=false&...]``.

    Raises:
        InvalidUrlError: Something in it cannot be used.
    """
    tls = address.tls(default=True)
    host, port = address.host(PLAIN_PORT if tls is None else SECURE_PORT)
    if address.path():
        raise address.refuse("a libSQL server has one database a host name; leave out what follows the host")
    token = address.take_text("authToken")
    options = LibsqlOptions(
        name=address.name,
        url=f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}",
        authorization=lambda: _authorization(address, (address.password or token).strip()),
        tls=tls,
        timeout=address.take_seconds("timeout", 5.0),
        connect_timeout=address.take_seconds("connect_timeout", 5.0),
        pool=address.take_count("pool", 8, most=100),
        prefix=address.take("prefix", _prefix, "standfast_", "lower-case letters, digits and _, at most 31"),
        migrate=address.take_flag("migrate", default=True),
        durable=address.take_choice("durable", ("check", "true", "false"), "check"),
    )
    address.finish(*_KNOWN)
    return options


def _prefix(given: str) -> str:
    if _PREFIX.fullmatch(given) is None:
        raise ValueError(given)
    return given


def _authorization(address: Address, secret: str) -> str | None:
    if not secret:
        return None
    if not (secret.isascii() and secret.isprintable()):
        raise address.refuse("the token has characters in it that no header may have; is it the whole file of a key?")
    return f"Basic {b64encode(f'{address.user}:{secret}'.encode()).decode()}" if address.user else f"Bearer {secret}"


# --- the tables of a store: made, moved on to newer forms, and checked when a store is opened ----------------------
#
# A migration and its number are written in one transaction that fails if another process was faster; so any number of
# processes may start at once, and each statement of a migration runs once.

# With row ids, so that the tree of keys holds keys alone: finding a small record beside large ones is quick.
_FIRST: Final = (
    """CREATE TABLE "{p}facts" (name TEXT NOT NULL PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID""",
    """INSERT INTO "{p}facts" VALUES ('schema', 0)""",
    """CREATE TABLE "{p}records" (
      key BLOB NOT NULL PRIMARY KEY, version INTEGER NOT NULL, expires_at INTEGER, value BLOB NOT NULL)""",
    """CREATE INDEX "{p}records_that_expire" ON "{p}records" (expires_at) WHERE expires_at IS NOT NULL""",
    """CREATE TABLE "{p}attempts" (
      handle TEXT NOT NULL PRIMARY KEY, number INTEGER NOT NULL, at INTEGER NOT NULL, first INTEGER, draws INTEGER)
      WITHOUT ROWID""",
    """CREATE TABLE "{p}clock" (
      one INTEGER PRIMARY KEY CHECK (one = 1), count INTEGER NOT NULL, at INTEGER NOT NULL)""",
    """INSERT INTO "{p}clock" VALUES (1, 0, 0)""",
)

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (_FIRST,)
"""Each leads from one number of the schema to the next. They are only ever added to."""

VERSION: Final = len(MIGRATIONS)
_RACES: Final = 50
_STRONG: Final = ([[2]], [[3]])


class LibsqlFacts(Struct, frozen=True):
    """What a server has told of itself."""

    schema: int
    durable: bool
    """Whether it waits for its disk before it answers."""


async def prepare(caller: LibsqlConnection, options: LibsqlOptions) -> LibsqlFacts:
    """Check the server and its tables, and make them if that is wanted.

    Raises:
        UnsuitableStoreError: The tables are newer than this program, or missing and not to be made; or the server is
            too old.
    """
    for _ in range(_RACES):
        facts = await _look(caller, options)
        found = facts.schema
        if found == VERSION:
            return facts
        if found > VERSION:
            problem = f"its tables have form {found}, and this program knows {VERSION}; update Standfast here"
            raise UnsuitableStoreError(options.name, problem)
        if not options.migrate:
            problem = f"its tables have form {found}, not {VERSION}; open it once with migrate=true and the right to"
            raise UnsuitableStoreError(options.name, f"{problem} create tables")
        await _migrate(caller, options, found)
    raise StoreBusyError(options.name, "its tables are being made by others, over and over; retry")


async def _look(caller: LibsqlConnection, options: LibsqlOptions) -> LibsqlFacts:
    batch = HranaBatch()
    time = batch.add("SELECT typeof(unixepoch('now', 'subsec'))")
    care = batch.add("PRAGMA synchronous")
    schema = batch.add(f"SELECT value FROM \"{options.prefix}facts\" WHERE name = 'schema'")  # noqa: S608 -- the prefix was checked when the URL was read
    results = await caller.read(batch)
    if isinstance(results, HranaFailure):
        raise translate(results, options.name)
    if results.rows(time) != [["real"]]:
        raise UnsuitableStoreError(options.name, "the server's SQLite is older than 3.42; update the server")
    failure = results.step_errors[schema]
    if failure is not None and not is_missing_table(failure):
        raise translate(failure, options.name)
    [[version]] = results.rows(schema) or [[0]]
    return LibsqlFacts(int(version or 0), durable=results.rows(care) in _STRONG)


async def _migrate(caller: LibsqlConnection, options: LibsqlOptions, found: int) -> None:
    """Move on by one number; somebody else may be faster."""
    batch = HranaBatch()
    begin = last = batch.add("BEGIN IMMEDIATE")
    for statement in MIGRATIONS[found]:
        last = batch.add(statement.format(p=options.prefix), condition=if_ok(last))
    moved = f"UPDATE \"{options.prefix}facts\" SET value = CASE value WHEN ?1 THEN ?1 + 1 END WHERE name = 'schema'"  # noqa: S608 -- the prefix was checked when the URL was read
    last = batch.add(moved, (found,), if_ok(last))
    commit = batch.add("COMMIT", condition=if_ok(last))
    batch.add("ROLLBACK", condition=if_first_but_not(begin, commit))
    results = await caller.read(batch)
    problem = results if isinstance(results, HranaFailure) else results.failure()
    if problem is None or is_busy(problem) or is_constraint(problem) or "already exists" in problem.message:
        return
    error = translate(problem, options.name)
    if isinstance(error, StoreReadOnlyError):
        problem_text = f"{error.problem}; to make the tables apart, open it once with a token that may write"
        raise StoreReadOnlyError(options.name, problem_text)
    raise error


# --- A store on a libSQL server (sqld, Turso): SQLite's semantics over the network ---------------------------------

NOT_DURABLE: Final = (
    'it does not wait for its disk, so a power cut may lose the last commits: set "durability_mode": "strong"'
)


async def open_address(address: Address, *, hooks: Hooks) -> GroupedStore:
    """Open a store on the server at ``address``, and make its tables if they are not there."""
    options = read_options(address)
    caller = LibsqlConnection(options)
    try:
        facts = await prepare(caller, options)
    except BaseException:
        await caller.aclose()
        raise
    if not facts.durable and options.durable == "check" and hooks:
        hooks.emit(StoreNotDurable(at=SYSTEM_CLOCK.wall(), store=options.name, problem=NOT_DURABLE))
    durable = facts.durable or options.durable == "true"
    return open_remote(LibsqlServer(caller, options, durable=durable), hooks)

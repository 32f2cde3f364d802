"""PostgreSQL: one store for a whole fleet. See :func:`open_address` for its URL."""

from __future__ import annotations

import re
import ssl
import urllib.parse
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct, structs

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import UnsuitableStoreError
from standfast.events import StoreNotDurable
from standfast.stores.postgresql.connection import DRIVER_ERRORS, PostgresStatements, dial, hang_up, translate
from standfast.stores.postgresql.server import PostgresServer, ensure_schema
from standfast.stores.postgresql.transactions import PostgresWork
from standfast.stores.protocol import Capabilities
from standfast.stores.remote.backend import open_remote

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.group_commit import GroupedStore
    from standfast.stores.postgresql.connection import PostgresSession
    from standfast.stores.url import Address

__all__ = [
    "CAPABILITIES",
    "NotDurableWarning",
    "PostgresOptions",
    "PostgresServer",
    "PostgresTarget",
    "PostgresWork",
    "open_address",
    "open_server",
    "store_at",
]


# --- what the settings of a server mean for what a store promises, and whether an address is fit to listen at ------

PROBLEM: Final = (
    "fsync or full_page_writes is off on the server; only with both a commit survives a crash of its machine"
)


class NotDurableWarning(UserWarning):
    """The server is set to answer before a commit is on its disk: a crash of its machine can undo what was answered.

    Set ``fsync = on`` and ``full_page_writes = on``, as they are by default.
    """


def tell_weakness(name: str, hooks: Hooks) -> None:
    """Warn of a server that keeps what was committed only while its machine runs."""
    if hooks:
        hooks.emit(StoreNotDurable(at=SYSTEM_CLOCK.wall(), store=name, problem=PROBLEM))
    warnings.warn(NotDurableWarning(f"{name}: {PROBLEM}"), stacklevel=2)


async def check_listening(options: PostgresOptions, name: str) -> None:
    """Refuse an address for ``listen=`` that is a pooler itself: hints would never come, and nobody would know."""
    if options.listening is None:
        return
    session = await dial(options.listening, structs.replace(options, pooler="auto"), name)
    await hang_up(session.connection)
    if not session.is_direct:
        raise UnsuitableStoreError(name, "listen= names a pooler; name the server itself")


# --- where a PostgreSQL server is, and how it is to be used: what a URL says ---------------------------------------

PORT: Final = 5432
KNOWN: Final = ("schema", "timeout", "connect_timeout", "pooler", "listen", "migrate", "lifeline", "tls", "tls_ca")

_IDENTIFIER: Final = re.compile(r"[a-z_][a-z0-9_]{0,30}", re.ASCII)


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


class PostgresOptions(Struct, frozen=True):
    """How to use the server.

    Attributes:
        target: Where it is; perhaps a pooler in front of it.
        listening: Where to listen for hints: without a pooler in between. None: as ``target``.
        schema: The schema that everything of this store lies in.
        timeout: The most seconds that a call may take.
        connect_timeout: The most seconds that connecting may take.
        pooler: ``transaction`` if sessions end with transactions; ``auto`` finds out.
        migrate: Whether to create or change the schema where that is needed; otherwise it is only looked at.
        lifeline: Whether others may see by a session of this process that it has died, where there is a direct one.
    """

    target: PostgresTarget
    listening: PostgresTarget | None = None
    schema: str = "standfast"
    timeout: float = 5.0
    connect_timeout: float = 5.0
    pooler: Literal["auto", "none", "transaction"] = "auto"
    migrate: bool = True
    lifeline: bool = True

    def __post_init__(self) -> None:
        """Refuse a name that would have to be escaped, or that PostgreSQL would cut off."""
        if not _IDENTIFIER.fullmatch(self.schema):
            raise ValueError("a schema is up to 31 of a-z, 0-9 and _, and begins with no digit")


def read_options(address: Address) -> PostgresOptions:
    """Read the URL of a server."""
    host, port = address.host(PORT)
    password = None if address.password is None else lambda: address.password or ""  # asked for each connection
    target = PostgresTarget(host, port, address.user, password, address.path() or None, address.tls(default=False))
    listen = address.take_text("listen")
    pooler = address.take_choice("pooler", ("auto", "none", "transaction"), "auto")
    options = PostgresOptions(
        target,
        _listening(address, target, listen) if listen else None,
        address.take("schema", _identifier, "standfast", "up to 31 of a-z, 0-9 and _, beginning with no digit"),
        _limit(address, "timeout"),
        _limit(address, "connect_timeout"),
        "transaction" if pooler == "transaction" else "none" if pooler == "none" else "auto",
        address.take_flag("migrate", default=True),
        address.take_flag("lifeline", default=True),
    )
    address.finish(*KNOWN)
    return options


def _limit(address: Address, name: str) -> float:
    given = address.take_seconds(name, 5.0)
    if given <= 0:
        raise address.refuse(f"{name} is longer than nothing")
    return given


def _identifier(given: str) -> str:
    if not _IDENTIFIER.fullmatch(given):
        raise ValueError(given)
    return given


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


# --- postgreSQL: one store for a whole fleet. See :func:`open_address` for its URL ---------------------------------

CAPABILITIES: Final = Capabilities(
    backend="postgresql", atomic=True, durable=True, reach="network", wakes="push", shortest_lease=0.5, commit_with=True
)
"""What it can do; behind a pooler, without a direct connection to listen on, it does not push, and sees no deaths."""


async def open_address(address: Address, *, hooks: Hooks) -> GroupedStore:
    """Open a store: ``postgresql://user:password@host:5432/database?schema=standfast``.

    Options of the URL: ``schema``, ``timeout`` and ``connect_timeout`` (5s), ``tls`` (false), ``migrate`` (true),
    ``pooler`` (``auto``, ``none`` or ``transaction``), ``listen``, the address of the server itself where the URL names
    a pooler, and ``lifeline`` (true): whether others see soon that this process has died.
    """
    options = read_options(address)
    await check_listening(options, address.name)
    server = await open_server(options, address.name)
    if not server.capabilities.durable:
        tell_weakness(address.name, hooks)
    return open_remote(server, hooks)


async def open_server(options: PostgresOptions, name: str) -> PostgresServer:
    """Connect, bring the schema up to date, and make a handle."""
    session = await dial(options.target, options, name)
    try:
        await ensure_schema(session.connection, options.schema, name, migrate=options.migrate, timeout=options.timeout)
        store = await store_at(session, options)
        server = PostgresServer(options, name, _capabilities(session, options), store)
    except DRIVER_ERRORS as problem:
        session.connection.terminate()
        raise translate(problem, name) from problem
    except BaseException:
        session.connection.terminate()
        raise
    server.adopt(session)
    return server


async def store_at(session: PostgresSession, options: PostgresOptions) -> str:
    """Let no version be given out again if this was restored from a backup; return what tells the store from others."""
    calls = PostgresStatements(options.schema)
    await session.connection.execute(calls.raise_versions, timeout=options.timeout)
    return str(await session.connection.fetchval(calls.store_here, timeout=options.timeout))


def _capabilities(session: PostgresSession, options: PostgresOptions) -> Capabilities:
    pushes = session.is_direct or options.listening is not None
    return structs.replace(
        CAPABILITIES,
        durable=session.syncs,
        wakes="push" if pushes else "poll",
        sees_process_death=pushes and options.lifeline,
    )

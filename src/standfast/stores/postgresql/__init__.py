"""PostgreSQL: one store for a whole fleet. See :func:`open_address` for its URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import structs

from standfast.errors import UnsuitableStoreError
from standfast.stores.postgresql.connection import (
    DRIVER_ERRORS,
    PostgresOptions,
    PostgresTarget,
    dial,
    dial_primary,
    failover_loss,
    hang_up,
    read_options,
    translate,
)
from standfast.stores.postgresql.server import PostgresServer
from standfast.stores.postgresql.statements import PostgresStatements, ensure_schema
from standfast.stores.postgresql.transactions import PostgresWork
from standfast.stores.protocol import Capabilities
from standfast.stores.remote.backend import open_remote
from standfast.stores.remote.connection import NotDurableWarning, tell_failover_loss, warn_not_durable
from standfast.stores.remote.failover import PrimaryTracker

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.address import Address
    from standfast.stores.group_commit import GroupedStore
    from standfast.stores.postgresql.connection import PostgresSession

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

NOT_DURABLE: Final = (
    "fsync or full_page_writes is off on the server; only with both a commit survives a crash of its machine"
)

CAPABILITIES: Final = Capabilities(
    backend="postgresql",
    atomic=True,
    durable=True,
    reach="network",
    wakes="push",
    shortest_lease=0.5,
    commit_with=True,
    alternatives=True,
)
"""What it can do; behind a pooler, without a direct connection to listen on, it does not push, and sees no deaths."""


async def open_address(address: Address, *, hooks: Hooks) -> GroupedStore:
    """Open a store: ``postgresql://user:password@host:5432/database?schema=standfast``.

    Several hosts have commas between them, ``postgresql://one,two:5433/database``: the one that takes writes is used.

    Options of the URL: ``schema``, ``timeout`` and ``connect_timeout`` (5s), ``tls`` (false), ``tls_ca``, ``migrate``
    (true), ``pooler`` (``auto``, ``none`` or ``transaction``), ``listen``, the address of the server itself where the
    URL names a pooler, ``liveness`` (true): whether others see soon that this process has died, and ``grace`` (1.2s):
    for how long it may be out of sight before.
    """
    options = read_options(address)
    await _check_listening(options, address.name)
    server = await open_server(options, address.name)
    if not server.capabilities.durable:
        warn_not_durable(address.name, NOT_DURABLE, hooks)
    tell_failover_loss(address.name, server.capabilities.failover_loss, hooks)
    return open_remote(server, hooks)


async def open_server(options: PostgresOptions, name: str) -> PostgresServer:
    """Connect, bring the schema up to date, and make a handle."""
    session = await dial_primary(options, name)
    try:
        await ensure_schema(session.connection, options.schema, name, migrate=options.migrate, timeout=options.timeout)
        store = await store_at(session, options)
        loss = await failover_loss(session.connection, options.timeout)
        server = PostgresServer(options, name, _capabilities(session, options, loss), store, PrimaryTracker(name))
        session = await server.meet(session)
    except DRIVER_ERRORS as error:
        session.connection.terminate()
        raise translate(error, name) from error
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


def _capabilities(session: PostgresSession, options: PostgresOptions, loss: str) -> Capabilities:
    pushes = session.is_direct or options.listening is not None
    return structs.replace(
        CAPABILITIES,
        durable=session.syncs,
        wakes="push" if pushes else "poll",
        sees_process_death=pushes and options.liveness,
        failover_loss=loss,
    )


async def _check_listening(options: PostgresOptions, name: str) -> None:
    """Refuse an address for ``listen=`` that is a pooler itself: no notification would ever arrive."""
    if options.listening is None:
        return
    session = await dial(options.listening, structs.replace(options, pooler="auto"), name)
    await hang_up(session.connection)
    if not session.is_direct:
        raise UnsuitableStoreError(name, "listen= names a pooler; name the server itself")

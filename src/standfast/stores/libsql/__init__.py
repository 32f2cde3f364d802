"""A store on a libSQL server (sqld, Turso): SQLite's semantics over the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.clock import SYSTEM_CLOCK
from standfast.events import StoreNotDurable
from standfast.stores.libsql.connection import LibsqlConnection, read_options
from standfast.stores.libsql.server import LibsqlServer, prepare
from standfast.stores.remote.backend import open_remote

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.address import Address
    from standfast.stores.group_commit import GroupedStore

__all__ = ["LibsqlServer", "open_address"]

NOT_DURABLE: Final = (
    'it does not wait for its disk, so a power cut may lose the last commits: set "durability_mode": "strong"'
)


async def open_address(address: Address, *, hooks: Hooks) -> GroupedStore:
    """Open a store on the server at ``address``, and make its tables if they are not there."""
    options = read_options(address)
    connection = LibsqlConnection(options)
    try:
        facts = await prepare(connection, options)
    except BaseException:
        await connection.aclose()
        raise
    if not facts.durable and options.durable == "check" and hooks:
        hooks.emit(StoreNotDurable(at=SYSTEM_CLOCK.wall(), store=options.name, problem=NOT_DURABLE))
    durable = facts.durable or options.durable == "true"
    return open_remote(LibsqlServer(connection, options, durable=durable), hooks)

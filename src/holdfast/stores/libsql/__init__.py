"""A store on a libSQL server (sqld, Turso): SQLite's semantics over the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.stores.libsql.calling import Caller
from holdfast.stores.libsql.options import read_options
from holdfast.stores.libsql.schema import prepare
from holdfast.stores.libsql.server import LibsqlServer
from holdfast.stores.remote import open_remote

if TYPE_CHECKING:
    from holdfast.events import Hooks
    from holdfast.stores.grouped import GroupedStore
    from holdfast.stores.remote.addresses import Address


async def open_address(address: Address, *, hooks: Hooks) -> GroupedStore:
    """Open a store on the server at ``address``, and make its tables if they are not there."""
    options = read_options(address)
    caller = Caller(options)
    try:
        await prepare(caller, options)
    except BaseException:
        await caller.aclose()
        raise
    return open_remote(LibsqlServer(caller, options), hooks)

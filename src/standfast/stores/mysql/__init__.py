"""The MySQL and MariaDB backend: ``mysql://user@host/database``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.stores.mysql.checking import NotDurableWarning
from standfast.stores.mysql.options import read_options
from standfast.stores.mysql.server import open_server
from standfast.stores.mysql.working import SqlWork
from standfast.stores.remote import open_remote

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.grouped import GroupedStore
    from standfast.stores.remote.addresses import Address

__all__ = ["NotDurableWarning", "SqlWork", "open_address"]


async def open_address(address: Address, *, hooks: Hooks) -> GroupedStore:
    """Open the store at ``address``, on the running loop; the tables are made if they are not there."""
    return open_remote(await open_server(read_options(address), hooks), hooks)

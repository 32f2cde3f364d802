"""The MySQL and MariaDB backend: ``mysql://user@host/database``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.stores.mysql.connection import read_options
from standfast.stores.mysql.server import MysqlWork, open_server
from standfast.stores.remote import open_remote
from standfast.stores.remote.connection import NotDurableWarning

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.address import Address
    from standfast.stores.group_commit import GroupedStore

__all__ = ["MysqlWork", "NotDurableWarning", "open_address"]


async def open_address(address: Address, *, hooks: Hooks) -> GroupedStore:
    """Open the store at ``address``, on the running loop; the tables are made if they are not there."""
    return open_remote(await open_server(read_options(address), hooks), hooks)

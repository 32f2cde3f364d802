"""MongoDB: a replica set as a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.stores.mongodb.options import read_options
from holdfast.stores.mongodb.server import MongoServer
from holdfast.stores.remote import open_remote

if TYPE_CHECKING:
    from holdfast.events import Hooks
    from holdfast.stores.grouped import GroupedStore
    from holdfast.stores.remote.addresses import Address

__all__ = ["MongoServer", "open_address"]


async def open_address(address: Address, *, hooks: Hooks) -> GroupedStore:
    """Open the store at ``address``, on the running loop."""
    return open_remote(await MongoServer.connect(address, read_options(address)), hooks)

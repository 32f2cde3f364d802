"""MongoDB: a replica set as a store; a commit is one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.stores.mongodb.connection import read_options
from standfast.stores.mongodb.server import MongoServer
from standfast.stores.remote.backend import open_remote

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.address import Address
    from standfast.stores.group_commit import GroupedStore

__all__ = ["MongoServer", "open_address"]


async def open_address(address: Address, *, hooks: Hooks) -> GroupedStore:
    """Open the store at ``address``, on the running loop."""
    return open_remote(await MongoServer.connect(address, read_options(address)), hooks)

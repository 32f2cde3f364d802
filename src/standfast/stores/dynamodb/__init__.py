"""The store on Amazon DynamoDB: ``dynamodb:///table?region=eu-central-1``.

A commit is one ``TransactWriteItems``. The service cannot be asked for the time inside of it, nor for a number that
grows, nor to push anything; :mod:`~standfast.stores.dynamodb.connection`, :mod:`~standfast.stores.dynamodb.items` and
:mod:`~standfast.stores.dynamodb.server` say what stands in for each, and what that costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.events import NO_HOOKS
from standfast.stores.dynamodb.connection import DynamoOptions, options_of
from standfast.stores.dynamodb.server import DynamoServer
from standfast.stores.remote.backend import open_remote

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.address import Address
    from standfast.stores.group_commit import GroupedStore

__all__ = ["DynamoOptions", "DynamoServer", "open_address", "open_dynamodb"]


async def open_address(address: Address, *, hooks: Hooks = NO_HOOKS) -> GroupedStore:
    """Open the store that a URL names."""
    return await open_dynamodb(options_of(address), hooks=hooks)


async def open_dynamodb(options: DynamoOptions, *, hooks: Hooks = NO_HOOKS) -> GroupedStore:
    """Open a table as a store, on the running event loop."""
    return open_remote(await DynamoServer.open(options), hooks)

"""The store on etcd: ``etcd://host,host,host/namespace``.

A commit is one ``Txn``: its comparisons are the guards, its failure branch brings the present records. The cluster's
revision is the version. :mod:`~standfast.stores.etcd.records` has the layout of the keys,
:mod:`~standfast.stores.etcd.gateway` the JSON gateway over which everything goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.events import NO_HOOKS
from standfast.stores.etcd.gateway import EtcdOptions, read_options
from standfast.stores.etcd.server import EtcdServer
from standfast.stores.remote.backend import open_remote

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.address import Address
    from standfast.stores.group_commit import GroupedStore

__all__ = ["EtcdOptions", "EtcdServer", "open_address", "open_etcd"]


async def open_address(address: Address, *, hooks: Hooks = NO_HOOKS) -> GroupedStore:
    """Open the store that a URL names."""
    return await open_etcd(read_options(address), hooks=hooks)


async def open_etcd(options: EtcdOptions, *, hooks: Hooks = NO_HOOKS) -> GroupedStore:
    """Open the keys below a prefix as a store, on the running event loop."""
    return open_remote(await EtcdServer.open(options, hooks), hooks)

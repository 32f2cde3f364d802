"""A store on Cloudflare: one Durable Object a namespace, behind a Worker that ships with this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.stores.cloudflare.connection import CloudflareOptions, read_options
from standfast.stores.cloudflare.server import CloudflareServer
from standfast.stores.remote.backend import open_remote

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.address import Address
    from standfast.stores.group_commit import GroupedStore

__all__ = ["CloudflareOptions", "CloudflareServer", "open_address"]


async def open_address(address: Address, *, hooks: Hooks) -> GroupedStore:
    """Open a store on the worker at ``address``, on the running loop."""
    return open_remote(await CloudflareServer.open(read_options(address)), hooks)

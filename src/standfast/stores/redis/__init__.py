"""Redis and Valkey: one script a commit, by the server's time; a server or a cluster."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from standfast.errors import StoreUnavailableError
from standfast.stores.redis.calling import Calls
from standfast.stores.redis.checking import Facts, NotDurableWarning, look, probe
from standfast.stores.redis.connecting import Dialer
from standfast.stores.redis.options import Options, read_options
from standfast.stores.redis.routing import OneServer
from standfast.stores.redis.seen import Seen
from standfast.stores.redis.server import RedisServer
from standfast.stores.remote import open_remote

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.grouped import GroupedStore
    from standfast.stores.remote.addresses import Address

__all__ = ["NotDurableWarning", "Options", "RedisServer", "open_address"]


async def open_address(address: Address, *, hooks: Hooks) -> GroupedStore:
    """Open the server that an address names, on the running loop."""
    options = read_options(address)
    return open_remote(await _connect(address, options, hooks), hooks)


async def _connect(address: Address, options: Options, hooks: Hooks) -> RedisServer:
    dialer, seen = Dialer(address, options), Seen(address.name)
    facts = await _facts(dialer, options, seen, hooks)
    if len(options.hosts) > 1 and not facts.is_cluster:
        raise address.refuse("several hosts are for the nodes of a cluster, and this server is not one; name one host")
    server = RedisServer(dialer, options, facts, seen)
    try:
        await probe(server.calls, options)
    except BaseException:
        await server.aclose()
        raise
    return server


async def _facts(dialer: Dialer, options: Options, seen: Seen, hooks: Hooks) -> Facts:
    """Ask the first host that answers."""
    *others, last = options.hosts
    for place in others:
        with contextlib.suppress(StoreUnavailableError):
            return await _ask(place, dialer, options, seen, hooks)
    return await _ask(last, dialer, options, seen, hooks)


async def _ask(place: tuple[str, int], dialer: Dialer, options: Options, seen: Seen, hooks: Hooks) -> Facts:
    routes = OneServer(dialer, place, 1)
    try:
        calls = Calls(routes, seen, dialer.name, options)
        return await look(calls, await routes.pool(0), dialer.name, options, hooks)
    finally:
        await routes.aclose()

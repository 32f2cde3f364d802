"""Redis and Valkey: a commit is one script, by the server's time; a server or a cluster."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from standfast.errors import StoreUnavailableError
from standfast.stores.redis.cluster import OneServer, RewindDetector, ScriptCaller
from standfast.stores.redis.connection import Dialer, RedisOptions, read_options
from standfast.stores.redis.server import RedisFacts, RedisServer, look, probe
from standfast.stores.remote.backend import open_remote
from standfast.stores.remote.connection import NotDurableWarning

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.address import Address
    from standfast.stores.group_commit import GroupedStore

__all__ = ["NotDurableWarning", "RedisOptions", "RedisServer", "open_address"]


async def open_address(address: Address, *, hooks: Hooks) -> GroupedStore:
    """Open the server that an address names, on the running loop."""
    options = read_options(address)
    dialer, detector = Dialer(address, options), RewindDetector(address.name)
    facts = await _facts(dialer, options, detector, hooks)
    if len(options.hosts) > 1 and not facts.is_cluster:
        raise address.refuse("several hosts are for the nodes of a cluster, and this server is not one; name one host")
    server = RedisServer(dialer, options, facts, detector)
    try:
        await probe(server.calls, options)
    except BaseException:
        await server.aclose()
        raise
    return open_remote(server, hooks)


async def _facts(dialer: Dialer, options: RedisOptions, detector: RewindDetector, hooks: Hooks) -> RedisFacts:
    """Ask the first host that answers."""

    async def ask(place: tuple[str, int]) -> RedisFacts:
        routes = OneServer(dialer, place, 1, asks_role=False)  # it is about to be looked at in full
        try:
            calls = ScriptCaller(routes, detector, dialer.name, options)
            return await look(calls, await routes.pool(0), dialer.name, options, hooks)
        finally:
            await routes.aclose()

    *others, last = options.hosts
    for place in others:
        with contextlib.suppress(StoreUnavailableError):
            return await ask(place)
    return await ask(last)

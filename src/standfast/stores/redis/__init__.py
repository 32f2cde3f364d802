"""Redis and Valkey: a commit is one script, by the server's time; a server, one that sentinels choose, or a cluster."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from standfast.errors import StoreUnavailableError
from standfast.stores.redis.cluster import OneServer, RewindDetector, ScriptCaller
from standfast.stores.redis.connection import Dialer, RedisOptions, read_options
from standfast.stores.redis.sentinel import SentinelFinder
from standfast.stores.redis.server import RedisFacts, RedisServer, look, probe
from standfast.stores.remote.backend import open_remote
from standfast.stores.remote.connection import NotDurableWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.events import Hooks
    from standfast.stores.address import Address
    from standfast.stores.group_commit import GroupedStore
    from standfast.stores.redis.cluster import Place

__all__ = ["NotDurableWarning", "RedisOptions", "RedisServer", "open_address"]


async def open_address(address: Address, *, hooks: Hooks) -> GroupedStore:
    """Open the server that an address names, on the running loop."""
    options = read_options(address)
    dialer, detector = Dialer(address, options), RewindDetector(address.name)
    finder = SentinelFinder(dialer, options) if options.sentinel else None
    places = options.hosts if finder is None else (await finder.find(),)
    facts = await _facts(places, dialer, options, detector, hooks)
    if finder is None and len(options.hosts) > 1 and not facts.is_cluster:
        raise address.refuse(
            "several hosts are the nodes of a cluster, or sentinels (redis+sentinel://), and this server is neither;"
            " name one host"
        )
    server = RedisServer(dialer, options, facts, detector, finder)
    try:
        await probe(server.calls, options)
    except BaseException:
        await server.aclose()
        raise
    return open_remote(server, hooks)


async def _facts(
    places: Sequence[Place], dialer: Dialer, options: RedisOptions, detector: RewindDetector, hooks: Hooks
) -> RedisFacts:
    """Ask the first host that answers."""

    async def ask(place: Place) -> RedisFacts:
        routes = OneServer(dialer, place, 1, asks_role=False)  # it is about to be looked at in full
        try:
            calls = ScriptCaller(routes, detector, dialer.name, options)
            return await look(calls, await routes.pool(0), dialer.name, options, hooks)
        finally:
            await routes.aclose()

    *others, last = places
    for place in others:
        with contextlib.suppress(StoreUnavailableError):
            return await ask(place)
    return await ask(last)

"""Which server has a slot: the one there is, or the node of a cluster."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from standfast.errors import StoreError, StoreUnavailableError
from standfast.stores.redis.connecting import Pool
from standfast.stores.redis.scripts import pack
from standfast.stores.redis.trouble import NotSentError, ReplyLostError, translate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.stores.redis.connecting import Dialer

    Place = tuple[str, int]


class Routes(Protocol):
    """Finds the server for a slot."""

    async def pool(self, slot: int) -> Pool:
        """Return the connections to the server that has ``slot``."""
        ...

    async def pools(self) -> Sequence[Pool]:
        """Return the connections to every server that has slots."""
        ...

    def node(self, place: Place) -> Pool:
        """Return the connections to one server."""
        ...

    async def look_again(self) -> None:
        """Find out anew, at the next call, who has what: something has moved."""
        ...

    async def place(self) -> Place:
        """Return a server where messages can be heard: perhaps another one each time, as one may be down."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


@final
class OneServer:
    """A server that has everything."""

    def __init__(self, dialer: Dialer, place: Place, size: int) -> None:
        self._place: Final = place
        self._pool: Final = Pool(dialer, *place, size)

    async def pool(self, slot: int) -> Pool:
        """Return the one pool."""
        del slot
        return self._pool

    async def pools(self) -> Sequence[Pool]:
        """Return the one pool."""
        return (self._pool,)

    def node(self, place: Place) -> Pool:
        """Return the one pool: behind a proxy, other addresses cannot be reached."""
        del place
        return self._pool

    async def look_again(self) -> None:
        """Open new connections: after a failover the name stands for another server."""
        await self._pool.drop_idle()

    async def place(self) -> Place:
        """Return the one server."""
        return self._place

    async def aclose(self) -> None:
        """Close the pool."""
        await self._pool.aclose()


@final
class Cluster:
    """The nodes of a cluster. Its map is fetched from any node that answers, and again when something has moved."""

    def __init__(self, dialer: Dialer, seeds: tuple[Place, ...], size: int) -> None:
        self._dialer, self._seeds, self._size = dialer, seeds, size
        self._pools: Final[dict[Place, Pool]] = {}
        self._ranges: list[tuple[int, int, Place]] = []
        self._turn = random.randrange(1_000)  # noqa: S311 -- spreads who listens where

    async def pool(self, slot: int) -> Pool:
        """Return the connections to the primary that has ``slot``."""
        if not self._ranges:
            await self._fetch()
        for first, last, place in self._ranges:
            if first <= slot <= last:
                return self.node(place)
        self._ranges = []
        raise StoreUnavailableError(self._dialer.name, f"slot {slot} of the cluster is served by nobody")

    async def pools(self) -> Sequence[Pool]:
        """Return the connections to all primaries, as the cluster is now."""
        self._ranges = []
        await self._fetch()
        return [self.node(place) for place in sorted({each[2] for each in self._ranges})]

    def node(self, place: Place) -> Pool:
        """Return the connections to one node."""
        if place not in self._pools:
            self._pools[place] = Pool(self._dialer, *place, self._size)
        return self._pools[place]

    async def look_again(self) -> None:
        """Forget the map."""
        self._ranges = []

    async def place(self) -> Place:
        """Return one node after the other: what is published at one is heard at all."""
        if not self._ranges:
            await self._fetch()
        places = sorted({each[2] for each in self._ranges})
        self._turn += 1
        return places[self._turn % len(places)]

    async def _fetch(self) -> None:
        problem: Exception = StoreUnavailableError(self._dialer.name, "no node of the cluster answers")
        for place in dict.fromkeys((*(each[2] for each in self._ranges), *self._pools, *self._seeds)):
            try:
                [answer] = await self.node(place).call(pack("CLUSTER", "SLOTS"))
            except (StoreError, NotSentError, ReplyLostError) as failed:
                problem = failed
                continue
            if isinstance(answer, BaseException):
                raise translate(self._dialer.name, answer)
            self._ranges = [_range(each, place) for each in answer]
            if self._ranges:
                return
        raise StoreUnavailableError(self._dialer.name, f"no node of the cluster answers: {problem}")

    async def aclose(self) -> None:
        """Close all pools."""
        for pool in self._pools.values():
            await pool.aclose()


def _range(entry: list[Any], asked: Place) -> tuple[int, int, Place]:
    """Read an entry of the map. A node that does not know its own address is where it was asked."""
    first, last, primary = entry[0], entry[1], entry[2]
    host = primary[0].decode() if primary[0] else ""
    return first, last, (asked[0] if host in {"", "?"} else host, primary[1])

"""Calling scripts: by hash, at the right server, and again only where that does no harm."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, final

from redis.exceptions import AskError, MovedError, NoScriptError

from standfast.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from standfast.stores.redis.connection import NotSentError, RedisPool, ReplyLostError, code_of, translate
from standfast.stores.redis.scripts import pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.stores.redis import RedisOptions
    from standfast.stores.redis.connection import Dialer, Reply
    from standfast.stores.redis.scripts import Argument, RedisKeys, Script
    from standfast.stores.redis.server import RewindDetector

    Place = tuple[str, int]


# --- calling scripts: by hash, at the right server, and again only where that does no harm -------------------------

REWOUND: Final = -1
REDIRECTS: Final = 8
"""How often a call may be sent: a slot moves, another server takes over."""

_PASSING: Final = frozenset({"TRYAGAIN", "CLUSTERDOWN", "READONLY"})
_PAUSE: Final = 0.03
_ASKING: Final = pack("ASKING")


@final
class ScriptCaller:
    """ScriptCaller scripts for one handle."""

    def __init__(self, routes: Routes, seen: RewindDetector, name: str, options: RedisOptions) -> None:
        self.routes, self.seen, self._name = routes, seen, name
        self._replicas: Final = options.replicas
        self.waiting: Final = pack("WAIT", options.replicas, max(1, int(options.timeout * 800)))

    async def run(
        self,
        script: Script,
        names: RedisKeys,
        keys: Sequence[bytes],
        arguments: Sequence[Argument],
        *,
        once: bool = False,
        replicated: bool = False,
    ) -> list[Any]:
        """Run a script and return its answer: status, time, last version and what is its own.

        With ``once`` a call whose reply is lost is not repeated, and raises ``OutcomeUnknownError``.
        """
        arguments = (self.seen.version(names), *arguments)
        waits = replicated and self._replicas > 0
        sending = _Sending(self, script, names, keys, arguments, waits=waits)
        try:
            answer = await sending.send()
        except ReplyLostError as lost:
            answer = await self._repeat(sending, lost, once=once)
        except NotSentError as problem:
            raise StoreUnavailableError(self._name, f"it did not answer: {problem}") from problem
        status, _, version, *_ = answer[0]
        if status == REWOUND:
            raise self.seen.rewound(names, version)
        self.seen.note(names, version)
        if waits and status == 0:
            self._check_replicas(answer[1], once=once)
        reply: list[Any] = answer[0]
        return reply

    async def _repeat(self, sending: _Sending, lost: Exception, *, once: bool) -> list[Any]:
        if once:
            raise OutcomeUnknownError(self._name, f"the answer to a write was lost: {lost}") from lost
        try:
            return await sending.send()
        except (ReplyLostError, NotSentError) as problem:
            raise StoreUnavailableError(self._name, f"it did not answer: {problem}") from problem

    def _check_replicas(self, acknowledged: Reply, *, once: bool) -> None:
        if isinstance(acknowledged, int) and acknowledged >= self._replicas:
            return
        problem = f"{acknowledged} of {self._replicas} replicas have acknowledged a write"
        raise OutcomeUnknownError(self._name, problem) if once else StoreUnavailableError(self._name, problem)

    async def ask(self, pool: RedisPool, *command: Argument) -> Reply:
        """Return the answer to a plain command that writes nothing; a refusal is returned as an exception."""
        try:
            [answer] = await pool.call(pack(*command))
        except (NotSentError, ReplyLostError) as problem:
            raise StoreUnavailableError(self._name, f"it did not answer: {problem}") from problem
        return answer

    def refused(self, problem: Exception) -> Exception:
        """Return the error for a refusal."""
        return translate(self._name, problem)


@final
class _Sending:
    """One call, on its way to whoever has the slot now."""

    def __init__(
        self,
        calls: ScriptCaller,
        script: Script,
        names: RedisKeys,
        keys: Sequence[bytes],
        arguments: Sequence[Argument],
        *,
        waits: bool,
    ) -> None:
        self._calls, self._names, self._waits = calls, names, waits
        self._script, self._keys, self._arguments = script, keys, arguments
        self._command = script.call(keys, arguments)

    async def send(self) -> list[Any]:
        """Send it, following where the servers point, and return the answers."""
        asked: RedisPool | None = None
        turns = 1
        while True:
            pool = asked or await self._calls.routes.pool(self._names.slot)
            answers = await self._exchange(pool, asking=asked is not None)
            refusal = answers[0]
            if not isinstance(refusal, Exception):
                return answers
            if isinstance(refusal, NoScriptError):  # a server that has just started, say: once, and whenever it is
                self._command = self._script.call_in_full(self._keys, self._arguments)
                continue
            if turns == REDIRECTS:
                raise self._calls.refused(refusal)
            turns += 1
            asked = await self._next(refusal)

    async def _exchange(self, pool: RedisPool, *, asking: bool) -> list[Any]:
        parts = [_ASKING] if asking else []
        parts.append(self._command)
        if self._waits:
            parts.append(self._calls.waiting)
        try:
            answers = await pool.call(b"".join(parts), len(parts))
        except (StoreUnavailableError, NotSentError, ReplyLostError):
            await self._calls.routes.look_again()  # another server may have taken over
            raise
        return answers[1:] if asking else answers

    async def _next(self, refusal: Exception) -> RedisPool | None:
        """Prepare the next turn after a refusal, which says that nothing was done; raises if there is none."""
        routes = self._calls.routes
        if isinstance(refusal, MovedError):  # a kind of AskError to the driver
            await routes.look_again()
        elif isinstance(refusal, AskError):
            return routes.node((str(cast("Any", refusal).host), refusal.port))
        elif code_of(refusal) in _PASSING:
            await routes.look_again()
            await asyncio.sleep(_PAUSE)
        else:
            raise self._calls.refused(refusal)
        return None


# --- which server has a slot: the one there is, or the node of a cluster -------------------------------------------


class Routes(Protocol):
    """Finds the server for a slot."""

    async def pool(self, slot: int) -> RedisPool:
        """Return the connections to the server that has ``slot``."""
        ...

    async def pools(self) -> Sequence[RedisPool]:
        """Return the connections to every server that has slots."""
        ...

    def node(self, place: Place) -> RedisPool:
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
        self._pool: Final = RedisPool(dialer, *place, size)

    async def pool(self, slot: int) -> RedisPool:
        """Return the one pool."""
        del slot
        return self._pool

    async def pools(self) -> Sequence[RedisPool]:
        """Return the one pool."""
        return (self._pool,)

    def node(self, place: Place) -> RedisPool:
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
        self._pools: Final[dict[Place, RedisPool]] = {}
        self._ranges: list[tuple[int, int, Place]] = []
        self._turn = random.randrange(1_000)  # noqa: S311 -- spreads who listens where

    async def pool(self, slot: int) -> RedisPool:
        """Return the connections to the primary that has ``slot``."""
        if not self._ranges:
            await self._fetch()
        for first, last, place in self._ranges:
            if first <= slot <= last:
                return self.node(place)
        self._ranges = []
        raise StoreUnavailableError(self._dialer.name, f"slot {slot} of the cluster is served by nobody")

    async def pools(self) -> Sequence[RedisPool]:
        """Return the connections to all primaries, as the cluster is now."""
        self._ranges = []
        await self._fetch()
        return [self.node(place) for place in sorted({each[2] for each in self._ranges})]

    def node(self, place: Place) -> RedisPool:
        """Return the connections to one node."""
        if place not in self._pools:
            self._pools[place] = RedisPool(self._dialer, *place, self._size)
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

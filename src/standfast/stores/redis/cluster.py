"""Calls of scripts: which server has a namespace, when a call may be repeated, what was seen, and what is published."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, final

from redis.exceptions import AskError, MovedError, NoScriptError

from standfast.clock import monotonic
from standfast.errors import OutcomeUnknownError, StoreError, StoreRewoundError, StoreUnavailableError
from standfast.stores.redis.connection import (
    LOSSES,
    REFUSALS,
    NotSentError,
    RedisConnection,
    RedisPool,
    ReplyLostError,
    code_of,
    translate,
)
from standfast.stores.redis.scripts import pack, unfold
from standfast.stores.remote.connection import ConnectBackoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from standfast.stores.redis.connection import Dialer, RedisOptions, Reply
    from standfast.stores.redis.scripts import Argument, RedisKeys, Script
    from standfast.stores.remote.server import Listener

    Place = tuple[str, int]


# --- what a process has seen of a server, so that it notices when acknowledged data is gone ------------------------
#
# A restart without the last writes, a replica that was promoted before it had them, a restored backup, a flush: the
# server says nothing. But the last version of a namespace is then lower than one that was seen, or the server has
# counted fewer attempts of a handle than it has acknowledged. Scripts compare both before they do anything.

REMEMBERED_FOR: Final = 86_400.0
"""Attempts are removed from a server after a week; what was acknowledged a day ago is not insisted on any more."""


@final
class RewindDetector:
    """Shared by all handles that came from one; it may be used from several threads."""

    __slots__ = ("_acknowledged", "_problem", "_store", "_versions")

    def __init__(self, store: str) -> None:
        self._store: Final = store
        self._versions: Final[dict[bytes, int]] = {}
        self._acknowledged: Final[dict[tuple[bytes, str], tuple[int, float]]] = {}
        self._problem = ""

    def version(self, names: RedisKeys) -> int:
        """Return the last version that was seen of a namespace; raises if something is known to be gone."""
        if self._problem:
            raise StoreRewoundError(self._store, self._problem)
        return self._versions.get(names.namespace, 0)

    @property
    def is_rewound(self) -> bool:
        """Whether something is known to be gone: :meth:`version` raises."""
        return bool(self._problem)

    def note(self, names: RedisKeys, version: int) -> None:
        """Take notice of the last version of a namespace."""
        if version > self._versions.get(names.namespace, 0):
            self._versions[names.namespace] = version

    def acknowledged(self, names: RedisKeys, handle: str) -> int:
        """Return the last attempt of a handle that the server must have counted; 0 if there is none."""
        number, at = self._acknowledged.get((names.attempts, handle), (0, 0.0))
        return number if number and monotonic() - at < REMEMBERED_FOR else 0

    def acknowledge(self, names: RedisKeys, handle: str, number: int) -> None:
        """Take notice of an attempt that the server has counted."""
        self._acknowledged[names.attempts, handle] = (number, monotonic())

    def forget(self, names: RedisKeys, handle: str) -> None:
        """Forget a handle that is being closed."""
        self._acknowledged.pop((names.attempts, handle), None)

    def rewound(self, names: RedisKeys, version: int) -> StoreRewoundError:
        """Return the error for data that is gone; from now on every call raises it."""
        seen = self._versions.get(names.namespace, 0)
        self._problem = (
            f"acknowledged data is missing in {names.head!r}: version {seen} was seen and the server is at {version}"
        )
        return StoreRewoundError(self._store, self._problem)


# --- calling scripts: by hash, at the right server, and again only where that does no harm -------------------------

REWOUND: Final = -1
REDIRECTS: Final = 8
"""How often a call may be sent: a slot moves, another server takes over."""

_PASSING: Final = frozenset({"TRYAGAIN", "CLUSTERDOWN", "READONLY"})
_PAUSE: Final = 0.03
_ASKING: Final = pack("ASKING")


@final
class ScriptCaller:
    """Calls scripts for one handle."""

    def __init__(self, routes: Routes, seen: RewindDetector, name: str, options: RedisOptions) -> None:
        self.routes, self.seen, self._name = routes, seen, name
        self._replicas: Final = options.replicas
        self._is_many: Final = bool(options.sentinel) or len(options.hosts) > 1
        self._losing: Final[set[asyncio.Task[None]]] = set()
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
        except NotSentError as error:
            raise StoreUnavailableError(self._name, f"it did not answer: {error}") from error
        reply = unfold(answer[0])
        status, _, version, *_ = reply
        if status == REWOUND:
            raise self.seen.rewound(names, version)
        if waits and status == 0:
            self._check_replicas(answer[1], sending.place, once=once)
            self.seen.note(names, version)
        elif not self._replicas:  # else it may be a write that no replica has yet, and that was not acknowledged
            self.seen.note(names, version)
        return reply

    def run_soon(
        self,
        script: Script,
        names: RedisKeys,
        keys: Sequence[bytes],
        arguments: Sequence[Argument],
        take: Callable[[list[Any] | Exception | None], None],
    ) -> asyncio.Future[None] | None:
        """Run a script once, as :meth:`run` does, without a task that waits for the answer; None: nothing was sent.

        ``take`` is called with the answer or with what :meth:`run` would have raised, by the first callback of what is
        returned, or a little later if the answer was lost. None: nothing was done, and :meth:`run` shows why.
        """
        pool = None if self._replicas or self.seen.is_rewound else self.routes.at_hand(names.slot)
        if pool is None:
            return None

        def answered(answers: list[Reply] | ReplyLostError) -> None:
            if isinstance(answers, ReplyLostError):
                task = asyncio.get_running_loop().create_task(self._lost(answers, take))
                self._losing.add(task)
                task.add_done_callback(self._losing.discard)
                return
            if isinstance(answers[0], Exception):  # a refusal: it is sent elsewhere, in full, or raised
                take(None)
                return
            reply = unfold(answers[0])
            if reply[0] == REWOUND:
                take(self.seen.rewound(names, reply[2]))
            else:
                self.seen.note(names, reply[2])
                take(reply)

        return pool.call_soon(script.call(keys, (self.seen.version(names), *arguments)), answered)

    async def _lost(self, lost: ReplyLostError, take: Callable[[list[Any] | Exception | None], None]) -> None:
        unknown = OutcomeUnknownError(self._name, f"the answer to a write was lost: {lost}")
        unknown.__cause__ = lost
        try:
            await self.routes.look_again()  # another server may have taken over
        finally:
            take(unknown)

    async def _repeat(self, sending: _Sending, lost: Exception, *, once: bool) -> list[Any]:
        if once:
            raise OutcomeUnknownError(self._name, f"the answer to a write was lost: {lost}") from lost
        try:
            return await sending.send()
        except (ReplyLostError, NotSentError) as error:
            raise StoreUnavailableError(self._name, f"it did not answer: {error}") from error

    def _check_replicas(self, acknowledged: Reply, place: str, *, once: bool) -> None:
        if isinstance(acknowledged, int) and acknowledged >= self._replicas:
            return
        problem = f"{acknowledged} of {self._replicas} replicas have acknowledged a write to {place} in time"
        raise OutcomeUnknownError(self._name, problem) if once else StoreUnavailableError(self._name, problem)

    async def ask(self, pool: RedisPool, *command: Argument) -> Reply:
        """Return the answer to a plain command that writes nothing; a refusal is returned as an exception."""
        try:
            [answer] = await pool.call(pack(*command))
        except (NotSentError, ReplyLostError) as error:
            raise StoreUnavailableError(self._name, f"it did not answer: {error}") from error
        return answer

    def refused(self, error: Exception, place: str = "") -> Exception:
        """Return the error for a refusal, with the node that refused where the name of the store has several."""
        return translate(self._name, error, place if self._is_many else "")


@final
class _Sending:
    """One call, on its way to the server that has the slot now."""

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
        self.place = ""

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
                raise self._calls.refused(refusal, self.place)
            turns += 1
            asked = await self._next(refusal)

    async def _exchange(self, pool: RedisPool, *, asking: bool) -> list[Any]:
        parts = [_ASKING] if asking else []
        parts.append(self._command)
        if self._waits:
            parts.append(self._calls.waiting)
        self.place = pool.place
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
            raise self._calls.refused(refusal, self.place)
        return None


# --- which server has a slot: the one there is, or the node of a cluster -------------------------------------------


class Routes(Protocol):
    """Finds the server for a slot."""

    async def pool(self, slot: int) -> RedisPool:
        """Return the connections to the server that has ``slot``."""
        ...

    def at_hand(self, slot: int) -> RedisPool | None:
        """Return what :meth:`pool` would, if that is known; None: it must be asked for."""
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
        """Return a server that publishes messages: perhaps another one each time, as one may be down."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


@final
class OneServer:
    """A server that has everything."""

    def __init__(self, dialer: Dialer, place: Place, size: int, *, asks_role: bool = True) -> None:
        self._place: Final = place
        self._pool: Final = RedisPool(dialer, *place, size, asks_role=asks_role)

    async def pool(self, slot: int) -> RedisPool:
        """Return the one pool."""
        del slot
        return self._pool

    def at_hand(self, slot: int) -> RedisPool | None:
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
        if (found := self.at_hand(slot)) is not None:
            return found
        self._ranges = []
        raise StoreUnavailableError(self._dialer.name, f"slot {slot} of the cluster is not served")

    def at_hand(self, slot: int) -> RedisPool | None:
        """Return the connections to the primary that has ``slot``, by the map that is known."""
        for first, last, place in self._ranges:
            if first <= slot <= last:
                return self.node(place)
        return None

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
        """Return one node after the other: what is published at one arrives at all."""
        if not self._ranges:
            await self._fetch()
        places = sorted({each[2] for each in self._ranges})
        self._turn += 1
        return places[self._turn % len(places)]

    async def _fetch(self) -> None:
        last_error: Exception = StoreUnavailableError(self._dialer.name, "no node of the cluster answers")
        for place in dict.fromkeys((*(each[2] for each in self._ranges), *self._pools, *self._seeds)):
            try:
                [answer] = await self.node(place).call(pack("CLUSTER", "SLOTS"))
            except (StoreError, NotSentError, ReplyLostError) as failed:
                last_error = failed
                continue
            if isinstance(answer, BaseException):
                raise translate(self._dialer.name, answer, f"{place[0]}:{place[1]}")
            self._ranges = [_range(each, place) for each in answer]
            if self._ranges:
                return
        raise StoreUnavailableError(self._dialer.name, f"no node of the cluster answers: {last_error}")

    async def aclose(self) -> None:
        """Close all pools."""
        for pool in self._pools.values():
            await pool.aclose()


def _range(entry: list[Any], asked: Place) -> tuple[int, int, Place]:
    """Read an entry of the map. A node that does not know its own address is where it was asked."""
    first, last, primary = entry[0], entry[1], entry[2]
    host = primary[0].decode() if primary[0] else ""
    return first, last, (asked[0] if host in {"", "?"} else host, primary[1])


# --- notifications: one connection for what is published, opened again when it breaks ------------------------------

PING_EVERY: Final = 10.0
_PARTS: Final = 3  # of what is published: the kind, the channel, the data


@final
class RedisSubscriber:
    """Hears what is published to some channels, for as long as the handle is open."""

    def __init__(self, dialer: Dialer, routes: Routes) -> None:
        self._dialer, self._routes = dialer, routes
        self._listener: Listener | None = None
        self._channels: Final[set[bytes]] = set()
        self._confirmed: Final[set[bytes]] = set()
        self._line: RedisConnection | None = None
        self._moved: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: Final = asyncio.get_running_loop()
        self._backoff: Final = ConnectBackoff()
        self._received_at = 0.0
        self._was_cut = False

    def listen(self, listener: Listener) -> None:
        """Hand everything to ``listener``. The connection is opened now: the first who waits shall not wait for it."""
        self._listener = listener
        self._task = self._loop.create_task(self._run())

    async def change(self, added: Iterable[bytes], removed: Iterable[bytes]) -> None:
        """Hear more channels and fewer; returns when the server has confirmed it."""
        added, removed = list(added), list(removed)
        self._channels.update(added)
        self._channels.difference_update(removed)
        if self._line is not None:
            self._send(self._line, added, removed)
        await self._until_confirmed()

    def _send(self, line: RedisConnection, added: list[bytes], removed: list[bytes]) -> None:
        parts = [pack(b"SUBSCRIBE", *added)] if added else []
        parts += [pack(b"UNSUBSCRIBE", *removed)] if removed else []
        if parts:
            with contextlib.suppress(*LOSSES):  # then it is opened again, with all channels
                line.send(b"".join(parts))

    async def _until_confirmed(self) -> None:
        try:
            async with asyncio.timeout(self._dialer.timeout):
                while not self._channels <= self._confirmed:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            raise StoreUnavailableError(self._dialer.name, "it does not confirm what is listened to") from None

    # --- the connection --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._backoff.wait()
            try:
                self._line = await self._dialer.dial(*await self._routes.place())
                self._send(self._line, list(self._channels), [])
                await self._receive(self._line)
            except (*REFUSALS, *LOSSES, StoreError, TimeoutError):
                self._backoff.failed()
                self._was_cut = True
                await self._routes.look_again()
            finally:
                line, self._line = self._line, None
                self._confirmed.clear()
                if line is not None:
                    await line.aclose()

    async def _receive(self, line: RedisConnection) -> None:
        """Hear messages until the connection breaks, or is silent although it was pinged."""
        self._received_at = self._loop.time()
        pinging = self._loop.create_task(self._ping(line))
        try:
            await line.listen(self._take)
        finally:
            pinging.cancel()

    async def _ping(self, line: RedisConnection) -> None:
        with contextlib.suppress(*LOSSES):
            while True:
                await asyncio.sleep(PING_EVERY)
                asked_at = self._loop.time()
                line.send(pack(b"PING"))
                await asyncio.sleep(self._dialer.timeout)
                if self._received_at < asked_at:
                    break
        await line.aclose()  # the reader notices

    def _take(self, message: Reply) -> None:
        """Take a message where it arrives: one that waits for it is resumed in the next turn of the loop."""
        self._received_at = self._loop.time()
        self._backoff.succeeded()
        kind = message[0] if len(message) == _PARTS else b""
        if kind == b"message" and self._listener is not None:
            self._listener.take(message[2])
        elif kind in {b"subscribe", b"unsubscribe"}:
            (self._confirmed.add if kind == b"subscribe" else self._confirmed.discard)(message[1])
            self._moved.set()
            self._tell_loss()

    def _tell_loss(self) -> None:
        """After a cut, once everything is listened to again: messages may have been missed meanwhile."""
        if self._was_cut and self._channels <= self._confirmed and self._listener is not None:
            self._was_cut = False
            self._listener.take_loss()

    async def aclose(self) -> None:
        """Hear nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

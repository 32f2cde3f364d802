"""One handle on a Redis or Valkey server, or on a cluster of them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, final

from standfast.clock import Instant
from standfast.errors import AttemptClosedError, StoreError
from standfast.stores.backend import Batching
from standfast.stores.moving.protocol import moved
from standfast.stores.protocol import ABSENT, Snapshot
from standfast.stores.redis.calling import Calls
from standfast.stores.redis.listening import Listening
from standfast.stores.redis.moving import RedisMoving
from standfast.stores.redis.names import Names
from standfast.stores.redis.records import digits, expiry, unpack
from standfast.stores.redis.routing import Cluster, OneServer
from standfast.stores.redis.scanning import scan
from standfast.stores.redis.scripts import CLOSE, FORGET, MARK, READ, RESERVE, SWEEP, WRITE
from standfast.stores.redis.topics import Topics
from standfast.stores.remote.lacking import SeesNoDeaths, SharesNoTransaction
from standfast.stores.remote.server import Landed, Refused, Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.protocol import Capabilities, Record
    from standfast.stores.redis.checking import Facts
    from standfast.stores.redis.connecting import Dialer
    from standfast.stores.redis.options import Options
    from standfast.stores.redis.scripts import Argument
    from standfast.stores.redis.seen import Seen
    from standfast.stores.remote.server import Audience, Intent, Listener, Message

BATCHING: Final = Batching(
    max_riders=500, max_weight=1_000, max_bytes=2_000_000, spans_namespaces=False, in_halves=True
)
"""A script keeps everybody else waiting: these take about ten milliseconds."""

KEPT_ATTEMPTS: Final = 7 * 86_400 * 1_000_000
"""For how many microseconds the last attempt of a handle that is gone can still be asked about."""

_LEAVES_WITHIN: Final = 1.0
_WRITTEN, _LOST, _CLOSED, _STALE, _FROZEN, _UNMARKED = range(6)
_FLOOR: Final = 12
"""Where the floor stands among the arguments."""


@final
class RedisServer(SeesNoDeaths, SharesNoTransaction):
    """One handle, used from one event loop."""

    def __init__(self, dialer: Dialer, options: Options, facts: Facts, seen: Seen) -> None:
        self._dialer, self._options, self._facts, self._seen = dialer, options, facts, seen
        self._capabilities: Final = facts.capabilities()
        self._one_slot: Final = facts.is_cluster or options.cluster
        routes = (
            Cluster(dialer, options.hosts, options.pool)
            if facts.is_cluster
            else OneServer(dialer, options.hosts[0], options.pool)
        )
        self.calls: Final = Calls(routes, seen, dialer.name, options)
        self._listening: Final = Listening(dialer, routes)
        self._topics: Final = Topics(self.calls, self._listening, self.names)
        self._known: Final[dict[bytes, Names]] = {}
        self._cursors: Final[dict[bytes, bytes]] = {}
        self._met: Final[set[bytes]] = set()

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return self._capabilities

    @property
    def batching(self) -> Batching:
        """How much fits into one script."""
        return BATCHING

    @property
    def name(self) -> str:
        """The URL without secrets."""
        return self._dialer.name

    def names(self, namespace: bytes) -> Names:
        """Return the keys of a namespace."""
        names = self._known.get(namespace)
        if names is None:
            names = Names(namespace, self._options.prefix, self._options.database, one_slot=self._one_slot)
            self._known[namespace] = names
        return names

    # --- writing -----------------------------------------------------------------------------------------------

    async def write(self, intent: Intent) -> Written | Refused:
        """Do all of ``intent`` or nothing, in one script."""
        names = self.names(intent.namespace)
        keys = (names.head, names.records, names.order, names.expiries, names.attempts)
        arguments = self._arguments(intent, names)
        if self._options.replicas and intent.namespace not in self._met:
            arguments[_FLOOR] = await self._meet(names)
        answer = await self.calls.run(WRITE, names, keys, arguments, once=True, replicated=True)
        if answer[0] == _UNMARKED:
            arguments[_FLOOR] = await self._floor()
            answer = await self.calls.run(WRITE, names, keys, arguments, once=True, replicated=True)
        status, at = answer[0], Instant(answer[1])
        if status == _FROZEN:
            raise await self.moving().refusal(self.name)
        if status == _CLOSED:
            raise AttemptClosedError(self.name, f"attempt {intent.number} of {intent.handle} was counted before")
        if status != _WRITTEN:
            return Refused(at, _current(intent, answer[3], at) if status == _LOST else {}, stale=status == _STALE)
        self._seen.acknowledge(names, intent.handle, intent.number)
        versions = intent.exact or tuple(range(answer[3], answer[3] + intent.draws))
        return Written(at, versions, self._topics.meet(intent.namespace, answer[4]))

    def _arguments(self, intent: Intent, names: Names) -> list[Argument]:
        guards, exact = intent.guards, intent.exact
        position = {key: index for index, key in enumerate(guards)}
        creates = bool(exact) and any(guards[row.key] == ABSENT for row in intent.puts)
        arguments: list[Argument] = [
            intent.handle,
            intent.number,
            self._seen.acknowledged(names, intent.handle),
            intent.draws,
            exact[0] if exact else 0,
            exact[-1] if creates else 0,
            intent.after or 0,
            -1 if intent.before is None else intent.before,
            len(guards),
            len(intent.puts),
            len(intent.deletes),
            len(intent.messages),
            -1,
            *guards,
            *map(digits, guards.values()),
        ]
        for row in intent.puts:
            arguments += (position[row.key], row.draw, expiry(row.expires_at), row.value)
        arguments += [position[key] for key in intent.deletes]
        for message in intent.messages:
            arguments += (self._topics.channel(message.topic), message.data)
        return arguments

    async def _meet(self, names: Names) -> int:
        """Make sure that a namespace is there, apart from the write: that one's answer waits for replicas."""
        await self.calls.run(MARK, names, (names.head,), ("", 0))
        floor = await self._floor()
        self._met.add(names.namespace)
        return floor

    async def _floor(self) -> int:
        """Return the version that a namespace begins above, if the store is not frozen."""
        notice = await self.moving().notice()
        if notice.reason:
            raise moved(self.name, notice.reason)
        return notice.floor

    def moving(self) -> RedisMoving:
        """Return what moves everything under the prefix."""
        return RedisMoving(self.calls, self._options.prefix, self.names, self.scan)

    async def reserve(self, count: int, namespace: bytes) -> tuple[int, ...]:
        """Take versions of a namespace."""
        names = self.names(namespace)
        answer = await self.calls.run(RESERVE, names, (names.head,), (count,))
        return tuple(range(answer[3], answer[3] + count))

    async def close_attempt(self, handle: str, number: int, namespace: bytes) -> Landed | None:
        """Make sure that an attempt can never be written any more; if it was, say with which versions."""
        if not namespace and self._one_slot:
            raise StoreError(self.name, f"attempt {number} of {handle} was made elsewhere; settle it there")
        names = self.names(namespace)
        arguments = (handle, number, int(self._options.replicas > 0))
        answer = await self.calls.run(CLOSE, names, (names.head, names.attempts), arguments, replicated=True)
        if answer[0] != _WRITTEN:
            raise StoreError(self.name, f"a later attempt than {number} of {handle} was counted")
        self._seen.acknowledge(names, handle, number)
        at, first, count = answer[3:6]
        return Landed(Instant(at), tuple(range(first, first + count))) if first else None

    async def forget(self, handle: str) -> None:
        """Remove what was counted for a handle."""
        for names in self._distinct():
            self._seen.forget(names, handle)
            pool = await self.calls.routes.pool(names.slot)
            await self.calls.ask(pool, "HDEL", names.attempts, handle)

    def _distinct(self) -> list[Names]:
        """Return one of the known namespaces for each place where attempts are counted."""
        return list({names.attempts: names for names in self._known.values()}.values())

    # --- reading -----------------------------------------------------------------------------------------------

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records in one script."""
        names = self.names(keys[0].namespace)
        answer = await self.calls.run(READ, names, (names.head, names.records), keys)
        at = Instant(answer[1])
        raws = zip(keys, answer[3], strict=True)
        return Snapshot(at, {key: record for key, raw in raws if (record := unpack(key, raw, at)) is not None})

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of live records in the order of the bytes of their keys."""
        return await scan(self.calls, self.names(start.namespace), start, end, limit=limit, reverse=reverse)

    # --- upkeep ------------------------------------------------------------------------------------------------

    async def sweep(self, limit: int) -> int:
        """Delete expired records of the namespaces that this handle uses, and attempts of handles long gone."""
        removed: int = 0
        for names in tuple(self._known.values()):
            keys = (names.head, names.records, names.order, names.expiries)
            removed += (await self.calls.run(SWEEP, names, keys, (limit - removed,)))[3]
            if removed >= limit:
                return removed
        for names in self._distinct():
            arguments = (self._cursors.get(names.attempts, b"0"), KEPT_ATTEMPTS)
            answer = await self.calls.run(FORGET, names, (names.head, names.attempts), arguments)
            self._cursors[names.attempts] = answer[3]
        return removed

    async def mark(self) -> int:
        """Return the sum of the last versions of the namespaces that are listened to."""
        total = 0
        for namespace in self._topics.namespaces():
            names = self.names(namespace)
            head = await self.calls.ask(await self.calls.routes.pool(names.slot), "GET", names.head)
            if isinstance(head, Exception):
                raise self.calls.refused(head)
            total += int(head[:16]) if head else 0
        return total

    # --- hints -------------------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Hand what is published to ``listener``."""
        self._listening.listen(listener)

    async def subscribe(self, added: Iterable[bytes], removed: Iterable[bytes], all_topics: frozenset[bytes]) -> None:
        """Listen to more topics and to fewer, and let committers know."""
        await self._topics.subscribe(tuple(added), tuple(removed), all_topics)

    async def audience(self) -> Audience:
        """Return the topics that anyone listens to."""
        return await self._topics.audience()

    async def send(self, messages: Sequence[Message]) -> None:
        """Publish hints outside of a script."""
        await self._topics.send(messages)

    # --- life --------------------------------------------------------------------------------------------------

    async def another(self) -> RedisServer:
        """Open another handle on the same server, on the running loop."""
        server = RedisServer(self._dialer, self._options, self._facts, self._seen)
        try:
            await server.calls.ask(await server.calls.routes.pool(0), "PING")
        except BaseException:
            await server.aclose()
            raise
        return server

    async def aclose(self) -> None:
        """Close every connection."""
        try:
            async with asyncio.timeout(_LEAVES_WITHIN):
                with contextlib.suppress(StoreError):
                    await self._topics.leave()
        except TimeoutError:  # a server that is not there keeps nobody from leaving
            pass
        finally:
            await self._listening.aclose()
            await self.calls.routes.aclose()


def _current(intent: Intent, lost: list[Any], at: Instant) -> dict[RecordKey, Record | None]:
    keys = tuple(intent.guards)
    found: dict[RecordKey, Record | None] = {}
    for index, raw in zip(lost[::2], lost[1::2], strict=True):
        key = keys[int(index)]
        found[key] = unpack(key, raw, at)
    return found

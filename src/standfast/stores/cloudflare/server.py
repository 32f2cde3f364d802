"""One handle on a store of Durable Objects: an intent is one message to the object of its namespace."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct, structs

from standfast.clock import Instant, monotonic
from standfast.errors import AttemptClosedError, StoreError
from standfast.keys import RecordKey
from standfast.stores.backend import OPEN, Batching, moved_error, pages
from standfast.stores.cloudflare.connection import STORE, ObjectSockets
from standfast.stores.cloudflare.liveness import liveness_server
from standfast.stores.protocol import ABSENT, Capabilities, Record, Snapshot, StoreMeasure
from standfast.stores.remote.connection import FIRST_PAUSE, LONGEST_PAUSE
from standfast.stores.remote.failover import REMEMBERED_FOR
from standfast.stores.remote.liveness import join_liveness
from standfast.stores.remote.server import Audience, Landed, ServerDefaults, WriteRefused, Written

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from standfast.stores.backend import Scan
    from standfast.stores.cloudflare.connection import CloudflareOptions, Part, Reply
    from standfast.stores.remote.server import Intent, Listener, Message

# --- the server ----------------------------------------------------------------------------------------------------

CAPABILITIES: Final = Capabilities(
    backend="cloudflare",
    atomic=True,
    durable=True,
    reach="network",
    wakes="push",
    max_commit_bytes=16_000_000,
    clock_resolution=0.001,
    shortest_lease=0.5,
)

BATCHING: Final = Batching(
    max_riders=500, max_weight=1_000, max_bytes=2_000_000, spans_namespaces=False, in_halves=True, max_reads=100
)
"""An object has 128 MB of memory and takes messages of 32 MiB."""

PAGE_BYTES: Final = 4_000_000
"""A page of a scan with about this many bytes ends there, and tells where to go on."""


class StoreFacts(Struct, frozen=True):
    """What the object that knows the whole store says of it."""

    store_id: str
    reason: int = OPEN
    floor: int = 0


@final
class CloudflareServer(ServerDefaults):
    """One handle, used from one event loop."""

    def __init__(self, options: CloudflareOptions) -> None:
        self._options: Final = options
        self.name = options.name
        self.capabilities: Final = structs.replace(CAPABILITIES, sees_process_death=options.liveness)
        self.batching: Final = BATCHING
        self._topics: Final = ObjectTopics()
        self._sockets: Final = ObjectSockets(options, self._topics.take, self._topics.lose)
        self._topics.sockets = self._sockets
        self._attempts: Final[dict[tuple[bytes, str], tuple[int, float]]] = {}

    @classmethod
    async def open(cls, options: CloudflareOptions) -> CloudflareServer:
        """Open a handle, and make sure that a worker is there that knows the secret."""
        server = cls(options)
        try:
            facts = await server.transfer().facts()
        except BaseException:
            await server.aclose()
            raise
        if options.liveness:
            server._liveness = join_liveness(liveness_server(options, facts.store_id))
        return server

    # --- writing ---------------------------------------------------------------------------------------------

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Do all of ``intent`` or nothing, in one message."""
        namespace = intent.namespace
        fields, parts = _message(intent)
        known, acknowledged = self._topics.known(namespace), self._acknowledged(namespace, intent.handle)
        reply = await self._sockets.write(namespace, "write", *fields, known, acknowledged, parts=parts)
        if reply.status == "written":
            self._attempts[namespace, intent.handle] = (intent.number, monotonic())
            at, first, generation = reply.fields
            versions = intent.exact or tuple(range(first, first + intent.draws))
            return Written(Instant(at), versions, self._topics.meet(namespace, generation))
        if reply.status == "refused":
            at, places = reply.fields
            keys: Sequence[RecordKey] = tuple(intent.guards)
            lost: dict[RecordKey, Record | None] = {}
            for index, *place in places:
                key = keys[int(index)]
                lost[key] = _there(key, place, reply) if place else None
            return WriteRefused(Instant(at), lost)
        if reply.status == "stale":
            return WriteRefused(Instant(reply.fields[0]), {}, stale=True)
        if reply.status == "closed":
            raise AttemptClosedError(self.name, f"attempt {intent.number} of {intent.handle} was counted before")
        if reply.status == "frozen":
            raise moved_error(self.name, int(reply.fields[0]))
        return await self._look_for_refusal(intent)  # the records are too much for one answer

    def _acknowledged(self, namespace: bytes, handle: str) -> int:
        """Return the last attempt of a handle that the object must have counted; 0 if there is none."""
        number, at = self._attempts.get((namespace, handle), (0, 0.0))
        return number if monotonic() - at < REMEMBERED_FOR else 0

    async def _look_for_refusal(self, intent: Intent) -> WriteRefused:
        keys, most, at = list(intent.guards), self.batching.max_reads, Instant(0)
        lost: dict[RecordKey, Record | None] = {}
        for first in range(0, len(keys), most):
            some = keys[first : first + most]
            seen = await self.read(some)
            at = max(at, seen.at)
            lost |= {key: seen.get(key) for key in some if seen.version(key) != intent.guards[key]}
        return WriteRefused(at, lost, stale=bool(intent.exact))

    async def reserve(self, count: int, namespace: bytes) -> tuple[int, ...]:
        """Take versions of a namespace."""
        first: int = (await self._sockets.read(namespace, "reserve", count)).fields[0]
        return tuple(range(first, first + count))

    async def close_attempt(self, handle: str, number: int, namespace: bytes) -> Landed | None:
        """Make sure that an attempt can never be written any more; if it was, say with which versions."""
        if not namespace:
            raise StoreError(self.name, f"attempt {number} of {handle} was made elsewhere; settle it there")
        acknowledged = self._acknowledged(namespace, handle)
        reply = await self._sockets.read(namespace, "close", handle, number, acknowledged)
        counted, at, first, draws = reply.fields
        if counted != number:
            raise StoreError(self.name, f"a later attempt than {number} of {handle} was counted")
        self._attempts[namespace, handle] = (number, monotonic())
        return None if first is None else Landed(Instant(at), tuple(range(first, first + draws)))

    async def forget(self, handle: str) -> None:
        """Remove what was counted for a handle."""
        for known in [known for known in self._attempts if known[1] == handle]:
            del self._attempts[known]
        for namespace in self._sockets.namespaces():
            await self._sockets.read(namespace, "forget", handle)

    async def sweep(self, limit: int) -> int:
        """Do nothing: each object has an alarm that does it."""
        del limit
        return 0

    async def measure(self) -> StoreMeasure:
        """Return the bytes of the namespaces that this handle uses. Records are not counted: each read is billed."""
        replies = [await self._sockets.read(namespace, "size") for namespace in self._sockets.namespaces()]
        return StoreMeasure(sum(int(reply.fields[0]) for reply in replies))

    def transfer(self) -> CloudflareTransfer:
        """Return what moves the whole store."""
        return CloudflareTransfer(self._sockets, self.scan)

    # --- reading ---------------------------------------------------------------------------------------------

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records in one message."""
        reply = await self._sockets.read(keys[0].namespace, "read", [len(key) for key in keys], parts=keys)
        at, places = reply.fields
        records = [_there(keys[int(index)], place, reply) for index, *place in places]
        return Snapshot(Instant(at), {record.key: record for record in records})

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of live records in the order of the bytes of their keys."""
        fields = (len(start), len(end), limit, PAGE_BYTES, reverse)
        reply = await self._sockets.read(start.namespace, "scan", *fields, parts=(start, end))
        at, places, is_more = reply.fields
        records = [_there(RecordKey.from_encoded(reply.take(length)), place, reply) for length, *place in places]
        more = None
        if is_more:
            last = records[-1].key
            more = last if reverse else last.successor()
        return Snapshot(Instant(at), {record.key: record for record in records}, more)

    async def mark(self) -> int:
        """Return how often what is pushed may have been lost: on a WebSocket that is alive, it arrives.

        The pings are answered for the objects, which hibernate meanwhile.
        """
        for namespace in self._topics.namespaces():
            await (await self._sockets.socket(namespace)).ping()
        return self._topics.losses

    # --- notifications ---------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Hand what is pushed to ``listener``."""
        self._topics.listener = listener

    async def subscribe(self, added: Iterable[bytes], removed: Iterable[bytes], all_topics: frozenset[bytes]) -> None:
        """Listen to more topics and to fewer, and let committers know."""
        del added, removed
        await self._topics.subscribe(all_topics)

    async def audience(self) -> Audience:
        """Return the topics that any handle listens to."""
        return await self._topics.audience()

    async def send(self, messages: Sequence[Message]) -> None:
        """Send messages outside of a write."""
        await self._topics.send(messages)

    # --- life ------------------------------------------------------------------------------------------------

    async def another(self) -> CloudflareServer:
        """Open another handle on the same store, on the running loop."""
        return await CloudflareServer.open(self._options)

    async def aclose(self) -> None:
        """Close every connection."""
        try:
            await self._topics.aclose()
            await self._sockets.aclose()
        finally:
            if self._liveness is not None:
                await self._liveness.leave()


def _message(intent: Intent) -> tuple[tuple[Any, ...], list[Part]]:
    """Return the fields and the bytes of a write."""
    guards, exact = intent.guards, intent.exact
    position = {key: index for index, key in enumerate(guards)}
    creates = any(guards[row.key] == ABSENT for row in intent.puts)
    fields = (
        intent.handle,
        intent.number,
        intent.draws,
        (exact[0], exact[-1] if creates else None) if exact else None,
        intent.after,
        intent.before,
        [(len(key), version) for key, version in guards.items()],
        [(position[row.key], row.draw, row.expires_at, len(row.value)) for row in intent.puts],
        [position[key] for key in intent.deletes],
        [(len(message.topic), len(message.data)) for message in intent.messages],
    )
    parts: list[Part] = [*guards, *[row.value for row in intent.puts]]
    for message in intent.messages:
        parts += (message.topic, message.data)
    return fields, parts


def _there(key: RecordKey, place: Sequence[Any], reply: Reply) -> Record:
    version, expires_at, length = place
    return Record(key, reply.take(length), version, None if expires_at is None else Instant(expires_at))


# --- topics: each object knows what its sockets listen to, and has a generation of its own --------------------------
#
# A handle counts the generations that it meets as one: it grows whenever that of any namespace has changed.


@final
class ObjectTopics:
    """What one handle listens to, and what it knows of others.

    Attributes:
        sockets: The connections; set once.
        listener: Takes what is pushed.
        losses: How many WebSockets were lost that something was listened to on.
    """

    sockets: ObjectSockets

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self.losses = 0
        self._mine: dict[bytes, frozenset[bytes]] = {}
        self._generations: Final[dict[bytes, int]] = {}
        self._fetched: Final[dict[bytes, tuple[int, frozenset[bytes]]]] = {}
        self._known: dict[bytes, int] = {}
        self._epoch = 1
        self._resuming: Final[dict[bytes, asyncio.Task[None]]] = {}

    # --- listening -------------------------------------------------------------------------------------------

    def take(self, data: bytes | None) -> None:
        """Take a message that an object pushed; None: what it was about is not known."""
        if self.listener is None:
            return
        if data is None:
            self.listener.take_loss()
        else:
            self.listener.take(data)

    def lose(self, namespace: bytes) -> None:
        """Listen again to what a lost connection listened to: what was pushed meanwhile is lost."""
        if self._mine.get(namespace):
            self.losses += 1
        if self._mine.get(namespace) and namespace not in self._resuming:
            self._resuming[namespace] = asyncio.get_running_loop().create_task(self._resume(namespace))

    async def _resume(self, namespace: bytes) -> None:
        pause = FIRST_PAUSE
        try:
            while self._mine.get(namespace):
                with contextlib.suppress(StoreError):
                    await self._tell(namespace, self._mine[namespace])
                    break
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
        finally:
            del self._resuming[namespace]
        if self.listener is not None:
            self.listener.take_loss()

    async def subscribe(self, all_topics: frozenset[bytes]) -> None:
        """Let the objects know what is listened to, where that has changed or the connection has."""
        by_namespace: dict[bytes, set[bytes]] = {}
        for topic in all_topics:
            by_namespace.setdefault(RecordKey.from_encoded(topic).namespace, set()).add(topic)
        mine = {namespace: frozenset(topics) for namespace, topics in by_namespace.items()}
        gone, self._mine = self._mine.keys() - mine.keys(), mine
        for namespace in gone:
            await self._tell(namespace, frozenset())
        for namespace, topics in mine.items():
            await self._tell(namespace, topics)

    async def _tell(self, namespace: bytes, topics: frozenset[bytes]) -> None:
        socket = await self.sockets.socket(namespace)
        if socket.topics != topics:
            wanted = sorted(topics)
            await socket.ask("subscribe", [len(topic) for topic in wanted], parts=wanted)
            socket.topics = topics

    # --- sending ---------------------------------------------------------------------------------------------

    def meet(self, namespace: bytes, generation: int) -> int:
        """Take the generation that a write has met; return what it comes to for this handle."""
        if generation != self._generations.get(namespace, 0):
            self._generations[namespace] = generation
            self._epoch += 1
        return self._epoch

    def known(self, namespace: bytes) -> int:
        """Return the generation of the topics that this handle sends messages by."""
        return self._known.get(namespace, 0)

    async def audience(self) -> Audience:
        """Return the topics of all namespaces that this handle has written to."""
        epoch = self._epoch
        for namespace, generation in tuple(self._generations.items()):
            if self._fetched.get(namespace, (0, None))[0] != generation:
                reply = await self.sockets.read(namespace, "audience")
                current, lengths = reply.fields
                self._fetched[namespace] = (current, frozenset([reply.take(length) for length in lengths]))
        self._known = {namespace: generation for namespace, (generation, _) in self._fetched.items()}
        return Audience(epoch, frozenset[bytes]().union(*(topics for _, topics in self._fetched.values())))

    async def send(self, messages: Sequence[Message]) -> None:
        """Send messages to the objects of their namespaces."""
        by_namespace: dict[bytes, list[Message]] = {}
        for message in messages:
            by_namespace.setdefault(RecordKey.from_encoded(message.topic).namespace, []).append(message)
        for namespace, some in by_namespace.items():
            lengths = [(len(message.topic), len(message.data)) for message in some]
            parts = [part for message in some for part in (message.topic, message.data)]
            await self.sockets.read(namespace, "send", lengths, parts=parts)

    def namespaces(self) -> Iterable[bytes]:
        """Return the namespaces that this handle listens to something in."""
        return tuple(self._mine)

    async def aclose(self) -> None:
        """Listen to nothing any more."""
        self._mine = {}
        tasks = set(self._resuming.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


# --- transfer: all objects of a store ------------------------------------------------------------------------------
#
# An object that is written to for the first time makes itself known to the object of the whole store, which says in the
# same step if the store is frozen. Freezing tells that object first, and then every other one that it knows: one that
# comes later finds the store frozen, and one that came before is told.

_LISTED: Final = 1_000


@final
class CloudflareTransfer:
    """Everything under one prefix."""

    def __init__(self, sockets: ObjectSockets, scan: Scan) -> None:
        self._sockets, self._scan = sockets, scan

    async def facts(self) -> StoreFacts:
        """Ask the object that knows the whole store."""
        return StoreFacts(*(await self._sockets.read(STORE, "about")).fields)

    async def _namespaces(self) -> AsyncIterator[bytes]:
        last = ""
        while names := (await self._sockets.read(STORE, "namespaces", last, _LISTED)).fields[0]:
            last = names[-1]
            for name in names:
                yield bytes.fromhex(name)

    async def _freeze(self, reason: int | None, least: int = 0) -> int:
        """Say it to every namespace; return the highest version that any of them has given out."""
        highest = 0
        async for namespace in self._namespaces():
            highest = max(highest, (await self._sockets.read(namespace, "freeze", reason, least)).fields[0])
        return highest

    async def frozen(self) -> int:
        """Return why it is frozen."""
        return (await self.facts()).reason

    async def freeze(self, reason: int) -> None:
        """Refuse writes, in every namespace."""
        facts = await self.facts()
        reason = facts.reason or int(reason)
        await self._sockets.read(STORE, "tell", reason, facts.floor)
        await self._freeze(reason)

    async def thaw(self) -> None:
        """Take writes again."""
        await self._sockets.read(STORE, "tell", OPEN, (await self.facts()).floor)
        await self._freeze(OPEN)

    async def last(self) -> int:
        """Return the highest of the last versions of all namespaces."""
        return max((await self.facts()).floor, await self._freeze(None))

    async def lift(self, version: int) -> None:
        """Go on above a version, also in namespaces to come."""
        facts = await self.facts()
        await self._sockets.read(STORE, "tell", facts.reason, max(facts.floor, version))
        await self._freeze(None, version)

    async def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all records, one namespace after the other."""
        async for namespace in self._namespaces():
            async for page in pages(self._scan, *RecordKey.from_encoded(namespace).within()):
                yield page

    async def put(self, records: Sequence[Record]) -> None:
        """Write records as they are, and make their namespaces known."""
        by_namespace: dict[bytes, list[Record]] = {}
        for record in records:
            by_namespace.setdefault(record.key.namespace, []).append(record)
        for namespace, some in by_namespace.items():
            places = [(len(each.key), each.version, each.expires_at, len(each.value)) for each in some]
            parts = [part for each in some for part in (each.key, each.value)]
            await self._sockets.read(namespace, "load", places, parts=parts)

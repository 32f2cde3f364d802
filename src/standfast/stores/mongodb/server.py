"""One handle on a MongoDB replica set: its collections, the change stream that notifies it, attempts and upkeep."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any, Final, final

from bson import ObjectId

from standfast.clock import SYSTEM_CLOCK, Instant
from standfast.errors import StoreError, StoreUnavailableError, UnsuitableStoreError
from standfast.ids import new_id
from standfast.stores.backend import Batching
from standfast.stores.mongodb.connection import (
    DRIVER_ERRORS,
    DUPLICATE_KEY,
    DURABLE,
    HERE,
    NAMESPACE_EXISTS,
    MongoConnection,
    code_of,
    is_duplicate,
)
from standfast.stores.mongodb.records import (
    AFTER_ATTEMPTS,
    ATTEMPT,
    NOW,
    STORE,
    MongoReader,
    MongoTransfer,
    MongoVersions,
    MongoWriter,
    attempt_id,
    inserting,
    salt,
)
from standfast.stores.protocol import Capabilities, Snapshot, StoreMeasure
from standfast.stores.remote.connection import ConnectBackoff
from standfast.stores.remote.server import Audience, Landed, ServerDefaults

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pymongo.asynchronous.change_stream import AsyncChangeStream

    from standfast.keys import RecordKey
    from standfast.stores.address import Address
    from standfast.stores.mongodb.connection import MongoOptions
    from standfast.stores.remote.server import Intent, Listener, Message, WriteRefused, Written

    Document = dict[str, Any]
    Stream = AsyncChangeStream[dict[str, Any]]


# --- the server ----------------------------------------------------------------------------------------------------

CAPABILITIES: Final = Capabilities(
    backend="mongodb",
    atomic=True,
    durable=True,
    reach="network",
    wakes="push",
    clock_resolution=1e-3,
    shortest_lease=0.5,
)
BATCHING: Final = Batching(max_riders=500, max_weight=1_000, max_bytes=4_000_000)
"""MongoDB advises against transactions of more than a thousand documents."""

SECOND: Final = 1_000_000
LISTENERS_LIVE: Final = 60 * SECOND
MESSAGES_LIVE: Final = 60 * SECOND
ATTEMPTS_LIVE: Final = 7 * 24 * 3600 * SECOND
"""For how long it is known what became of an attempt whose handle was never closed."""


@final
class MongoServer(ServerDefaults):
    """Implements :class:`~standfast.stores.remote.server.DatabaseServer`."""

    def __init__(self, connection: MongoConnection) -> None:
        self.name = connection.name
        self.capabilities: Final = CAPABILITIES
        self.batching: Final = BATCHING
        self._connection: Final = connection
        self._reading: Final = MongoReader(connection)
        self._versions: Final = MongoVersions(connection)
        self._writing: Final = MongoWriter(connection, self._reading, self._versions)
        self._listening: Final = MongoSubscriber(connection)
        self._handle: Final = new_id()
        self._told_at: int | None = None

    @classmethod
    async def connect(cls, address: Address, options: MongoOptions) -> MongoServer:
        """Connect, and see that everything is in place."""
        connection = MongoConnection(address, options)
        try:
            await prepare(connection)
        except BaseException:
            await connection.aclose()
            raise
        return cls(connection)

    # --- writing ---------------------------------------------------------------------------------------------

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Do all of ``intent`` or nothing, durably."""
        return await self._writing.write(intent)

    async def reserve(self, count: int, namespace: bytes) -> tuple[int, ...]:
        """Take versions for an intent to come."""
        del namespace  # all of them share the counter
        try:
            async with asyncio.timeout(self._connection.options.timeout):
                return await self._versions.reserve(count)
        except DRIVER_ERRORS as error:
            raise self._connection.failure(error) from error

    async def close_attempt(self, handle: str, number: int, namespace: bytes) -> Landed | None:
        """Claim the attempt; waits for a transaction of it, which has written the same document."""
        del namespace
        await self._writing.end_doubtful()
        try:
            found = await self._claim(handle, number)
        except StoreError as error:
            if not is_duplicate(error.__cause__ or error, attempt_id(handle)):
                raise
            found = await self._claim(handle, number)  # it was made at the same moment
        if found["number"] > number:
            raise StoreError(self.name, f"attempt {handle}.{number} is not the last of its handle")
        if "first" not in found:
            return None
        first = int(found["first"])
        return Landed(Instant(int(found["at"])), tuple(range(first, first + found["count"])))

    async def _claim(self, handle: str, number: int) -> Document:
        """Write to the attempt's document in any case, so that what is answered is known to most of the set."""
        is_new = {"$lt": [{"$ifNull": ["$number", 0]}, number]}
        claimed: Document = {name: {"$cond": [is_new, "$$REMOVE", f"${name}"]} for name in ("first", "count")}
        claimed |= {
            "at": {"$cond": [is_new, NOW, "$at"]},
            "number": {"$max": ["$number", number]},
            "claims": {"$add": [{"$ifNull": ["$claims", 0]}, 1]},
            "salt": salt(handle),
        }
        reply = await self._connection.change(
            {
                "findAndModify": self._connection.records,
                "query": {"_id": attempt_id(handle)},
                "update": [{"$set": claimed}],
                "upsert": True,
                "new": True,
            }
        )
        found: Document = reply["value"]
        return found

    async def forget(self, handle: str) -> None:
        """Remove what was counted for a handle."""
        self._writing.announcing.forget(handle)
        await self._delete(self._connection.records, {"_id": attempt_id(handle)})

    def transfer(self) -> MongoTransfer:
        """Return what moves everything in the collection."""
        return MongoTransfer(self._connection, self.scan)

    # --- reading ---------------------------------------------------------------------------------------------

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read live records in one snapshot."""
        return await self._reading.read(keys)

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of live records."""
        return await self._reading.scan(start, end, limit=limit, reverse=reverse)

    async def mark(self) -> int:
        """Return the sum of all attempts, each handle's weighed in its own way: every commit changes it."""
        pipeline = [
            {"$match": {"_id": {"$gte": ATTEMPT, "$lt": AFTER_ATTEMPTS}}},
            {"$group": {"_id": None, "sum": {"$sum": {"$multiply": ["$number", "$salt"]}}}},
        ]
        reply = await self._connection.ask({"aggregate": self._connection.records, "pipeline": pipeline, "cursor": {}})
        found = reply["cursor"]["firstBatch"]
        return int(found[0]["sum"]) if found else 0

    # --- upkeep ----------------------------------------------------------------------------------------------

    async def sweep(self, limit: int) -> int:
        """Delete what has expired, and what the dead have left behind."""
        now, _ = await self._store()
        expired = {"expires_at": {"$lte": now}}
        command = {
            "find": self._connection.records,
            "filter": expired,
            "projection": {"_id": 1},
            "limit": limit,
            "batchSize": limit,
        }
        found = [row["_id"] for row in (await self._connection.ask(command))["cursor"]["firstBatch"]]
        swept = await self._delete(self._connection.records, {"_id": {"$in": found}, **expired}) if found else 0
        await self._delete(
            self._connection.messages,
            {"_id": {"$lt": ObjectId.from_datetime(dt.datetime.fromtimestamp((now - MESSAGES_LIVE) / SECOND, dt.UTC))}},
        )
        await self._delete(self._connection.listeners, expired)
        attempts = {"_id": {"$gte": ATTEMPT, "$lt": AFTER_ATTEMPTS}, "at": {"$lte": now - ATTEMPTS_LIVE}}
        await self._delete(self._connection.records, attempts)
        return swept

    async def measure(self) -> StoreMeasure:
        """Return the bytes of the collection and its indexes, and how many documents it has."""
        told = await self._connection.ask({"collStats": self._connection.records})
        return StoreMeasure(int(told["storageSize"]) + int(told["totalIndexSize"]), int(told["count"]))

    async def _delete(self, collection: str, wanted: Document) -> int:
        statement = {"q": wanted, "limit": 0}
        return int(
            (await self._connection.ask({"delete": collection, "deletes": [statement], "writeConcern": HERE}))["n"]
        )

    async def _store(self) -> tuple[int, int]:
        """Return the server's time, and the generation of the topics."""
        command = {
            "find": self._connection.records,
            "filter": {"_id": STORE},
            "projection": {"generation": 1, "now": NOW},
        }
        found = (await self._connection.ask(command))["cursor"]["firstBatch"]
        if not found:
            raise UnsuitableStoreError(self.name, "its collections are missing; open it again with migrate=true")
        return int(found[0]["now"]), int(found[0]["generation"])

    # --- notifications ---------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Hand what is pushed to ``listener``."""
        self._listening.listener = listener

    async def subscribe(self, added: Iterable[bytes], removed: Iterable[bytes], all_topics: frozenset[bytes]) -> None:
        """Listen to ``all_topics``, and let committers know."""
        self._listening.topics = all_topics
        await self._listening.start()
        now, told_at = SYSTEM_CLOCK.elapsed(), self._told_at
        kept = {"topics": sorted(all_topics), "expires_at": {"$add": [NOW, LISTENERS_LIVE]}}
        statement = {"q": {"_id": self._handle}, "u": [{"$set": kept}], "upsert": True}
        await self._connection.ask(
            {"update": self._connection.listeners, "updates": [statement], "writeConcern": DURABLE}
        )
        # After a long pause others may have taken this handle for dead, and left its topics out.
        if [*added, *removed] or told_at is None or now - told_at > LISTENERS_LIVE // 2:
            bump = {"q": {"_id": STORE}, "u": {"$inc": {"generation": 1}}}
            await self._connection.ask({"update": self._connection.records, "updates": [bump], "writeConcern": DURABLE})
        self._told_at = now

    async def audience(self) -> Audience:
        """Return all topics: the list may be newer than its generation, never older."""
        now, generation = await self._store()
        command = {"find": self._connection.listeners, "filter": {"expires_at": {"$gt": now}}, "batchSize": 10_000}
        found = (await self._connection.ask(command))["cursor"]["firstBatch"]
        return Audience(generation, frozenset([topic for row in found for topic in row["topics"]]))

    async def send(self, messages: Sequence[Message]) -> None:
        """Send messages outside of a transaction."""
        if messages:
            # Streams tell only what most of the set has on disk, and that comes at once only where it is asked for.
            await self._connection.ask({**inserting(self._connection, messages), "writeConcern": DURABLE})

    # --- life ------------------------------------------------------------------------------------------------

    async def another(self) -> MongoServer:
        """Open another handle, on the running loop."""
        return await MongoServer.connect(self._connection.address, self._connection.options)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._listening.aclose()
        await self._connection.aclose()


# --- the collections: made at the first opening, and checked at every one ------------------------------------------

SCHEMA: Final = 1
"""The number of the layout. It only grows; a store with a larger one is refused."""

OLDEST_WIRE_VERSION: Final = 13
"""MongoDB 5.0: the first one that reads several documents in one snapshot outside of transactions."""


async def prepare(connection: MongoConnection) -> None:
    """See that the server is suitable and the collections are there; make them if that is wanted."""
    try:
        async with asyncio.timeout(connection.options.connect_timeout + connection.options.timeout):
            await connection.find_primary()
            _check_server(connection.name, await connection.command({"hello": 1}))
            if connection.options.migrate and await _layout(connection) < SCHEMA:
                await _create(connection)
            await _check(connection)
    except DRIVER_ERRORS as error:
        raise connection.failure(error) from error


def _check_server(name: str, hello: Document) -> None:
    problem = ""
    if hello.get("msg") == "isdbgrid":
        problem = "this is a router of a sharded cluster, which goes by its own time; name a replica set"
    elif "setName" not in hello:
        problem = (
            "this server is no member of a replica set, and so has no transactions; "
            "start it with --replSet and initiate it (one member is enough)"
        )
    elif hello.get("maxWireVersion", 0) < OLDEST_WIRE_VERSION:
        problem = "MongoDB 5.0 or newer is needed"
    if problem:
        raise UnsuitableStoreError(name, problem)


async def _layout(connection: MongoConnection) -> int:
    reply = await connection.command({"find": connection.records, "filter": {"_id": STORE}, "singleBatch": True})
    found = reply["cursor"]["firstBatch"]
    return int(found[0]["schema"]) if found else 0


async def _create(connection: MongoConnection) -> None:
    """Create what is missing, also if others do it at the same time."""
    for name in (connection.records, connection.messages, connection.listeners):
        await _ignoring(NAMESPACE_EXISTS, connection, {"create": name})
    index: Document = {"key": {"expires_at": 1}, "name": "expires_at", "sparse": True}
    await connection.command({"createIndexes": connection.records, "indexes": [index], "writeConcern": DURABLE})
    first = {"schema": SCHEMA, "last": 0, "drawn_by": "", "generation": 1}
    statement = {"q": {"_id": STORE}, "u": {"$setOnInsert": first}, "upsert": True}
    await _ignoring(
        DUPLICATE_KEY, connection, {"update": connection.records, "updates": [statement], "writeConcern": DURABLE}
    )


async def _ignoring(code: int, connection: MongoConnection, command: Document) -> None:
    try:
        await connection.command(command)
    except DRIVER_ERRORS as error:
        if code_of(error) != code:
            raise


async def _check(connection: MongoConnection) -> None:
    layout = await _layout(connection)
    if layout > SCHEMA:
        raise UnsuitableStoreError(
            connection.name,
            f"its layout has number {layout}, this version of Standfast knows {SCHEMA}; upgrade Standfast",
        )
    if layout < SCHEMA:
        raise UnsuitableStoreError(
            connection.name, "its collections are not there yet; open it once with migrate=true, by a user who may"
        )
    reply = await connection.command({"listIndexes": connection.records})
    if any("collation" in index for index in reply["cursor"]["firstBatch"]):
        raise UnsuitableStoreError(
            connection.name,
            f"the collection {connection.records} sorts by a language; drop it and let Standfast make it",
        )


# --- notifications: a change stream on the messages that transactions leave behind ---------------------------------

QUIET: Final = 10.0
"""How many seconds the server waits for a message before it says that there is none."""

_INSERTED: Final[list[dict[str, Any]]] = [
    {"$match": {"operationType": "insert"}},
    {"$project": {"fullDocument.topic": 1, "fullDocument.data": 1}},
]


@final
class MongoSubscriber:
    """The change stream of one handle. It is opened when there is something to listen to."""

    def __init__(self, connection: MongoConnection) -> None:
        self._connection: Final = connection
        self._messages: Final = connection.collection(connection.messages)
        self._backoff: Final = ConnectBackoff()
        self._is_open: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.listener: Listener | None = None
        self.topics: frozenset[bytes] = frozenset()

    async def start(self) -> None:
        """Return when messages arrive; raises ``StoreUnavailableError`` if that takes too long."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_listening())
        try:
            async with asyncio.timeout(self._connection.options.timeout):
                await self._is_open.wait()
        except TimeoutError as error:
            raise StoreUnavailableError(self._connection.name, "its change stream could not be opened") from error

    async def _keep_listening(self) -> None:
        was_open = False
        while True:
            await self._backoff.wait()
            try:
                async with asyncio.timeout(self._connection.options.timeout):
                    stream = await self._messages.watch(_INSERTED, max_await_time_ms=int(QUIET * 1000))
                async with stream:
                    self._is_open.set()
                    self._backoff.succeeded()
                    if was_open and self.listener is not None:
                        self.listener.take_loss()  # it begins with what comes now: what was sent meanwhile is lost
                    was_open = True
                    await self._listen(stream)
            except DRIVER_ERRORS:  # writes and reads meet it too, and report it
                self._is_open.clear()
                self._backoff.failed()

    async def _listen(self, stream: Stream) -> None:
        """Hand over what arrives. A connection that says nothing for too long is broken, whatever it looks like."""
        patience = QUIET + self._connection.options.timeout
        while True:
            async with asyncio.timeout(patience):
                change = await stream.try_next()
            if change is not None and self.listener is not None:
                message = change["fullDocument"]
                if message["topic"] in self.topics:
                    self.listener.take(message["data"])

    async def aclose(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

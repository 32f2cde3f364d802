"""Records in MongoDB: the documents, reads of one snapshot, versions, and intents as transactions.

A write takes three round trips, if no message is sent and nothing is deleted: the time, the counter and the guarded
versions as the snapshot has them; everything that is written; and the commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import zlib
from typing import TYPE_CHECKING, Any, Final, final

from standfast.clock import SYSTEM_CLOCK, Instant, monotonic
from standfast.errors import AttemptClosedError, StoreBusyError, StoreError, StoreUnavailableError
from standfast.ids import new_id
from standfast.keys import RecordKey
from standfast.stores.backend import OPEN, moved_error, pages
from standfast.stores.mongodb.connection import (
    APP_NAME,
    DRIVER_ERRORS,
    DUPLICATE_KEY,
    DURABLE,
    HERE,
    SNAPSHOT,
    code_of,
    commit_is_unknown,
    is_duplicate,
    is_transient,
)
from standfast.stores.protocol import ABSENT, Record, Snapshot
from standfast.stores.remote.server import WriteRefused, Written
from standfast.stores.validation import in_window

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from pymongo.asynchronous.client_session import AsyncClientSession

    from standfast.stores.backend import Scan
    from standfast.stores.mongodb.connection import MongoConnection
    from standfast.stores.remote.server import Intent, Message, Row

    Document = dict[str, Any]


# --- abandoned transactions: their process has died or stands still, and they block others -------------------------
#
# The server ends them after a minute, unless it is set otherwise. A handle that is kept waiting by one for a while ends
# it sooner: every user may see and end the sessions of its own. Nothing is lost by that: a process that wakes up again
# is told that its transaction was undone, and tries again.

FIRST_LOOK: Final = 0.5
LOOK_EVERY: Final = 1.0
"""How many seconds of losing pass before the first look, and how many lie between two looks."""

STANDS_STILL: Final = 2_000_000
"""A transaction that has sent nothing for this many microseconds is given up; a live one sends every few hundred."""


@final
class AbandonedTransactions:
    """Ends what others have left behind, for one handle."""

    __slots__ = ("_connection", "_looked_at")

    def __init__(self, connection: MongoConnection) -> None:
        self._connection: Final = connection
        self._looked_at = -LOOK_EVERY

    async def end(self, lost_since: float) -> None:
        """Look for transactions of this user's that stand still, and end them; not too often, nor too soon."""
        now = monotonic()
        if now - lost_since < FIRST_LOOK or now - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = now
        with contextlib.suppress(*DRIVER_ERRORS):  # then the server ends them, in its own time
            async with asyncio.timeout(self._connection.options.timeout):
                admin, limit = self._connection.client.admin, self._connection.milliseconds
                idle: Document = {"type": "idleSession", "appName": APP_NAME}
                idle["transaction.timeInactiveMicros"] = {"$gt": STANDS_STILL}
                mine = {"allUsers": False, "idleSessions": True}
                pipeline = [{"$currentOp": mine}, {"$match": idle}, {"$project": {"lsid.id": 1}}]
                reply = await admin.command({"aggregate": 1, "pipeline": pipeline, "cursor": {}, "maxTimeMS": limit})
                found = [row["lsid"] for row in reply["cursor"]["firstBatch"]]
                if found:
                    await admin.command({"killSessions": found, "maxTimeMS": limit})


# --- what is stored: the documents, and the conditions on them, as pure functions ----------------------------------
#
# MongoDB compares binary data by length first, so a key is stored as text: each of its bytes becomes the character of
# that number. Text is compared as UTF-8, byte by byte, and UTF-8 sorts like the numbers of its characters.

# What begins with an arrow is no record: its character comes after all that a key can be made of.
STORE: Final = "\u2192store"
ATTEMPT: Final = "\u2192attempt "
AFTER_ATTEMPTS: Final = "\u2192attempt!"

MILLISECOND: Final = 1_000
NOW: Final = {"$multiply": [{"$toLong": "$$NOW"}, MILLISECOND]}
"""The server's time in microseconds, constant within a command. Its own clock counts in milliseconds."""

_LATEST: Final = 2**62
UNEXPIRED: Final = {"$expr": {"$gt": [{"$ifNull": ["$expires_at", _LATEST]}, NOW]}}

LARGEST_COMMAND: Final = 8_000_000
"""Bytes of values in one command; a command may have 16 MB in all, a transaction any number of commands."""

MOST_STATEMENTS: Final = 1_000
_OVERHEAD: Final = 200


def to_id(key: bytes) -> str:
    """Return the text that a key is stored as."""
    return key.decode("latin-1")


def from_id(text: str) -> RecordKey:
    """Return the key that was stored as ``text``."""
    return RecordKey.from_encoded(text.encode("latin-1"))


def attempt_id(handle: str) -> str:
    """Return where the attempts of a handle are counted."""
    return ATTEMPT + handle


def salt(handle: str) -> int:
    """Return a number of a handle's own, so that its commits move the sum of all by a step of their own."""
    return zlib.crc32(handle.encode()) % 1_000_003 + 1


def record_of(found: Document) -> Record:
    """Return the record that a document holds."""
    expires_at = found.get("expires_at")
    return Record(
        from_id(found["_id"]),
        found["value"],
        int(found["version"]),  # the driver has a type of its own for large numbers
        None if expires_at is None else Instant(int(expires_at)),
    )


def is_live(found: Document, at: Instant) -> bool:
    """Return True if a document had not expired at ``at``."""
    expires_at: int | None = found.get("expires_at")
    return expires_at is None or expires_at > at


# --- what an intent comes to ---------------------------------------------------------------------------------------


def lost_guards(intent: Intent, rows: Iterable[Document], at: Instant) -> bool:
    """Return True if a key is not at the version that it must be at, given the documents that there are."""
    versions = {row["_id"]: row["version"] for row in rows if row["_id"] != STORE and is_live(row, at)}
    return any(versions.get(to_id(key), ABSENT) != version for key, version in intent.guards.items())


def latest_of(intent: Intent, rows: Iterable[Document], at: Instant) -> Instant | None:
    """Return when it is too late to commit: the window is over then, or a record that is guarded has expired."""
    ends = [int(row["expires_at"]) for row in rows if "expires_at" in row and is_live(row, at)]
    if intent.before is not None:
        ends.append(intent.before)
    return Instant(min(ends)) if ends else None


def updates_of(intent: Intent, at: Instant, versions: Sequence[int]) -> list[Document]:
    """Return the statements that write: the attempt, what is put, and a touch for what is only checked.

    Each of them must find its document as it is expected; to create one is to find none, or an expired one.
    """
    guards, touched = intent.guards, {*intent.deletes}
    first = versions[0] if versions else 0
    counted = {"number": intent.number, "at": at, "first": first, "count": len(versions), "salt": salt(intent.handle)}
    not_counted = {"_id": attempt_id(intent.handle), "number": {"$lt": intent.number}}
    statements: list[Document] = [{"q": not_counted, "u": {"$set": counted}, "upsert": True}]
    for row in intent.puts:
        touched.add(row.key)
        document, expected = _document(row, versions[row.draw]), guards[row.key]
        if expected == ABSENT:
            statements.append({"q": _expired(row.key, at), "u": document, "upsert": True})
        else:
            statements.append({"q": _at_version(row.key, expected, at), "u": document})
    for key, version in guards.items():
        if version != ABSENT and key not in touched:
            # A transaction notices only what it writes: without a change, two could each check what the other writes.
            statements.append({"q": _at_version(key, version, at), "u": {"$bit": {"touched": {"xor": 1}}}})
    return statements


def _document(row: Row | Record, version: int) -> Document:
    document: Document = {"version": version, "value": row.value}
    if row.expires_at is not None:
        document["expires_at"] = row.expires_at
    return document


def _at_version(key: RecordKey, version: int, at: Instant) -> Document:
    return {"_id": to_id(key), "version": version, "expires_at": {"$not": {"$lte": at}}}


def _expired(key: RecordKey, at: Instant) -> Document:
    return {"_id": to_id(key), "expires_at": {"$lte": at}}


def deletes_of(intent: Intent, at: Instant) -> tuple[list[Document], list[Document]]:
    """Return the statements that delete what is there, and those that remove what has expired, if it is there."""
    certain: list[Document] = []
    perhaps: list[Document] = []
    for key in intent.deletes:
        version = intent.guards[key]
        if version == ABSENT:
            perhaps.append({"q": _expired(key, at), "limit": 1})
        else:
            certain.append({"q": _at_version(key, version, at), "limit": 1})
    return certain, perhaps


def in_commands(statements: Iterable[Document]) -> Iterator[list[Document]]:
    """Split statements into what fits one command each, in their order."""
    some: list[Document] = []
    size = 0
    for statement in statements:
        cost = _OVERHEAD + len(statement["u"].get("value", b"")) if "u" in statement else _OVERHEAD
        if some and (size + cost > LARGEST_COMMAND or len(some) == MOST_STATEMENTS):
            yield some
            some, size = [], 0
        some.append(statement)
        size += cost
    if some:
        yield some


# --- transfer: everything in a database ----------------------------------------------------------------------------
#
# The document of the store says that it is frozen, and every transaction reads it along with the counter. But one that
# has begun before would still see the store open. So each handle has a document for its attempts before it begins its
# first transaction, and every transaction writes to it; freezing writes to all of them afterwards. A transaction
# that is under way is waited for, if it has written there, or undone by the server, if it is about to; and one whose
# handle came too late to be found has begun after the store was frozen, and sees it.

ANNOUNCED_FOR: Final = 24 * 3600.0
"""For how many seconds a handle may be sure that its document is there: it is swept a week after its last attempt."""

PATIENCE: Final = 75.0
"""For how many seconds transactions under way are waited for: the server ends them after sixty."""

_PAUSE: Final = 0.05


@final
class MongoHandles:
    """Sees to it that the document of a handle's attempts is there before its transactions begin."""

    def __init__(self, connection: MongoConnection) -> None:
        self._connection: Final = connection
        self._since: Final[dict[str, float]] = {}

    async def announce(self, handle: str) -> None:
        """Make the document if that was not done lately."""
        now = monotonic()
        if now - self._since.get(handle, -ANNOUNCED_FOR) < ANNOUNCED_FOR:
            return
        made = {"number": {"$ifNull": ["$number", 0]}, "at": NOW, "salt": salt(handle)}
        statement = {"q": {"_id": attempt_id(handle)}, "u": [{"$set": made}], "upsert": True}
        await self._connection.ask(
            {"update": self._connection.records, "updates": [statement], "writeConcern": DURABLE}
        )
        self._since[handle] = now

    def forget(self, handle: str) -> None:
        """Forget a handle whose document is removed."""
        self._since.pop(handle, None)


@final
class MongoTransfer:
    """Everything in one collection."""

    def __init__(self, connection: MongoConnection, scan: Scan) -> None:
        self._connection, self._scan = connection, scan

    async def _store(self) -> Document:
        command = {"find": self._connection.records, "filter": {"_id": STORE}, "readConcern": {"level": "majority"}}
        found: Document = (await self._connection.ask(command))["cursor"]["firstBatch"][0]
        return found

    async def _change(self, wanted: Document, change: Document | list[Document], *, multi: bool = False) -> None:
        statement = {"q": wanted, "u": change, "multi": multi}
        await self._connection.ask(
            {"update": self._connection.records, "updates": [statement], "writeConcern": DURABLE}
        )

    async def frozen(self) -> int:
        """Return why it is frozen."""
        return int((await self._store()).get("frozen", OPEN))

    async def freeze(self, reason: int) -> None:
        """Refuse writes, when those under way have ended."""
        await self._change({"_id": STORE, "frozen": {"$in": [None, OPEN]}}, {"$set": {"frozen": reason}})
        until = monotonic() + PATIENCE
        while not await self._meet_all():
            if monotonic() > until:
                problem = "transactions under way did not end; the store is frozen, but they may land; repeat this"
                raise StoreBusyError(self._connection.name, problem)
            await asyncio.sleep(_PAUSE)

    async def _meet_all(self) -> bool:
        """Write to the documents of all attempts; False if one is being written to."""
        attempts = {"_id": {"$gte": ATTEMPT, "$lt": AFTER_ATTEMPTS}}
        statement = {"q": attempts, "u": {"$inc": {"met": 1}}, "multi": True}
        command = {"update": self._connection.records, "updates": [statement], "writeConcern": DURABLE}
        try:
            async with asyncio.timeout(self._connection.options.timeout):
                await self._connection.command(command)
        except TimeoutError:
            return False
        except DRIVER_ERRORS as error:
            if getattr(error, "timeout", False):  # the server's own: a document was locked for all of the time
                return False
            raise self._connection.failure(error) from error
        return True

    async def thaw(self) -> None:
        """Take writes again."""
        await self._change({"_id": STORE}, {"$unset": {"frozen": 1}})

    async def last(self) -> int:
        """Return the last version that was given out."""
        return int((await self._store())["last"])

    async def lift(self, version: int) -> None:
        """Go on above a version; versions that handles have drawn in advance are not used for keys to be created."""
        await self._change({"_id": STORE}, [{"$set": {"last": {"$max": ["$last", version]}, "drawn_by": ""}}])

    def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all records."""
        return pages(self._scan)

    async def put(self, records: Sequence[Record]) -> None:
        """Write records as they are."""
        statements = [
            {"q": {"_id": to_id(record.key)}, "u": _document(record, record.version), "upsert": True}
            for record in records
        ]
        for some in in_commands(statements):
            await self._connection.ask({"update": self._connection.records, "updates": some, "writeConcern": DURABLE})


# --- versions: drawn from one counter, outside of the transactions that use them, a few in advance -----------------
#
# A record that exists is at the highest version that its key ever had, so any number above that will do. A key that
# has no record may have had one; its number must be drawn when the snapshot of the transaction is there already. See
# the decision record on MongoDB for why that is enough.

SPARE: Final = 100
"""How many are drawn in advance. Below the microseconds that a draw takes: numbers are not to outrun the time."""


@final
class MongoVersions:
    """The versions that one handle has drawn and not used."""

    __slots__ = ("_connection", "_end", "_mine", "_next")

    def __init__(self, connection: MongoConnection) -> None:
        self._connection: Final = connection
        self._mine: Final = new_id()
        self._next = self._end = 0

    async def take(self, intent: Intent, seen: dict[str, Any]) -> tuple[int, ...] | None:
        """Return versions for ``intent``, given the counter as its snapshot has it; None if its own are stale."""
        creates = any(intent.guards[row.key] == ABSENT for row in intent.puts)
        if intent.exact:
            is_last = seen["last"] == intent.exact[-1] and seen["drawn_by"] == self._mine
            return intent.exact if is_last or not creates else None
        if not intent.draws:
            return ()
        drew_last = seen["last"] == self._end - 1 and seen["drawn_by"] == self._mine
        highest = max(intent.guards.values())
        if self._end - self._next < intent.draws or self._next <= highest or (creates and not drew_last):
            last = await self._raise(intent.draws + SPARE)
            self._next, self._end = last - intent.draws - SPARE + 1, last + 1
        first = self._next
        self._next += intent.draws
        return tuple(range(first, self._next))

    async def reserve(self, count: int) -> tuple[int, ...]:
        """Draw ``count`` versions for one intent to come."""
        last = await self._raise(count)
        return tuple(range(last - count + 1, last + 1))

    async def _raise(self, count: int) -> int:
        """Raise the counter, to the server's time at least: a restored backup gives no version out again."""
        raised = {"$set": {"last": {"$add": [{"$max": ["$last", NOW]}, count]}, "drawn_by": self._mine}}
        reply = await self._connection.command(
            {
                "findAndModify": self._connection.records,
                "query": {"_id": STORE},
                "update": [raised],
                "new": True,
                "fields": {"last": 1},
                "writeConcern": HERE,
            }
        )
        return int(reply["value"]["last"])


# --- reading: records in one snapshot of what most of the replica set has, from the primary ------------------------

_FIELDS: Final = {"version": 1, "expires_at": 1, "value": 1, "now": NOW}


@final
class MongoReader:
    """Reads of one handle."""

    __slots__ = ("_connection", "_records")

    def __init__(self, connection: MongoConnection) -> None:
        self._connection: Final = connection
        self._records: Final = connection.collection(connection.records)

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read the live records at ``keys``. The store's own document comes along, for the time."""
        rows = await self._find({"_id": {"$in": [STORE, *map(to_id, keys)]}}, 0, 0)
        at = Instant(int(rows[0]["now"]))
        found = [record_of(row) for row in rows if row["_id"] != STORE and is_live(row, at)]
        return Snapshot(at, {record.key: record for record in found})

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of live records in the order of their keys."""
        wanted = [{"_id": {"$gte": to_id(start), "$lt": to_id(end)}}, {"_id": STORE}]
        rows = await self._find({"$or": wanted, **UNEXPIRED}, -1 if reverse else 1, limit + 2)
        found = [record_of(row) for row in rows if row["_id"] != STORE]
        return Snapshot.page(Instant(int(rows[0]["now"])), found, limit, reverse=reverse)

    async def _find(self, wanted: Document, order: int, limit: int) -> list[Document]:
        try:
            async with asyncio.timeout(self._connection.options.timeout):
                if self._connection.options.linearizable:
                    return await self._find_and_confirm(wanted, order, limit)
                records = self._records.with_options(read_concern=SNAPSHOT)
                cursor = records.find(wanted, _FIELDS, limit=limit, sort=[("_id", order)] if order else None)
                return await cursor.to_list()
        except DRIVER_ERRORS as error:
            raise self._connection.failure(error) from error

    async def _find_and_confirm(self, wanted: Document, order: int, limit: int) -> list[Document]:
        """Read in a transaction: to commit it, the server must still be the primary for most of the set."""
        async with self._connection.transaction() as session:
            sort = [("_id", order)] if order else None
            rows = await self._records.find(wanted, _FIELDS, limit=limit, sort=sort, session=session).to_list()
            await session.commit_transaction()
            return rows


# --- writing: an intent as one transaction, tried again for as long as it was certainly undone ---------------------

FIRST_PAUSE: Final = 0.001
LONGEST_PAUSE: Final = 0.05

_SEEN: Final = {"last": 1, "frozen": 1, "drawn_by": 1, "generation": 1, "version": 1, "expires_at": 1, "now": NOW}


class _LostError(Exception):
    """A guard did not hold in the transaction, or another process was writing: read again."""


@final
class MongoWriter:
    """Writes intents, for one handle."""

    def __init__(self, connection: MongoConnection, reading: MongoReader, versions: MongoVersions) -> None:
        self._connection, self._reading, self._versions = connection, reading, versions
        self.announcing: Final = MongoHandles(connection)
        self._random: Final = random.Random()  # noqa: S311 -- spreads out the retries of several handles
        self._in_doubt: Document | None = None
        self._abandoned: Final = AbandonedTransactions(connection)

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Do all of ``intent`` or nothing."""
        await self.announcing.announce(intent.handle)
        loop = asyncio.get_running_loop()
        since = monotonic()
        until = loop.time() + self._connection.options.timeout
        pause, losses = FIRST_PAUSE, 0
        while True:
            try:
                return await self._transact(intent, until)
            except _LostError as lost:
                losses += 1
                seen = await self._reading.read(list(intent.guards))
                current = intent.lost(seen)
                if current or not in_window(seen.at, intent.after, intent.before):
                    return WriteRefused(seen.at, current)
                if loop.time() > until:
                    raise self._busy() from lost.__cause__
                await self._abandoned.end(since)
            except StoreUnavailableError as error:
                if losses and loop.time() > until:
                    raise self._busy() from error
                raise
            await asyncio.sleep(self._random.uniform(pause / 2, pause))
            pause = min(pause * 2, LONGEST_PAUSE)

    def _busy(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            self._connection.name,
            "transactions of others kept these records for too long; one whose process has died is ended by the server "
            "after its transactionLifetimeLimitSeconds",
        )

    async def _transact(self, intent: Intent, until: float) -> Written | WriteRefused:
        async with self._connection.transaction() as session:
            try:
                async with asyncio.timeout_at(until):
                    done = await self._prepare(intent, session)
            except DRIVER_ERRORS as error:
                raise self._undone(intent, error) from error
            if isinstance(done, WriteRefused):
                return done
            try:
                async with asyncio.timeout(self._connection.options.timeout):
                    await session.commit_transaction()
            except DRIVER_ERRORS as error:
                if commit_is_unknown(error):
                    self._in_doubt = dict(session.session_id)
                    raise self._connection.unknown(error) from error
                raise _LostError from error
            return done

    def _undone(self, intent: Intent, error: BaseException) -> Exception:
        """Return what a failure before the commit means: nothing can have been written."""
        if is_duplicate(error, attempt_id(intent.handle)):
            return AttemptClosedError(self._connection.name, f"attempt {intent.handle}.{intent.number} is closed")
        if is_transient(error) or code_of(error) == DUPLICATE_KEY:
            return _LostError()
        return self._connection.failure(error)

    async def _prepare(self, intent: Intent, session: AsyncClientSession) -> Written | WriteRefused:
        """Do everything but the commit."""
        sent_at = SYSTEM_CLOCK.elapsed()
        store, at, latest = await self._look(intent, session)
        versions = await self._versions.take(intent, store)
        if versions is None:
            return WriteRefused(at, {}, stale=True)
        await self._change(session, intent, at, versions)
        if intent.messages:
            await self._connection.command(inserting(self._connection, intent.messages), session)
        # The server judged when this was begun. By now it is later by no more than what has passed since.
        if latest is not None and at + (SYSTEM_CLOCK.elapsed() - sent_at) >= latest:
            await session.abort_transaction()  # before it is tried again, so that it is not in its own way
            raise _LostError
        return Written(at, versions, int(store["generation"]))

    async def _look(self, intent: Intent, session: AsyncClientSession) -> tuple[Document, Instant, Instant | None]:
        """Begin the snapshot: read the time, the counter, and the versions that are guarded."""
        wanted = [STORE, *map(to_id, intent.guards)]
        command: Document = {"find": self._connection.records, "filter": {"_id": {"$in": wanted}}, "projection": _SEEN}
        command["batchSize"] = len(wanted) + 1  # all of them at once
        rows = (await self._connection.command(command, session))["cursor"]["firstBatch"]
        store: Document = next(row for row in rows if row["_id"] == STORE)
        if store.get("frozen"):
            raise moved_error(self._connection.name, int(store["frozen"]))
        at = Instant(int(store["now"]))
        if not in_window(at, intent.after, intent.before) or lost_guards(intent, rows, at):
            raise _LostError
        return store, at, latest_of(intent, rows, at)

    async def _change(self, session: AsyncClientSession, intent: Intent, at: Instant, versions: Sequence[int]) -> None:
        updates = updates_of(intent, at, versions)
        certain, perhaps = deletes_of(intent, at)
        records = self._connection.records
        found = 0
        for some in in_commands(updates):
            found += (await self._connection.command({"update": records, "updates": some}, session))["n"]
        for some in in_commands(certain):
            found += (await self._connection.command({"delete": records, "deletes": some}, session))["n"]
        if found != len(updates) + len(certain):
            raise _LostError
        for some in in_commands(perhaps):
            await self._connection.command({"delete": records, "deletes": some}, session)

    async def end_doubtful(self) -> None:
        """End the transaction whose commit got no answer, if it is still open: it would be in the way of all others."""
        if self._in_doubt is not None:
            with contextlib.suppress(StoreError):  # then the server ends it, in its own time
                await self._connection.ask({"killSessions": [self._in_doubt]})
                self._in_doubt = None


def inserting(connection: MongoConnection, messages: Sequence[Message]) -> Document:
    """Return the command that sends messages."""
    documents = [{"topic": message.topic, "data": message.data} for message in messages]
    return {"insert": connection.messages, "documents": documents}

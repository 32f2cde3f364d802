"""One handle on a store in etcd: intents as transactions, reads that most members confirm, and upkeep."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from msgspec import structs

from standfast.clock import MICROSECONDS, Instant, monotonic
from standfast.errors import (
    AttemptClosedError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.ids import new_id
from standfast.stores.backend import OPEN, Batching, moved_error, pages
from standfast.stores.etcd.gateway import RANGE, STATUS, TXN, EtcdConnection, RangeReply
from standfast.stores.etcd.health import EtcdHealth, check_members
from standfast.stores.etcd.liveness import grace_of, liveness_server
from standfast.stores.etcd.records import (
    ATTEMPT,
    EXPIRES_WITHIN,
    FIRST_GUARD,
    FORMAT,
    GENERATION,
    PLACES,
    RESERVED,
    STORE,
    EtcdFacts,
    EtcdKeys,
    KnownRecord,
    TxnGround,
    closed_attempt,
    delete,
    facts,
    get,
    given_value,
    intent_txn,
    is_at,
    number_below,
    put,
    read_attempt,
    read_record,
    removals,
)
from standfast.stores.etcd.subscriber import EtcdSubscriber
from standfast.stores.protocol import ABSENT, MAX_VERSION, Capabilities, Snapshot, StoreMeasure
from standfast.stores.remote.liveness import join_liveness
from standfast.stores.remote.server import Audience, Landed, ServerDefaults, WriteRefused, Written
from standfast.stores.remote.service_time import sharpen
from standfast.stores.validation import in_window

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from standfast.events import Hooks
    from standfast.keys import RecordKey
    from standfast.stores.etcd.gateway import EtcdOptions, KeyValue, TxnReply
    from standfast.stores.etcd.records import Operation
    from standfast.stores.protocol import Record
    from standfast.stores.remote.server import Intent, Listener, Message

# --- limits --------------------------------------------------------------------------------------------------------

BESIDE: Final = 8
"""How many operations of a transaction are not changes: the attempt, the generation, some messages."""

MOST_CHANGES: Final = 100
MOST_READS: Final = 100
KEYS_TAKE: Final = 300_000
"""How many bytes of a request are left for the keys, which are named several times each."""

TRIES: Final = 40
"""How often a transaction is put together anew because something in its way was gone or had expired."""

REMEMBERED: Final = 20_000
"""How many keys a handle knows the revision of. A version that it does not know is looked at before it is compared."""

ASKED_FOR_TIME: Final = 5

ATTEMPTS_KEPT: Final = 7 * 86_400 * MICROSECONDS
LISTENERS_LIVE: Final = 60 * MICROSECONDS
PAGE: Final = 200
LOST_AT_MOST: Final = 1 << 30
"""How many revisions a backup may be behind: versions go on above them when a cluster was restored from it."""


def capabilities_of(options: EtcdOptions) -> Capabilities:
    """Return what a cluster with these limits can do."""
    return Capabilities(
        backend="etcd",
        atomic=True,
        durable=True,
        reach="network",
        wakes="push",
        max_changes=min(MOST_CHANGES, (options.max_txn_ops - BESIDE) // 2),
        max_value_bytes=min(350_000, (options.max_request_bytes - KEYS_TAKE) // 3),
        max_commit_bytes=options.max_request_bytes - KEYS_TAKE,
        clock_resolution=1.0,
        shortest_lease=options.shortest_lease,
        sees_process_death=options.liveness,
    )


# --- the server ----------------------------------------------------------------------------------------------------


@final
class EtcdServer(ServerDefaults):
    """One handle on the keys below a prefix."""

    def __init__(self, options: EtcdOptions, connection: EtcdConnection, store: EtcdFacts, hooks: Hooks) -> None:
        self._options, self._connection, self._hooks = options, connection, hooks
        self.name = options.name
        self.capabilities: Final = capabilities_of(options)
        most = self.capabilities.max_changes
        self.batching: Final = Batching(
            max_riders=most, max_weight=most, max_bytes=500_000, max_reads=min(MOST_READS, options.max_txn_ops - BESIDE)
        )
        self._keys: Final = EtcdKeys(options.prefix)
        self._store, self._store_revision = store, -1
        self._attempts: Final[dict[str, tuple[int, int]]] = {}
        self._known: Final[OrderedDict[RecordKey, KnownRecord]] = OrderedDict()
        self._handle: Final = new_id()
        self._subscriber: Final = EtcdSubscriber(connection, self._keys, self._learn)
        self._told_at = 0.0
        self._health: Final = EtcdHealth(connection, hooks)
        self._old_attempts = b""
        self._liveness = join_liveness(liveness_server(options, store.id)) if options.liveness else None

    @classmethod
    async def open(cls, options: EtcdOptions, hooks: Hooks) -> EtcdServer:
        """Connect, and see that the cluster can be used."""
        connection = EtcdConnection(options)
        try:
            await check_members(connection, hooks)
            keys = EtcdKeys(options.prefix)
            store = await _prepare(connection, keys)
            await sharpen(connection.time, options.shortest_lease, lambda: _probe(connection, keys))
            if options.liveness:
                options = structs.replace(options, grace=await grace_of(connection))
            server = cls(options, connection, store, hooks)
        except BaseException:
            await connection.aclose()
            raise
        return server

    async def _txn(self, request: Operation, *, writes: bool = False) -> TxnReply:
        return await self._connection.ask(TXN, request, writes=writes)

    async def now(self) -> Instant:
        """Return the cluster's time; ask for it if there was no answer for a while."""
        for _ in range(ASKED_FOR_TIME):
            now = self._connection.time.now()
            if now is not None:
                return now
            await _probe(self._connection, self._keys)
        raise StoreUnavailableError(
            self.name, "its members do not agree on the time, or their answers have no Date; set their clocks by NTP"
        )

    # --- writing ---------------------------------------------------------------------------------------------

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Do all of ``intent`` or nothing, in one transaction."""
        if self._store_revision < 0:
            await self._look_at_store()
        if self._attempts.get(intent.handle, (0, 0))[0] >= intent.number:
            raise AttemptClosedError(self.name, f"attempt {intent.handle}.{intent.number} was counted before")
        highest = max(intent.guards.values())
        if highest >> PLACES > self._connection.revision + self._store.base:  # it was imported, and not gone above yet
            await self.transfer().lift(highest)
            await self._look_at_store()
        token = secrets.token_bytes(8)
        for _ in range(TRIES):
            now = await self.now()
            pins = self._pins(intent, now)
            if pins is None or not in_window(now, intent.after, intent.before):
                seen = await self.read(list(intent.guards))
                lost = intent.lost(seen)
                if lost or not in_window(seen.at, intent.after, intent.before):
                    return WriteRefused(seen.at, lost)
                continue
            if intent.exact:
                reserved_at = (intent.exact[0] >> PLACES) - self._store.base
                if any(there.revision > reserved_at for there in pins.values()):
                    return WriteRefused(now, {}, stale=True)  # what was written since may have these versions
            answer = await self._transact(intent, pins, now, token)
            if answer is not None:
                return answer
        raise StoreBusyError(self.name, f"what was in the way changed {TRIES} times in a row")

    def _pins(self, intent: Intent, now: Instant) -> dict[RecordKey, KnownRecord] | None:
        """Return what pins the guarded records down; None if some have to be looked at first."""
        pins: dict[RecordKey, KnownRecord] = {}
        for key, version in intent.guards.items():
            there = self._known.get(key)
            if version == ABSENT:
                if there is not None and not there.is_live(now):
                    pins[key] = there
            elif there is not None and there.version == version and there.is_live(now):
                pins[key] = there
            else:
                return None
        return pins

    async def _transact(
        self, intent: Intent, pins: dict[RecordKey, KnownRecord], now: Instant, token: bytes
    ) -> Written | WriteRefused | None:
        """Send the transaction; None: what it rested on was not so, and is known better now."""
        ground = TxnGround(self._store_revision, self._store.base, self._attempts.get(intent.handle, (0, 0))[1], token)
        txn = intent_txn(self._keys, intent, pins, ground, now, self._options.max_txn_ops)
        answer = await self._txn(txn.request, writes=True)
        if answer.succeeded:
            return await self._written(intent, answer, txn.unsent, now)
        found = [each.found for each in answer.responses]
        attempt = read_attempt(found[ATTEMPT].kvs[0]) if found[ATTEMPT].kvs else None
        if attempt is not None and attempt.number >= intent.number:
            if attempt.landed is None or (attempt.number, attempt.token) != (intent.number, token):
                problem = f"attempt {intent.handle}.{intent.number} was settled as never written"
                raise AttemptClosedError(self.name, problem)
            self._attempts[intent.handle] = attempt.number, attempt.revision
            return Written(attempt.landed.at, attempt.landed.versions)  # its first answer was lost; it was sent again
        counted = self._attempts[intent.handle] = (0, 0) if attempt is None else (attempt.number, attempt.revision)
        is_ground_new = ground.attempt_revision != counted[1]
        if found[STORE].kvs[:1] and found[STORE].kvs[0].mod_revision != ground.store_revision:
            self._take_store(found[STORE])
            is_ground_new = True
        lost = self._lost(intent, found[FIRST_GUARD:], now)
        if lost:
            return WriteRefused(now, lost)
        return WriteRefused(now, {}, stale=True) if txn.compares_pulses and not is_ground_new else None

    async def _written(self, intent: Intent, answer: TxnReply, unsent: Sequence[Any], now: Instant) -> Written:
        revision = answer.header.revision
        self._attempts[intent.handle] = intent.number, revision
        first = (revision + self._store.base) << PLACES
        versions = intent.exact or tuple(range(first, first + intent.draws))
        for row in intent.puts:
            self._learn(row.key, KnownRecord(versions[row.draw], revision, row.expires_at))
        for key in intent.deletes:
            self._known.pop(key, None)
        if unsent:
            with contextlib.suppress(StoreError):  # then polling finds it
                await self.send(unsent)
        return Written(now, versions, _revision_of(answer.responses[GENERATION].found))

    def _lost(self, intent: Intent, found: Sequence[RangeReply], now: Instant) -> dict[RecordKey, Record | None]:
        """Return the present records where guards did not hold, and remember what is there."""
        lost: dict[RecordKey, Record | None] = {}
        for (key, guard), there in zip(intent.guards.items(), found, strict=True):
            if not there.kvs and there.count:  # it is as it was
                continue
            record = self._read(key, there.kvs, now)
            if (ABSENT if record is None else record.version) != guard:
                lost[key] = record
        return lost

    def _read(self, key: RecordKey, found: Sequence[KeyValue], now: Instant) -> Record | None:
        """Return the live record among what was found at its key, and remember what pins it down."""
        if not found:
            self._known.pop(key, None)
            return None
        record, known = read_record(found[0], key)
        self._learn(key, known)
        return None if record.is_expired(now) else record

    def _learn(self, key: RecordKey, known: KnownRecord) -> None:
        before = self._known.get(key)
        if before is None or before.revision <= known.revision:
            self._known[key] = known
            self._known.move_to_end(key)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)

    async def reserve(self, count: int, namespace: bytes) -> tuple[int, ...]:
        """Choose versions right above all that was seen. Whether a key came and went since, its pulse tells."""
        del namespace
        first = ((self._connection.revision + self._store.base) << PLACES) + RESERVED
        if first + count > MAX_VERSION:
            raise StoreError(self.name, "a version is as high as versions can be")
        return tuple(range(first, first + count))

    # --- the store as a whole --------------------------------------------------------------------------------

    async def _look_at_store(self) -> None:
        self._take_store(await self._connection.ask(RANGE, {"key": self._keys.store}))

    def _take_store(self, found: RangeReply) -> None:
        if not found.kvs:
            raise UnsuitableStoreError(self.name, "its keys are missing; open it again")
        store = facts.decode(found.kvs[0].value)
        if store.frozen:
            raise moved_error(self.name, store.frozen)
        self._store, self._store_revision = store, found.kvs[0].mod_revision

    # --- attempts --------------------------------------------------------------------------------------------

    async def close_attempt(self, handle: str, number: int, namespace: bytes) -> Landed | None:
        """Count the attempt, so that nothing else can; if it is counted already, say what came of it."""
        del namespace
        key = self._keys.attempt(handle)
        close = put(key, closed_attempt(number, await self.now()))
        older = {"compare": [number_below(key, number)], "success": [close], "failure": [get(key)]}
        request = {"compare": [is_at(key, 0)], "success": [close], "failure": [{"request_txn": older}]}
        answer = await self._txn(request, writes=True)
        inner = None if answer.succeeded else answer.responses[0].response_txn
        if inner is None or inner.succeeded:
            self._attempts[handle] = number, answer.header.revision
            return None
        attempt = read_attempt(inner.responses[0].found.kvs[0])
        if attempt.number > number:
            raise StoreError(self.name, f"a later attempt than {handle}.{number} was counted")
        self._attempts[handle] = number, attempt.revision
        return attempt.landed

    async def forget(self, handle: str) -> None:
        """Remove what was counted for a handle."""
        self._attempts.pop(handle, None)
        await self._txn({"success": [delete(self._keys.attempt(handle))]})

    # --- reading ---------------------------------------------------------------------------------------------

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records in one transaction."""
        at = await self.now()
        answer = await self._txn({"success": [get(self._keys.record(key)) for key in keys]})
        found = [self._read(key, each.found.kvs, at) for key, each in zip(keys, answer.responses, strict=True)]
        return Snapshot(at, {record.key: record for record in found if record is not None})

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of live records; backwards the cluster goes through the whole range."""
        at = await self.now()
        if start >= end:
            return Snapshot(at, {})
        first, last, size, found = bytes(start), bytes(end), limit + 1, list[Any]()
        while True:
            request: Operation = {
                "key": self._keys.record(first),
                "range_end": self._keys.record(last),
                "limit": size,
            }
            if reverse:
                request |= {"sort_order": "DESCEND", "sort_target": "KEY"}
            page = await self._connection.ask(RANGE, request)
            for each in page.kvs:
                record = self._read(key := self._keys.record_key(each.key), [each], at)
                first, last = (first, bytes(key)) if reverse else (bytes(key) + b"\0", last)
                if record is not None:
                    found.append(record)
            if len(page.kvs) < size or len(found) > limit:
                return Snapshot.page(at, found, limit, reverse=reverse)
            size = min(2 * size, MOST_SCANNED)  # many have expired: look at more of them at a time

    async def mark(self) -> int:
        """Return the revision: every write moves it on."""
        return (await _probe(self._connection, self._keys)).header.revision

    # --- upkeep ----------------------------------------------------------------------------------------------

    async def sweep(self, limit: int) -> int:
        """Delete what has expired, and what the dead have left behind."""
        now = await self.now()
        await self._health.look()
        await self._sweep_attempts(now)
        await self._sweep_listeners(now)
        start, _ = self._keys.below(b"x")
        request = {
            "key": start,
            "range_end": self._keys.expiries(now // EXPIRES_WITHIN + 1),
            "limit": limit,
            "keys_only": True,
        }
        expired = (await self._connection.ask(RANGE, request)).kvs
        step = (self._options.max_txn_ops - BESIDE) // 3
        removed = 0
        for some in (expired[place : place + step] for place in range(0, len(expired), step)):
            unchanged = {"compare": [is_at(self._keys.store, self._store_revision)]}
            if not (await self._txn(unchanged | removals(self._keys, some))).succeeded:
                break  # it is being moved; the next write finds out
            removed += len(some)
        return removed

    async def measure(self) -> StoreMeasure:
        """Return the bytes of the database of the member that is asked, all that others keep in it included.

        Records are counted in the index that each member has in memory.
        """
        status = await self._connection.ask(STATUS, {})
        first, last = self._keys.below(b"r")
        found = await self._connection.ask(RANGE, {"key": first, "range_end": last, "count_only": True})
        return StoreMeasure(status.dbSize, found.count)

    async def _sweep_attempts(self, now: Instant) -> None:
        first, last = self._keys.below(b"a")
        request = {"key": self._old_attempts or first, "range_end": last, "limit": PAGE}
        found = (await self._connection.ask(RANGE, request)).kvs
        self._old_attempts = found[-1].key + b"\0" if len(found) == PAGE else b""
        old = [each for each in found if read_attempt(each).at < now - ATTEMPTS_KEPT]
        await self._remove(old)

    async def _sweep_listeners(self, now: Instant) -> None:
        first, last = self._keys.below(b"l")
        listeners = (await self._connection.ask(RANGE, {"key": first, "range_end": last})).kvs
        dead = [each for each in listeners if _listens_until(each) < now]
        topics = _topics_of(listeners, now)
        first, last = self._keys.below(b"m")
        request = {"key": first, "range_end": last, "limit": PAGE, "keys_only": True}
        messages = (await self._connection.ask(RANGE, request)).kvs
        await self._remove([*dead, *(each for each in messages if self._keys.last_part(each.key) not in topics)])

    async def _remove(self, found: Sequence[KeyValue]) -> None:
        """Delete keys, each if it has not changed since."""
        step = self._options.max_txn_ops // 2
        for some in (found[place : place + step] for place in range(0, len(found), step)):
            deletes = [
                {"request_txn": {"compare": [is_at(each.key, each.mod_revision)], "success": [delete(each.key)]}}
                for each in some
            ]
            await self._txn({"success": deletes})

    # --- notifications ---------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Hand what is pushed to ``listener``."""
        self._subscriber.listener = listener

    async def subscribe(self, added: Iterable[bytes], removed: Iterable[bytes], all_topics: frozenset[bytes]) -> None:
        """Watch ``all_topics``, and let committers know."""
        await self._subscriber.follow(all_topics)
        until = await self.now() + LISTENERS_LIVE
        value = until.to_bytes(8) + msgspec.msgpack.encode([bytes(topic) for topic in sorted(all_topics)])
        operations = [put(self._keys.listener(self._handle), value)]
        told_at, self._told_at = self._told_at, monotonic()
        # After a long pause others may have taken this handle for dead, and left its topics out.
        if [*added, *removed] or self._told_at - told_at > LISTENERS_LIVE / MICROSECONDS / 2:
            operations.append(put(self._keys.generation, b""))
        await self._txn({"success": operations})

    async def audience(self) -> Audience:
        """Return all topics, with the generation of that very moment."""
        first, last = self._keys.below(b"l")
        listeners = {"request_range": {"key": first, "range_end": last}}
        now = await self.now()
        generation, found = (await self._txn({"success": [get(self._keys.generation), listeners]})).responses
        return Audience(_revision_of(generation.found), _topics_of(found.found.kvs, now))

    async def send(self, messages: Sequence[Message]) -> None:
        """Send messages outside of a commit."""
        step = self._options.max_txn_ops - BESIDE
        for some in (messages[place : place + step] for place in range(0, len(messages), step)):
            latest = {message.topic: message for message in some}
            await self._txn({"success": [put(self._keys.topic(each.topic), each.data) for each in latest.values()]})

    # --- life ------------------------------------------------------------------------------------------------

    def transfer(self) -> EtcdTransfer:
        """Return what moves everything below the prefix."""
        return EtcdTransfer(self, self._connection, self._keys, self._options.max_txn_ops)

    async def another(self) -> EtcdServer:
        """Open another handle, on the running loop."""
        connection = EtcdConnection(self._options, self._connection.cluster)
        connection.revision = self._connection.revision
        return EtcdServer(self._options, connection, self._store, self._hooks)

    async def aclose(self) -> None:
        """Close everything."""
        try:
            await self._subscriber.aclose()
            if self._liveness is not None:
                await self._liveness.leave()
            if self._told_at:
                with contextlib.suppress(StoreError, TimeoutError):
                    async with asyncio.timeout(1):
                        await self._txn({"success": [delete(self._keys.listener(self._handle))]})
        finally:
            await self._connection.aclose()


MOST_SCANNED: Final = 2_000


def _revision_of(found: RangeReply) -> int:
    return found.kvs[0].mod_revision if found.kvs else 0


def _listens_until(found: KeyValue) -> int:
    return int.from_bytes(found.value[:8])


_topics: Final = msgspec.msgpack.Decoder(list[bytes])


def _topics_of(listeners: Iterable[KeyValue], now: Instant) -> frozenset[bytes]:
    alive = [_topics.decode(each.value[8:]) for each in listeners if _listens_until(each) >= now]
    return frozenset([topic for topics in alive for topic in topics])


# --- opening -------------------------------------------------------------------------------------------------------


async def _probe(connection: EtcdConnection, keys: EtcdKeys) -> RangeReply:
    """Learn the time, and the revision."""
    return await connection.ask(RANGE, {"key": keys.store, "count_only": True})


async def _prepare(connection: EtcdConnection, keys: EtcdKeys) -> EtcdFacts:
    """Return the facts of the store; write them if it is new, or if the cluster was restored from a backup."""
    for _ in range(TRIES):
        found = (await connection.ask(RANGE, {"key": keys.store})).kvs
        store = facts.decode(found[0].value) if found else None
        if store is not None and store.format > FORMAT:
            problem = f"the store has format {store.format}, and this release knows {FORMAT}; upgrade standfast"
            raise UnsuitableStoreError(connection.name, problem)
        if store is not None and store.cluster == connection.cluster:
            return store
        if store is None:
            wanted = EtcdFacts(secrets.token_hex(16), connection.cluster)
        else:
            wanted = msgspec.structs.replace(store, cluster=connection.cluster, base=store.base + LOST_AT_MOST)
        revision = found[0].mod_revision if found else 0
        request = {"compare": [is_at(keys.store, revision)], "success": [put(keys.store, wanted.encoded())]}
        await connection.ask(TXN, request)
    raise StoreBusyError(connection.name, "others kept opening it for the first time; retry")


# --- transfer: every write compares the facts of the store, so changing them freezes it ----------------------------


@final
class EtcdTransfer:
    """Everything below the prefix."""

    def __init__(self, server: EtcdServer, connection: EtcdConnection, keys: EtcdKeys, most: int) -> None:
        self._server, self._connection, self._keys, self._most = server, connection, keys, most

    async def _facts(self) -> tuple[EtcdFacts, int]:
        found = (await self._connection.ask(RANGE, {"key": self._keys.store})).kvs
        if not found:
            raise UnsuitableStoreError(self._connection.name, "its keys are missing; open it again")
        return facts.decode(found[0].value), found[0].mod_revision

    async def _change(self, **changed: int) -> None:
        for _ in range(TRIES):
            store, revision = await self._facts()
            wanted = msgspec.structs.replace(store, **changed)
            if wanted == store:
                return
            replace = {
                "compare": [is_at(self._keys.store, revision)],
                "success": [put(self._keys.store, wanted.encoded())],
            }
            await self._connection.ask(TXN, replace)
        raise StoreBusyError(self._connection.name, "others kept changing it; retry")

    async def frozen(self) -> int:
        """Return why it is frozen."""
        return (await self._facts())[0].frozen

    async def freeze(self, reason: int) -> None:
        """Refuse writes: each compares what this changes."""
        if not await self.frozen():
            await self._change(frozen=reason)

    async def thaw(self) -> None:
        """Take writes again."""
        await self._change(frozen=OPEN)

    async def last(self) -> int:
        """Return the last version that can have been given out."""
        store, _ = await self._facts()
        return ((self._connection.revision + store.base + 1) << PLACES) - 1

    async def lift(self, version: int) -> None:
        """Go on above a version."""
        store, _ = await self._facts()
        base = max(store.base, (version >> PLACES) + 1 - self._connection.revision)
        if (base + self._connection.revision + LOST_AT_MOST) << PLACES > MAX_VERSION:
            raise StoreError(self._connection.name, f"version {version} is too high to continue above it")
        await self._change(base=base)

    def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all records."""
        return pages(self._server.scan)

    async def put(self, records: Sequence[Record]) -> None:
        """Write records as they are."""
        limits, some, size = self._server.capabilities, list[Any](), 0
        for record in records:
            if some and (len(some) + 2 > self._most - BESIDE or size + len(record.value) > limits.max_commit_bytes):
                await self._connection.ask(TXN, {"success": some}, writes=False)
                some, size = [], 0
            value = given_value(record.value, record.version, record.expires_at)
            some.append(put(self._keys.record(record.key), value))
            if record.expires_at is not None:
                some.append(put(self._keys.expiry(record.key, record.expires_at), b""))
            size += len(value)
        if some:
            await self._connection.ask(TXN, {"success": some}, writes=False)

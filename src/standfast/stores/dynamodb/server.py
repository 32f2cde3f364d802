"""One handle on a DynamoDB table: intents as transactions, consistent reads, and everything by the service's time."""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Any, Final, final

from standfast.clock import MICROSECONDS, Instant, monotonic
from standfast.errors import AttemptClosedError, StoreBusyError, StoreError, StoreUnavailableError
from standfast.ids import new_id
from standfast.stores.backend import OPEN, PAGE, Batching, moved_error
from standfast.stores.dynamodb.connection import (
    CancelledTransactionError,
    ConditionError,
    DynamoClient,
    TurnedAwayError,
)
from standfast.stores.dynamodb.items import (
    GRACE,
    ITS_OWN,
    KEPT,
    Transaction,
    attempt_key,
    attempt_of,
    closing,
    counting,
    full,
    key_of,
    live_record,
    record_key,
    removable_at,
    sort_key,
    transaction,
    version_of,
)
from standfast.stores.dynamodb.tables import prepare, probe
from standfast.stores.protocol import ABSENT, MAX_VERSION, Capabilities, Snapshot, StoreMeasure
from standfast.stores.remote.server import (
    Intent,
    Landed,
    ServerDefaults,
    WriteRefused,
    Written,
)
from standfast.stores.remote.service_time import sharpen
from standfast.stores.validation import in_window

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.dynamodb.connection import DynamoOptions
    from standfast.stores.protocol import Record

    Items = list[Mapping[str, Any] | None]
    Item = Mapping[str, Any]
    Now = Callable[[], Awaitable[Instant]]


# --- the server ----------------------------------------------------------------------------------------------------

MOST_CHANGES: Final = 99
"""A transaction has a hundred items, and the attempt is one of them."""

BATCHING: Final = Batching(max_weight=MOST_CHANGES, max_bytes=1_000_000, max_reads=100)

ASKED_FOR_TIME: Final = 5
"""How often the service is asked for the time before it is held to be unusable."""

REMOVED_AT_ONCE: Final = 8


@final
class DynamoServer(ServerDefaults):
    """One handle on a table."""

    def __init__(self, options: DynamoOptions, link: DynamoClient) -> None:
        self._options, self._link = options, link
        self.name = options.name
        self.batching: Final = BATCHING
        self.capabilities: Final = Capabilities(
            backend="dynamodb",
            atomic=True,
            durable=True,
            reach="network",
            wakes="poll",
            max_changes=MOST_CHANGES,
            clock_resolution=1.0,
            shortest_lease=options.shortest_lease,
        )
        self._floor = 0
        self._pace: Final = Pace()
        self._garbage: Final = Garbage()
        self._announcing: Final = DynamoHandles(link, options, self.now)

    @classmethod
    async def open(cls, options: DynamoOptions) -> DynamoServer:
        """Connect, and look at the table."""
        link = await DynamoClient.open(options)
        try:
            await prepare(link, options)
            await sharpen(link.time, options.shortest_lease, lambda: probe(link, options.table))
        except BaseException:
            await link.aclose()
            raise
        return cls(options, link)

    @property
    def link(self) -> DynamoClient:
        """The client of the service."""
        return self._link

    async def now(self) -> Instant:
        """Return the service's time; ask for it if there was no answer for a while."""
        for _ in range(ASKED_FOR_TIME):
            now = self._link.time.now()
            if now is not None:
                return now
            await probe(self._link, self._options.table)
        raise StoreUnavailableError(
            self.name,
            "its answers have no Date, or do not agree on the time; is there a proxy in between? Nothing was written",
        )

    # --- writing ---------------------------------------------------------------------------------------------

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Do all of ``intent`` or nothing, in one transaction."""
        patience = self._link.patience()
        self._pace.hasten()
        await self._announcing.announce(intent.handle)
        while True:
            now = await self.now()
            if not in_window(now, intent.after, intent.before):
                seen = await self.read(list(intent.guards))
                return WriteRefused(seen.at, intent.lost(seen))
            known = max(intent.guards.values(), default=ABSENT)
            if intent.exact and known >= intent.exact[0]:
                return WriteRefused(now, {}, stale=True)
            versions = intent.exact or self._draw(intent.draws, max(now, known + 1))
            try:
                answer = await self._transact(intent, now, versions)
            except TurnedAwayError as turned_away:
                await patience.pause(turned_away)
                continue
            if answer is not None:
                return answer

    def _draw(self, count: int, least: int) -> tuple[int, ...]:
        first = max(least, self._floor)
        if first + count > MAX_VERSION:
            raise StoreError(self.name, "a version is as high as versions can be")
        self._floor = first + count
        return tuple(range(first, first + count))

    async def _transact(self, intent: Intent, now: Instant, versions: tuple[int, ...]) -> Written | WriteRefused | None:
        """Send the transaction; None: its versions were too low, try again."""
        sent = transaction(intent, self._options.table, new_id(), now, versions)
        request = {"TransactItems": sent.items, "ClientRequestToken": sent.token}
        try:
            await self._link.send("transact_write_items", request, writes=True)
        except CancelledTransactionError as cancelled:
            if not self._is_own(cancelled.reasons[0], intent, sent):
                return self._refused(intent, cancelled.reasons[1:], now)
        for key, version in sent.tombstones.items():
            self._garbage.add(key, version, Instant(max(now, version) + GRACE + 1_000_000))
        return Written(now, versions)

    def _is_own(self, reason: Mapping[str, Any], intent: Intent, sent: Transaction) -> bool:
        """Return True if this very request was done before: something on the way has sent it twice."""
        if reason.get("Code") != "ConditionalCheckFailed":
            return False
        attempt = attempt_of(reason["Item"])
        if (attempt.number, attempt.token) == (intent.number, sent.token):
            return True
        if attempt.frozen:
            raise moved_error(self.name, attempt.frozen)
        raise AttemptClosedError(self.name, f"attempt {intent.handle}.{intent.number} was settled as never written")

    def _refused(self, intent: Intent, reasons: Sequence[Mapping[str, Any]], now: Instant) -> WriteRefused | None:
        current: dict[RecordKey, Record | None] = {}
        highest = 0
        for (key, guard), reason in zip(intent.guards.items(), reasons, strict=True):
            if reason.get("Code") == "ConditionalCheckFailed":
                record = live_record(reason.get("Item"), key, now)
                if (ABSENT if record is None else record.version) != guard:
                    current[key] = record
                else:  # there is a tombstone with a higher version than the one that was chosen
                    highest = max(highest, version_of(reason["Item"]))
        self._floor = max(self._floor, highest + 1)
        if current:
            return WriteRefused(now, current)
        return WriteRefused(now, {}, stale=True) if intent.exact else None

    async def reserve(self, count: int, namespace: bytes) -> tuple[int, ...]:
        """Choose versions ahead. Whether they are above what is there, the transaction checks key by key."""
        del namespace
        return self._draw(count, await self.now())

    # --- attempts --------------------------------------------------------------------------------------------

    async def close_attempt(self, handle: str, number: int, namespace: bytes) -> Landed | None:
        """Count the attempt, so that nothing else can; if it is counted already, say what came of it."""
        del namespace
        now = await self.now()
        try:
            await self._link.ask("put_item", counting(handle, number, self._options.table, None, "", now))
        except ConditionError as counted:
            attempt = attempt_of(counted.item or {})
            if attempt.frozen and attempt.number < number:
                await self._link.ask("update_item", closing(handle, number, self._options.table))
                return None
            if attempt.number > number:
                raise StoreError(self.name, f"a later attempt than {handle}.{number} was counted") from None
            return attempt.landed
        return None

    async def forget(self, handle: str) -> None:
        """Do nothing: a request that is still on its way must find the count. The service removes it in a week."""

    def transfer(self) -> DynamoTransfer:
        """Return what moves everything in the table."""
        return DynamoTransfer(self._link, self._options, self.now)

    # --- reading ---------------------------------------------------------------------------------------------

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records: one as it is, several in a transaction."""
        at = await self.now()
        if len(keys) == 1:
            request = {"TableName": self._options.table, "Key": key_of(keys[0]), "ConsistentRead": True}
            items = [(await self._link.ask("get_item", request)).get("Item")]
        else:
            gets = [{"Get": {"TableName": self._options.table, "Key": key_of(key)}} for key in keys]
            try:
                answer = await self._link.ask("transact_get_items", {"TransactItems": gets})
                items = [each.get("Item") for each in answer["Responses"]]
            except StoreError as error:
                if type(error) is not StoreError:  # those have a meaning of their own
                    raise
                items = await collect(self._link, self._options.table, keys, self.name)  # together they are too large
        found = {key: live_record(item, key, at) for key, item in zip(keys, items, strict=True)}
        return Snapshot(at, {key: record for key, record in found.items() if record is not None})

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of live records, and remember the dead ones among them."""
        at = await self.now()
        return await scan(self._link, self._options.table, start, end, limit, at, self._garbage, reverse=reverse)

    # --- upkeep ----------------------------------------------------------------------------------------------

    async def sweep(self, limit: int) -> int:
        """Remove up to ``limit`` dead items that this handle knows of."""
        dead = self._garbage.take(await self.now(), limit)
        turn = asyncio.Semaphore(REMOVED_AT_ONCE)

        async def remove(key: RecordKey, version: int) -> bool:
            async with turn:
                try:
                    await self._link.ask("delete_item", removal(self._options.table, key, version))
                except (ConditionError, StoreError):  # another handle was faster, or the service removes it one day
                    return False
            return True

        return sum(await asyncio.gather(*(remove(key, version) for key, version in dead)))

    async def measure(self) -> StoreMeasure:
        """Return the bytes and the items of the table, as the service last counted them: about every six hours."""
        told = (await self._link.ask("describe_table", {"TableName": self._options.table}))["Table"]
        return StoreMeasure(told.get("TableSizeBytes"), told.get("ItemCount"))

    # --- polling ---------------------------------------------------------------------------------------------

    async def mark(self) -> int:
        """Return a number that changes when it is time to look."""
        return self._pace.mark()

    # --- life ------------------------------------------------------------------------------------------------

    async def another(self) -> DynamoServer:
        """Open another handle on the same table, on the running loop."""
        return DynamoServer(self._options, await DynamoClient.open(self._options))

    async def aclose(self) -> None:
        """Close every connection."""
        await self._link.aclose()


# --- reading more than one transaction of the service may read, 4 MB, and still as of one moment -------------------
#
# Everything is read twice, one record after the other. What is the same both times was so at every moment between the
# end of the first look and the beginning of the second: the version of a key never comes back.

AT_ONCE: Final = 8
MOST_LOOKS: Final = 20


async def collect(link: DynamoClient, table: str, keys: Sequence[RecordKey], store: str) -> Items:
    """Return the items at ``keys``, all as of one moment; None where there is none."""
    seen = await _look(link, table, keys)
    for _ in range(MOST_LOOKS):
        before, seen = seen, await _look(link, table, keys)
        if [each and each["v"] for each in before] == [each and each["v"] for each in seen]:
            return seen
    raise StoreBusyError(store, "records that were read together kept changing; read fewer of them, or smaller ones")


async def _look(link: DynamoClient, table: str, keys: Sequence[RecordKey]) -> Items:
    turn = asyncio.Semaphore(AT_ONCE)

    async def get(key: RecordKey) -> Mapping[str, Any] | None:
        async with turn:
            answer = await link.ask("get_item", {"TableName": table, "Key": key_of(key), "ConsistentRead": True})
            return answer.get("Item")

    return list(await asyncio.gather(*map(get, keys)))


# --- dead items that this handle knows of, to be removed when their time has come ----------------------------------
#
# There is no index of them: a handle remembers the tombstones that it left, and what it came across in scans. What all
# handles have forgotten, the service removes by itself, a day or two later and free of charge (``TimeToLive``).

REMEMBERED: Final = 50_000
"""How many dead items a handle remembers."""


@final
class Garbage:
    """What is dead, by when it may be removed."""

    __slots__ = ("_heap", "_known")

    def __init__(self) -> None:
        self._heap: Final[list[tuple[Instant, RecordKey, int]]] = []
        self._known: Final[set[tuple[RecordKey, int]]] = set()

    def add(self, key: RecordKey, version: int, removable_at: Instant) -> None:
        """Remember an item, unless there are too many already."""
        if len(self._heap) < REMEMBERED and (key, version) not in self._known:
            self._known.add((key, version))
            heapq.heappush(self._heap, (removable_at, key, version))

    def take(self, at: Instant, limit: int) -> list[tuple[RecordKey, int]]:
        """Take out what may be removed at ``at``."""
        taken: list[tuple[RecordKey, int]] = []
        while self._heap and self._heap[0][0] <= at and len(taken) < limit:
            _, key, version = heapq.heappop(self._heap)
            self._known.discard((key, version))
            taken.append((key, version))
        return taken


def removal(table: str, key: RecordKey, version: int) -> dict[str, Any]:
    """Return the request that removes a dead item, if nothing was written there since."""
    return {
        "TableName": table,
        "Key": key_of(key),
        "ConditionExpression": "v = :v AND attribute_exists(t)",
        "ExpressionAttributeValues": {":v": {"N": str(version)}},
    }


# --- transfer: everything in a table -------------------------------------------------------------------------------
#
# An item says that the store is frozen, but a transaction that read it would collide with all others. So each handle
# announces itself before it writes: it makes sure that the item of its attempts is there, and then that the store is
# not frozen. Freezing puts the item of the store first, and then marks those of all handles; a transaction whose
# handle is marked fails, however long it has been on its way. A handle that found the store open had announced itself
# before that, and is found.

ANNOUNCED_FOR: Final = 86_400.0
"""For how many seconds a handle may be sure that its item is there: the service removes it after a week."""

LONGEST_WAIT: Final = 60.0
_LOOK_EVERY: Final = 0.1

_FROZEN: Final = {"p": {"B": ITS_OWN + b"frozen"}, "s": {"B": b"f"}}


@final
class DynamoHandles:
    """Makes the handles known that are about to write."""

    def __init__(self, link: DynamoClient, options: DynamoOptions, now: Now) -> None:
        self._link, self._options, self._now = link, options, now
        self._since: Final[dict[str, float]] = {}

    async def announce(self, handle: str) -> None:
        """Make a handle known if that was not done lately.

        Raises:
            StoreMovedError: The store is frozen.
        """
        before = monotonic()
        if before - self._since.get(handle, -ANNOUNCED_FOR) < ANNOUNCED_FOR:
            return
        request = {
            "TableName": self._options.table,
            "Key": attempt_key(handle),
            "UpdateExpression": "SET n = if_not_exists(n, :none), t = :t",
            "ConditionExpression": "attribute_not_exists(z)",
            "ExpressionAttributeValues": {":none": {"N": "0"}, ":t": _kept_until(await self._now())},
        }
        try:
            await self._link.ask("update_item", request)
        except ConditionError:  # it is marked; why, the item of the store tells
            await self._check()
            return
        await self._check()
        self._since[handle] = before

    async def _check(self) -> None:
        reason = await frozen(self._link, self._options.table)
        if reason:
            raise moved_error(self._options.name, reason)


async def frozen(link: DynamoClient, table: str) -> int:
    """Return why a store is frozen."""
    answer = await link.ask("get_item", {"TableName": table, "Key": _FROZEN, "ConsistentRead": True})
    item = answer.get("Item")
    return int(item["z"]["N"]) if item else OPEN


def _kept_until(now: Instant) -> dict[str, str]:
    return {"N": str(now // MICROSECONDS + KEPT)}


@final
class DynamoTransfer:
    """Everything in one table."""

    def __init__(self, link: DynamoClient, options: DynamoOptions, now: Now) -> None:
        self._link, self._options, self._now = link, options, now
        self._highest = 0

    async def frozen(self) -> int:
        """Return why it is frozen."""
        return await frozen(self._link, self._options.table)

    async def freeze(self, reason: int) -> None:
        """Refuse writes, of every handle."""
        table = self._options.table
        if not await self.frozen():
            await self._link.ask("put_item", {"TableName": table, "Item": _FROZEN | {"z": {"N": str(reason)}}})
        change = {"UpdateExpression": "SET z = :z REMOVE t", "ExpressionAttributeValues": {":z": {"N": str(reason)}}}
        await self._each_handle(change)

    async def thaw(self) -> None:
        """Take writes again."""
        await self._link.ask("delete_item", {"TableName": self._options.table, "Key": _FROZEN})
        values = {":t": _kept_until(await self._now())}
        await self._each_handle({"UpdateExpression": "SET t = :t REMOVE z", "ExpressionAttributeValues": values})

    async def _each_handle(self, change: Item) -> None:
        request = {
            "ProjectionExpression": "p, s",
            "FilterExpression": "begins_with(p, :own) AND s = :attempt",
            "ExpressionAttributeValues": {":own": {"B": ITS_OWN}, ":attempt": {"B": b"a"}},
        }
        async for items in self._scan(request):
            for item in items:
                try:
                    await self._link.ask(
                        "update_item",
                        {
                            "TableName": self._options.table,
                            "Key": {"p": item["p"], "s": item["s"]},
                            "ConditionExpression": "attribute_exists(n)",
                            **change,
                        },
                    )
                except ConditionError:  # the service has just removed it: it was not in use
                    continue

    async def _scan(self, request: Item) -> AsyncIterator[Sequence[Item]]:
        start: Item = {}
        while True:
            asked = {"TableName": self._options.table, "ConsistentRead": True, **request, **start}
            answer = await self._link.ask("scan", asked)
            yield answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return
            start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    async def last(self) -> int:
        """Return the service's time, which versions follow, or the highest version that was seen in a dump."""
        return max(self._highest, await self._now())

    async def lift(self, version: int) -> None:
        """Wait until the service's time is above a version: no later version is below it."""
        until = monotonic() + LONGEST_WAIT
        while (now := await self._now()) <= version:
            ahead = (version - now) / MICROSECONDS
            if monotonic() + ahead > until:
                problem = f"the versions are {ahead:,.0f} s ahead of its time; try again when that has passed"
                raise StoreError(self._options.name, problem)
            await asyncio.sleep(_LOOK_EVERY)

    async def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all records, in the order of the service's own."""
        async for items in self._scan({}):
            found = list(self._alive(items, await self._now()))
            for first in range(0, len(found), PAGE):
                yield found[first : first + PAGE]

    def _alive(self, items: Sequence[Item], at: Instant) -> Iterator[Record]:
        for item in items:
            if bytes(item["p"]["B"]).startswith(ITS_OWN):
                continue
            self._highest = max(self._highest, version_of(item))
            record = live_record(item, record_key(item), at)
            if record is not None:
                yield record

    async def put(self, records: Sequence[Record]) -> None:
        """Write records as they are."""
        turn = asyncio.Semaphore(AT_ONCE)

        async def put(record: Record) -> None:
            async with turn:
                item = full(record, record.version)
                await self._link.ask("put_item", {"TableName": self._options.table, "Item": item})

        await asyncio.gather(*map(put, records))


# --- polling: soon after something was written here, then more and more seldom -------------------------------------

FIRST: Final = 0.1
GROWS: Final = 1.5
LONGEST: Final = 2.0
"""Seconds between two looks: the first, by what factor that grows, and the most."""


@final
class Pace:
    """A number that changes whenever it is time to look. It costs nothing: what a look costs is what is looked at."""

    __slots__ = ("_looks", "_next", "_pause")

    def __init__(self) -> None:
        self._looks, self._pause, self._next = 0, FIRST, 0.0

    def mark(self) -> int:
        """Return how often it has been time to look."""
        now = monotonic()
        if now >= self._next:
            self._looks += 1
            self._next = now + self._pause
            self._pause = min(self._pause * GROWS, LONGEST)
        return self._looks

    def hasten(self) -> None:
        """Look soon: something was written, and others may answer to it."""
        self._pause = FIRST
        self._next = min(self._next, monotonic() + FIRST)


# --- scans: pages of live records, read past the dead ones between them --------------------------------------------

MOST_A_PAGE: Final = 1_000


async def scan(
    link: DynamoClient,
    table: str,
    start: RecordKey,
    end: RecordKey,
    limit: int,
    at: Instant,
    garbage: Garbage,
    *,
    reverse: bool,
) -> Snapshot:
    """Read up to ``limit`` records that are alive at ``at``, and hand the dead ones to ``garbage``."""
    if start >= end:
        return Snapshot(at, {})
    namespace = start.namespace
    request: dict[str, Any] = {
        "TableName": table,
        "ConsistentRead": True,
        "ScanIndexForward": not reverse,
        "KeyConditionExpression": "p = :p AND s BETWEEN :start AND :end",
        "ExpressionAttributeValues": {
            ":p": {"B": namespace},
            ":start": {"B": sort_key(start, namespace)},
            ":end": {"B": sort_key(end, namespace)},
        },
    }
    found: list[Record] = []
    size = limit + 1
    while True:
        answer = await link.ask("query", request | {"Limit": min(size, MOST_A_PAGE)})
        found.extend(_alive(answer["Items"], end, at, garbage))
        last = answer.get("LastEvaluatedKey")
        if last is None or len(found) > limit:
            break
        request["ExclusiveStartKey"] = last
        size = max(2 * size, limit + 1)  # many are dead: look at more of them at a time
    return Snapshot.page(at, found, limit, reverse=reverse)


def _alive(items: list[Mapping[str, Any]], end: RecordKey, at: Instant, garbage: Garbage) -> list[Record]:
    records: list[Record] = []
    for item in items:
        key = record_key(item)
        record = live_record(item, key, at)
        if record is None:
            removable = removable_at(item)
            if removable is not None:
                garbage.add(key, version_of(item), removable)
        elif key < end:  # the end of a range does not belong to it
            records.append(record)
    return records

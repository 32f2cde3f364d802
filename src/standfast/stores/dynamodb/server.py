"""One handle on a table: intents as transactions, reads that are consistent, and everything by the service's time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, final

from standfast.clock import MICROSECONDS, Instant, monotonic
from standfast.errors import AttemptClosedError, StoreError, StoreUnavailableError
from standfast.ids import new_id
from standfast.stores.backend import Batching
from standfast.stores.dynamodb.attempts import attempt_of, closing, counting
from standfast.stores.dynamodb.collecting import collect
from standfast.stores.dynamodb.connecting import Link
from standfast.stores.dynamodb.garbage import Garbage, removal
from standfast.stores.dynamodb.items import (
    GRACE,
    Transaction,
    key_of,
    live_record,
    transaction,
    version_of,
)
from standfast.stores.dynamodb.moving import Announcing, DynamoMoving
from standfast.stores.dynamodb.pacing import Pace
from standfast.stores.dynamodb.scanning import scan
from standfast.stores.dynamodb.store_time import SLACK
from standfast.stores.dynamodb.tables import prepare, probe
from standfast.stores.dynamodb.trouble import CancelledTransactionError, ConditionError, TurnedAwayError
from standfast.stores.moving.protocol import moved
from standfast.stores.protocol import ABSENT, MAX_VERSION, Capabilities, Snapshot
from standfast.stores.remote.lacking import PushesNothing, SeesNoDeaths, SharesNoTransaction
from standfast.stores.remote.server import Intent, Landed, Refused, Written
from standfast.stores.rules import in_window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.dynamodb.options import Options
    from standfast.stores.protocol import Record

MOST_CHANGES: Final = 99
"""A transaction has a hundred items, and the attempt is one of them."""

BATCHING: Final = Batching(max_weight=MOST_CHANGES, max_bytes=1_000_000, max_reads=100)

ASKED_FOR_TIME: Final = 5
"""How often the service is asked for the time before it is held to be unusable."""

REMOVED_AT_ONCE: Final = 8

ASK_EVERY: Final = 0.01
SHARPENED_WITHIN: Final = 2.0
SHARP: Final = 4 * SLACK / MICROSECONDS
"""How well the time can be known, in seconds, where round trips are short."""


@final
class DynamoServer(PushesNothing, SeesNoDeaths, SharesNoTransaction):
    """One handle on a table."""

    def __init__(self, options: Options, link: Link) -> None:
        self._options, self._link = options, link
        self._capabilities: Final = Capabilities(
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
        self._announcing: Final = Announcing(link, options, self.now)

    @classmethod
    async def open(cls, options: Options) -> DynamoServer:
        """Connect, and look at the table."""
        link = await Link.open(options)
        try:
            await prepare(link, options)
            await _sharpen(link, options)
        except BaseException:
            await link.aclose()
            raise
        return cls(options, link)

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return self._capabilities

    @property
    def batching(self) -> Batching:
        """How much fits into one transaction."""
        return BATCHING

    @property
    def name(self) -> str:
        """The URL without secrets."""
        return self._options.name

    @property
    def link(self) -> Link:
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

    # --- writing -----------------------------------------------------------------------------------------------

    async def write(self, intent: Intent) -> Written | Refused:
        """Do all of ``intent`` or nothing, in one transaction."""
        patience = self._link.patience()
        self._pace.hasten()
        await self._announcing.announce(intent.handle)
        while True:
            now = await self.now()
            if not in_window(now, intent.after, intent.before):
                return await self._missed(intent)
            versions = self._versions(intent, now)
            if versions is None:
                return Refused(now, {}, stale=True)
            try:
                answer = await self._transact(intent, now, versions)
            except TurnedAwayError as turned_away:
                await patience.pause(turned_away)
                continue
            if answer is not None:
                return answer

    def _versions(self, intent: Intent, now: Instant) -> tuple[int, ...] | None:
        """Choose versions above all that the keys have; None if those that were reserved are not."""
        known = max(intent.guards.values(), default=ABSENT)
        if intent.exact:
            return intent.exact if known < intent.exact[0] else None
        return self._draw(intent.draws, max(now, known + 1))

    def _draw(self, count: int, least: int) -> tuple[int, ...]:
        first = max(least, self._floor)
        if first + count > MAX_VERSION:
            raise StoreError(self.name, "a version is as high as versions can be")
        self._floor = first + count
        return tuple(range(first, first + count))

    async def _transact(self, intent: Intent, now: Instant, versions: tuple[int, ...]) -> Written | Refused | None:
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
        """Tell whether this very request was done before: something on the way has sent it twice."""
        if reason.get("Code") != "ConditionalCheckFailed":
            return False
        attempt = attempt_of(reason["Item"])
        if (attempt.number, attempt.token) == (intent.number, sent.token):
            return True
        if attempt.frozen:
            raise moved(self.name, attempt.frozen)
        raise AttemptClosedError(self.name, f"attempt {intent.handle}.{intent.number} was settled as never written")

    def _refused(self, intent: Intent, reasons: Sequence[Mapping[str, Any]], now: Instant) -> Refused | None:
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
            return Refused(now, current)
        return Refused(now, {}, stale=True) if intent.exact else None

    async def _missed(self, intent: Intent) -> Refused:
        """Say which guards do not hold, now that the window does not."""
        seen = await self.read(list(intent.guards))
        lost = {key: seen.get(key) for key, guard in intent.guards.items() if seen.version(key) != guard}
        return Refused(seen.at, lost)

    async def reserve(self, count: int, namespace: bytes) -> tuple[int, ...]:
        """Choose versions ahead. Whether they are above what is there, the transaction checks key by key."""
        del namespace
        return self._draw(count, await self.now())

    # --- attempts ----------------------------------------------------------------------------------------------

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

    def moving(self) -> DynamoMoving:
        """Return what moves everything in the table."""
        return DynamoMoving(self._link, self._options, self.now)

    # --- reading -----------------------------------------------------------------------------------------------

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records: one as it is, several in a transaction."""
        at = await self.now()
        items = await (self._get(keys[0]) if len(keys) == 1 else self._get_together(keys))
        found = {key: live_record(item, key, at) for key, item in zip(keys, items, strict=True)}
        return Snapshot(at, {key: record for key, record in found.items() if record is not None})

    async def _get(self, key: RecordKey) -> list[Mapping[str, Any] | None]:
        request = {"TableName": self._options.table, "Key": key_of(key), "ConsistentRead": True}
        return [(await self._link.ask("get_item", request)).get("Item")]

    async def _get_together(self, keys: Sequence[RecordKey]) -> list[Mapping[str, Any] | None]:
        table = self._options.table
        gets = [{"Get": {"TableName": table, "Key": key_of(key)}} for key in keys]
        try:
            answer = await self._link.ask("transact_get_items", {"TransactItems": gets})
        except StoreError as problem:
            if type(problem) is not StoreError:  # those have a meaning of their own
                raise
            return await collect(self._link, table, keys, self.name)  # together they are too large
        return [each.get("Item") for each in answer["Responses"]]

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of live records, and remember the dead ones among them."""
        at = await self.now()
        return await scan(self._link, self._options.table, start, end, limit, at, self._garbage, reverse=reverse)

    # --- upkeep ------------------------------------------------------------------------------------------------

    async def sweep(self, limit: int) -> int:
        """Remove up to ``limit`` dead items that this handle knows of."""
        dead = self._garbage.take(await self.now(), limit)
        turn = asyncio.Semaphore(REMOVED_AT_ONCE)
        return sum(await asyncio.gather(*(self._remove(key, version, turn) for key, version in dead)))

    async def _remove(self, key: RecordKey, version: int, turn: asyncio.Semaphore) -> bool:
        async with turn:
            try:
                await self._link.ask("delete_item", removal(self._options.table, key, version))
            except (ConditionError, StoreError):  # somebody was faster; or the service removes it by itself one day
                return False
        return True

    # --- hints: there are none ---------------------------------------------------------------------------------

    async def mark(self) -> int:
        """Return a number that changes when it is time to look."""
        return self._pace.mark()

    # --- life --------------------------------------------------------------------------------------------------

    async def another(self) -> DynamoServer:
        """Open another handle on the same table, on the running loop."""
        return DynamoServer(self._options, await Link.open(self._options))

    async def aclose(self) -> None:
        """Close every connection."""
        await self._link.aclose()


async def _sharpen(link: Link, options: Options) -> None:
    """Where leases may be short, ask for the time around the turn of a second, until it is known well enough."""
    goal = max(options.shortest_lease / 4, SHARP)
    deadline = monotonic() + SHARPENED_WITHIN
    while link.time.error > goal and monotonic() < deadline:
        await asyncio.sleep(ASK_EVERY)
        await probe(link, options.table)

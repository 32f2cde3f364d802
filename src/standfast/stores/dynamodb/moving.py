"""Moving everything in a table.

An item says that the store is frozen, but a transaction that read it would collide with all others. So each handle
announces itself before it writes: it makes sure that the item of its attempts is there, and then that the store is not
frozen. Whoever freezes puts the item of the store first, and then marks those of all handles; a transaction whose
handle is marked fails, however long it has been on its way. A handle that found the store open had announced itself
before that, and is found.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, final

from standfast.clock import MICROSECONDS, monotonic
from standfast.errors import StoreError
from standfast.stores.dynamodb.attempts import ITS_OWN, KEPT, attempt_key
from standfast.stores.dynamodb.items import full, live_record, record_key, version_of
from standfast.stores.dynamodb.trouble import ConditionError
from standfast.stores.moving.protocol import OPEN, PAGE, moved

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    from standfast.clock import Instant
    from standfast.stores.dynamodb.connecting import Link
    from standfast.stores.dynamodb.options import Options
    from standfast.stores.protocol import Record

    Item = Mapping[str, Any]
    Now = Callable[[], Awaitable[Instant]]

ANNOUNCED_FOR: Final = 86_400.0
"""For how many seconds a handle may be sure that its item is there: the service removes it after a week."""

AT_ONCE: Final = 8
LONGEST_WAIT: Final = 60.0
_LOOK_EVERY: Final = 0.1

_FROZEN: Final = {"p": {"B": ITS_OWN + b"frozen"}, "s": {"B": b"f"}}


@final
class Announcing:
    """Makes the handles known that are about to write."""

    def __init__(self, link: Link, options: Options, now: Now) -> None:
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
            raise moved(self._options.name, reason)


async def frozen(link: Link, table: str) -> int:
    """Return why a store is frozen."""
    answer = await link.ask("get_item", {"TableName": table, "Key": _FROZEN, "ConsistentRead": True})
    item = answer.get("Item")
    return int(item["z"]["N"]) if item else OPEN


def _kept_until(now: Instant) -> dict[str, str]:
    return {"N": str(now // MICROSECONDS + KEPT)}


@final
class DynamoMoving:
    """Everything in one table."""

    def __init__(self, link: Link, options: Options, now: Now) -> None:
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
                except ConditionError:  # the service has just removed it: nobody uses it
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
        await asyncio.gather(*(self._put(record, turn) for record in records))

    async def _put(self, record: Record, turn: asyncio.Semaphore) -> None:
        async with turn:
            item = full(record, record.version)
            await self._link.ask("put_item", {"TableName": self._options.table, "Item": item})

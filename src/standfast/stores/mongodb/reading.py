"""Reading: records in one snapshot of what most of the replica set has, from the primary."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, final

from standfast.clock import Instant
from standfast.stores.mongodb.connecting import SNAPSHOT
from standfast.stores.mongodb.documents import NOW, STORE, UNEXPIRED, is_live, record_of, to_id
from standfast.stores.mongodb.trouble import TROUBLE, translate
from standfast.stores.protocol import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.keys import RecordKey
    from standfast.stores.mongodb.connecting import Connection
    from standfast.stores.protocol import Record

    Document = dict[str, Any]

_FIELDS: Final = {"version": 1, "expires_at": 1, "value": 1, "now": NOW}


@final
class Reading:
    """Reads of one handle."""

    __slots__ = ("_connection", "_records")

    def __init__(self, connection: Connection) -> None:
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
        page = found[:limit]
        return Snapshot(
            Instant(int(rows[0]["now"])),
            {record.key: record for record in page},
            _rest(page, reverse=reverse) if len(found) > limit else None,
        )

    async def _find(self, wanted: Document, order: int, limit: int) -> list[Document]:
        try:
            async with asyncio.timeout(self._connection.options.timeout):
                if self._connection.options.linearizable:
                    return await self._find_and_confirm(wanted, order, limit)
                records = self._records.with_options(read_concern=SNAPSHOT)
                cursor = records.find(wanted, _FIELDS, limit=limit, sort=[("_id", order)] if order else None)
                return await cursor.to_list()
        except TROUBLE as problem:
            raise translate(self._connection.name, problem) from problem

    async def _find_and_confirm(self, wanted: Document, order: int, limit: int) -> list[Document]:
        """Read in a transaction: to commit it, the server must still be the primary for most of the set."""
        async with self._connection.transaction() as session:
            sort = [("_id", order)] if order else None
            rows = await self._records.find(wanted, _FIELDS, limit=limit, sort=sort, session=session).to_list()
            await session.commit_transaction()
            return rows


def _rest(page: list[Record], *, reverse: bool) -> RecordKey:
    last = page[-1].key
    return last if reverse else last.successor()

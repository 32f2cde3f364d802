"""A page of a range, in as many calls as it takes: one, unless there is a lot that has expired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores.protocol import Snapshot
from standfast.stores.redis.records import unpack
from standfast.stores.redis.scripts import SCAN

if TYPE_CHECKING:
    from standfast.stores.protocol import Record
    from standfast.stores.redis.calling import Calls
    from standfast.stores.redis.names import Names

PAGE_BYTES: Final = 4_000_000
"""A page with about this many bytes ends there, and tells where to go on."""

LOOKED_AT: Final = 2_000
"""How many keys one call looks at, so that nobody else waits for long."""


async def scan(calls: Calls, names: Names, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
    """Read a page of live records."""
    lower, upper = b"[" + start, b"(" + end
    found: dict[RecordKey, Record] = {}
    size = 0
    while True:
        arguments = (lower, upper, int(reverse), limit + 1 - len(found), PAGE_BYTES - size, LOOKED_AT)
        answer = await calls.run(SCAN, names, (names.head, names.records, names.order), arguments)
        at, raws, stopped = Instant(answer[1]), answer[3], answer[4]
        for raw_key, raw in zip(raws[::2], raws[1::2], strict=True):
            key = RecordKey.from_encoded(raw_key)
            record = unpack(key, raw, at)
            if record is not None:
                found[key] = record
                size += len(raw)
        if stopped is None or len(found) > limit or size >= PAGE_BYTES:
            return _page(at, found, limit, stopped, reverse=reverse)
        lower, upper = (lower, b"(" + stopped) if reverse else (b"(" + stopped, upper)


def _page(at: Instant, found: dict[RecordKey, Record], limit: int, stopped: bytes | None, *, reverse: bool) -> Snapshot:
    records = [record for record in found.values() if not record.is_expired(at)]
    if len(records) > limit:
        last: RecordKey | None = records[limit - 1].key
    else:
        last = None if stopped is None else RecordKey.from_encoded(stopped)
    more = last if last is None or reverse else last.successor()
    return Snapshot(at, {record.key: record for record in records[:limit]}, more)

"""Scans: pages of live records, read past the dead ones between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from standfast.stores.dynamodb.items import live_record, record_key, removable_at, sort_key, version_of
from standfast.stores.protocol import Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from standfast.clock import Instant
    from standfast.keys import RecordKey
    from standfast.stores.dynamodb.connecting import Link
    from standfast.stores.dynamodb.garbage import Garbage
    from standfast.stores.protocol import Record

MOST_A_PAGE: Final = 1_000


async def scan(
    link: Link,
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
    found: list[Record] = []
    request = _request(table, start, end, reverse=reverse)
    size = limit + 1
    while True:
        answer = await link.ask("query", request | {"Limit": min(size, MOST_A_PAGE)})
        found.extend(_alive(answer["Items"], end, at, garbage))
        last = answer.get("LastEvaluatedKey")
        if last is None or len(found) > limit:
            break
        request["ExclusiveStartKey"] = last
        size = max(2 * size, limit + 1)  # many are dead: look at more of them at a time
    page = found[:limit]
    more = None if len(found) <= limit else page[-1].key if reverse else page[-1].key.successor()
    return Snapshot(at, {record.key: record for record in page}, more)


def _request(table: str, start: RecordKey, end: RecordKey, *, reverse: bool) -> dict[str, Any]:
    namespace = start.namespace
    return {
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

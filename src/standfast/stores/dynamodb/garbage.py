"""Dead items that this handle knows of, to be removed when their time has come.

There is no index of them: a handle remembers the tombstones that it left, and what it came across in scans. What all
handles have forgotten, the service removes by itself, a day or two later and free of charge (``TimeToLive``).
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final, final

from standfast.stores.dynamodb.items import key_of

if TYPE_CHECKING:
    from standfast.clock import Instant
    from standfast.keys import RecordKey

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
    """Return the request that removes a dead item, if nobody has written there since."""
    return {
        "TableName": table,
        "Key": key_of(key),
        "ConditionExpression": "v = :v AND attribute_exists(t)",
        "ExpressionAttributeValues": {":v": {"N": str(version)}},
    }

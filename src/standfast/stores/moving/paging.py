"""Reading everything where a backend keeps all namespaces in one order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from standfast.keys import RecordKey
from standfast.stores.moving.protocol import PAGE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Sequence

    from standfast.stores.protocol import Record, Snapshot

FIRST: Final = RecordKey.from_encoded(b"")
LAST: Final = RecordKey.from_encoded(b"\xff")
"""After every key: a namespace is text in UTF-8, which has no such byte."""


class Scan(Protocol):
    """A scan as backends have it, which is not bounded by a namespace."""

    def __call__(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Awaitable[Snapshot]:
        """Read a page."""
        ...


async def pages(scan: Scan, start: RecordKey = FIRST, end: RecordKey = LAST) -> AsyncIterator[Sequence[Record]]:
    """Return all live records of a range, a page at a time."""
    while True:
        seen = await scan(start, end, limit=PAGE, reverse=False)
        if seen.records:
            yield list(seen.records.values())
        if seen.more is None:
            return
        start = seen.more

"""Reading a range of records page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Record

PAGE: Final = 200


async def matching(
    space: Scope, start: RecordKey, end: RecordKey, is_meant: Callable[[Record], bool], *, limit: int
) -> AsyncIterator[Record]:
    """Yield the records of a range that are meant, page by page."""
    while True:
        page = await space.scan(start, end, limit=PAGE)
        for record in filter(is_meant, page.records.values()):
            yield record
            limit -= 1
        if page.more is None or limit <= 0:
            return
        start = page.more

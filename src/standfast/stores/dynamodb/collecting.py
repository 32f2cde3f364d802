"""Reading more than one transaction of the service may read, 4 MB, and still as of one moment.

Everything is read twice, one record after the other. What is the same both times was so at every moment between the
end of the first look and the beginning of the second: the version of a key never comes back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from standfast.errors import StoreBusyError
from standfast.stores.dynamodb.items import key_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.dynamodb.connecting import Link

    Items = list[Mapping[str, Any] | None]

AT_ONCE: Final = 8
MOST_LOOKS: Final = 20


async def collect(link: Link, table: str, keys: Sequence[RecordKey], store: str) -> Items:
    """Return the items at ``keys``, all as of one moment; None where there is none."""
    seen = await _look(link, table, keys)
    for _ in range(MOST_LOOKS):
        before, seen = seen, await _look(link, table, keys)
        if [each and each["v"] for each in before] == [each and each["v"] for each in seen]:
            return seen
    raise StoreBusyError(store, "records that were read together kept changing; read fewer of them, or smaller ones")


async def _look(link: Link, table: str, keys: Sequence[RecordKey]) -> Items:
    turn = asyncio.Semaphore(AT_ONCE)

    async def get(key: RecordKey) -> Mapping[str, Any] | None:
        async with turn:
            answer = await link.ask("get_item", {"TableName": table, "Key": key_of(key), "ConsistentRead": True})
            return answer.get("Item")

    return list(await asyncio.gather(*map(get, keys)))

"""Taking a record away, whatever version it is at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.stores.protocol import Decision, Delete

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.stores.protocol import Snapshot, Store


async def remove(store: Store, key: RecordKey) -> None:
    """Delete the record at ``key``, if there is one."""

    def decide(seen: Snapshot) -> Decision[None]:
        record = seen.get(key)
        return Decision(None, () if record is None else (Delete(key, record.version),))

    await store.update([key], decide)

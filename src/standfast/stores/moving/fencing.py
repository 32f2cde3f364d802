"""Fencing a restored store off from the processes that used it before the backup was made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from standfast.errors import StoreBusyError
from standfast.stores.moving.living import PRESENCE, WORKER, kind_of
from standfast.stores.protocol import Conflict, Delete, Put

if TYPE_CHECKING:
    from standfast.stores.grouped import GroupedStore
    from standfast.stores.protocol import Record

TRIES: Final = 20


class Fenced(Struct, frozen=True):
    """How many processes were taken for gone, and how many workers among them."""

    presences: int
    workers: int
    above: int
    """Every version from now on is higher."""


async def fence_store(store: GroupedStore) -> Fenced:
    """Take every process that the store knows of for gone.

    Whoever held something does not any more: the next one who asks gets it, with a higher fence. Runs go on in the
    hands of workers that start from now on; those that had them cannot write to them any more.
    """
    movable = store.moving()
    presences = workers = highest = 0
    async for page in movable.dump():
        highest = max(highest, *(record.version for record in page))
        for record in page:
            kind = kind_of(record.key)
            presences += kind == PRESENCE and await _fence(store, record, is_kept=False)
            workers += kind == WORKER and await _fence(store, record, is_kept=True)
    await movable.lift(highest)
    return Fenced(presences, workers, highest)


async def _fence(store: GroupedStore, record: Record, *, is_kept: bool) -> bool:
    """Remove a record, or give it another version; tell whether it was still there."""
    current: Record | None = record
    for _ in range(TRIES):
        if current is None:
            return False
        put = Put(current.key, current.value, current.version, current.expires_at)
        answer = await store.commit(put if is_kept else Delete(current.key, current.version))
        if not isinstance(answer, Conflict):
            return True
        current = answer.current.get(record.key)
    raise StoreBusyError(store.backend.name, f"{record.key} was changed {TRIES} times meanwhile; stop its process")

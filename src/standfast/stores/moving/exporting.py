"""Exporting: everything that a store keeps, once nobody can write to it any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import StoreError
from standfast.keys import RecordKey
from standfast.stores.moving.files import FORMAT, Footer, Header, Writer
from standfast.stores.moving.living import PRESENCE, kind_of
from standfast.stores.moving.protocol import EXPORTED, OPEN, moved

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from contextlib import AbstractContextManager

    from standfast.stores.grouped import GroupedStore
    from standfast.stores.moving.protocol import Movable


def untold(_records: int) -> None:
    """Tell nobody how far it is."""


async def export_store(
    store: GroupedStore,
    sink: AbstractContextManager[BinaryIO],
    tell: Callable[[int], object] = untold,
    *,
    namespaces: Collection[str] = (),
) -> Footer:
    """Freeze a store and write everything in it to ``sink``, except who is there: processes do not move.

    It stays frozen. If this fails it takes writes again, unless it was frozen before; a killed export leaves it frozen,
    to be exported once more or thawed.

    Args:
        store: The store, with all of its tenants. It is frozen as a whole, whatever is exported.
        sink: Opens what takes the bytes, in the form of :mod:`standfast.stores.moving.files`, and closes it.
        tell: Called with the number of records so far, now and then.
        namespaces: Those to export; all if none is named.

    Raises:
        StoreMovedError: An import into it is not finished.
        StoreError: There is nothing in one of the namespaces.
    """
    movable, backend = store.moving(), store.capabilities.backend
    before = await movable.frozen()
    if before not in {OPEN, EXPORTED}:
        raise moved(store.backend.name, before)
    try:
        with sink as file:
            await movable.freeze(EXPORTED)
            writer = Writer(file, Header(FORMAT, backend, SYSTEM_CLOCK.wall()))
            _refuse_empty(store, await _write_all(movable, writer, tell, namespaces))
            footer = writer.end(await movable.last())
    except BaseException:
        if before == OPEN:
            await movable.thaw()
        raise
    return footer


def _refuse_empty(store: GroupedStore, missing: set[str]) -> None:
    if missing:
        raise StoreError(store.backend.name, f"there is nothing in the namespace {min(missing)!r}")


async def _write_all(
    movable: Movable, writer: Writer, tell: Callable[[int], object], namespaces: Collection[str]
) -> set[str]:
    """Write the records of some namespaces, of all if none is named; return those in which there is nothing."""
    wanted, seen = {bytes(RecordKey(name)): name for name in namespaces}, set[str]()
    async for page in movable.dump():
        for record in page:
            name = wanted.get(record.key.namespace)
            if kind_of(record.key) != PRESENCE and (name is not None or not wanted):
                writer.add(record)
                seen.add(name or "")
        tell(writer.records)
    return set(namespaces) - seen

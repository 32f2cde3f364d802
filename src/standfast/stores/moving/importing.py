"""Importing: everything in a file, with the versions that it had, into an empty store."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, BinaryIO, Final

from standfast.errors import StoreMovedError, StoreNotEmptyError, UnsuitableStoreError
from standfast.stores.moving.files import records, survey
from standfast.stores.moving.protocol import EXPORTED, OPEN, PAGE, moved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from standfast.stores.grouped import GroupedStore
    from standfast.stores.moving.files import Footer
    from standfast.stores.moving.protocol import Movable
    from standfast.stores.protocol import Record

_DIGITS: Final = 12


def untold_of(_records: int, _all: int) -> None:
    """Tell nobody how far it is."""


async def import_store(
    store: GroupedStore, source: BinaryIO, name: str, tell: Callable[[int, int], object] = untold_of
) -> Footer:
    """Write all records of an export into an empty store, and let it take writes above all of their versions.

    Until that is done the store is frozen for everyone else. An import that broke off is repeated with the same file.

    Args:
        store: The store. It must be empty.
        source: The file. It is read twice: nothing is written before all of it was found to be whole.
        name: The file as shown to people.
        tell: Called with the number of records so far, and of all, now and then.

    Raises:
        InvalidExportError: The file is not a whole export.
        StoreNotEmptyError: There are records in the store already.
        UnsuitableStoreError: A value is too large for the store.
        StoreMovedError: The store itself was exported, or another file was not imported to its end.
    """
    _, footer = survey(source, name)
    _check_limits(store, footer)
    movable = store.moving()
    is_repeated = await _claim(store, movable, 1 + EXPORTED + int(footer.sha256[:_DIGITS], 16))
    source.seek(0)
    done = 0
    for page in _pages(records(source, name)):
        if is_repeated:
            await _check_same(store, page)
        await movable.put(page)
        done += len(page)
        tell(done, footer.records)
    await movable.lift(footer.highest)
    await movable.thaw()
    return footer


def _check_limits(store: GroupedStore, footer: Footer) -> None:
    most = store.capabilities.max_value_bytes
    if footer.largest > most:
        problem = f"the file has a value of {footer.largest:,} bytes, and {most:,} fit here; nothing was written"
        raise UnsuitableStoreError(store.backend.name, problem)


async def _claim(store: GroupedStore, movable: Movable, reason: int) -> bool:
    """Freeze the store for this file; tell whether it was already, by an import that broke off."""
    found = await movable.frozen()
    if found == reason:
        return True
    if found == EXPORTED:
        raise moved(store.backend.name)
    if found != OPEN:
        raise StoreMovedError(store.backend.name, "the import of another file into it is not finished; repeat that one")
    await _check_empty(store, movable)
    await movable.freeze(reason)
    try:
        await _check_empty(store, movable)  # somebody may have been about to write
    except StoreNotEmptyError:
        await movable.thaw()
        raise
    return False


async def _check_empty(store: GroupedStore, movable: Movable) -> None:
    async for page in movable.dump():
        raise StoreNotEmptyError(
            store.backend.name, f"it holds records, {page[0].key} for one; import into an empty store"
        )


async def _check_same(store: GroupedStore, page: Sequence[Record]) -> None:
    """See that nothing is written over but what this very import has written."""
    for _, group in itertools.groupby(page, lambda record: record.key.namespace):
        for some in _pages(group, store.capabilities.max_changes):
            seen = await store.read(*(record.key for record in some))
            for record in some:
                there = seen.get(record.key)
                if there is not None and there != record:
                    problem = f"it holds another record at {record.key} than the file; import into an empty store"
                    raise StoreNotEmptyError(store.backend.name, problem)


def _pages(all_records: Iterator[Record], size: int = PAGE) -> Iterator[list[Record]]:
    while page := list(itertools.islice(all_records, size)):
        yield page

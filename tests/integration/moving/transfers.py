"""Carrying everything from one store to another, in one process."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

from standfast.stores.transfer import PRESENCE, export_store, import_store, kind_of
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.keys import RecordKey
    from standfast.stores import GroupedStore, Record


async def exported(url: str) -> bytes:
    """Export a store, and return the file."""
    sink = io.BytesIO()
    async with opened(url) as store:
        await export_store(store, contextlib.nullcontext(sink))
    return sink.getvalue()


async def imported(url: str, data: bytes) -> None:
    """Import a file into a store."""
    async with opened(url) as store:
        await import_store(store, io.BytesIO(data), "a file")


async def carried(source: str, target: str) -> None:
    """Move a store."""
    await imported(target, await exported(source))


async def content(url: str) -> dict[RecordKey, Record]:
    """Return all records of a store but presences."""
    async with opened(url) as store:
        found = [record async for page in store.transfer().dump() for record in page]
    return {record.key: record for record in found if kind_of(record.key) != PRESENCE}


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[GroupedStore]:
    """Open a store, and close it."""
    store = await open_store(url)
    try:
        yield store
    finally:
        await store.aclose()

"""A file gives back the pages that it needs no longer, and says how large it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import standfast as sf
from standfast.events import Event, StoreSized
from standfast.stores import Delete, Put
from standfast.stores.sqlite import backend
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

FILLED = 12_000_000


async def _fill(space: sf.Space) -> dict[Any, int]:
    versions: dict[Any, int] = {}
    for number in range(FILLED // 40_000):
        answer: Any = await space.commit(*(Put(space.key("x", f"{number:04}.{n}"), bytes(4_000)) for n in range(10)))
        versions |= answer.versions
    return versions


async def _empty(space: sf.Space, versions: dict[Any, int]) -> None:
    doomed = [Delete(key, version) for key, version in versions.items()]
    for start in range(0, len(doomed), 100):
        await space.commit(*doomed[start : start + 100])


async def test_a_file_gets_smaller_when_its_records_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off the loop, after commits, some pages at a time; the event says how large it is."""
    monkeypatch.setattr(backend, "EVERY", 0.05)
    told: list[StoreSized] = []

    def hear(event: Event) -> None:
        if isinstance(event, StoreSized):
            told.append(event)

    async with sf.open(f"sqlite:///{tmp_path / 'store.db'}", hooks=[hear]) as space:
        store: Any = space.store
        versions = await _fill(space)
        full = store.size()
        await _empty(space, versions)
        key, version = space.key("x", "last"), 0
        while store.size().free > max(backend.FREE_IN_ANY_CASE, 0.1 * store.size().size):
            answer: Any = await space.commit(Put(key, b"", version))
            version = answer.versions[key]
            await asyncio.sleep(0.01)
        seen = store.size()

    assert full.size >= FILLED
    assert full.live == full.size - full.free
    assert seen.size < full.size / 4
    assert sum(each.given_back for each in told) > FILLED / 2


async def test_a_store_that_does_not_know_its_size_says_so() -> None:
    """A server has its own ways to tell."""
    store = await open_store("memory://")

    assert store.size() is None
    await store.aclose()

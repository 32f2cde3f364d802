"""A restored backup: old records, but never an old version."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from standfast.keys import RecordKey
from standfast.stores import Commit, Conflict, GroupedStore, Put
from standfast.stores.sqlite import open_sqlite

if TYPE_CHECKING:
    from pathlib import Path

K = RecordKey("ns", "k")


async def put(store: GroupedStore, value: bytes) -> int:
    """Write a record over whatever is there and return its version."""
    verdict = await store.commit(Put(K, value, (await store.read(K)).version(K)))
    assert isinstance(verdict, Commit)
    return verdict.versions[K]


async def test_versions_grow_across_the_restoring_of_an_older_copy(tmp_path: Path) -> None:
    """Whoever got a version after the backup was made cannot pass with it once the backup is back."""
    path, copy = tmp_path / "h.db", tmp_path / "copy.db"
    store = await open_sqlite(str(path))
    await put(store, b"in the backup")
    await store.aclose()
    shutil.copyfile(path, copy)
    shutil.copyfile(f"{path}-wal", f"{copy}-wal")
    store = await open_sqlite(str(path))
    lost = [await put(store, b"after the backup") for _ in range(20)][-1]
    await store.aclose()

    restored = await open_sqlite(str(copy))
    new = await put(restored, b"after the restoring")

    assert new > lost
    assert isinstance(await restored.commit(Put(K, b"stale", expected=lost)), Conflict)
    await restored.aclose()

"""A program that ends in the middle of a commit does end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.errors import OutcomeUnknownError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put, verdict_of
from standfast.stores.sqlite import SqliteOptions, open_sqlite

if TYPE_CHECKING:
    from pathlib import Path

    from standfast.stores import Store
    from standfast.stores.backend import Backend

KEY = RecordKey("shutdown", "key")


@pytest.mark.parametrize("ticks", range(5))
def test_a_loop_that_is_shut_down_amid_a_commit_ends(tmp_path: Path, ticks: int) -> None:
    """When asyncio.run cancels everything at once, the caller learns what became of its commit, or that it is open."""
    told: list[object] = []
    abandoned: list[Backend] = []

    async def commit_and_note(store: Store) -> None:
        try:
            told.append(await store.commit(Put(KEY, b"")))
        except asyncio.CancelledError as cancelled:
            told.append(verdict_of(cancelled))
            raise

    async def main() -> None:
        store = await open_sqlite(str(tmp_path / "store.db"), SqliteOptions(commits="thread", hints="process"))
        abandoned.append(store.backend)
        task = asyncio.create_task(commit_and_note(store))
        for _ in range(ticks):
            await asyncio.sleep(0)
        assert not task.cancelled()
        raise InterruptedError

    with pytest.raises(InterruptedError):
        asyncio.run(main())
    for backend in abandoned:  # on purpose: no warning that it was not closed, whenever its thread lets go of it
        backend._closing = asyncio.Future  # type: ignore[attr-defined]  # anything but None

    assert all(each is None or isinstance(each, Commit | OutcomeUnknownError) for each in told)

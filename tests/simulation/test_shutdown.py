"""A program that ends in the middle of a commit does end."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import OutcomeUnknownError
from holdfast.keys import RecordKey
from holdfast.stores import Commit, Put, verdict_of
from holdfast.stores.sqlite import Options, open_sqlite

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.stores import Store

KEY = RecordKey("shutdown", "key")


@pytest.mark.filterwarnings("ignore:the store .* was not closed:ResourceWarning")  # that is what this is about
@pytest.mark.parametrize("ticks", range(5))
def test_a_loop_that_is_shut_down_amid_a_commit_ends(tmp_path: Path, ticks: int) -> None:
    """When asyncio.run cancels everything at once, the caller learns what became of its commit, or that it is open."""
    told: list[object] = []

    async def commit_and_note(store: Store) -> None:
        try:
            told.append(await store.commit(Put(KEY, b"")))
        except asyncio.CancelledError as cancelled:
            told.append(verdict_of(cancelled))
            raise

    async def main() -> None:
        store = await open_sqlite(str(tmp_path / "store.db"), Options(commits="thread", hints="process"))
        task = asyncio.create_task(commit_and_note(store))
        for _ in range(ticks):
            await asyncio.sleep(0)
        assert not task.cancelled()
        raise InterruptedError

    with pytest.raises(InterruptedError):
        asyncio.run(main())
    gc.collect()  # the store that nobody closed is collected here, and not in another test

    assert all(each is None or isinstance(each, Commit | OutcomeUnknownError) for each in told)

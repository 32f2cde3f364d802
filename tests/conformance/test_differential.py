"""Stores and the pure model, side by side: after any program both say the same."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from standfast.stores import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.stores.sqlite import SqliteOptions, open_sqlite
from tests.conformance.differential import compare_with_the_model
from tests.conformance.modest import MODEST, ModestBackend

if TYPE_CHECKING:
    from pathlib import Path

    from standfast.testing import VirtualClock
    from tests.conformance.differential import Open


def test_the_store_in_memory_is_as_the_model() -> None:
    """Whatever is asked of it."""

    def opening(clock: VirtualClock) -> Open:
        memory = MemoryRecords(clock=clock)

        async def open_it() -> GroupedStore:
            return GroupedStore(MemoryBackend(memory))

        return open_it

    compare_with_the_model(opening, full=2_000, quick=40, steps=50)


def test_sqlite_is_as_the_model(tmp_path: Path) -> None:
    """With handles that commit on the loop and on a thread."""
    files = itertools.count()

    def opening(clock: VirtualClock) -> Open:
        path, opened = tmp_path / f"{next(files)}.db", itertools.count()

        async def open_it() -> GroupedStore:
            options = SqliteOptions(commits="loop" if next(opened) % 2 else "thread", hints="process")
            return await open_sqlite(str(path), options, clock=clock)

        return open_it

    compare_with_the_model(opening)


def test_a_store_with_a_clock_and_data_of_its_own_is_as_the_model() -> None:
    """As one on a server: time passes as it likes, and the programs share the data."""
    memory = MemoryRecords(capabilities=MODEST)

    async def open_it() -> GroupedStore:
        return GroupedStore(ModestBackend(memory))

    compare_with_the_model(lambda _: open_it, full=100, quick=10)

"""The SQLite store keeps the store contract, wherever its commits run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.clock import SYSTEM_CLOCK
from standfast.stores.sqlite import SqliteOptions, open_sqlite
from standfast.testing import VirtualClock
from standfast.testing.conformance import StoreConformance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from standfast.stores import GroupedStore

    Open = Callable[[], Awaitable[GroupedStore]]


class SqliteFile(StoreConformance):
    """One file a test, opened as often as a test wants."""

    options = SqliteOptions()

    @pytest.fixture
    def clock(self) -> VirtualClock | None:
        """Time passes when a test says so."""
        return VirtualClock()

    @pytest.fixture
    def open_another(self, tmp_path: Path, clock: VirtualClock | None) -> Open:
        """Open a handle on the file."""

        async def open_it() -> GroupedStore:
            return await open_sqlite(str(tmp_path / "store.db"), self.options, clock=clock or SYSTEM_CLOCK)

        return open_it

    @pytest.fixture
    async def store(self, open_another: Open) -> AsyncIterator[GroupedStore]:
        """One handle."""
        store = await open_another()
        yield store
        await store.aclose()


class TestSqlite(SqliteFile):
    """As it is opened by default: commits on the event loop while they are quick."""


class TestSqliteOnAThread(SqliteFile):
    """Commits on the writer's thread, and the time of the machine: tests of time wait for it."""

    options = SqliteOptions(commits="thread")

    @pytest.fixture
    def clock(self) -> VirtualClock | None:
        """No clock to advance."""
        return None

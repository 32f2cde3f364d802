"""Run locks keep their promises on the stores that need no server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.clock import SYSTEM_CLOCK
from standfast.stores import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.stores.sqlite import open_sqlite
from standfast.testing import VirtualClock
from standfast.testing.conformance import RunLockConformance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    Open = Callable[[], Awaitable[GroupedStore]]


class RunLocksByTheTestsClock(RunLockConformance):
    """With a clock that the tests advance."""

    @pytest.fixture
    def clock(self) -> VirtualClock | None:
        """Time passes when a test says so."""
        return VirtualClock()

    @pytest.fixture
    async def store(self, open_another: Open) -> AsyncIterator[GroupedStore]:
        """One handle."""
        store = await open_another()
        yield store
        await store.aclose()


class TestMemoryRunLocks(RunLocksByTheTestsClock):
    """On the store in memory."""

    @pytest.fixture
    def open_another(self, clock: VirtualClock | None) -> Open:
        """Handles on the same data."""
        memory = MemoryRecords(clock=clock or SYSTEM_CLOCK)

        async def open_it() -> GroupedStore:
            return GroupedStore(MemoryBackend(memory))

        return open_it


class TestSqliteRunLocks(RunLocksByTheTestsClock):
    """On SQLite."""

    @pytest.fixture
    def open_another(self, tmp_path: Path, clock: VirtualClock | None) -> Open:
        """Handles on one file."""

        async def open_it() -> GroupedStore:
            return await open_sqlite(str(tmp_path / "store.db"), clock=clock or SYSTEM_CLOCK)

        return open_it


class TestSqliteRunLocksInRealTime(TestSqliteRunLocks):
    """On SQLite, by the time of the machine: tests of leases wait for it."""

    @pytest.fixture
    def clock(self) -> VirtualClock | None:
        """No clock to advance."""
        return None


class TestRunLocksOnOneHandle(RunLocksByTheTestsClock):
    """Where there is only one handle on the data, both processes share it."""

    @pytest.fixture
    def open_another(self) -> None:
        """Nobody else."""
        return

    @pytest.fixture
    async def store(self, clock: VirtualClock) -> AsyncIterator[GroupedStore]:
        """The one handle."""
        store = GroupedStore(MemoryBackend(MemoryRecords(clock=clock)))
        yield store
        await store.aclose()

"""Durable locks keep their promises on SQLite."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.stores.sqlite import SqliteOptions, open_sqlite
from standfast.testing import VirtualClock
from standfast.testing.conformance import LockConformance

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from standfast.stores import GroupedStore


class TestSqliteLocks(LockConformance):
    """By a clock that follows the loop, and that tests can advance."""

    options = SqliteOptions()

    @pytest.fixture
    async def clock(self) -> VirtualClock:
        """Real time, and whatever a test adds to it."""
        return VirtualClock(asyncio.get_running_loop())

    @pytest.fixture
    def open_another(self, tmp_path: Path, clock: VirtualClock) -> Callable[[], Awaitable[GroupedStore]]:
        """Handles on one file."""

        async def open_it() -> GroupedStore:
            return await open_sqlite(str(tmp_path / "store.db"), self.options, clock=clock)

        return open_it

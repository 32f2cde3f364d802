"""Durable locks keep their promises on the store in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.stores import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.testing import VirtualClock
from standfast.testing.conformance import LockConformance

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class TestMemoryLocks(LockConformance):
    """By a clock that follows the loop, and that tests can advance."""

    @pytest.fixture
    async def clock(self) -> VirtualClock:
        """Real time, and whatever a test adds to it."""
        return VirtualClock(asyncio.get_running_loop())

    @pytest.fixture
    def open_another(self, clock: VirtualClock) -> Callable[[], Awaitable[GroupedStore]]:
        """Handles on the same data."""
        memory = MemoryRecords(clock=clock)

        async def open_it() -> GroupedStore:
            return GroupedStore(MemoryBackend(memory))

        return open_it

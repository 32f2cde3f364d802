"""The store in memory keeps the store contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.stores import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.testing import VirtualClock
from standfast.testing.conformance import StoreConformance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


class TestMemory(StoreConformance):
    """With a clock that the tests advance."""

    @pytest.fixture
    def clock(self) -> VirtualClock:
        """Time passes when a test says so."""
        return VirtualClock()

    @pytest.fixture
    def memory(self, clock: VirtualClock) -> MemoryRecords:
        """The data that all handles share."""
        return MemoryRecords(clock=clock)

    @pytest.fixture
    async def store(self, memory: MemoryRecords) -> AsyncIterator[GroupedStore]:
        """One handle."""
        store = GroupedStore(MemoryBackend(memory))
        yield store
        await store.aclose()

    @pytest.fixture
    def open_another(self, memory: MemoryRecords) -> Callable[[], Awaitable[GroupedStore]]:
        """Others."""

        async def open_it() -> GroupedStore:
            return GroupedStore(MemoryBackend(memory))

        return open_it

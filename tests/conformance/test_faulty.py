"""A store whose backend loses requests and replies keeps the store contract all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.stores import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.testing import Faults, FaultyBackend, VirtualClock
from standfast.testing.conformance import StoreConformance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Open = Callable[[], Awaitable[GroupedStore]]

FAULTS = Faults(lose_request=0.02, lose_reply=0.1, land_late=0.02, delay=0.2, double_hint=0.3, longest_delay=0.002)


class TestMemoryWithLostReplies(StoreConformance):
    """Whatever common code can find out and repeat by itself, callers never see."""

    @pytest.fixture
    def clock(self) -> VirtualClock:
        """Time passes when a test says so."""
        return VirtualClock()

    @pytest.fixture
    def open_another(self, clock: VirtualClock, seed: int) -> Open:
        """Open a handle on the same memory."""
        memory = MemoryRecords(clock=clock)

        async def open_it() -> GroupedStore:
            return GroupedStore(FaultyBackend(MemoryBackend(memory), seed=seed, faults=FAULTS))

        return open_it

    @pytest.fixture
    async def store(self, open_another: Open) -> AsyncIterator[GroupedStore]:
        """One handle."""
        store = await open_another()
        yield store
        await store.aclose()

"""A store whose values are sealed keeps the store contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.stores import GroupedStore
from standfast.stores.encryption import EncryptedStore, Keyring
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.testing import VirtualClock
from standfast.testing.conformance import StoreConformance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

KEYRING = Keyring({"old": b"o" * 32, "new": b"n" * 32})


class TestSealed(StoreConformance):
    """Over the store in memory, with a clock that the tests advance."""

    @pytest.fixture
    def clock(self) -> VirtualClock:
        """Time passes when a test says so."""
        return VirtualClock()

    @pytest.fixture
    def memory(self, clock: VirtualClock) -> MemoryRecords:
        """The data that all handles share."""
        return MemoryRecords(clock=clock)

    @pytest.fixture
    async def store(self, memory: MemoryRecords) -> AsyncIterator[EncryptedStore]:
        """One handle."""
        store = EncryptedStore(GroupedStore(MemoryBackend(memory)), KEYRING)
        yield store
        await store.aclose()

    @pytest.fixture
    def open_another(self, memory: MemoryRecords) -> Callable[[], Awaitable[EncryptedStore]]:
        """Others."""

        async def open_it() -> EncryptedStore:
            return EncryptedStore(GroupedStore(MemoryBackend(memory)), KEYRING)

        return open_it

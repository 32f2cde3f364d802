"""The suites ask of a store only what it declares: they pass on one that can do as little as any server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.stores import GroupedStore
from standfast.stores.memory import MemoryRecords
from standfast.testing.conformance import LockConformance, RunLockConformance, StoreConformance
from tests.conformance.modest import MODEST, ModestBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Open = Callable[[], Awaitable[GroupedStore]]


class Modest:
    """Handles on one memory, by the time of the machine."""

    @pytest.fixture
    def open_another(self) -> Open:
        """Handles on the same data."""
        memory = MemoryRecords(capabilities=MODEST)

        async def open_it() -> GroupedStore:
            return GroupedStore(ModestBackend(memory))

        return open_it

    @pytest.fixture
    async def store(self, open_another: Open) -> AsyncIterator[GroupedStore]:
        """One handle."""
        store = await open_another()
        yield store
        await store.aclose()


class TestModestStore(Modest, StoreConformance):
    """The store contract."""


@pytest.mark.exhaustive  # it goes by the time of the machine, and waits a lot
class TestModestLocks(Modest, LockConformance):
    """The promises of durable locks."""


class TestModestRunLocks(Modest, RunLockConformance):
    """The promises of run locks."""

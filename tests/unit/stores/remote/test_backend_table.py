"""What is common to all stores over a network keeps the store contract, on the smallest server there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.stores.backend import Batching
from standfast.stores.remote import open_remote
from standfast.testing.conformance import StoreConformance
from tests.unit.stores.remote.table import Table, TableServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from standfast.stores import GroupedStore

    Open = Callable[[], Awaitable[GroupedStore]]


class TestTable(StoreConformance):
    """A server that takes any number of riders."""

    batching = Batching()

    @pytest.fixture
    def open_another(self) -> Open:
        """Open a handle on one table."""
        table = Table()

        async def open_it() -> GroupedStore:
            return open_remote(TableServer(table, self.batching))

        return open_it

    @pytest.fixture
    async def store(self, open_another: Open) -> AsyncIterator[GroupedStore]:
        """One handle."""
        store = await open_another()
        yield store
        await store.aclose()


class TestNarrowTable(TestTable):
    """A server that takes few changes of one namespace at a time."""

    batching = Batching(max_riders=10, max_weight=25, max_bytes=100_000, spans_namespaces=False)

"""DynamoDB keeps every contract, on an emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.stores.opening import open_store
from holdfast.testing.conformance import LockConformance, RunLockConformance, StoreConformance, WorkflowConformance
from tests.conformance.differential import compare_with_the_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from holdfast.stores import GroupedStore

    Open = Callable[[], Awaitable[GroupedStore]]


class DynamoTable:
    """One table for all tests, each in namespaces of its own.

    All handles are in one process and share what it knows of the time, so leases may be short.
    """

    @pytest.fixture
    def open_another(self, dynamodb_url: str) -> Open:
        """Open a handle on the table."""

        async def open_it() -> GroupedStore:
            return await open_store(f"{dynamodb_url}&create=true&shortest_lease=1s")

        return open_it

    @pytest.fixture
    async def store(self, open_another: Open) -> AsyncIterator[GroupedStore]:
        """One handle."""
        store = await open_another()
        yield store
        await store.aclose()


class TestDynamoStore(DynamoTable, StoreConformance):
    """The store contract."""


class TestDynamoLocks(DynamoTable, LockConformance):
    """The promises of durable locks."""


class TestDynamoRunLocks(DynamoTable, RunLockConformance):
    """The promises of run locks."""


class TestDynamoWorkflows(DynamoTable, WorkflowConformance):
    """The promises of workflows."""


def test_dynamodb_is_as_the_model(dynamodb_url: str) -> None:
    """Whatever is asked of it, of both handles, in any order."""

    async def open_it() -> GroupedStore:
        return await open_store(f"{dynamodb_url}&create=true")

    compare_with_the_model(lambda _: open_it, full=100, quick=5)

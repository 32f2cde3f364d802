"""A libSQL server keeps every contract: of stores, locks, run locks and workflows."""

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


class Libsql:
    """Handles on the server that the test run shares, by its own time; each test has its own namespace."""

    @pytest.fixture
    def open_another(self, libsql_url: str) -> Open:
        """Open a handle."""

        async def open_it() -> GroupedStore:
            return await open_store(libsql_url)

        return open_it

    @pytest.fixture
    async def store(self, open_another: Open) -> AsyncIterator[GroupedStore]:
        """One handle."""
        store = await open_another()
        yield store
        await store.aclose()


class TestLibsqlStore(Libsql, StoreConformance):
    """The store contract."""


class TestLibsqlLocks(Libsql, LockConformance):
    """The promises of durable locks."""


class TestLibsqlRunLocks(Libsql, RunLockConformance):
    """The promises of run locks."""


class TestLibsqlWorkflows(Libsql, WorkflowConformance):
    """The promises of workflows."""


def test_libsql_is_as_the_model(libsql_url: str) -> None:
    """After any program, the server and the model say the same."""
    compare_with_the_model(lambda _: lambda: open_store(libsql_url), full=100, quick=5)

"""MariaDB keeps every contract: of stores, locks, run locks and workflows."""

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


class OnMariadb:
    """Handles on the tables that all tests share, by the server's time; each test has its own namespace."""

    @pytest.fixture
    def clock(self) -> None:
        """No clock to advance."""
        return

    @pytest.fixture
    def open_another(self, mysql_url: str) -> Open:
        """Open a handle."""
        return lambda: open_store(mysql_url)

    @pytest.fixture
    async def store(self, open_another: Open) -> AsyncIterator[GroupedStore]:
        """One handle."""
        store = await open_another()
        yield store
        await store.aclose()


class TestMariadb(OnMariadb, StoreConformance):
    """The store contract."""


class TestMariadbLocks(OnMariadb, LockConformance):
    """Durable locks."""


class TestMariadbRunLocks(OnMariadb, RunLockConformance):
    """Run locks."""


class TestMariadbWorkflows(OnMariadb, WorkflowConformance):
    """Workflows."""


def test_mariadb_is_as_the_model(mysql_url: str) -> None:
    """Whatever is asked of it."""
    compare_with_the_model(lambda _: lambda: open_store(mysql_url), full=100, quick=5)

"""MariaDB keeps every contract: of stores, locks, run locks and workflows."""

from __future__ import annotations

import pytest

from standfast.stores.url import open_store
from standfast.testing.conformance import LockConformance, RunLockConformance, StoreConformance, WorkflowConformance
from tests.conformance.differential import compare_with_the_model
from tests.conformance.on_server import OnServer


class OnMariadb(OnServer):
    """Handles on the tables that all tests share, by the server's time; each test has its own namespace."""

    @pytest.fixture
    def url(self, mysql_url: str) -> str:
        """The server, as it is."""
        return mysql_url


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

"""A libSQL server keeps every contract: of stores, locks, run locks and workflows."""

from __future__ import annotations

import pytest

from standfast.stores.url import open_store
from standfast.testing.conformance import LockConformance, RunLockConformance, StoreConformance, WorkflowConformance
from tests.conformance.differential import compare_with_the_model
from tests.conformance.on_server import OnServer


class Libsql(OnServer):
    """Handles on the server that the test run shares, by its own time; each test has its own namespace."""

    @pytest.fixture
    def url(self, libsql_url: str) -> str:
        """The server, as it is."""
        return libsql_url


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

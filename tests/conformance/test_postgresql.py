"""PostgreSQL keeps every contract: directly, and through pgbouncer in transaction mode."""

from __future__ import annotations

import pytest

from standfast.stores.url import open_store
from standfast.testing.conformance import LockConformance, RunLockConformance, StoreConformance, WorkflowConformance
from tests.conformance.differential import compare_with_the_model
from tests.conformance.on_server import OnServer


class Direct(OnServer):
    """Handles on one schema of the server; every test has namespaces of its own."""

    @pytest.fixture
    def url(self, postgresql_url: str) -> str:
        """Connect to the server itself."""
        return f"{postgresql_url}?schema=conformance"


class Pooled(Direct):
    """The same through a pooler, which gives each transaction another session; hints come over a direct connection."""

    @pytest.fixture
    def url(self, pgbouncer_url: str, postgresql_url: str) -> str:
        """Connect to the pooler, and listen at the server."""
        server = postgresql_url.rpartition("@")[2].partition("/")[0]
        return f"{pgbouncer_url}?schema=conformance&listen={server}"


class TestPostgresqlStore(Direct, StoreConformance):
    """The store contract."""


class TestPostgresqlLocks(Direct, LockConformance):
    """The promises of durable locks."""


class TestPostgresqlRunLocks(Direct, RunLockConformance):
    """The promises of run locks."""


class TestPostgresqlWorkflows(Direct, WorkflowConformance):
    """The promises of workflows."""


class TestPooledStore(Pooled, StoreConformance):
    """The store contract, through a pooler."""


class TestPooledLocks(Pooled, LockConformance):
    """The promises of durable locks, through a pooler."""


class TestPooledRunLocks(Pooled, RunLockConformance):
    """The promises of run locks, through a pooler."""


class TestPooledWorkflows(Pooled, WorkflowConformance):
    """The promises of workflows, through a pooler."""


def test_postgresql_is_as_the_model(postgresql_url: str) -> None:
    """Whatever is asked of it."""
    compare_with_the_model(lambda _: lambda: open_store(f"{postgresql_url}?schema=differential"), full=100, quick=5)

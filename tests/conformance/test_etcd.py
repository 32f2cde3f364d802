"""etcd keeps every contract: of stores, locks, run locks and workflows."""

from __future__ import annotations

import pytest

from standfast.stores.url import open_store
from standfast.testing.conformance import LockConformance, RunLockConformance, StoreConformance, WorkflowConformance
from tests.conformance.differential import compare_with_the_model
from tests.conformance.on_server import OnServer


class OnEtcd(OnServer):
    """Handles on the same cluster; every test has namespaces of its own.

    All handles are in one process and share what it knows of the time, so leases may be short.
    """

    @pytest.fixture
    def url(self, etcd_url: str) -> str:
        """The cluster, as it is."""
        return f"{etcd_url}?shortest_lease=1s"


class TestEtcd(OnEtcd, StoreConformance):
    """The store contract."""


class TestEtcdLocks(OnEtcd, LockConformance):
    """The promises of durable locks."""


class TestEtcdRunLocks(OnEtcd, RunLockConformance):
    """The promises of run locks."""


class TestEtcdWorkflows(OnEtcd, WorkflowConformance):
    """The promises of workflows."""


def test_after_any_program_etcd_and_the_model_say_the_same(etcd_url: str) -> None:
    """Whatever is read, scanned and written, by two handles."""
    compare_with_the_model(lambda _: lambda: open_store(etcd_url), full=100, quick=5)

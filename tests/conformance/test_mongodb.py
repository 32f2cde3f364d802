"""MongoDB keeps every contract: of stores, locks, run locks and workflows."""

from __future__ import annotations

import pytest

from standfast.stores.url import open_store
from standfast.testing.conformance import LockConformance, RunLockConformance, StoreConformance, WorkflowConformance
from tests.conformance.differential import compare_with_the_model
from tests.conformance.on_server import OnServer


class OnMongo(OnServer):
    """Handles on the same collections; every test has namespaces of its own."""

    @pytest.fixture
    def url(self, mongodb_url: str) -> str:
        """The server, as it is."""
        return mongodb_url


class TestMongo(OnMongo, StoreConformance):
    """The store contract."""


class TestMongoLocks(OnMongo, LockConformance):
    """The promises of durable locks."""


class TestMongoRunLocks(OnMongo, RunLockConformance):
    """The promises of run locks."""


class TestMongoWorkflows(OnMongo, WorkflowConformance):
    """The promises of workflows."""


def test_after_any_program_mongodb_and_the_model_say_the_same(mongodb_url: str) -> None:
    """Whatever is read, scanned and written, by two handles."""
    compare_with_the_model(lambda _: lambda: open_store(mongodb_url), full=100, quick=5)

"""DynamoDB keeps every contract, on an emulator."""

from __future__ import annotations

import pytest

from standfast.stores.url import open_store
from standfast.testing.conformance import LockConformance, RunLockConformance, StoreConformance, WorkflowConformance
from tests.conformance.differential import compare_with_the_model
from tests.conformance.on_server import OnServer


class DynamoTable(OnServer):
    """One table for all tests, each in namespaces of its own.

    All handles are in one process and share what it knows of the time, so leases may be short.
    """

    @pytest.fixture
    def url(self, dynamodb_url: str) -> str:
        """The table, made if it is missing."""
        return f"{dynamodb_url}&create=true&shortest_lease=1s"


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
    compare_with_the_model(lambda _: lambda: open_store(f"{dynamodb_url}&create=true"), full=100, quick=2)

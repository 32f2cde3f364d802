"""Stores, locks, run locks and workflows keep their promises on Valkey 9, and the store contract on Redis 7 as well."""

from __future__ import annotations

import uuid

import pytest

from standfast.stores.url import open_store
from standfast.testing.conformance import LockConformance, RunLockConformance, StoreConformance, WorkflowConformance
from tests.conformance.differential import compare_with_the_model
from tests.conformance.on_server import OnServer


class OnRedis(OnServer):
    """Each test has a prefix of its own on the shared server, and goes by the server's time."""

    @pytest.fixture
    def url(self, redis_url: str) -> str:
        """Return an address where nothing is yet."""
        return f"{redis_url}?prefix=t{uuid.uuid4().hex[:12]}"


class TestRedis(OnRedis, StoreConformance):
    """The store contract on Valkey 9."""


class TestRedis7(OnRedis, StoreConformance):
    """The store contract on Redis 7.0."""

    @pytest.fixture
    def url(self, redis7_url: str) -> str:
        """Return an address where nothing is yet."""
        return f"{redis7_url}?prefix=t{uuid.uuid4().hex[:12]}"


class TestRedisLocks(OnRedis, LockConformance):
    """Durable locks."""


class TestRedisRunLocks(OnRedis, RunLockConformance):
    """Run locks."""


class TestRedisWorkflows(OnRedis, WorkflowConformance):
    """Workflows."""


def test_programs_fare_as_on_the_model(redis_url: str) -> None:
    """Whatever is done to Valkey and to the model, both say the same."""
    compare_with_the_model(lambda _: lambda: open_store(redis_url), full=200, quick=8, steps=30)

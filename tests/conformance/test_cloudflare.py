"""Durable Objects keep every contract, on Cloudflare's runtime as it runs on any machine (``workerd``)."""

from __future__ import annotations

import uuid

import pytest

from standfast.stores.url import open_store
from standfast.testing.conformance import LockConformance, RunLockConformance, StoreConformance, WorkflowConformance
from tests.conformance.differential import compare_with_the_model
from tests.conformance.on_server import OnServer


class OnCloudflare(OnServer):
    """Each test has objects of its own on the shared runtime, and goes by their time."""

    @pytest.fixture
    def url(self, cloudflare_url: str) -> str:
        """Return an address where nothing is yet."""
        return f"{cloudflare_url}&prefix=t{uuid.uuid4().hex[:12]}"


class TestCloudflareStore(OnCloudflare, StoreConformance):
    """The store contract."""


class TestCloudflareLocks(OnCloudflare, LockConformance):
    """Durable locks."""


class TestCloudflareRunLocks(OnCloudflare, RunLockConformance):
    """Run locks."""


class TestCloudflareWorkflows(OnCloudflare, WorkflowConformance):
    """Workflows."""


def test_cloudflare_is_as_the_model(cloudflare_url: str) -> None:
    """Whatever is done to objects and to the model, both say the same."""
    compare_with_the_model(lambda _: lambda: open_store(cloudflare_url), full=100, quick=5)

"""MongoDB keeps every contract: of stores, locks, run locks and workflows."""

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


# The driver leaves a socket to the garbage collector if it is cancelled while it connects.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


class OnMongo:
    """Handles on the same collections; every test has namespaces of its own."""

    @pytest.fixture
    def open_another(self, mongodb_url: str) -> Open:
        """Open a handle."""

        async def open_it() -> GroupedStore:
            return await open_store(mongodb_url)

        return open_it

    @pytest.fixture
    async def store(self, open_another: Open) -> AsyncIterator[GroupedStore]:
        """One handle."""
        store = await open_another()
        yield store
        await store.aclose()


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

    async def open_it() -> GroupedStore:
        return await open_store(mongodb_url)

    compare_with_the_model(lambda _: open_it, full=100, quick=5)

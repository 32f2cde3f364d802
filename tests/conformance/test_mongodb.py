"""MongoDB keeps every contract: of stores, locks, run locks and workflows."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient

from holdfast.stores.mongodb.documents import STORE
from holdfast.stores.opening import open_store
from holdfast.testing.conformance import LockConformance, RunLockConformance, StoreConformance, WorkflowConformance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from holdfast.stores import GroupedStore

    Open = Callable[[], Awaitable[GroupedStore]]


@pytest.fixture(scope="module")
def collections(mongodb_url: str) -> str:
    """Collections of this process's own: to make them takes longer than most tests."""
    return f"{mongodb_url}&prefix=t{uuid.uuid4().hex[:12]}"


class OnMongo:
    """Handles on collections that are emptied before every test."""

    @pytest.fixture
    def open_another(self, collections: str) -> Open:
        """Open a handle."""
        empty(collections)

        async def open_it() -> GroupedStore:
            return await open_store(collections)

        return open_it

    @pytest.fixture
    async def store(self, open_another: Open) -> AsyncIterator[GroupedStore]:
        """One handle."""
        store = await open_another()
        yield store
        await store.aclose()


def empty(url: str) -> None:
    """Remove all records, as if nobody had ever been here; versions go on."""
    with MongoClient[dict[str, Any]](url.partition("&prefix")[0]) as client:
        for name in ("records", "messages", "listeners"):
            collection = client.get_default_database()[f"{url.rpartition('=')[2]}_{name}"]
            collection.delete_many({"_id": {"$ne": STORE}})


class TestMongo(OnMongo, StoreConformance):
    """The store contract."""


class TestMongoLocks(OnMongo, LockConformance):
    """The promises of durable locks."""


class TestMongoRunLocks(OnMongo, RunLockConformance):
    """The promises of run locks."""


class TestMongoWorkflows(OnMongo, WorkflowConformance):
    """The promises of workflows."""

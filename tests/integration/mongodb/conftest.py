"""What the tests of the MongoDB store share."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient

from standfast.stores.url import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from pymongo.collection import Collection

    from standfast.stores import GroupedStore


@pytest.fixture(scope="module")
def url(mongodb_url: str) -> str:
    """Collections of this module's own."""
    return f"{mongodb_url}&prefix=i{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[GroupedStore]:
    """One handle."""
    store = await open_store(url)
    yield store
    await store.aclose()


@pytest.fixture
async def other(url: str) -> AsyncIterator[GroupedStore]:
    """Another handle on the same records."""
    store = await open_store(url)
    yield store
    await store.aclose()


@pytest.fixture
def driver(url: str) -> Iterator[MongoClient[dict[str, Any]]]:
    """The bare driver."""
    with MongoClient[dict[str, Any]](url.partition("&prefix")[0]) as client:
        yield client


@pytest.fixture
def records(driver: MongoClient[dict[str, Any]], url: str) -> Collection[dict[str, Any]]:
    """The collection with the records."""
    return driver.get_default_database()[f"{url.rpartition('=')[2]}_records"]

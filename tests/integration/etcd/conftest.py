"""Stores on etcd that no other test uses."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from standfast.keys import RecordKey
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from standfast.stores import GroupedStore


@pytest.fixture
def url(etcd_url: str) -> str:
    """A prefix of this test's own on the cluster that all tests share."""
    return f"{etcd_url.rpartition('/')[0]}/t{uuid.uuid4().hex[:12]}"


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncGenerator[GroupedStore]:
    """Open a store for the length of a block."""
    store = await open_store(url, **options)
    try:
        yield store
    finally:
        await store.aclose()


def key(*parts: str) -> RecordKey:
    """Return a key."""
    return RecordKey("n", *parts)

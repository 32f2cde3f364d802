"""Fixtures of the tests that move stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.stores.url import open_store
from tests.integration.moving.places import KINDS, fresh_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from standfast.stores import GroupedStore


@pytest.fixture(params=[pytest.param(kind, marks=() if kind == "sqlite" else pytest.mark.services) for kind in KINDS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store, on each kind of server in turn."""
    return fresh_url(request.param, tmp_path)


@pytest.fixture
async def store(url: str) -> AsyncIterator[GroupedStore]:
    """One handle."""
    store = await open_store(url)
    yield store
    await store.aclose()


@pytest.fixture
async def other(store: GroupedStore) -> AsyncIterator[GroupedStore]:
    """Another handle on the same store."""
    other = await store.another()
    yield other
    await other.aclose()

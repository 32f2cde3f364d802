"""Handles on Valkey servers: the shared one, and one of these tests' own whose settings they may change."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

import pytest
import redis.asyncio

from standfast.stores.url import open_store
from tests import services

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from standfast.stores import GroupedStore
    from tests.services.server import Server


class Open(Protocol):
    """Opens a handle that is closed after the test."""

    async def __call__(self, url: str = "", **options: object) -> GroupedStore:
        """Open ``url``, else the server of the test, with a prefix of the test and more options."""
        ...


@pytest.fixture
def prefix() -> str:
    """Return a prefix that no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Return a server of this module's own."""
    with services.private("redis") as server:
        yield server


@pytest.fixture
async def admin(server: Server) -> AsyncIterator[redis.asyncio.Redis]:
    """Return a plain client of that server; what it sets is set back after the test."""
    async with redis.asyncio.Redis.from_url(server.url) as client:
        names = ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "busy-reply-threshold")
        before = {name: str((await client.config_get(name))[name]) for name in names}
        yield client
        for name, value in before.items():
            await client.config_set(name, value)


@pytest.fixture
async def open_it(server: Server, prefix: str) -> AsyncIterator[Open]:
    """Return a function that opens handles on that server."""
    async with AsyncExitStack() as opened:

        async def open_one(url: str = "", **options: object) -> GroupedStore:
            asked = "&".join(f"{name}={value}" for name, value in {"prefix": prefix, **options}.items())
            store = await open_store(f"{url or server.url}?{asked}")
            opened.push_async_callback(store.aclose)
            return store

        yield open_one

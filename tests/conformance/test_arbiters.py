"""Both arbiters keep the same promises: in the memory of the sole server, and on every kind of store."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.flows.arbiter.in_memory import LocalArbiter
from standfast.flows.arbiter.in_store import SharedArbiter
from standfast.space import Space
from standfast.stores import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.stores.url import open_store
from tests.conformance.arbiter_visits import fresh_name
from tests.conformance.arbiters import ArbiterContract
from tests.conformance.places import OnPostgresql, OnRedis, OnSqlite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conformance.arbiters import Pair


class TestLocalArbiter(ArbiterContract):
    """One server, with its lines in memory."""

    @pytest.fixture
    async def space(self) -> AsyncIterator[Space]:
        """A space in memory."""
        async with sf.open("memory://", namespace=fresh_name()) as space:
            yield space

    @pytest.fixture
    async def arbiters(self, space: Space) -> AsyncIterator[Pair]:
        """The same one twice. Nothing is left of any line."""
        async with LocalArbiter(space) as arbiter:
            yield arbiter, arbiter
            assert arbiter.keys_in_use == 0


class Shared(ArbiterContract):
    """Two servers on one store."""

    @pytest.fixture
    async def spaces(self) -> AsyncIterator[tuple[Space, Space]]:
        """A space of each."""
        memory = MemoryRecords()
        async with Space(GroupedStore(MemoryBackend(memory))) as one, Space(GroupedStore(MemoryBackend(memory))) as two:
            yield one, two

    @pytest.fixture
    def space(self, spaces: tuple[Space, Space]) -> Space:
        """The first."""
        return spaces[0]

    @pytest.fixture
    async def arbiters(self, spaces: tuple[Space, Space]) -> AsyncIterator[Pair]:
        """One on each space."""
        async with SharedArbiter(spaces[0]) as one, SharedArbiter(spaces[1]) as two:
            yield one, two


class TestSharedInMemory(Shared):
    """On the store in memory."""


class _AtUrl(Shared):
    @pytest.fixture
    async def spaces(self, url: str) -> AsyncIterator[tuple[Space, Space]]:
        """Two spaces on the store at a URL, in a namespace of their own."""
        namespace = fresh_name()
        async with AsyncExitStack() as stack:
            one, two = [
                await stack.enter_async_context(Space(await open_store(url), namespace=namespace)) for _ in range(2)
            ]
            yield one, two


class TestSharedOnSqlite(OnSqlite, _AtUrl):
    """On a file."""


class TestSharedOnPostgresql(OnPostgresql, _AtUrl):
    """On a server."""


class TestSharedOnRedis(OnRedis, _AtUrl):
    """On a server."""

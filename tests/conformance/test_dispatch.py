"""The one seam keeps its promises: with lines in memory, and as two servers on every kind of store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.flows.dispatcher import Dispatcher
from tests.conformance.arbiter_visits import fresh_name
from tests.conformance.dispatch_contract import DispatchContract
from tests.conformance.limit_contract import LimitContract
from tests.conformance.places import InMemory, OnPostgresql, OnRedis, OnSqlite
from tests.conformance.share_contract import ShareContract

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conformance.dispatch_contract import Pair
    from tests.conformance.dispatch_stage import Stage


class TestLocal(DispatchContract, LimitContract, ShareContract):
    """The sole server."""

    @pytest.fixture
    async def pair(self, stage: Stage) -> AsyncIterator[Pair]:
        """The same one twice."""
        async with Dispatcher("memory://", [stage.flow], arbiter="local") as dispatcher:
            yield dispatcher, dispatcher


class Shared(DispatchContract, LimitContract, ShareContract):
    """Two servers on one store."""

    @pytest.fixture
    async def pair(self, stage: Stage, url: str) -> AsyncIterator[Pair]:
        """One on each opening of the store."""
        namespace = fresh_name()
        one, two = (Dispatcher(sf.Engine(url, namespace=namespace), [stage.flow]) for _ in range(2))
        async with one, two:
            yield one, two


class TestSharedInMemory(InMemory, Shared):
    """On a store in memory."""


class TestSharedOnSqlite(OnSqlite, Shared):
    """On a file."""


class TestSharedOnPostgresql(OnPostgresql, Shared):
    """On a server."""


class TestSharedOnRedis(OnRedis, Shared):
    """On a server."""

"""Each policy to its last detail, with lines in memory, and as two servers on every kind of store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.flows.dispatcher import Dispatcher
from tests.conformance.arbiter_visits import fresh_name
from tests.conformance.collect_contract import CollectContract, Desk
from tests.conformance.places import InMemory, OnPostgresql, OnRedis, OnSqlite
from tests.conformance.refusal_contract import RefusalContract
from tests.conformance.supersede_contract import Mule, SupersedeContract

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conformance.dispatch_contract import Pair
    from tests.conformance.dispatch_stage import Stage


class _Policies(SupersedeContract, CollectContract, RefusalContract):
    @pytest.fixture
    def flows(self, stage: Stage, mule: Mule, desk: Desk) -> list[sf.Flow]:
        """All that is served."""
        return [stage.flow, mule.flow, desk.flow]


class TestLocal(_Policies):
    """The sole server."""

    @pytest.fixture
    async def pair(self, flows: list[sf.Flow], mule: Mule) -> AsyncIterator[Pair]:
        """The same one twice."""
        engine = sf.Engine("memory://", hooks=[mule.told.append])
        async with Dispatcher(engine, flows, arbiter="local") as dispatcher:
            yield dispatcher, dispatcher


class Shared(_Policies):
    """Two servers on one store."""

    @pytest.fixture
    async def pair(self, flows: list[sf.Flow], mule: Mule, url: str) -> AsyncIterator[Pair]:
        """One on each opening of the store."""
        namespace = fresh_name()
        engines = (sf.Engine(url, namespace=namespace, hooks=[mule.told.append]) for _ in range(2))
        one, two = (Dispatcher(engine, flows) for engine in engines)
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

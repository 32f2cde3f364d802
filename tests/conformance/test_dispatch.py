"""The one seam keeps its promises: with lines in memory, and as two servers on every kind of store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import holdfast as hf
from holdfast.flows.dispatch import Dispatcher
from tests.conformance.arbiter_visits import fresh_name
from tests.conformance.dispatching import DispatchContract
from tests.conformance.limiting import LimitContract
from tests.conformance.sharing import SharingContract

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.conformance.dispatch_stage import Stage
    from tests.conformance.dispatching import Pair


class TestLocal(DispatchContract, LimitContract, SharingContract):
    """The sole server."""

    @pytest.fixture
    async def pair(self, stage: Stage) -> AsyncIterator[Pair]:
        """The same one twice."""
        async with Dispatcher("memory://", [stage.flow], arbiter="local") as dispatcher:
            yield dispatcher, dispatcher


class Shared(DispatchContract, LimitContract, SharingContract):
    """Two servers on one store."""

    @pytest.fixture
    async def pair(self, stage: Stage, url: str) -> AsyncIterator[Pair]:
        """One on each opening of the store."""
        namespace = fresh_name()
        one, two = (Dispatcher(hf.Engine(url, namespace=namespace), [stage.flow]) for _ in range(2))
        async with one, two:
            yield one, two


class TestSharedInMemory(Shared):
    """On a store in memory."""

    @pytest.fixture
    def url(self) -> str:
        """A store of the test's own."""
        return f"memory://{fresh_name()}"


class TestSharedOnSqlite(Shared):
    """On a file."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """A file of the test's own."""
        return f"sqlite:///{tmp_path}/store.db"


class TestSharedOnPostgresql(Shared):
    """On a server."""

    @pytest.fixture
    def url(self, postgresql_url: str) -> str:
        """The shared server."""
        return f"{postgresql_url}?schema=conformance"


class TestSharedOnRedis(Shared):
    """On a server."""

    @pytest.fixture
    def url(self, redis_url: str) -> str:
        """The shared server."""
        return redis_url

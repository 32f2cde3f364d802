"""Where two servers share a store, for the contracts of flows: each class provides the ``url`` fixture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.arbiter_visits import fresh_name

if TYPE_CHECKING:
    from pathlib import Path


class InMemory:
    """In the memory of the process."""

    @pytest.fixture
    def url(self) -> str:
        """A store of the test's own."""
        return f"memory://{fresh_name()}"


class OnSqlite:
    """On a file."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """A file of the test's own."""
        return f"sqlite:///{tmp_path}/store.db"


class OnPostgresql:
    """On a server."""

    @pytest.fixture
    def url(self, postgresql_url: str) -> str:
        """The shared server."""
        return f"{postgresql_url}?schema=conformance"


class OnRedis:
    """On a server."""

    @pytest.fixture
    def url(self, redis_url: str) -> str:
        """The shared server."""
        return redis_url

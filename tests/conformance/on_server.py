"""What the contract tests of all servers share: handles on the store at a URL, by the server's own time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pytest

from standfast.stores.url import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from standfast.stores import GroupedStore

    Open: TypeAlias = Callable[[], Awaitable[GroupedStore]]


class OnServer:
    """Handles on the server that the test run shares. A subclass says where: its ``url`` fixture."""

    @pytest.fixture
    def clock(self) -> None:
        """No clock to advance: the time is the server's."""
        return

    @pytest.fixture
    def open_another(self, url: str) -> Open:
        """Open a handle."""
        return lambda: open_store(url)

    @pytest.fixture
    async def store(self, open_another: Open) -> AsyncIterator[GroupedStore]:
        """One handle."""
        store = await open_another()
        yield store
        await store.aclose()

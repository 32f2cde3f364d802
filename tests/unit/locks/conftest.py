"""A space on each kind of store that needs no server, by a clock that the test moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.scope import Scope
from standfast.stores.url import open_store
from standfast.testing import VirtualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
def clock() -> VirtualClock:
    """The time of the stores."""
    return VirtualClock()


@pytest.fixture(params=["memory", "sqlite"])
async def scope(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Scope]:
    """A space on a store of its own."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'state.db'}"
    opened = Scope(await open_store(url, clock=clock))
    yield opened
    await opened.aclose()

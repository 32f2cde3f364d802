"""What the tests of fleets share: crews of processes on a server that get ended."""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Protocol

import pytest

import standfast as sf
from tests.integration.locks.crew import Crew
from tests.integration.locks.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path


class Gathering(Protocol):
    """Makes a crew without members on a store, which is ended with its block."""

    def __call__(self, url: str, *, lease: float) -> AbstractAsyncContextManager[Crew]:
        """Make it."""
        ...


@pytest.fixture
def gathering(tmp_path: Path) -> Gathering:
    """Make crews, each with a ledger of its own: their names begin anew."""
    numbers = count(1)

    @asynccontextmanager
    async def make(url: str, *, lease: float) -> AsyncIterator[Crew]:
        path = tmp_path / f"ledger{next(numbers)}.db"
        async with sf.open(url) as space:
            crew = Crew(space, url, ledger := Ledger(path), path, lease)
            try:
                yield crew
            finally:
                crew.close()
                ledger.close()

    return make

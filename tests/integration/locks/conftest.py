"""What the tests of locks between processes share: a store, a ledger outside of it, and crews that get ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

import standfast as sf
from tests.integration.locks.crew import Crew
from tests.integration.locks.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Gather(Protocol):
    """Starts a crew of processes on the store of this test."""

    def __call__(self, size: int, *, lease: float = 30.0) -> Crew:
        """Start it."""
        ...


@pytest.fixture
async def gather(tmp_path: Path) -> AsyncIterator[Gather]:
    """Start crews that are ended after the test."""
    url, path = f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "ledger.db"
    ledger, crews = Ledger(path), list[Crew]()
    async with sf.open(f"{url}?busy=200ms") as space:

        def begin(size: int, *, lease: float = 30.0) -> Crew:
            crews.append(Crew(space, url, ledger, path, lease))
            crews[-1].start(size)
            return crews[-1]

        yield begin
        for crew in crews:
            crew.close()
    ledger.close()


def spread(seconds: list[float]) -> str:
    """Say how long something took."""
    ordered = sorted(seconds)
    return f"took over in {ordered[len(ordered) // 2]:.3f} s (p50), {ordered[-1]:.3f} s (max)"

"""What the tests of workers share: a store, a ledger outside of it, workers, and an engine that drives nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import standfast as sf
from tests.integration.workflows.flows import LEDGER, WORKFLOWS
from tests.integration.workflows.ledger import Ledger
from tests.integration.workflows.nursery import Nursery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The store of this test."""
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def ledger(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """The ledger of this test; workers find it, and the store, in their environment."""
    monkeypatch.setenv(LEDGER, str(tmp_path / "ledger"))
    monkeypatch.setenv("STANDFAST_STORE", url)
    opened = Ledger(tmp_path / "ledger")
    yield opened
    opened.close()


@pytest.fixture
async def nursery(ledger: Ledger) -> AsyncIterator[Nursery]:
    """Workers that are ended after the test."""
    async with Nursery(ledger) as opened:
        yield opened


@pytest.fixture
async def engine(url: str, ledger: Ledger) -> AsyncIterator[sf.Engine]:
    """An engine that starts runs and talks to them, and drives none."""
    assert ledger.path
    async with sf.Engine(url, workflows=WORKFLOWS.values(), drive=False) as opened:
        yield opened

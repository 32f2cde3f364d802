"""Workers on a server that are killed at any moment: where a death cannot be seen, the lease decides."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

import standfast as sf
from tests.integration.fleet.places import place
from tests.integration.workflows.flows import LEDGER, WORKFLOWS
from tests.integration.workflows.ledger import Ledger
from tests.integration.workflows.nursery import Nursery
from tests.integration.workflows.payments import paid_twice_on_server, prepare
from tests.integration.workflows.storm import run_storm
from tests.sizes import remark, rounds, size

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.services, pytest.mark.heavy]

LEASE: Final = 2.0
CLIENTS: Final = size(full=40, quick=16)
STORMS: Final = [("postgresql", 400), ("redis", 400), ("pgbouncer", 100), ("etcd", 100)]
"""Where, and how many kills at full size."""

WITHOUT_SQL: Final = ("redis", "etcd")


@asynccontextmanager
async def fleet(url: str, path: Path) -> AsyncIterator[tuple[sf.Engine, Nursery, Ledger]]:
    """Open an engine that drives nothing, workers to be, and their ledger."""
    ledger = Ledger(path)
    engine = sf.Engine(url, workflows=WORKFLOWS.values(), drive=False, lease=LEASE)
    async with engine as opened, Nursery(ledger) as nursery:
        yield opened, nursery, ledger
    ledger.close()


@pytest.mark.parametrize(("kind", "full"), STORMS, ids=[kind for kind, _ in STORMS])
async def test_a_storm_of_kills_on_a_server_loses_no_run_and_repeats_nothing_recorded(
    kind: str, full: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Eight workers are killed and replaced: every run ends as it should, and what is done again has its reason."""
    url = place(kind)
    if kind not in WITHOUT_SQL:
        await prepare(url)
    monkeypatch.setenv(LEDGER, str(tmp_path / "ledger"))
    monkeypatch.setenv("STANDFAST_STORE", url)
    label = f"kills of workers on {kind}"
    async with fleet(url, tmp_path / "ledger") as (engine, nursery, ledger):
        kills = rounds(label, full=full, quick=5)
        remark(label, await run_storm(engine, nursery, ledger, kills, seed=seed, lease=LEASE, clients=CLIENTS))

    assert kind in WITHOUT_SQL or await paid_twice_on_server(url) == []

"""Workers that are killed and stopped while an operator cancels, ends, retries, forks, purges and releases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

import standfast as sf
from tests.integration.fleet.places import place
from tests.integration.workflows.flows import LEDGER, WORKFLOWS
from tests.integration.workflows.ledger import Ledger
from tests.integration.workflows.nursery import Nursery
from tests.integration.workflows.operated import LEASE, run_operated_storm
from tests.integration.workflows.payments import paid_twice, paid_twice_on_server, prepare
from tests.sizes import remark, rounds, size

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.heavy]

SECONDS: Final = size(full=600, quick=5)
"""How long each storm rages; the checks come after that."""

SEED: Final = 7


@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize(
    "kind", ["sqlite", *(pytest.param(kind, marks=pytest.mark.services) for kind in ("postgresql", "redis"))]
)
async def test_runs_end_and_workers_rest_whatever_operators_and_kills_do(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run ends, nothing is done twice without a reason, fences grow, and idle workers use no processor."""
    url = f"sqlite:///{tmp_path / 'store.db'}" if kind == "sqlite" else place(kind)
    if kind == "postgresql":
        await prepare(url)
    monkeypatch.setenv(LEDGER, str(tmp_path / "ledger"))
    monkeypatch.setenv("STANDFAST_STORE", url)
    ledger, label = Ledger(tmp_path / "ledger"), f"storms with operators on {kind}"
    engine = sf.Engine(url, workflows=WORKFLOWS.values(), drive=False, lease=LEASE)
    async with engine as opened, Nursery(ledger) as nursery:
        for _ in rounds(label, full=1, quick=1):
            remark(label, await run_operated_storm(opened, nursery, ledger, url, seconds=SECONDS, seed=SEED))
        assert kind != "sqlite" or await paid_twice(opened.space) == []
    assert kind != "postgresql" or await paid_twice_on_server(url) == []
    ledger.close()

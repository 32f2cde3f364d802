"""Workers that are killed at any moment: no run is lost, and nothing that was recorded is done again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.workflows.payments import paid_twice
from tests.integration.workflows.storm import run_storm
from tests.sizes import remark, rounds

if TYPE_CHECKING:
    import standfast as sf
    from tests.integration.workflows.ledger import Ledger
    from tests.integration.workflows.nursery import Nursery


@pytest.mark.heavy
async def test_a_storm_of_kills_loses_no_run_and_repeats_nothing_recorded(
    engine: sf.Engine, nursery: Nursery, ledger: Ledger, seed: int
) -> None:
    """Eight workers are killed and replaced for long: every run ends as it should, and duplicates have their kill."""
    kills = rounds("kills of workers", full=1000, quick=10)
    remark("kills of workers", await run_storm(engine, nursery, ledger, kills, seed=seed))

    assert await paid_twice(engine.space) == []

"""Storms on replicated servers that lose their primary: nothing acknowledged is lost, and everything goes on."""

from __future__ import annotations

import pytest

from tests.integration.failover.storm import FAULTS, SET_UPS, STORMS, run_storm
from tests.sizes import remark, rounds

pytestmark = [pytest.mark.services, pytest.mark.heavy, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("set_up", "fault"), STORMS)
async def test_a_set_up_that_promises_it_loses_nothing_in_a_failover(set_up: str, fault: str) -> None:
    """No acknowledged commit is lost, never two hold the lock, fences grow, every run ends, with the same handles."""
    label = f"{set_up}: {fault}"
    for _ in rounds(label, full=5, quick=1):
        measured = await run_storm(SET_UPS[set_up], FAULTS[fault])
        remark(label, f"commit {measured.commit:.1f} s, lock {measured.lock:.1f} s, run {measured.run:.1f} s")
        assert measured.share < 0.9

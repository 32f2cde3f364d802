"""Holders and waiters on a server that are killed: the next in line goes on after about a lease, in turn."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import pytest

from tests.integration.fleet.places import place
from tests.integration.locks.conftest import spread
from tests.integration.locks.kills import kill_the_first_waiters, kill_the_holder
from tests.sizes import remark, rounds

if TYPE_CHECKING:
    from tests.integration.fleet.conftest import Gathering

pytestmark = [pytest.mark.services, pytest.mark.heavy]

CREW: Final = 4
LEASE: Final = 5.0
"""Seconds; more than a busy machine keeps a process waiting, since whoever is kept longer loses its lock."""

SLACK: Final = 2.0
"""Seconds on top of the lease that a busy machine may take to see that it has lapsed."""


@pytest.mark.parametrize("kind", ["postgresql", "redis"])
async def test_the_next_in_line_takes_over_from_a_killed_holder_after_a_lease(kind: str, gathering: Gathering) -> None:
    """Nobody can see that it died: its lease has to lapse, and that is all there is to wait for."""
    label, took = f"kills of holders on {kind}", list[float]()
    async with gathering(place(kind), lease=LEASE) as crew:
        crew.start(CREW)
        for seed in rounds(label, full=100, quick=1):
            took.append(await kill_the_holder(crew, random.Random(seed)))
            crew.fill_up(CREW)
            remark(label, spread(took))

    assert max(took) < LEASE + SLACK


@pytest.mark.parametrize("kind", ["postgresql", "redis"])
async def test_killed_waiters_hold_up_those_behind_them_no_longer_than_a_lease(kind: str, gathering: Gathering) -> None:
    """Killed before, while or after the mutex becomes theirs, those at the head make way when their lease lapses."""
    label, took = f"kills of waiters at the head on {kind}", list[float]()
    async with gathering(place(kind), lease=LEASE) as crew:
        crew.start(CREW)
        for seed in rounds(label, full=100, quick=1):
            took.append(await kill_the_first_waiters(crew, random.Random(seed)))
            crew.fill_up(CREW)
            remark(label, spread(took))

    assert max(took) < LEASE + SLACK

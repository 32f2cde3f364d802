"""Arbitrated requests under thousands of simulated schedules, on servers that die, stall and mishear."""

from __future__ import annotations

from typing import Final

import pytest

from standfast.testing import simulate
from tests.simulation.mutant_hunt import hunt
from tests.simulation.request_mutants import MUTANTS, mutated
from tests.simulation.request_world import arbitrate_local, arbitrate_shared
from tests.sizes import rounds

MOST_SEEDS: Final = 2_000
"""Within how many seeds each mutant is found."""

MOST_STEPS: Final = 300_000
"""How many callbacks a seed may run: several times as many as the longest of the right code."""


def run(seed: int, *, is_local: bool) -> str:
    """Run one seed, and return what tells its steps from those of any other run."""
    return simulate(seed, arbitrate_local if is_local else arbitrate_shared, seed, step_limit=MOST_STEPS)


@pytest.mark.heavy
def test_requests_are_arbitrated_on_every_schedule_by_lines_in_the_store() -> None:
    """At most one runs a key, in order of arrival, and one that was superseded never commits after its successor."""
    for seed in rounds("seeds of requests, shared", full=10_000, quick=50):
        run(seed, is_local=False)


@pytest.mark.heavy
def test_requests_are_arbitrated_on_every_schedule_by_one_server_after_the_other() -> None:
    """The same with lines in memory: a server that is taken for dead commits nothing after the next one."""
    for seed in rounds("seeds of requests, local", full=10_000, quick=25):
        run(seed, is_local=True)


@pytest.mark.heavy
@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_finds_an_arbiter_that_is_wrong(name: str) -> None:
    """The checks that the right code passes catch each mutant of it."""
    with mutated(name):
        assert hunt(name, MOST_SEEDS, lambda seed: run(seed, is_local=MUTANTS[name][0]))


def test_a_seed_of_requests_takes_the_same_steps_again() -> None:
    """A failure that was seen once can be looked at again."""
    assert all(run(seed, is_local=kind) == run(seed, is_local=kind) for seed in range(3) for kind in (False, True))

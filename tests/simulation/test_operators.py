"""Durable workflows under thousands of simulated schedules, with operators who do to them whatever operators may."""

from __future__ import annotations

from typing import Final

import pytest

from standfast.testing import simulate
from tests.simulation.mutant_hunt import hunt
from tests.simulation.workflow_mutants import COUNTED_MUTANTS, OPERATED_MUTANTS, mutated
from tests.simulation.workflow_storm import drive_crowd, drive_with_operators
from tests.sizes import rounds

MOST_SEEDS: Final = 3_000
"""Within how many seeds each mutant is found."""

MOST_STEPS: Final = 60_000
"""How many callbacks a seed may run: ten times as many as the longest of the right code."""


def run(seed: int) -> None:
    """Run one seed."""
    simulate(seed, drive_with_operators, seed, step_limit=MOST_STEPS)


@pytest.mark.heavy
def test_runs_keep_their_promises_whatever_operators_do_to_them() -> None:
    """Every run ends or can be ended, nobody is busy with nothing, and what is started afterwards goes through."""
    for seed in rounds("seeds of workflows with operators", full=10_000, quick=15):
        run(seed)


@pytest.mark.heavy
@pytest.mark.parametrize("name", OPERATED_MUTANTS)
def test_operators_reveal_an_engine_that_is_wrong(name: str) -> None:
    """The checks that the right code passes catch each mutant of it."""
    with mutated(name):
        assert hunt(name, MOST_SEEDS, run)


def run_crowd(seed: int) -> None:
    """Run one seed in which limits only count."""
    simulate(seed, drive_crowd, seed, step_limit=MOST_STEPS)


@pytest.mark.heavy
def test_runs_that_a_limit_only_counts_keep_their_promises() -> None:
    """Never more than are allowed, every one ends, and the count is that of the records after every commit."""
    for seed in rounds("seeds of limits that count", full=5_000, quick=15):
        run_crowd(seed)


@pytest.mark.heavy
@pytest.mark.parametrize("name", COUNTED_MUTANTS)
def test_a_limit_that_counts_wrongly_is_found_out(name: str) -> None:
    """The checks that the right code passes catch each mutant of it."""
    with mutated(name):
        assert hunt(name, MOST_SEEDS, run_crowd)

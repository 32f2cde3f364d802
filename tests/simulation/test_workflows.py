"""Durable workflows under thousands of simulated schedules, in processes that die, stall and mishear."""

from __future__ import annotations

import tempfile
from typing import Final

import pytest

from standfast.testing import simulate
from tests.simulation.mutant_hunt import hunt
from tests.simulation.test_stores import QUICK_DISK
from tests.simulation.workflow_disk import drive_on_disk
from tests.simulation.workflow_mutants import MUTANTS, mutated
from tests.simulation.workflow_world import drive
from tests.sizes import rounds

MOST_SEEDS: Final = 1_000
"""Within how many seeds each mutant is found."""

MOST_STEPS: Final = 300_000
"""How many callbacks a seed may run: several times as many as the longest of the right code."""


def run(seed: int) -> None:
    """Run one seed."""
    simulate(seed, drive, seed, step_limit=MOST_STEPS)


@pytest.mark.heavy
def test_durable_workflows_keep_their_promises_on_every_schedule() -> None:
    """One driver a run, no recorded step again, every run to its end, nothing lost, taken twice or left held."""
    for seed in rounds("seeds of durable workflows", full=10_000, quick=25):
        run(seed)


@pytest.mark.heavy
def test_durable_workflows_keep_their_promises_on_sqlite() -> None:
    """The same on files, whose threads are simulated, with processes that die and are replaced."""
    for seed in rounds("seeds of durable workflows on SQLite", full=2_000, quick=10):
        with tempfile.TemporaryDirectory(dir=QUICK_DISK) as folder:
            simulate(seed, drive_on_disk, seed, f"{folder}/runs.db", step_limit=MOST_STEPS)


@pytest.mark.heavy
@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_finds_an_engine_that_is_wrong(name: str) -> None:
    """The checks that the right code passes catch each mutant of it."""
    with mutated(name):
        assert hunt(name, MOST_SEEDS, run)

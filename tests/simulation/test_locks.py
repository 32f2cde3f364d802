"""Durable locks under thousands of simulated schedules, in processes that die, stall and mishear."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from standfast.locks.acquire import _held
from standfast.testing import simulate
from tests.simulation.lock_mutants import COUNTED_MUTANTS, MUTANTS, mutated
from tests.simulation.lock_program import contend, contend_counted
from tests.simulation.mutant_hunt import hunt
from tests.sizes import rounds

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "from tests.simulation.test_locks import digest; print(*map(digest, range(10)))"
MOST_SEEDS = 1_000
"""Within how many seeds each mutant is found."""


def digest(seed: int) -> str:
    """Run one seed, and return what tells its steps from those of any other run."""
    return simulate(seed, contend, seed)


def digest_counted(seed: int) -> str:
    """Run one seed in which holders are only counted."""
    return simulate(seed, contend_counted, seed)


@pytest.mark.heavy
def test_durable_locks_keep_their_promises_on_every_schedule() -> None:
    """One valid holder a permit, fences that grow, first come first served, everybody served, and nothing left."""
    before = set(_held)  # of other tests in this process, whose loops were shut down in the middle
    for seed in rounds("seeds of durable locks", full=20_000, quick=50):
        simulate(seed, contend, seed)
    assert set(_held) <= before


@pytest.mark.heavy
@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_finds_a_lock_that_is_wrong(name: str) -> None:
    """The checks that the right code passes catch each mutant of it, within the seeds of a short run."""
    with mutated(name):
        assert hunt(name, MOST_SEEDS, digest)


@pytest.mark.heavy
def test_locks_that_only_count_their_holders_keep_their_promises_on_every_schedule() -> None:
    """The same with semaphores that list one holder or none: counts are right, and those of the dead fall."""
    for seed in rounds("seeds of counted holders", full=10_000, quick=40):
        digest_counted(seed)


@pytest.mark.heavy
@pytest.mark.parametrize("name", COUNTED_MUTANTS)
def test_the_simulation_finds_a_line_that_counts_wrong(name: str) -> None:
    """The checks that the right code passes catch each mutant of it, within the seeds of a short run."""
    with mutated(name):
        assert hunt(name, MOST_SEEDS, digest_counted)


def test_a_seed_of_durable_locks_takes_the_same_steps_everywhere() -> None:
    """In another process and with other hashes, too: a failure that was seen once can be looked at again."""
    runs = []
    for hashes in "12":
        path = f"{ROOT}{os.pathsep}{ROOT / 'src'}"
        environment = {**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": path}
        command = [sys.executable, "-c", PROGRAM]
        runs.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert runs[0] == runs[1]
    assert len(set(runs[0].split())) == 10

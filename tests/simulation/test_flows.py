"""Flows under thousands of simulated schedules: every policy, durable and attended, on servers that die and mishear."""

from __future__ import annotations

from typing import Final, Literal
from unittest.mock import patch

import pytest

from standfast.flows import declaration as declaring
from standfast.testing import simulate
from standfast.workflows import definition
from tests.simulation.flow_mutants import MUTANTS, mutated
from tests.simulation.flow_stage import known_signature
from tests.simulation.flow_world import serve
from tests.simulation.mutant_hunt import hunt
from tests.sizes import rounds

MOST_SEEDS: Final = 2_000
"""Within how many seeds each mutant is found."""

MOST_STEPS: Final = 400_000
"""How many callbacks a seed may run: several times as many as the longest of the right code."""


def run(seed: int, kind: Literal["shared", "local"]) -> str:
    """Run one seed, and return what tells its steps from those of any other run."""
    quick = (patch.object(each, "signature_of", known_signature) for each in (definition, declaring))
    with next(quick), next(quick):
        return simulate(seed, serve, seed, kind, step_limit=MOST_STEPS)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["shared", "local"])
def test_flows_keep_their_promises_on_every_schedule(kind: Literal["shared", "local"]) -> None:
    """One at a time, in order, to one end each: nothing that was taken on is lost, done twice, or done too late."""
    for seed in rounds(f"seeds of flows, {kind}", full=10_000, quick=20):
        run(seed, kind)


@pytest.mark.heavy
@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_finds_a_flow_that_is_wrong(name: str) -> None:
    """The checks that the right code passes catch each mutant of it."""
    with mutated(name):
        assert hunt(name, MOST_SEEDS, lambda seed: run(seed, MUTANTS[name][0]))


def test_a_seed_of_flows_takes_the_same_steps_again() -> None:
    """A failure that was seen once can be looked at again."""
    assert all(run(seed, kind) == run(seed, kind) for seed in range(3) for kind in ("shared", "local"))

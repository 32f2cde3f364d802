"""Exclusion under many interleavings."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.sizes import rounds
from tests.unit.exclusion.program import random_actor, run_program


@pytest.mark.heavy
def test_exclusion_survives_hundreds_of_interleavings() -> None:
    """Under every seed modes exclude, lines keep their order, circles are refused, and nothing is left behind."""
    ends: Counter[str] = Counter()
    for seed in rounds("seeds of exclusion", full=10_000, quick=250):
        chance = random.Random(seed)
        ends.update(run_program(seed, [random_actor(chance, most_keys=3) for _ in range(20)]))
    assert ends.keys() == {"done", "WaitCycleError", "HoldTimeoutError", "WouldWaitError", "ExpectedError"}

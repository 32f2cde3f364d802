"""Every interleaving of a few actors on one line, and wrong lines to show that it would be noticed."""

from __future__ import annotations

import itertools

import pytest

from standfast.testing.explorer import Exploration, explore
from tests.model.line_mutants import MUTANTS
from tests.model.line_properties import PROPERTIES
from tests.model.line_world import Actor, Algebra, Model, Setup, canonical
from tests.sizes import size

RUN = Actor(is_run=True)
LEASED, POLLING = Actor(lease=2), Actor(lease=2, woken=False)
READER, WRITER = Actor(mode="read"), Actor(mode="write")
RIGHT = Algebra()
BIG = size(full=2, quick=1)

SETUPS = {
    "a mutex, with crashes and force": Setup((Actor(),) * 3, acquisitions=BIG, ticks=0, forced=True),
    "a mutex, used twice": Setup((Actor(),) * 2, acquisitions=2 * BIG, ticks=0),
    "leases and a reaper": Setup((LEASED,) * (1 + BIG), permits=1, acquisitions=2, forced=True, reaped=True),
    "three leases, two permits": Setup((LEASED,) * 3, permits=2, acquisitions=1),
    "some poll, some are woken": Setup((POLLING, POLLING, LEASED), acquisitions=BIG),
    "heavy and light, permits changing": Setup(
        (Actor(3), Actor(), Actor()), permits=3, acquisitions=2, ticks=0, sizes=(1, 2, 3)
    ),
    "readers and writers": Setup((READER, READER, WRITER), permits=9, alone=("write",), acquisitions=2, ticks=0),
    "only the front in sight": Setup((Actor(),) * 4, permits=2, acquisitions=BIG, ticks=0, window=1),
    "runs that are only counted": Setup(
        (RUN,) * 3, permits=2, acquisitions=BIG, ticks=0, sizes=(1, 2), forced=True, window=1, listed=0
    ),
    "runs of which one is listed, and a process": Setup(
        (RUN, RUN, RUN, Actor()), permits=2, acquisitions=1, ticks=0, window=1, listed=1
    ),
    "processes that are only counted": Setup(
        (Actor(),) * 3, permits=2, acquisitions=BIG, ticks=0, sizes=(1, 2), forced=True, window=1, listed=0
    ),
    "leases, only the front in sight": Setup((LEASED,) * 3, acquisitions=BIG, window=1),
}


def search(setup: Setup, functions: Algebra = RIGHT, most_states: int = 2_000_000) -> Exploration:
    """Explore a setup. Where fences are wrong their numbers matter; else worlds that only count further are alike."""
    model = Model(setup, functions)
    alike = {"canonical": canonical} if functions.fence is RIGHT.fence else {}
    return explore(model.start(), model.steps, PROPERTIES, most_states=most_states, **alike)


@pytest.mark.heavy
@pytest.mark.parametrize("name", SETUPS)
def test_no_interleaving_breaks_the_line(name: str) -> None:
    """Whatever the actors do in whatever order: exclusion, order, fences, conservation, and no permit is lost."""
    found = search(SETUPS[name])
    print(f"{name}: {found}")
    assert found.complete, found


@pytest.mark.heavy
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_line_is_found_out(mutant: str) -> None:
    """Each wrong line breaks a property in some interleaving."""
    looked_at = 0
    for most_states, setup in itertools.product((400, 2_000), SETUPS.values()):
        found = search(setup, MUTANTS[mutant], most_states)
        looked_at += found.states
        if found.violation:
            print(f"{mutant}: after {looked_at:,} states, {found.violation}")
            return
    pytest.fail(f"{mutant} was not found in {looked_at:,} states")

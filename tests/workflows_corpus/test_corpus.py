"""Workflows of every shape, with a crash at every commit and an unload at every wait."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from standfast.testing.workflows import OPERATIONS, crash_everywhere, operate_everywhere, unload_everywhere
from tests.sizes import rounds
from tests.workflows_corpus.corpus import CORPUS

if TYPE_CHECKING:
    from tests.workflows_corpus.shape import Shape

each_shape = pytest.mark.parametrize("shape", CORPUS, ids=lambda shape: shape.name)


@each_shape
async def test_a_run_that_is_killed_at_any_commit_ends_as_if_it_had_not_been(shape: Shape) -> None:
    """The same result and history, recorded steps never again, others once more at most, and nothing left held."""
    disturbances = await crash_everywhere(shape.workflow, *shape.args, **shape.options())
    assert disturbances.crashes >= 2


@each_shape
async def test_a_run_that_is_unloaded_at_every_wait_ends_as_if_it_had_not_been(shape: Shape) -> None:
    """An unload records nothing, releases nothing, and runs nothing again."""
    await unload_everywhere(shape.workflow, *shape.args, **shape.options())


@pytest.mark.heavy
async def test_shapes_stand_whatever_an_operator_does_to_them_at_any_commit() -> None:
    """Every operation after every commit: all runs end, histories replay, nothing recorded runs again or stays held."""
    each = [(shape, name) for shape in CORPUS for name in OPERATIONS]
    random.Random(0).shuffle(each)
    for number in rounds("operations on shapes of workflows", full=len(each), quick=15):
        shape, name = each[number]
        options = shape.options() | {"check": None}  # of the world as it is if nobody meddles
        done = await operate_everywhere(shape.workflow, *shape.args, operations={name: OPERATIONS[name]}, **options)
        assert done.operations == 2 * done.commits


async def test_the_corpus_has_at_least_forty_shapes() -> None:
    """They are told apart by the kinds of the events in their histories, in order."""
    kinds = set()
    for shape in CORPUS:
        seen = await unload_everywhere(shape.workflow, *shape.args, **shape.options())
        kinds.add(seen.kinds)
    assert len(kinds) >= 40

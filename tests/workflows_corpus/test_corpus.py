"""Workflows of every shape, with a crash at every commit and an unload at every wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.testing.workflows import crash_everywhere, unload_everywhere
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


async def test_the_corpus_has_at_least_forty_shapes() -> None:
    """They are told apart by the kinds of the marks in their histories, in order."""
    kinds = set()
    for shape in CORPUS:
        seen = await unload_everywhere(shape.workflow, *shape.args, **shape.options())
        kinds.add(seen.kinds)
    assert len(kinds) >= 40

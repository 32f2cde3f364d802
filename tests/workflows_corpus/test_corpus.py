"""Workflows of every shape, with a crash at every commit and an unload at every wait."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import pytest

from standfast.testing.workflows import OPERATIONS, crash_everywhere, operate_everywhere, unload_everywhere
from tests.sizes import rounds
from tests.workflows_corpus.corpus import CORPUS
from tests.workflows_corpus.of_families import limited, one_at_a_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    import standfast as sf
    from standfast.testing.workflows import Operation
    from tests.workflows_corpus.shape import Shape


async def set_limits(engine: sf.Engine, _run_id: str) -> None:
    """Let more runs begin, then only one at a time, then as many as the code says."""
    for workflow in (limited, one_at_a_time):
        await engine.set_limit(workflow, 3)
        await engine.set_limit(workflow, 1)
        await engine.clear_limit(workflow)


async def resize(engine: sf.Engine, _run_id: str) -> None:
    """Give every semaphore that is in use more permits, then one, then as many as the code says."""
    async for line in engine.space.lines():
        if line.kind == "semaphore" and not line.family:
            semaphore = engine.space.semaphore(line.parts[0], permits=2)
            await semaphore.resize(3)
            await semaphore.resize(1)
            await semaphore.forget_size()


async def erase(engine: sf.Engine, _run_id: str) -> None:
    """Delete everything that the tenant has, runs that go on included."""
    await engine.erase(tenant=engine.space.tenant)


EVERY_OPERATION: Final[Mapping[str, Operation]] = {
    **OPERATIONS,
    "set limits": set_limits,
    "resize": resize,
    "erase": erase,
}

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
    each = [(shape, name) for shape in CORPUS for name in EVERY_OPERATION]
    random.Random(0).shuffle(each)
    for number in rounds("operations on shapes of workflows", full=len(each), quick=6):
        shape, name = each[number]
        options = shape.options() | {"check": None}  # of the world as it is if nobody meddles
        operations = {name: EVERY_OPERATION[name]}
        done = await operate_everywhere(shape.workflow, *shape.args, operations=operations, **options)
        assert done.operations == 2 * done.commits


async def test_the_corpus_has_at_least_forty_shapes() -> None:
    """They are told apart by the kinds of the events in their histories, in order."""
    kinds = set()
    for shape in CORPUS:
        seen = await unload_everywhere(shape.workflow, *shape.args, **shape.options())
        kinds.add(seen.kinds)
    assert len(kinds) >= 40

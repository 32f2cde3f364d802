"""Crowds of branches and children: they begin some at a time, end all the same, and leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from typing import Any, Final

import pytest
from msgspec import structs

import standfast as sf
from standfast.clock import Instant, later
from standfast.workflows import parallel, records, start
from standfast.workflows.activation import A_SLICE
from standfast.workflows.execution import LONG, is_resting
from standfast.workflows.replay import OVER, Branch, Branches, Wait
from standfast.workflows.runtime import CROWD
from standfast.workflows.worker import MOST_SUSPENDED
from tests.unit.workflows.engines import until

MANY: Final = 3 * A_SLICE + 1
TURN: Final[list[int]] = []
"""The turn of the event loop in which the code of each branch began."""

BEGUN: Final[list[int]] = []
"""Steps of children that have begun."""

TURNS = 0


@sf.step
async def one(number: int) -> int:
    """Do next to nothing."""
    return number


@sf.workflow
async def counting(ctx: sf.Context, count: int, nap: float = 0.0) -> list[int]:
    """Return of each branch how many had begun when it went on after its first operation."""
    begun: list[int] = []

    async def branch(number: int) -> int:
        TURN.append(TURNS)
        begun.append(number)
        await ctx.step(one, number)
        return len(begun)

    found: list[int] = await ctx.gather(*(branch(number) for number in range(count)))
    if nap:
        await ctx.wait_signal("go")
    return found


@sf.step
async def meet(count: int) -> int:
    """Wait until so many of these steps have begun."""
    BEGUN.append(1)
    while len(BEGUN) < count:  # noqa: ASYNC110 -- an event would belong to the loop of one test
        await asyncio.sleep(0.01)
    return 1


@sf.workflow
async def meeting(ctx: sf.Context, count: int) -> int:
    """Wait for the others."""
    return await ctx.step(meet, count)


@sf.workflow
async def single(ctx: sf.Context, number: int) -> int:
    """Take one step."""
    return await ctx.step(one, number)


@sf.workflow
async def family(ctx: sf.Context, count: int, together: bool) -> int:  # noqa: FBT001 -- the input of a workflow
    """Start many children."""
    works = [ctx.child(meeting, count) if together else ctx.child(single, number) for number in range(count)]
    return len(await ctx.gather(*works))


@sf.workflow
async def sleepers(ctx: sf.Context, count: int) -> int:
    """Let many branches wait for ever, and be cancelled."""
    return len(await ctx.gather(*(ctx.sleep("1 day") for _ in range(count))))


WORKFLOWS: Final[list[Any]] = [counting, meeting, single, family, sleepers]


@pytest.fixture(autouse=True)
def anew() -> None:
    """Begin with nothing."""
    TURN.clear()
    BEGUN.clear()


async def count_turns() -> None:
    """Count the turns of the loop."""
    global TURNS  # noqa: PLW0603 -- the workflow has no other way to see it
    while True:
        TURNS += 1
        await asyncio.sleep(0)


async def test_a_few_branches_begin_in_a_turn_and_none_goes_on_before_all_have_begun(url: str) -> None:
    """What a branch sees of the others does not depend on how many fit into a turn of the loop."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        counted = asyncio.get_running_loop().create_task(count_turns())
        found = await (await engine.start(counting, MANY)).result()
        counted.cancel()
    assert found == [MANY] * MANY
    assert max(Counter(TURN).values()) <= A_SLICE


async def test_replay_sees_the_same_of_a_crowd(url: str) -> None:
    """A run that was unloaded finds the same numbers, and no step with other arguments."""
    limits = sf.admin.WorkerLimits(linger=0.01)
    async with sf.Engine(url, workflows=WORKFLOWS, worker=limits) as engine:
        run = await engine.start(counting, MANY, 1.0)
        await until(engine, run.id, "suspended")
        await run.signal("go")
        assert await run.result() == [MANY] * MANY
    assert len(TURN) == 2 * MANY


async def test_a_run_of_an_earlier_version_goes_as_it_went(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its branches begin in one turn: its history was written so."""
    made = records.header_of
    for module in (records, start):
        monkeypatch.setattr(module, "header_of", lambda *given: structs.replace(made(*given), sliced=False))
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        counted = asyncio.get_running_loop().create_task(count_turns())
        await (await engine.start(counting, MANY)).result()
        counted.cancel()
    assert len(set(TURN)) == 1


async def test_children_that_wait_for_each_other_all_begin(url: str) -> None:
    """However many are at work, more are started: the first may wait for the last."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        number = CROWD + 100
        assert await (await engine.start(family, number, together=True)).result() == number


async def test_of_quick_children_a_few_hundred_are_in_memory(url: str) -> None:
    """They end as fast as others begin, so the rest need not be there yet."""
    most = 0
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        run = await engine.start(family, 4 * CROWD, together=False)

        async def look() -> None:
            nonlocal most
            while True:
                most = max(most, len(engine.runtime.loaded))
                await asyncio.sleep(0)

        looking = asyncio.get_running_loop().create_task(look())
        assert await run.result() == 4 * CROWD
        looking.cancel()
        assert engine.runtime.child_starts._starting == 0
    assert most < 2 * CROWD  # all but a few at a time; some more if the machine is slow


async def test_a_crowd_that_is_cancelled_while_it_begins_ends(url: str) -> None:
    """Branches that had not begun are told when they do."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        for workflow, given in ((sleepers, (3_000,)), (family, (2_000, False))):
            run = await engine.start(workflow, *given)
            await run.cancel("enough")
            with pytest.raises(sf.errors.RunCancelledError):
                await run.result()
        assert engine.runtime.child_starts._starting == 0


async def test_waits_that_are_due_together_end_some_at_a_time() -> None:
    """The others are still due."""
    kept, waits = Branches(), [Wait("its sleep", Instant(5)) for _ in range(10)]
    for number, wait in enumerate(waits):
        branch = Branch(f"g1.{number}")
        kept.add(branch)
        kept.begin_wait(branch, wait)
    assert kept.expire(Instant(5), 7) == 7
    assert [wait.future.done() for wait in waits] == [True] * 7 + [False] * 3
    assert (kept.due_at(), waits[0].future.result()) == (Instant(5), OVER)
    assert kept.expire(Instant(5), 7) == 3


@sf.workflow
async def long_history(ctx: sf.Context, count: int) -> int:
    """Take many steps, and wait."""
    for number in range(count):
        await ctx.step(one, number)
    return int(await ctx.wait_signal("go"))


async def test_a_run_with_a_long_history_stays_in_memory_longer(url: str) -> None:
    """To load it takes the longer the more there is, so it is not loaded again for each thing that it is told."""
    linger = 10.0
    limits = sf.admin.WorkerLimits(linger=linger)
    async with sf.Engine(url, workflows=[long_history], worker=limits) as engine:
        for count, times in ((2 * LONG - 5, 1), (2 * LONG + 5, 2), (5, 1)):
            run = await engine.start(long_history, count)
            runtime = engine.runtime
            while (activation := runtime.loaded.get(run.id)) not in runtime.idle:  # noqa: ASYNC110 -- nothing tells it
                await asyncio.sleep(0)
            assert activation is not None
            for rested, is_over in ((times * linger - 1.0, False), (times * linger + 1.0, True)):
                runtime.idle[activation] = later(runtime.clock.elapsed(), -rested)
                assert is_resting(activation, linger) is is_over, (count, rested)
            await run.signal("go", 1)
            assert await run.result() == 1


async def test_many_runs_that_wait_are_all_taken_out_of_memory(url: str) -> None:
    """However many rest at the same time, none is forgotten though only some are suspended in a turn of the loop."""
    count = 2 * MOST_SUSPENDED + 50
    async with sf.Engine(url, workflows=[long_history], worker=sf.admin.WorkerLimits(linger=0.01)) as engine:
        runs = await asyncio.gather(*(engine.start(long_history, 0) for _ in range(count)))
        while engine.runtime.loaded:  # noqa: ASYNC110 -- nothing tells it
            await asyncio.sleep(0.01)
        assert (await engine.count(status="suspended")).number == count
        await asyncio.gather(*(run.signal("go", 1) for run in runs))
        assert [await run.result() for run in runs] == [1] * count


@pytest.mark.parametrize("workflow", [single, counting, family], ids=lambda each: each.name)
async def test_a_run_that_has_ended_is_freed_without_the_collector(workflow: Any, url: str) -> None:
    """It refers to nothing that refers to it: a worker that drives thousands of runs leaves no garbage."""
    given = {single: (1,), counting: (MANY,), family: (200, False)}[workflow]
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        await (await engine.start(single, 1)).result()
        gc.collect()
        gc.disable()
        try:
            run = await engine.start(workflow, *given)
            while (activation := engine.runtime.loaded.get(run.id)) is None:  # noqa: ASYNC110 -- nothing tells it
                await asyncio.sleep(0)
            kept = weakref.ref(activation)
            del activation
            await run.result()
            for _ in range(100):
                await asyncio.sleep(0)
            assert kept() is None
        finally:
            gc.enable()


def test_only_operations_are_begun_by_and_by() -> None:
    """Code of the user may do anything before its first operation, so it is not put off."""

    async def mine() -> None:
        """Do nothing."""

    nothing: Any = None
    work, operation = mine(), sf.Context.step(nothing, one, 1)
    child = sf.Context.child(nothing, single, 1)
    assert [parallel.is_bare(each) for each in (work, operation, child)] == [False, True, True]
    assert [parallel.is_child(each) for each in (work, operation, child)] == [False, False, True]
    for each in (work, operation, child):
        each.close()

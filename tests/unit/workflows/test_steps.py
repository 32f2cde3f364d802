"""How steps end that do not simply return or raise, and what is known then."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import standfast as sf
from standfast.errors import RunFailedError, StepInterruptedError, WorkflowAlreadyExistsError
from standfast.workflows.failures import failure_lines
from tests.unit.workflows.engines import WORKFLOWS, act, collects, engine, until

STARTED: list[asyncio.Event] = []
RECONCILED_IN: list[str] = []


@sf.step
def ends_abruptly(how: str) -> None:
    """Raise what means something else to an event loop."""
    raise {"stop": StopIteration, "close": GeneratorExit, "exit": SystemExit, "interrupt": KeyboardInterrupt}[how](3)


@sf.workflow
async def survives(ctx: sf.Context, how: str) -> str:
    """Catch what a step raises, and replay that."""
    try:
        await ctx.step(ends_abruptly, how)
    except RuntimeError as problem:
        await ctx.wait_signal("go")
        return str(problem)
    return ""


def has_no_idea() -> Any:
    """Fail to find out whether the step happened."""
    RECONCILED_IN.append(threading.current_thread().name)
    raise ConnectionError("no answer")


@sf.step(semantics="at_most_once", reconcile=has_no_idea)
async def happens_once() -> None:
    """Take longer than the engine runs."""
    STARTED[0].set()
    await asyncio.Event().wait()


@sf.workflow
async def asks_whether(ctx: sf.Context) -> str:
    """Go on after a step of which nobody knows whether it happened."""
    try:
        await ctx.step(happens_once)
    except StepInterruptedError as problem:
        await ctx.step("after", act, "after")
        await ctx.wait_signal("go")
        return str(problem.__cause__)
    return ""


@sf.workflow
async def has_a_child(ctx: sf.Context) -> Any:
    """Start a child."""
    return await ctx.child(collects, 1)


MINE = [*WORKFLOWS, survives, asks_whether, has_a_child]


@pytest.mark.parametrize("how", ["stop", "close", "exit", "interrupt"])
async def test_a_plain_step_ends_neither_its_worker_nor_the_wait_for_it(how: str, url: str) -> None:
    """Whatever a plain function raises is recorded as how the step ended."""
    async with engine(url, workflows=MINE) as opened:
        run = await opened.start(survives, how)
        await until(opened, run.id, "suspended")
        await run.signal("go")
        assert (await run.result()).startswith("the function raised ")


async def test_a_reconcile_function_that_raises_leaves_the_step_interrupted(url: str) -> None:
    """That is recorded, with the reason, so that the run can be replayed; and it is asked off the event loop."""
    STARTED[:], RECONCILED_IN[:] = [asyncio.Event()], []
    first = engine(url, workflows=MINE)
    await first.open()
    run_id = (await first.start(asks_whether)).id
    await STARTED[0].wait()
    await first.aclose(grace=0)
    async with engine(url, workflows=MINE) as second:
        await until(second, run_id, "suspended")
        await second.signal(run_id, "go")
        assert await second.result(run_id) == "no answer"
        assert threading.current_thread().name not in RECONCILED_IN


async def test_a_run_of_somebody_else_is_no_child(url: str) -> None:
    """A run that was started with the id that a child would have is not taken for it: nobody would tell of its end."""
    async with engine(url, workflows=MINE) as opened:
        await opened.start(collects, 1, id="parent.collects")
        run = await opened.start(has_a_child, id="parent")
        with pytest.raises(RunFailedError) as caught:
            await run.result()
        assert isinstance(caught.value.__cause__, WorkflowAlreadyExistsError)


def test_a_wait_before_an_attempt_is_never_longer_than_the_longest() -> None:
    """However many attempts there were: a step may be tried for months."""
    retry = sf.Retry(attempts=1_000_000, delay=1.0, factor=2.0, max_delay=60.0)
    assert [retry.wait_before(attempt) for attempt in (2, 3, 8, 5_000)] == [1.0, 2.0, 60.0, 60.0]


async def test_what_a_function_in_a_thread_raised_is_shown_without_our_frames() -> None:
    """Where it was raised is told by the cause; the lines between it and the step are not the user's."""

    @sf.workflow
    async def exits(ctx: sf.Context) -> None:
        await ctx.step(ends_abruptly, "exit")

    async with sf.Engine("memory://", workflows=[exits]) as engine:
        with pytest.raises(RunFailedError) as failed:
            await (await engine.start(exits)).result()
        failure = (await engine.get(failed.value.run_id)).failure
    assert failure is not None
    lines = list(failure_lines(failure))
    assert not [line for line in lines if "threads.py" in line or "workflows/runtime.py" in line or "/steps.py" in line]
    assert lines[-1].endswith("in ends_abruptly")

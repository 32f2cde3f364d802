# ruff: noqa: D103 -- the workflows are what the tests are about, and their names say all
"""Common mistakes in workflows: refused at once, found when they matter, harmless, or not found at all.

Each row of the table in docs/reference/determinism.md names its test here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import (
    DeclarationError,
    DuplicateStepIdError,
    EncodeError,
    RunFailedError,
    StepFailedError,
    UsageError,
    WrongArgumentsError,
)
from standfast.events import UnloadSwallowed
from tests.unit.workflows.recorded import Fate, News, go_on

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Ctx = sf.Context


async def a(value: object = None) -> str:
    return f"a {value}"


async def b(value: object = None) -> str:
    return f"b {value}"


async def raised_by(code: Callable[..., Coroutine[Any, Any, Any]]) -> BaseException | None:
    """Run code as a workflow; return what it raised."""
    async with sf.Engine("memory://", workflows=[workflow := sf.workflow(code)]) as engine:
        try:
            await (await engine.start(workflow)).result(timeout=10)
        except RunFailedError as failed:
            return failed.__cause__
    return None


async def replayed(code: Callable[..., Coroutine[Any, Any, Any]]) -> Fate:
    """Run code until it waits, unload it, and let it go on."""
    return await go_on(code, code)


# --- refused at once ----------------------------------------------------------------------------------------------


async def test_asyncio_gather_is_refused() -> None:
    """Tasks of asyncio's own are not branches: their order is not known when the run is replayed."""

    async def code(ctx: Ctx) -> None:
        await asyncio.gather(ctx.step(a), ctx.step(b))

    assert isinstance(error := await raised_by(code), UsageError)
    assert "ctx.gather" in str(error)


async def test_asyncio_wait_is_refused() -> None:
    """It hands back a set, whose order is anybody's guess."""

    async def code(ctx: Ctx) -> None:
        tasks = {asyncio.ensure_future(ctx.step(a)), asyncio.ensure_future(ctx.step(b))}
        done, _ = await asyncio.wait(tasks)
        for task in done:
            task.result()

    assert isinstance(await raised_by(code), UsageError)


async def test_as_completed_is_refused() -> None:
    """The order in which steps end is not the same when they are replayed."""

    async def code(ctx: Ctx) -> None:
        for each in asyncio.as_completed([ctx.step(a), ctx.step(b)]):
            await each

    assert isinstance(await raised_by(code), UsageError)


async def test_a_task_group_is_refused() -> None:
    """Its tasks are not branches either."""

    async def code(ctx: Ctx) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step(a))

    assert await raised_by(code) is not None


async def test_the_context_in_a_step_is_refused() -> None:
    """When the step is replayed it does not run, so that nobody would ask for what was recorded inside of it."""

    async def code(ctx: Ctx) -> None:
        async def outer() -> None:
            ctx.set_progress("which leaves no record")
            await ctx.step(a)

        await ctx.step(outer)

    assert isinstance(error := await raised_by(code), DeclarationError)
    assert "a step cannot use the context" in str(error)


async def test_create_task_is_refused() -> None:
    """A task in the background has no place in the history."""

    async def code(ctx: Ctx) -> None:
        await asyncio.create_task(ctx.step(a))

    assert isinstance(await raised_by(code), UsageError)


async def test_wait_for_is_refused_where_it_makes_a_task() -> None:
    """A time limit by the wall clock is no part of the history; steps have ``timeout=``."""

    async def code(ctx: Ctx) -> None:
        await asyncio.wait_for(asyncio.ensure_future(ctx.step(a)), 10)

    assert isinstance(await raised_by(code), UsageError)


async def test_asyncio_timeout_around_a_step_fails_the_step() -> None:
    """It cancels the step from outside, which is recorded as its outcome; steps have ``timeout=``."""

    async def waits() -> None:
        await asyncio.Event().wait()

    async def code(ctx: Ctx) -> None:
        async with asyncio.timeout(0.01):
            await ctx.step(waits)

    assert isinstance(error := await raised_by(code), StepFailedError)
    assert error.error_type == "asyncio.exceptions.CancelledError"


async def test_a_thread_is_refused() -> None:
    """The context belongs to the run's own code."""
    found: list[BaseException] = []

    async def code(ctx: Ctx) -> None:
        def work() -> None:
            try:
                ctx.step(a).send(None)
            except BaseException as problem:  # noqa: BLE001 -- what is looked at
                found.append(problem)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    await raised_by(code)

    assert isinstance(found[0], UsageError)


async def test_calling_a_step_is_refused() -> None:
    """It would not be recorded, and happen again at each replay."""

    @sf.step
    async def charge() -> int:
        return 1

    async def code(ctx: Ctx) -> int:
        del ctx
        return await charge()

    assert isinstance(error := await raised_by(code), UsageError)
    assert "ctx.step(charge" in str(error)


async def test_a_step_that_was_called_is_refused() -> None:
    """What ``ctx.step`` gets is the function and its arguments, with an id in front or without."""

    async def bare(ctx: Ctx) -> None:
        called: Any = a()
        await ctx.step(called)

    async def named(ctx: Ctx) -> None:
        called: Any = a()
        await ctx.step("first", called)

    for code in (bare, named):
        assert isinstance(error := await raised_by(code), UsageError)
        assert "write ctx.step(a, ...)" in str(error)


async def test_what_cannot_be_called_is_no_step() -> None:
    """The message says what it was, and not where it failed in a thread."""
    things: list[Any] = [[], 5]

    async def code(ctx: Ctx) -> None:
        with pytest.raises(UsageError, match="was given a list"):
            await ctx.step(things[0])
        await ctx.step(things[1])

    assert isinstance(error := await raised_by(code), UsageError)
    assert "was given a int, which cannot be called" in str(error)


async def test_a_step_may_call_another_step() -> None:
    """Inside a step it is a function like any other."""

    @sf.step
    async def inner() -> int:
        return 1

    @sf.step
    async def outer() -> int:
        return await inner() + 1

    async def code(ctx: Ctx) -> int:
        return await ctx.step(outer)

    assert await raised_by(code) is None


async def test_calling_a_workflow_is_refused() -> None:
    """It would be part of this run by accident; a child is a run of its own."""

    @sf.workflow
    async def other(ctx: Ctx) -> int:
        del ctx
        return 1

    async def code(ctx: Ctx) -> None:
        del ctx
        await other()

    assert isinstance(error := await raised_by(code), DeclarationError)
    assert "ctx.child" in str(error)


async def test_a_step_id_that_is_given_twice_is_refused() -> None:
    """Two steps cannot share a record."""

    async def code(ctx: Ctx) -> None:
        await ctx.step("pay", a)
        await ctx.step("pay", b)

    assert isinstance(await raised_by(code), DuplicateStepIdError)


async def test_a_started_task_in_a_gather_is_refused() -> None:
    """A branch begins where the context starts it."""

    async def code(ctx: Ctx) -> None:
        await ctx.gather(asyncio.ensure_future(asyncio.sleep(0)))  # type: ignore[arg-type]  # the mistake

    assert isinstance(await raised_by(code), DeclarationError)


@pytest.mark.parametrize("bad", ["", "a/b", "a#2", "x" * 300])
async def test_a_step_id_that_could_be_taken_for_another_is_refused(bad: str) -> None:
    """Slashes and numbers are ours."""

    async def code(ctx: Ctx) -> None:
        await ctx.step(bad, a)

    assert isinstance(await raised_by(code), DeclarationError)


async def test_an_unregistered_step_name_is_refused() -> None:
    """Nothing is looked up by a name but what was registered."""

    async def code(ctx: Ctx) -> None:
        await ctx.step("os.system", "true")

    assert isinstance(await raised_by(code), DeclarationError)


@pytest.mark.parametrize("value", [float("nan"), object(), {1: 2}, "\ud800"])
async def test_a_result_that_cannot_be_stored_is_an_error_of_the_step(value: object) -> None:
    """It is recorded, so the step is not run again for it."""
    calls: list[int] = []

    async def odd() -> Any:
        calls.append(1)
        return value

    async def code(ctx: Ctx) -> None:
        await ctx.step(odd)

    assert isinstance(await raised_by(code), EncodeError)
    assert calls == [1]


async def test_arguments_that_cannot_be_stored_are_refused_before_the_run_exists() -> None:
    """Nothing is written."""

    @sf.workflow
    async def takes(ctx: Ctx, value: Any) -> None:
        del ctx, value

    async with sf.Engine("memory://", workflows=[takes]) as engine:
        with pytest.raises(EncodeError):
            await engine.start(takes, float("inf"))
        with pytest.raises(WrongArgumentsError):
            await engine.start(takes)  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue] -- wrong on purpose

        assert (await engine.list()).runs == ()


def plain(ctx: Ctx) -> None:
    del ctx


async def variadic(ctx: Ctx, *args: int) -> None:
    del ctx, args


@pytest.mark.parametrize("code", [plain, variadic])
def test_a_function_that_cannot_be_a_workflow_is_refused_where_it_is_declared(code: Any) -> None:
    """Long before a run needs it."""
    with pytest.raises(DeclarationError):
        sf.workflow(code)


# --- found when they matter ---------------------------------------------------------------------------------------


async def test_the_clock_is_found_when_the_code_takes_another_way() -> None:
    """The wall clock differs at each replay; ``ctx.now()`` does not."""
    moments = iter(range(100))

    async def code(ctx: Ctx) -> None:
        await ctx.step(a if next(moments) == 0 else b)
        await ctx.wait_signal("go")

    assert (await replayed(code)).how == "left"


async def test_random_is_found_when_the_code_takes_another_way() -> None:
    """``random`` differs at each replay; ``ctx.random()`` does not."""
    generator = random.Random(1)
    drawn: list[bool] = []

    async def code(ctx: Ctx) -> None:
        drawn.append(not drawn if len(drawn) < 2 else generator.random() < 0.5)
        await ctx.step(a if drawn[-1] else b)
        await ctx.wait_signal("go")

    assert (await replayed(code)).how == "left"


async def test_the_environment_is_found_when_the_code_takes_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the code decides by must be part of its input or of a step's result."""
    monkeypatch.setenv("STANDFAST_TEST_MODE", "one")

    async def code(ctx: Ctx) -> None:
        await ctx.step(a if os.environ["STANDFAST_TEST_MODE"] == "one" else b)
        os.environ["STANDFAST_TEST_MODE"] = "two"
        await ctx.wait_signal("go")

    assert (await replayed(code)).how == "left"


async def test_a_global_is_found_when_the_code_takes_another_way() -> None:
    """Variables outside of the run are not replayed with it."""
    runs: list[int] = []

    async def code(ctx: Ctx) -> None:
        runs.append(1)
        for _ in runs:
            await ctx.step(a)
        await ctx.wait_signal("go")

    fate = await replayed(code)

    assert fate.how in ("completed", "left")


async def test_iterating_a_set_is_found_when_its_order_changes() -> None:
    """The order of a set of text is another one in each process; sort it."""
    orders = iter([["x", "y"], ["y", "x"]])

    async def code(ctx: Ctx) -> None:
        for each in next(orders):
            await ctx.step(f"pack-{each}", a, each)
        await ctx.wait_signal("go")

    assert (await replayed(code)).recorded == "step 'pack-x'"


async def test_uuid4_in_an_argument_is_told() -> None:
    """The step that is recorded had another argument; ``ctx.uuid()`` gives the same again."""

    async def code(ctx: Ctx) -> str:
        order = str(uuid.uuid4())
        await ctx.step(a, order)
        await ctx.wait_signal("go")
        return order

    fate = await replayed(code)

    assert (fate.how, fate.warned) == ("completed", ("a",))


async def test_catching_what_unloads_the_run_is_told() -> None:
    """``except BaseException`` in a workflow only delays what it catches, and nothing after it is recorded."""
    news = News()

    async def code(ctx: Ctx) -> None:
        with contextlib.suppress(BaseException):
            await ctx.wait_signal("go")

    async with sf.Engine(
        "memory://", workflows=[w := sf.workflow(code)], worker=sf.admin.WorkerLimits(linger=0), hooks=[news]
    ) as engine:
        run = await engine.start(w)
        await news.until(lambda events: any(isinstance(event, UnloadSwallowed) for event in events))
        info = await run.info()

    assert info.status == "suspended"


@pytest.mark.parametrize("way", ["wait", "step", "gather"])
async def test_a_loop_that_catches_everything_holds_up_no_other_run(way: str) -> None:
    """Its run is told of and left to itself; the event loop, other runs and the engine's end go on."""
    news, is_over = News(), False

    async def code(ctx: Ctx) -> None:
        while not is_over:
            with contextlib.suppress(BaseException):
                await ctx.wait_signal("go")
            with contextlib.suppress(BaseException):
                if way == "step":
                    await ctx.step(a)
                elif way == "gather":
                    await ctx.gather(ctx.step(a), ctx.step(b))

    async def other(ctx: Ctx) -> str:
        return await ctx.step(a)

    limits = sf.admin.WorkerLimits(linger=0)
    stubborn, healthy = sf.workflow(code), sf.workflow(other)
    async with sf.Engine("memory://", workflows=[stubborn, healthy], worker=limits, hooks=[news]) as engine:
        await engine.start(stubborn)
        await news.until(lambda events: any(isinstance(event, UnloadSwallowed) for event in events))
        result = await (await engine.start(healthy)).result(timeout=10)
        is_over = True

    assert result == "a None"


# --- harmless -----------------------------------------------------------------------------------------------------


async def test_except_exception_does_not_catch_what_unloads_the_run() -> None:
    """Unloading is out of its reach."""
    caught: list[BaseException] = []

    async def code(ctx: Ctx) -> str:
        try:
            await ctx.wait_signal("go")
        except Exception as problem:  # noqa: BLE001 -- what is looked at
            caught.append(problem)
        return "done"

    fate = await replayed(code)

    assert (fate.how, fate.result, caught) == ("completed", "done", [])


async def test_shared_variables_of_branches_are_the_same_again() -> None:
    """Branches resume in the recorded order, so what they do to plain variables is the same again."""

    async def code(ctx: Ctx) -> list[int]:
        order: list[int] = []

        async def branch(number: int) -> None:
            for _ in range(3):
                await ctx.step(a, number)
                order.append(number)

        await ctx.gather(*(branch(number) for number in range(3)))
        await ctx.step("-".join(map(str, order)), b)
        await ctx.wait_signal("go")
        return order

    assert (await replayed(code)).how == "completed"


async def test_a_dict_keeps_its_order() -> None:
    """Iterating one is fine."""

    async def code(ctx: Ctx) -> None:
        for each in {"x": 1, "y": 2}:
            await ctx.step(f"pack-{each}", a)
        await ctx.wait_signal("go")

    assert (await replayed(code)).how == "completed"


async def test_logging_is_harmless() -> None:
    """It is done again at each replay; ``ctx.is_replaying`` tells."""
    lines: list[bool] = []

    async def code(ctx: Ctx) -> None:
        await ctx.step(a)
        lines.append(ctx.is_replaying)
        await ctx.wait_signal("go")

    await replayed(code)

    assert lines == [False, False]


async def test_awaiting_something_of_asyncio_is_harmless_but_not_durable() -> None:
    """A raw sleep is slept again at each replay."""

    async def code(ctx: Ctx) -> None:
        await asyncio.sleep(0)
        await ctx.step(a)
        await asyncio.sleep(0)
        await ctx.wait_signal("go")

    assert (await replayed(code)).how == "completed"


# --- not found ----------------------------------------------------------------------------------------------------


async def test_an_effect_outside_of_a_step_happens_again_and_is_not_found() -> None:
    """Whatever the code does without its context, it does at each replay."""
    effects: list[int] = []

    async def code(ctx: Ctx) -> None:
        effects.append(1)
        await ctx.wait_signal("go")

    fate = await replayed(code)

    assert (fate.how, len(effects)) == ("completed", 2)


async def test_the_clock_in_a_result_is_not_found() -> None:
    """What the code computes without asking its context is not compared."""

    async def code(ctx: Ctx) -> float:
        started = time.monotonic()
        await ctx.wait_signal("go")
        return started

    assert (await replayed(code)).how == "completed"


async def test_asyncio_timeout_around_a_wait_is_not_found() -> None:
    """It goes by the process's own clock and leaves no record; waits have ``timeout=``."""

    async def code(ctx: Ctx) -> str:
        try:
            async with asyncio.timeout(0):
                await ctx.wait_signal("never")
        except TimeoutError:
            return "over"
        return "came"

    async with sf.Engine("memory://", workflows=[w := sf.workflow(code)]) as engine:
        run = await engine.start(w)

        assert (await run.result(timeout=10), await run.history()) == ("over", ())

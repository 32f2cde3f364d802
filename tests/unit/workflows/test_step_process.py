"""Steps in processes of their own: what they get and give, and how they are killed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.errors import (
    DeclarationError,
    EncodeError,
    RunCancelledError,
    RunFailedError,
    StepProcessError,
    StepTimeoutError,
)
from tests.unit.workflows import computing
from tests.unit.workflows.computing import Point


@sf.workflow
async def calls(ctx: sf.Context, name: str, args: list[Any]) -> Any:
    """Take one step of the module."""
    return await ctx.step(getattr(computing, name), *args)


@sf.workflow
async def moves(ctx: sf.Context, point: Point) -> Point:
    """Pass a value of a type of its own."""
    return await ctx.step(computing.moved, point, by=2)


@sf.workflow
async def side_by_side(ctx: sf.Context) -> list[tuple[int, str]]:
    """Take two steps at a time, and then one more."""
    both = await ctx.gather(ctx.step(computing.process_id), ctx.step(computing.process_id))
    return [*both, await ctx.step(computing.process_id)]


@sf.workflow
async def expects(ctx: sf.Context) -> str:
    """Catch what the step raises."""
    try:
        await ctx.step(computing.half, 3)
    except computing.UnevenError as problem:
        return f"uneven {problem}"
    return ""


WORKFLOWS: list[Any] = [calls, moves, side_by_side, expects]


def is_alive(process: int) -> bool:
    """Tell whether a process is there that is more than a remainder."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end while it is looked at
        return False


async def gone(*processes: int) -> None:
    """Wait until processes have ended."""
    async with asyncio.timeout(20):
        while any(is_alive(each) for each in processes):  # noqa: ASYNC110 -- nothing tells of the end of a process
            await asyncio.sleep(0)


async def written(file: Path) -> list[int]:
    """Wait until a step has written the ids of processes."""
    async with asyncio.timeout(30):
        while not file.exists() or not file.read_text():  # noqa: ASYNC110 -- written by another process
            await asyncio.sleep(0)
    return [int(each) for each in file.read_text().split()]


async def test_arguments_and_results_pass_by_their_types(url: str) -> None:
    """A dataclass arrives as itself, there and back; what the step prints disturbs nothing."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        assert await (await engine.start(moves, Point(1, 2))).result(timeout=60) == Point(3, 4)


async def test_steps_side_by_side_have_processes_that_are_used_again(url: str) -> None:
    """None of them is this one, and each knows which step it is."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        first, second, third = await (await engine.start(side_by_side)).result(timeout=60)
    assert first[0] != second[0]
    assert third[0] in (first[0], second[0])
    assert os.getpid() not in (first[0], second[0])
    assert (first[1], third[1]) == ("g1.0/process_id", "process_id")
    await gone(first[0], second[0])  # with the engine


async def test_what_a_step_raises_reaches_the_workflow_as_itself(url: str) -> None:
    """A declared exception comes back as its own class."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        assert await (await engine.start(expects)).result(timeout=60) == "uneven 3"


async def test_a_step_whose_time_is_over_is_killed_with_what_it_started(url: str, tmp_path: Path) -> None:
    """A loop that never waits ends, and so does a process that it has started."""
    file = tmp_path / "pids"
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        warm = await engine.start(calls, "process_id", [])
        await warm.result(timeout=60)  # so that the time of the step is its own
        run = await engine.start(calls, "computes_too_long", [str(file)])
        with pytest.raises(RunFailedError) as failed:
            await run.result(timeout=60)
        assert isinstance(failed.value.__cause__, StepTimeoutError)
        if file.exists():
            await gone(*await written(file))


async def test_a_step_of_a_run_that_is_cancelled_is_killed(url: str, tmp_path: Path) -> None:
    """Nothing of it goes on when the run has ended."""
    file = tmp_path / "pid"
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        run = await engine.start(calls, "computes_for_ever", [str(file)])
        processes = await written(file)
        await run.cancel("enough")
        with pytest.raises(RunCancelledError):
            await run.result(timeout=60)
        await gone(*processes)


async def test_a_process_that_is_killed_is_an_attempt_that_failed(url: str, tmp_path: Path) -> None:
    """It is tried again as its retry says; and the next step has a new process."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        assert await (await engine.start(calls, "dies_once", [str(tmp_path / "once")])).result(timeout=60) == "done"
        for name, how in (("dies", "killed by SIGKILL"), ("leaves", "exit code 3")):
            with pytest.raises(RunFailedError, match=how) as failed:
                await (await engine.start(calls, name, [])).result(timeout=60)
            assert isinstance(failed.value.__cause__, StepProcessError)
        assert await (await engine.start(calls, "half", [8])).result(timeout=60) == 4


async def test_an_argument_that_cannot_be_stored_is_refused(url: str) -> None:
    """It is not pickled instead."""

    @sf.workflow
    async def sends_an_object(ctx: sf.Context) -> None:
        anything: Any = object()
        await ctx.step(computing.half, anything)

    async with sf.Engine(url, workflows=[sends_an_object]) as engine:
        with pytest.raises(RunFailedError) as failed:
            await (await engine.start(sends_an_object)).result(timeout=60)
        assert isinstance(failed.value.__cause__, EncodeError)


def test_what_another_process_cannot_find_is_refused_where_it_is_declared() -> None:
    """Lambdas, functions within others, coroutines, and functions of the program itself."""

    def inner() -> None:
        """Have no name of its own."""

    async def waits() -> None:
        """Compute nothing."""

    def of_the_program() -> None:
        """Stand in for a function of a script."""

    of_the_program.__qualname__, of_the_program.__module__ = "of_the_program", "__main__"
    for function, problem in (
        (lambda: None, "define it at the top level"),
        (inner, "define it at the top level"),
        (waits, "leave process=True out"),
        (of_the_program, "move it into a module"),
    ):
        with pytest.raises(DeclarationError, match=problem):
            sf.step(process=True)(function)

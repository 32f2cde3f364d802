"""SystemExit and KeyboardInterrupt: from the code of a run they fail it, from a signal they end the program."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import (
    LimitKeyError,
    RunFailedError,
    StepInterruptedError,
    UpdateValidationError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
RAISED = {"exit": SystemExit, "interrupt": KeyboardInterrupt}


@pytest.fixture(autouse=True)
def no_signal_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C, as far as Python knows: otherwise a KeyboardInterrupt in the main thread may come from there."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


async def leave(how: str) -> None:
    """Try to end the program, in the task of the run."""
    raise RAISED[how](3)


@sf.step(timeout="1 minute")
async def leave_within(how: str) -> None:
    """Do the same in a step with a time limit."""
    raise RAISED[how](3)


@sf.workflow
async def leaves_in_a_step(ctx: sf.Context, how: str) -> str:
    """Catch what a step raises."""
    seen: list[str] = []
    for step in (leave, leave_within):
        try:
            await ctx.step(step, how)
        except RuntimeError as problem:
            seen.append(str(problem))
    return ", ".join(seen)


@sf.workflow
async def leaves_in_its_code(ctx: sf.Context, how: str) -> str:
    """Call it without a step."""
    del ctx
    await leave(how)
    return ""


@sf.workflow
async def leaves_in_a_branch(ctx: sf.Context, how: str) -> str:
    """Call it in one of two branches."""
    await ctx.gather(leave(how), ctx.sleep("1 hour"))
    return ""


async def compute() -> str:
    """Be interrupted by a signal whose handler ends the program, the first time."""
    if "first" in sys.argv:
        os.kill(os.getpid(), signal.SIGTERM)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            pass
    return "done"


@sf.workflow
async def computes(ctx: sf.Context) -> str:
    """Do a step that keeps the main thread busy."""
    return await ctx.step(compute)


LEAVING = [leaves_in_a_step, leaves_in_its_code, leaves_in_a_branch]


@pytest.mark.parametrize("how", RAISED)
async def test_a_step_that_raises_what_ends_programs_fails_and_its_worker_goes_on(how: str) -> None:
    """The run sees a RuntimeError that names what was raised."""
    async with sf.Engine("memory://", workflows=LEAVING) as engine:
        run = await engine.start(leaves_in_a_step, how)
        told = f"the function raised {RAISED[how].__name__}(3)"
        assert await run.result(timeout="10s") == f"{told}, {told}"


@pytest.mark.parametrize("how", RAISED)
@pytest.mark.parametrize("workflow", LEAVING[1:], ids=lambda each: each.name)
async def test_a_workflow_that_raises_what_ends_programs_fails_and_its_worker_goes_on(
    workflow: sf.Workflow[[str], str], how: str
) -> None:
    """Its failure says so, and names the line."""
    async with sf.Engine("memory://", workflows=LEAVING) as engine:
        run = await engine.start(workflow, how)
        with pytest.raises(RunFailedError, match=rf"{RAISED[how].__name__}\(3\)"):
            await run.result(timeout="10s")
        failure = (await engine.get(run.id)).failure
        assert failure is not None
        assert "test_failures_exits.py" in failure.trace


def exits(*_: object) -> Any:
    """Call what a library for the command line calls."""
    sys.exit(3)


@sf.workflow
async def hands_functions_in(ctx: sf.Context) -> None:
    """Hand in functions that exit, until a signal comes."""
    ctx.on_update("answered", exits)
    ctx.on_update("validated", print, validate=exits)
    ctx.on_query("asked", exits)
    await ctx.wait_signal("end")


@sf.workflow
async def waits_until(ctx: sf.Context) -> None:
    """Wait for a predicate that exits."""
    await ctx.wait_until(exits)


@sf.workflow(concurrency=sf.Limit(1, key=exits))
async def limited(ctx: sf.Context) -> None:
    """Be counted by a function that exits."""


async def finds_nothing_out() -> None:
    """Exit instead of finding out whether the step happened."""
    exits()


STARTED: list[asyncio.Event] = []


@sf.step(semantics="at_most_once", reconcile=finds_nothing_out)
async def happens_once() -> None:
    """Take longer than the engine runs."""
    STARTED[0].set()
    await asyncio.Event().wait()


@sf.workflow
async def reconciles(ctx: sf.Context) -> str:
    """Go on after a step of which it is not known whether it happened."""
    try:
        await ctx.step(happens_once)
    except StepInterruptedError as problem:
        return str(problem.__cause__)
    return ""


async def test_an_update_or_a_query_whose_function_exits_fails_and_its_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The caller is told what was raised; what fails an update is in the log with its line."""
    told = r"the function raised SystemExit\(3\)"
    async with sf.Engine("memory://", workflows=[hands_functions_in]) as engine:
        run = await engine.start(hands_functions_in)
        with pytest.raises(RuntimeError, match=told):
            await run.update("answered")
        assert "in exits" in caplog.text
        with pytest.raises(UpdateValidationError, match=told):
            await run.update("validated")
        with pytest.raises(RuntimeError, match=told):
            await run.query("asked")
        await run.signal("end")
        await run.result(timeout="10s")


async def test_a_predicate_and_a_key_of_a_limit_that_exit_fail_their_call() -> None:
    """A run whose predicate exits has failed; one whose key cannot be found is not started."""
    async with sf.Engine("memory://", workflows=[waits_until, limited]) as engine:
        with pytest.raises(RunFailedError, match=r"SystemExit\(3\)"):
            await (await engine.start(waits_until)).result(timeout="10s")
        with pytest.raises(LimitKeyError, match="SystemExit"):
            await engine.start(limited)


async def test_a_reconcile_function_that_exits_leaves_the_step_interrupted(tmp_path: Path) -> None:
    """As one that raises another thing does; its worker goes on."""
    url, STARTED[:] = f"sqlite:///{tmp_path}/store.db", [asyncio.Event()]
    first = sf.Engine(url, workflows=[reconciles])
    await first.open()
    await first.start(reconciles, id="r")
    await STARTED[0].wait()
    await first.aclose(grace=0)
    async with sf.Engine(url, workflows=[reconciles]) as second:
        assert await second.result("r", timeout="20s") == "the function raised SystemExit(3)"


async def _begin(url: str) -> None:
    async with sf.Engine(url, workflows=[computes]) as engine:
        await (await engine.start(computes, id="r")).result()


def first_program(url: str) -> None:
    """End by a signal in the middle of a step."""
    sys.argv.append("first")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    asyncio.run(_begin(url))


async def test_a_signal_whose_handler_exits_ends_the_program_and_fails_no_step(tmp_path: Path) -> None:
    """The run is taken up again, and no worker counts as dead because of it."""
    url = f"sqlite:///{tmp_path}/store.db"
    code = f"from {__name__} import first_program; first_program({url!r})"
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=ROOT, stderr=asyncio.subprocess.PIPE)
    _, said = await program.communicate()
    assert program.returncode == 7, said
    async with sf.Engine(url, workflows=[computes]) as engine:
        assert await engine.result("r", timeout="20s") == "done"
        assert (await engine.get("r")).deaths == 0

"""The kit itself: time that is skipped, processes that die, and disturbances that find what is wrong."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, Final

import pytest

import standfast as sf
from standfast.errors import DeclarationError, RunDivergedError, RunFailedError, RunStuckError
from standfast.testing import VirtualClock, simulate
from standfast.testing.workflows import (
    OPERATIONS,
    WorkflowEnvironment,
    crash_everywhere,
    interleave,
    operate_everywhere,
    unload_everywhere,
)

if TYPE_CHECKING:
    from pathlib import Path

counter: Final = itertools.count()


async def note(text: str) -> str:
    """Do nothing."""
    return text


def note_in_a_thread(text: str) -> str:
    """Do nothing, in a thread."""
    return text


@sf.workflow
async def naps(ctx: sf.Context, nights: int) -> int:
    """Sleep for some nights."""
    for _ in range(nights):
        await ctx.step(note, "evening")
        await ctx.sleep("8 hours")
    await ctx.step(note_in_a_thread, "morning")
    return nights


@sf.workflow
async def asks(ctx: sf.Context) -> Any:
    """Wait for an answer."""
    return await ctx.wait_signal("answer")


@sf.workflow
async def forgets(ctx: sf.Context) -> int:
    """Return something that no record has: it differs each time the code runs."""
    await ctx.step(note, "once")
    return next(counter)


@sf.workflow
async def wavers(ctx: sf.Context) -> str:
    """Do something else each time the code runs."""
    if next(counter) % 2:
        await ctx.step("odd", note, "odd")
    await ctx.sleep("1 hour")
    return "done"


async def test_time_passes_from_one_sleep_to_the_next() -> None:
    """As much time passes as is asked for, and everything happens that is due."""
    async with WorkflowEnvironment([naps]) as env:
        run, before = await env.start(naps, 3), env.clock.elapsed()
        await env.advance("20 hours")
        assert env.clock.elapsed() - before == 20 * 3600 * 1_000_000
        assert env.effects.of(run) == {"note": 1, "note#2": 1, "note#3": 1}
        assert not (await run.info()).has_ended
        await env.advance("4 hours")
        assert await run.result() == 3


async def test_the_result_is_there_as_soon_as_it_can_be() -> None:
    """Time is skipped until the run has ended, and not further."""
    async with WorkflowEnvironment([naps]) as env:
        before = env.clock.elapsed()
        assert await env.result(await env.start(naps, 30)) == 30
        assert env.clock.elapsed() - before == 30 * 8 * 3600 * 1_000_000


async def test_a_run_that_waits_for_somebody_is_told_apart_from_one_that_waits_for_time() -> None:
    """The error says what it waits for."""
    async with WorkflowEnvironment([asks]) as env:
        run = await env.start(asks)
        with pytest.raises(RunStuckError, match="the signal 'answer'"):
            await env.result(run)
        await run.signal("answer", 42)
        assert await env.result(run) == 42


async def test_a_crash_writes_nothing_and_the_next_process_goes_on() -> None:
    """The run is still owned by the dead process; what is recorded is not done again."""
    async with WorkflowEnvironment([naps]) as env:
        run = await env.start(naps, 2)
        await env.settle()
        before = await run.info()
        await env.crash()
        assert await run.info() == before
        assert before.owner
        await env.restart()
        assert await env.result(run) == 2
        assert set(env.effects.of(run).values()) == {1}


async def test_time_passes_while_nothing_runs() -> None:
    """What was due meanwhile happens when a process comes back."""
    async with WorkflowEnvironment([naps]) as env:
        run = await env.start(naps, 1)
        await env.settle()
        await env.crash()
        await env.advance("1 week")
        assert not (await run.info()).has_ended
        await env.restart()
        await env.settle()
        assert await run.result() == 1


async def test_without_a_process_there_is_no_engine() -> None:
    """It is said how to get one."""
    async with WorkflowEnvironment([naps]) as env:
        await env.crash()
        with pytest.raises(DeclarationError, match="restart"):
            _ = env.engine


async def test_a_step_that_waits_for_the_test_does_not_keep_it_from_settling() -> None:
    """The test can then let it go on."""
    gate = asyncio.Event()

    @sf.workflow
    async def gated(ctx: sf.Context) -> bool:
        return await ctx.step("gate", gate.wait)

    async with WorkflowEnvironment([gated]) as env:
        run = await env.start(gated)
        await env.settle()
        assert env.effects.count(run, "gate") == 1
        gate.set()
        assert await env.result(run) is True


async def test_runs_survive_a_crash_on_a_disk(tmp_path: Path) -> None:
    """Any store will do."""
    async with WorkflowEnvironment([naps], store=f"sqlite:///{tmp_path / 'runs.db'}") as env:
        run = await env.start(naps, 2)
        await env.advance("9 hours")
        await env.crash()
        await env.restart()
        assert await env.result(run) == 2


def test_an_environment_runs_on_a_simulated_loop() -> None:
    """With a clock that follows it."""

    async def main() -> int:
        async with WorkflowEnvironment([naps], clock=VirtualClock(asyncio.get_running_loop())) as env:
            return await env.result(await env.start(naps, 3))

    assert simulate(7, main) == 3


async def test_a_failure_is_raised_as_it_is_in_production() -> None:
    """With its cause."""

    @sf.workflow
    async def fails(ctx: sf.Context) -> None:
        await ctx.step(note, "before")
        raise ValueError("no")

    async with WorkflowEnvironment([fails]) as env:
        with pytest.raises(RunFailedError) as raised:
            await env.result(await env.start(fails))
    assert isinstance(raised.value.__cause__, ValueError)


async def test_a_workflow_whose_result_depends_on_how_often_it_ran_is_found() -> None:
    """A crash makes the difference, and the error says where."""
    with pytest.raises(RunDivergedError, match="with a crash right after commit"):
        await crash_everywhere(forgets)


async def test_a_workflow_that_does_something_else_when_it_is_replayed_is_found() -> None:
    """An unload is enough for that."""
    with pytest.raises(RunDivergedError):
        await unload_everywhere(wavers)


async def test_a_workflow_that_is_right_is_disturbed_at_every_commit() -> None:
    """Once before and once after each."""
    seen = await crash_everywhere(naps, 2)
    assert seen.crashes == 2 * seen.commits
    assert seen.kinds == ("step", "sleep", "slept", "step", "sleep", "slept", "step")


async def test_a_workflow_that_is_right_stands_what_operators_do_at_every_commit() -> None:
    """Each operation while its process lives, and while it is dead."""
    seen = await operate_everywhere(naps, 1)
    assert seen.operations == 2 * len(OPERATIONS) * seen.commits


@sf.workflow
async def lets_itself_be_confused(ctx: sf.Context) -> None:
    """Do something else each time that it cleans up."""
    try:
        await ctx.sleep("1 hour")
    finally:
        await ctx.step(f"tidy {next(counter)}", note, "tidy")
        await ctx.sleep("1 minute")


async def test_a_workflow_that_cannot_be_cancelled_everywhere_is_found() -> None:
    """The error says after which operation, and where."""
    with pytest.raises(RunDivergedError, match="with 'cancel' after commit"):
        await operate_everywhere(lets_itself_be_confused, operations={"cancel": OPERATIONS["cancel"]})


async def test_an_operation_of_ones_own_is_done_at_every_commit() -> None:
    """It gets an engine that drives nothing, and the id of the run."""
    asked: list[str] = []

    async def ask(engine: sf.Engine, run_id: str) -> None:
        asked.append((await engine.get(run_id)).status)

    seen = await operate_everywhere(naps, 1, operations={"ask": ask})
    assert len(asked) == seen.operations == 2 * seen.commits


@sf.workflow
async def sums_in_any_order(ctx: sf.Context) -> int:
    """Add up what branches bring, in whatever order."""
    found: list[int] = []

    async def branch(number: int) -> None:
        await ctx.step("bring", note, str(number))
        found.append(number)

    await ctx.gather(*(branch(number) for number in range(3)))
    return sum(found)


@sf.workflow
async def first_come(ctx: sf.Context) -> str:
    """Depend on which branch comes first."""
    found: list[str] = []

    async def branch(name: str) -> None:
        await ctx.step("bring", note, name)
        found.append(name)

    await ctx.gather(branch("a"), branch("b"))
    return found[0]


def test_a_workflow_is_run_in_many_orders() -> None:
    """One that does not depend on them comes to the same each time."""
    assert interleave(sums_in_any_order, seeds=40).seeds == 40


def test_a_workflow_that_depends_on_the_order_is_found_and_its_seed_named() -> None:
    """And that seed shows it again."""
    with pytest.raises(RunDivergedError, match=r"interleaved by seed \d+") as found:
        interleave(first_come, seeds=200)
    seed = int(str(found.value).split("seed ")[1].split(":")[0].split()[0].rstrip(","))

    with pytest.raises(RunDivergedError):
        interleave(first_come, seeds=[0, seed])

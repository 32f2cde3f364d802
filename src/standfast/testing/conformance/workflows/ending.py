"""Ending: runs that are told to stop, or take too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import RunCancelledError, RunTimedOutError
from standfast.testing.conformance.workflows.ground import WorkflowGround, result_of, until, waits
from standfast.testing.conformance.workflows.samples import act, acts, cleans_up, collects

if TYPE_CHECKING:
    from standfast.testing.conformance.workflows.ground import OpenEngine


@sf.workflow
async def stubborn(ctx: sf.Context) -> str:
    """Go on though it was told to stop."""
    try:
        await ctx.wait_signal("never")
    except sf.RunCancelled:
        return await ctx.step(act, "went on")
    return "never"


@sf.workflow(timeout=0.02)
async def takes_too_long(ctx: sf.Context) -> None:
    """Wait for longer than it may."""
    try:
        await ctx.wait_signal("never")
    finally:
        await ctx.step("clean", act, "clean")


class CancellingCases(WorkflowGround):
    """Runs that do not come to the end of their code."""

    @pytest.mark.parametrize("linger", [0, 60], ids=["out of memory", "in memory"])
    async def test_a_cancelled_run_cleans_up(self, open_engine: OpenEngine, done: list[str], linger: float) -> None:
        """Its code is told where it waits; whoever asks for its result is told, too."""
        engine = await open_engine(linger=linger)
        run = await engine.start(cleans_up)
        await until(run, "suspended" if linger == 0 else "running", "suspended")
        await run.cancel("enough")

        with pytest.raises(RunCancelledError):
            await result_of(run)
        assert done == ["clean"]
        assert (await run.info()).cancel == "enough"

    async def test_a_run_is_cancelled_from_elsewhere(
        self, engine: sf.Engine, client: sf.Engine, done: list[str]
    ) -> None:
        """By a process that does not drive it."""
        run = await engine.start(cleans_up)
        await client.cancel(run.id)

        with pytest.raises(RunCancelledError):
            await result_of(run)
        assert done in (["clean"], [])

    async def test_a_run_that_nobody_has_begun_ends_at_once(self, engine: sf.Engine, done: list[str]) -> None:
        """None of its code runs."""
        run = await engine.start(acts, ["a"], delay="1 hour")
        assert (await run.cancel()).status == "cancelled"
        assert done == []

    async def test_a_run_may_end_well_though_it_was_cancelled(self, open_engine: OpenEngine) -> None:
        """Its code has the last word."""
        engine = await open_engine(stubborn)
        run = await engine.start(stubborn)
        await waits(run)
        await run.cancel()
        assert await result_of(run) == "did went on"

    async def test_a_run_that_has_ended_is_left_as_it_is(self, engine: sf.Engine) -> None:
        """Cancelling it does nothing."""
        run = await engine.start(acts, ["a"])
        await result_of(run)
        assert (await run.cancel()).status == "completed"

    async def test_a_run_is_ended_by_force(self, engine: sf.Engine, client: sf.Engine, done: list[str]) -> None:
        """Whatever its code does, and nothing of it is run."""
        run = await engine.start(cleans_up)
        await waits(run)
        assert (await client.cancel(run.id, force=True)).status == "cancelled"

        with pytest.raises(RunCancelledError):
            await result_of(run)
        assert done == []

    async def test_a_run_that_takes_too_long_is_stopped(self, open_engine: OpenEngine, done: list[str]) -> None:
        """It can clean up, and whoever asks is told."""
        engine = await open_engine(takes_too_long, linger=0)
        run = await engine.start(takes_too_long)

        with pytest.raises(RunTimedOutError):
            await result_of(run)
        assert done == ["clean"]
        assert (await run.info()).status == "timed_out"

    async def test_a_signal_that_comes_with_the_cancellation_is_not_taken(self, engine: sf.Engine) -> None:
        """A run that was told to stop waits for nothing more."""
        run = await engine.start(collects, 2)
        await run.signal("item", 1)
        await waits(run)
        await run.cancel()

        with pytest.raises(RunCancelledError):
            await result_of(run)

"""Waking: a run that waits costs nothing, and goes on when its time has come or news arrives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import (
    RunFailedError,
    SignalTimeoutError,
    StartOrSignalConflictError,
    UpdateTimeoutError,
    UpdateValidationError,
    WorkflowTerminalError,
)
from standfast.testing.conformance.workflows.ground import WorkflowGround, let_pass, result_of, until, waits
from standfast.testing.conformance.workflows.samples import account, acts, collects, sleeps

if TYPE_CHECKING:
    from standfast.testing.conformance.workflows.ground import OpenEngine
    from standfast.testing.simulation import VirtualClock


@sf.workflow
async def naps(ctx: sf.Context, count: int) -> int:
    """Sleep a number of times."""
    for _ in range(count):
        await ctx.sleep(0.01)
    return count


@sf.workflow
async def waits_a_while(ctx: sf.Context, seconds: float) -> list[Any]:
    """Wait for a signal, with a default, and then without one."""
    found = [await ctx.wait_signal("item", timeout=seconds, default="nothing")]
    await ctx.wait_signal("item", timeout=seconds)
    return found


@sf.workflow
async def sorts(ctx: sf.Context) -> list[Any]:
    """Take signals of two names, the later name first."""
    return [await ctx.wait_signal("second"), await ctx.wait_signal("first")]


@sf.workflow
async def patient(ctx: sf.Context, seconds: float) -> bool:
    """Wait for something that never comes true."""
    return await ctx.wait_until(lambda: False, timeout=seconds)


@sf.workflow
async def reports(ctx: sf.Context) -> None:
    """Say how far it is."""
    ctx.set_progress({"done": 1, "of": 2})
    await ctx.wait_signal("go")


class SleepingCases(WorkflowGround):
    """Runs that wait for a time."""

    @pytest.mark.parametrize("linger", [0, 60], ids=["out of memory", "in memory"])
    async def test_a_run_goes_on_after_its_sleep(self, open_engine: OpenEngine, done: list[str], linger: float) -> None:
        """Not earlier, and whether or not it stayed in memory meanwhile."""
        engine = await open_engine(linger=linger)
        run = await engine.start(sleeps, 0.02)

        assert await result_of(run) == "did after"
        assert done == ["before", "after"]
        assert (await run.info()).seconds >= 0.02

    async def test_many_sleeps_follow_each_other(self, open_engine: OpenEngine) -> None:
        """Each is recorded, and none is slept twice."""
        engine = await open_engine(naps, linger=0)
        run = await engine.start(naps, 4)
        assert await result_of(run) == 4

        assert [entry.id for entry in await run.history() if entry.kind == "sleep"] == [
            "sleep",
            "sleep#2",
            "sleep#3",
            "sleep#4",
        ]

    async def test_runs_wake_in_the_order_of_their_times(self, engine: sf.Engine, clock: VirtualClock | None) -> None:
        """Also if they were started in another order."""
        slow = await engine.start(sleeps, 3_600)
        quick = await engine.start(sleeps, 0.01)
        await result_of(quick)

        assert (await slow.info()).has_ended is False
        if clock is not None:
            await waits(slow)
            await let_pass(3_600, clock, engine)
            assert await result_of(slow) == "did after"

    async def test_a_sleeping_run_says_until_when(self, engine: sf.Engine) -> None:
        """A caller that looks knows when it goes on."""
        run = await engine.start(sleeps, 3_600)
        info = await waits(run)

        assert info.until is not None
        assert 3_590 < (info.until - info.started_at) / 1_000_000 < 3_700
        assert info.owner == ""

    async def test_waiting_until_has_an_end(self, open_engine: OpenEngine) -> None:
        """The answer then is that it did not come true."""
        engine = await open_engine(patient)
        assert await result_of(await engine.start(patient, 0.01)) is False


class SignalCases(WorkflowGround):
    """Runs that wait for signals."""

    @pytest.mark.parametrize("linger", [0, 60], ids=["out of memory", "in memory"])
    async def test_signals_are_taken_in_order(self, open_engine: OpenEngine, linger: float) -> None:
        """Each once, whether or not the run stayed in memory."""
        engine = await open_engine(linger=linger)
        run = await engine.start(collects, 5)
        for number in range(5):
            await run.signal("item", number)

        assert await result_of(run) == [0, 1, 2, 3, 4]

    async def test_a_signal_can_come_before_it_is_waited_for(self, engine: sf.Engine, client: sf.Engine) -> None:
        """It is kept until the run takes it, also while no worker drives the run."""
        run = await client.start(collects, 2, delay=0.01)
        await client.signal(run.id, "item", "early")
        await engine.signal(run.id, "item", "late")

        assert await result_of(run) == ["early", "late"]

    async def test_signals_of_other_names_wait(self, open_engine: OpenEngine) -> None:
        """A run takes the name that it waits for."""
        engine = await open_engine(sorts)
        run = await engine.start(sorts)
        await run.signal("first", 1)
        await run.signal("second", 2)

        assert await result_of(run) == [2, 1]

    async def test_a_signal_with_the_same_id_is_the_same_signal(self, engine: sf.Engine) -> None:
        """Who does not know whether it was sent sends it again."""
        run = await engine.start(collects, 2)
        answers = [await run.signal("item", "x", signal_id="s-1") for _ in range(3)]
        await run.signal("item", "y")

        assert answers == [True, False, False]
        assert await result_of(run) == ["x", "y"]

    async def test_many_signals_at_once_all_arrive(self, engine: sf.Engine, client: sf.Engine) -> None:
        """More than one commit takes, from two processes."""
        run = await engine.start(collects, 60)
        await asyncio.gather(*((engine, client)[n % 2].signal(run.id, "item", n) for n in range(60)))

        assert sorted(await result_of(run)) == list(range(60))

    async def test_a_signal_is_waited_for_no_longer_than_asked(self, open_engine: OpenEngine) -> None:
        """Then there is a default, or an error that the run can handle."""
        engine = await open_engine(waits_a_while)
        run = await engine.start(waits_a_while, 0.01)
        with pytest.raises(RunFailedError) as caught:
            await result_of(run)
        assert isinstance(caught.value.__cause__, SignalTimeoutError)

    async def test_a_run_that_has_ended_takes_no_signals(self, engine: sf.Engine) -> None:
        """The sender is told."""
        run = await engine.start(acts, ["a"])
        await result_of(run)
        with pytest.raises(WorkflowTerminalError):
            await run.signal("item", 1)

    async def test_a_run_is_started_or_signalled(self, engine: sf.Engine, client: sf.Engine) -> None:
        """Both in one step: no signal of another caller is lost."""
        sent = await asyncio.gather(
            *((engine, client)[n % 2].start_or_signal(collects, 6, id="cart", signal="item", value=n) for n in range(6))
        )

        assert sorted(outcome for _, outcome in sent) == ["signalled"] * 5 + ["started"]
        assert sorted(await result_of(sent[0][0])) == [0, 1, 2, 3, 4, 5]

    async def test_an_ended_run_is_not_started_or_signalled(self, engine: sf.Engine) -> None:
        """Unless the caller says so: then there is a new one with its id."""
        run, _ = await engine.start_or_signal(collects, 1, id="cart", signal="item", value=1)
        await result_of(run)
        with pytest.raises(StartOrSignalConflictError):
            await engine.start_or_signal(collects, 1, id="cart", signal="item", value=2)

        again, outcome = await engine.start_or_signal(
            collects, 1, id="cart", signal="item", value=3, signal_id="s-3", on_terminal="start_new"
        )
        assert (outcome, await result_of(again)) == ("started", [3])


class RunUpdateCases(WorkflowGround):
    """Runs that are asked, and answer."""

    @pytest.mark.parametrize("linger", [0, 60], ids=["out of memory", "in memory"])
    async def test_an_update_is_answered(self, open_engine: OpenEngine, linger: float) -> None:
        """The run is loaded for it, and what it changes stays changed."""
        engine = await open_engine(linger=linger)
        run = await engine.start(account, 10)

        assert [await run.update("deposit", amount) for amount in (5, 7)] == [15, 22]
        await run.update("close")
        assert await result_of(run) == 22

    async def test_an_update_of_another_process_is_answered(self, engine: sf.Engine, client: sf.Engine) -> None:
        """A process that asks need not drive the run."""
        run = await engine.start(account, 1)
        assert await client.update(run.id, "deposit", 1, timeout=15) == 2

    async def test_an_update_that_is_refused_changes_nothing(self, engine: sf.Engine) -> None:
        """The caller is told, and nothing is recorded."""
        run = await engine.start(account, 10)
        with pytest.raises(UpdateValidationError):
            await run.update("deposit", -1)

        assert await run.query("balance") == 10
        assert [entry for entry in await run.history() if entry.kind == "update"] == []

    async def test_an_update_with_the_same_id_happens_once(self, engine: sf.Engine) -> None:
        """It has the same answer each time."""
        run = await engine.start(account, 10)
        answers = [await run.update("deposit", 5, update_id="u-1") for _ in range(3)]

        assert answers == [15, 15, 15]
        assert await run.query("balance") == 15

    async def test_an_update_that_nobody_answers_is_given_up(self, engine: sf.Engine) -> None:
        """The caller waits no longer than it says."""
        run = await engine.start(collects, 1)
        with pytest.raises(UpdateTimeoutError):
            await run.update("deposit", 5, timeout=0.01)

    async def test_a_query_is_answered_wherever_the_run_is(self, engine: sf.Engine, client: sf.Engine) -> None:
        """By its history alone: also from a process that does not drive it, and when it has ended."""
        run = await engine.start(account, 10)
        await run.update("deposit", 5)
        assert [await each.query(run.id, "balance") for each in (engine, client)] == [15, 15]

        await run.update("close")
        await result_of(run)
        assert await client.query(run.id, "balance") == 15

    async def test_progress_is_seen_from_outside(self, open_engine: OpenEngine, client: sf.Engine) -> None:
        """At the latest when the run waits."""
        engine = await open_engine(reports)
        run = await engine.start(reports)
        await until(run, "suspended")

        assert (await client.get(run.id)).progress == {"done": 1, "of": 2}

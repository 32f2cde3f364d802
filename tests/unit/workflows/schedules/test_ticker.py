"""Ticks: each starts one run, whoever looks after the schedule and whatever happens to them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

import pytest
from msgspec import Raw

import standfast as sf
from standfast.errors import RunCancelledError
from standfast.events import SchedulePaused, TickFired, TickSkipped, TicksMissed
from standfast.testing.workflows import WorkflowEnvironment
from standfast.testing.workflows.mortal_store import Death
from standfast.workflows.schedules.spec import OVERLAPS
from standfast.workflows.schedules.ticker import standing_of
from tests.unit.workflows.schedules.flows import (
    alone,
    dated,
    environment,
    failing,
    named,
    report,
    runs,
    slow,
    statuses,
    stubborn,
)

if TYPE_CHECKING:
    from pathlib import Path

    from standfast.events import Event
    from standfast.workflows.schedules.spec import Overlap


async def test_each_tick_starts_a_run_that_is_named_after_it() -> None:
    """The run's id tells its schedule and its nominal time, and it has the arguments of the schedule."""
    async with environment() as env:
        await env.client.schedules.create(sf.Schedule(report, "eu", id="r", every="1 minute"))
        await env.advance("2 minutes")
        assert await runs(env) == ["r@2025-06-15T15:07:40Z", "r@2025-06-15T15:08:40Z"]
        assert await env.client.result("r@2025-06-15T15:08:40Z") == "eu"


async def test_a_run_knows_the_time_that_its_schedule_named() -> None:
    """Also if it was made up for much later; a run that was started by hand has none."""
    async with environment() as env:
        await env.client.schedules.create(sf.Schedule(dated, id="d", every="1 minute", overlap="queue", backfill=True))
        by_hand = await env.client.schedules.trigger("d")
        await env.crash()
        await env.advance("1 hour")
        await env.restart()
        await env.settle()
        assert await env.client.result("d@2025-06-15T15:07:40Z") == "2025-06-15 15:07:40+00:00"
        assert await by_hand.result() == "None"


async def test_a_cron_expression_fires_at_its_local_time() -> None:
    """At six in the morning in New York it is ten in the morning UTC, in summer."""
    async with environment() as env:
        cron = sf.Schedule(report, id="r", cron="0 6 * * *", zone="America/New_York", kwargs={"place": "us"})
        await env.client.schedules.create(cron)
        await env.advance("1 day")
        assert await runs(env) == ["r@2025-06-16T10:00:00Z"]


async def test_no_tick_starts_two_runs_however_many_engines_look() -> None:
    """Workers that see the same tick at the same moment start one run."""
    told: list[Event] = []
    async with environment(told) as env:
        await env.client.schedules.create(sf.Schedule(report, id="r", every="1 minute", overlap="allow"))
        spaces = [sf.Space(await env.client.space.store.another(), clock=env.clock) for _ in range(4)]
        others = [sf.Engine(space, workflows=[report]) for space in spaces]
        await asyncio.gather(*(each.open() for each in others))
        await env.advance("5 minutes")
        await asyncio.gather(*(each.aclose() for each in others))
        await asyncio.gather(*(each.aclose() for each in spaces))
        assert len(await runs(env)) == (await env.client.schedules.get("r")).started == 5


@pytest.mark.parametrize("overlap", ["skip", "allow"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_tick_is_not_lost_with_the_worker_that_handles_it(
    when: Literal["before", "after"], overlap: Overlap
) -> None:
    """A worker that dies at any commit around its ticks leaves each of them to the next one, once."""
    for number in range(1, 9):
        async with environment() as env:
            await env.client.schedules.create(sf.Schedule(report, id="r", every="1 minute", overlap=overlap))
            await env.advance("30 seconds")
            env.life.dies = Death(when, env.life.commits + number)
            await env.advance("150 seconds")
            assert await statuses(env) == ["completed"] * 3, number
            env.life.dies = None


async def test_late_ticks_are_missed_and_counted() -> None:
    """After an outage nothing is made up for; the next tick fires on time."""
    told: list[Event] = []
    async with environment(told) as env:
        await env.client.schedules.create(sf.Schedule(report, id="r", every="1 minute"))
        await env.crash()
        await env.advance("3.5 minutes")
        await env.restart()
        await env.advance("1 minute")
        info = await env.client.schedules.get("r")
        assert (info.started, info.missed, len(await runs(env))) == (1, 3, 1)
        assert [event.count for event in named(told, TicksMissed) if isinstance(event, TicksMissed)] == [3]


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("workflow", [report, slow])
async def test_late_ticks_are_made_up_for_if_the_schedule_says_so(
    overlap: Overlap, workflow: sf.Workflow[[], str]
) -> None:
    """Three minutes without a worker are three runs, each with its own nominal time, whatever overlaps are to do."""
    async with environment() as env:
        schedules = env.client.schedules
        await schedules.create(sf.Schedule(workflow, id="r", every="1 hour", backfill=True, overlap=overlap))
        await env.crash()
        await env.advance("3.5 hours")
        await env.restart()
        await env.advance("5 minutes")
        assert [run.rpartition("T")[2] for run in await runs(env)] == ["16:06:40Z", "17:06:40Z", "18:06:40Z"]
        assert await statuses(env) == ["completed"] * 3
        assert (await schedules.get("r")).skipped == 0


async def test_a_backfill_is_made_up_for_however_many_ticks_it_may_have() -> None:
    """What may be made up for may also wait: more than the thousand runs that a schedule otherwise queues."""
    spec = sf.Schedule(slow, id="r", every="1 hour", backfill=True, most_backfilled=5_000).spec("slow", Raw(b"null"))
    assert standing_of("r", spec, "queue").most_waiting == 5_000


async def test_a_tick_on_time_is_dropped_while_a_backfill_is_at_work() -> None:
    """Only what is late waits its turn; the next tick on time follows the overlap of the schedule."""
    async with environment() as env:
        schedules = env.client.schedules
        await schedules.create(sf.Schedule(slow, id="r", every="1 minute", backfill=True))
        await env.crash()
        await env.advance("2.5 minutes")
        await env.restart()
        await env.advance("1 minute")
        info = await schedules.get("r")
        assert (info.started, info.skipped) == (2, 1)


async def test_a_clock_that_is_set_back_repeats_no_tick() -> None:
    """What has fired does not fire again when its time comes again."""
    async with environment() as env:
        await env.client.schedules.create(sf.Schedule(report, id="r", every="1 minute"))
        await env.advance("2 minutes")
        env.clock.step_wall(-120)
        await env.advance("3 minutes")
        info = await env.client.schedules.get("r")
        assert (len(await runs(env)), info.refused, info.missed) == (info.started, 0, 0)
        assert info.started >= 3


async def test_an_engine_without_the_workflow_leaves_tick_after_tick_to_others() -> None:
    """It pauses a schedule only if nobody takes one and the same tick, not because it has seen one a while ago."""
    async with WorkflowEnvironment() as env:
        space = sf.Space(await env.client.space.store.another(), clock=env.clock)
        async with space, sf.Engine(space, workflows=[report]) as other:
            await other.schedules.create(sf.Schedule(report, id="r", every="1 minute"))
            await env.advance("5 minutes")
            info = await other.schedules.get("r")
        assert (info.is_paused, info.started) == (False, 5)


# --- overlap --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", ["completed", "completed", "suspended"]),
        ("queue", ["completed", "completed", "suspended", "pending", "pending"]),
        ("cancel_running", ["cancelled", "cancelled", "cancelled", "cancelled", "suspended"]),
        ("allow", ["completed", "completed", "completed", "suspended", "suspended"]),
    ],
)
async def test_overlap(overlap: Overlap, expected: list[str]) -> None:
    """Five ticks, a minute apart, of a workflow that takes a minute and a half."""
    async with environment() as env:
        await env.client.schedules.create(sf.Schedule(slow, id="s", every="1 minute", overlap=overlap))
        await env.advance("310 seconds")
        assert await statuses(env) == expected


async def test_a_dropped_tick_is_counted_and_told() -> None:
    """The schedule says how many were dropped, when, and why."""
    told: list[Event] = []
    async with environment(told) as env:
        await env.client.schedules.create(sf.Schedule(slow, id="s", every="1 minute"))
        await env.advance("2 minutes")
        info = await env.client.schedules.get("s")
        assert (info.started, info.skipped, info.problem) == (1, 1, "a run of this schedule is unfinished")
        assert [len(named(told, kind)) for kind in (TickFired, TickSkipped)] == [1, 1]


async def test_a_new_run_starts_when_the_cancelled_one_has_cleaned_up() -> None:
    """With cancel_running the two are never at work together."""
    async with environment() as env:
        await env.client.schedules.create(sf.Schedule(stubborn, id="s", every="1 minute", overlap="cancel_running"))
        await env.advance("140 seconds")
        assert await statuses(env) == ["suspended", "pending"]
        await env.advance("20 seconds")
        assert await statuses(env) == ["cancelled", "suspended"]
        with pytest.raises(RunCancelledError, match="takes its place"):
            await env.client.result("s@2025-06-15T15:07:40Z")


async def test_a_queued_run_has_its_turn_when_the_one_before_failed() -> None:
    """How a run ended does not matter for the next one, nor for what is recorded of it."""
    async with environment() as env:
        await env.client.schedules.create(sf.Schedule(failing, id="f", every="1 minute", overlap="queue"))
        await env.advance("2 minutes")
        assert await statuses(env) == ["failed", "failed"]


async def test_accepted_runs_stay_when_the_overlap_changes() -> None:
    """Runs that stand in line keep their places; only later ticks follow the new rule."""
    async with environment() as env:
        schedules = env.client.schedules
        await schedules.create(sf.Schedule(slow, id="s", every="1 minute", overlap="queue"))
        await env.advance("2 minutes")
        await schedules.change(sf.Schedule(slow, id="s", every="1 minute", overlap="skip"))
        await env.advance("6 minutes")
        assert (await statuses(env))[:2] == ["completed", "completed"]
        assert (await schedules.get("s")).skipped > 0


async def test_a_limit_refuses_a_tick_and_not_the_schedule() -> None:
    """A tick that a limit of the workflow refuses is counted as such, and later ones fire."""
    async with environment() as env:
        await env.client.schedules.create(sf.Schedule(alone, id="a", every="1 minute", overlap="allow"))
        await env.advance("190 seconds")
        info = await env.client.schedules.get("a")
        assert (info.started, info.refused, info.skipped, info.is_paused) == (2, 1, 0, False)
        assert "as the limit allows: 1" in info.problem


# --- what is not here -----------------------------------------------------------------------------------------------


async def _orphan(env: WorkflowEnvironment, workflow: Any) -> None:
    """Let a worker that does not have the workflow be the only one."""
    space = sf.Space(await env.client.space.store.another(), clock=env.clock)
    async with sf.Engine(space, workflows=[workflow], drive=False) as maker:
        await maker.schedules.create(sf.Schedule(workflow, id="o", every="1 minute"))
    await space.aclose()


@sf.workflow
async def elsewhere(ctx: sf.Context) -> str:
    """Be code that the worker of the environment does not have."""
    return str(await ctx.now())


async def test_a_schedule_whose_workflow_nobody_has_is_paused_for_everybody_to_see() -> None:
    """Its timer is gone, and its note says what is missing."""
    told: list[Event] = []
    async with environment(told) as env:
        await _orphan(env, elsewhere)
        await env.advance("1 minute")
        assert not (await env.client.schedules.get("o")).is_paused  # others may have it
        await env.advance("10 seconds")
        info = await env.client.schedules.get("o")
        assert (info.is_paused, info.note) == (True, "no worker has the workflow 'elsewhere'")
        assert len(named(told, SchedulePaused)) == 1
        timers = await env.client.space.scan(*env.client.space.key("timer").within(), limit=10)
        assert not timers.records


async def test_a_schedule_goes_on_when_its_code_comes_back() -> None:
    """An engine that has the workflow resumes what was paused for the lack of it."""
    async with environment() as env:
        await _orphan(env, elsewhere)
        await env.advance("75 seconds")
        assert (await env.client.schedules.get("o")).is_paused
        space = sf.Space(await env.client.space.store.another(), clock=env.clock)
        async with sf.Engine(space, workflows=[elsewhere]):
            info = await env.client.schedules.get("o")
        await space.aclose()
        assert (info.is_paused, info.note) == (False, "")


async def test_a_schedule_goes_on_when_its_code_is_registered() -> None:
    """An engine that gets the workflow later resumes it as well."""
    async with environment() as env:
        await _orphan(env, elsewhere)
        await env.advance("75 seconds")
        env.engine.register(elsewhere)
        await env.settle()
        assert not (await env.client.schedules.get("o")).is_paused


async def test_a_tick_whose_run_is_there_already_goes_by(tmp_path: Path) -> None:
    """Somebody has used the id of a tick's run: the run stays as it is, and the schedule goes on."""
    async with environment(store=f"sqlite:///{tmp_path}/store.db") as env:
        await env.client.schedules.create(sf.Schedule(report, "eu", id="r", every="1 minute"))
        await env.start(report, "mine", id="r@2025-06-15T15:07:40Z")
        await env.advance("2 minutes")
        info = await env.client.schedules.get("r")
        assert (info.started, info.refused, len(await runs(env))) == (1, 1, 2)

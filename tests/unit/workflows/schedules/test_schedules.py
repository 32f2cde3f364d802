"""What can be done with schedules: make, look, pause, resume, change, trigger, make up for, delete, declare."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

import standfast as sf
from standfast.errors import (
    DeclarationError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    UnknownWorkflowError,
    WorkflowConcurrencyLimitExceededError,
    WrongArgumentsError,
)
from standfast.events import SchedulePaused
from standfast.testing.workflows.mortal_store import Death
from tests.unit.workflows.schedules.flows import WORKFLOWS, environment, named, report, runs, slow, statuses

if TYPE_CHECKING:
    from standfast.events import Event
    from standfast.testing.workflows import WorkflowEnvironment

START = datetime(2025, 6, 15, 15, 6, 40, tzinfo=UTC)
"""When the clock of an environment begins."""

EVERY = sf.Schedule(report, "eu", id="r", every="1 minute")


def at(seconds: float) -> datetime:
    """Return the moment that many seconds after the start."""
    return START + timedelta(seconds=seconds)


# --- making ---------------------------------------------------------------------------------------------------------


async def test_the_first_definition_is_kept() -> None:
    """A schedule with an id that is taken is refused, and the one that is there stays as it is."""
    async with environment() as env:
        await env.client.schedules.create(EVERY)
        with pytest.raises(ScheduleExistsError, match="'r' already"):
            await env.client.schedules.create(sf.Schedule(slow, id="r", every="1 hour"))
        assert (await env.client.schedules.get("r")).workflow == "report"


@pytest.mark.parametrize(("exists", "expected"), [("keep", 60), ("replace", 3_600)])
async def test_what_to_do_with_one_that_is_there_can_be_said(exists: Any, expected: float) -> None:
    """It is kept, or replaced."""
    async with environment() as env:
        await env.client.schedules.create(EVERY)
        info = await env.client.schedules.create(sf.Schedule(report, id="r", every="1 hour"), exists=exists)
        assert info.every == (await env.client.schedules.get("r")).every == expected


@pytest.mark.parametrize(
    ("schedule", "error"),
    [
        (sf.Schedule(report, "a", "b", id="r", every=60, kwargs=None), WrongArgumentsError),
        (sf.Schedule("nobody", id="r", every=60), UnknownWorkflowError),
        (sf.Schedule(cast("Any", print), id="r", every=60), DeclarationError),
    ],
)
async def test_what_could_not_start_is_refused_before_anything_is_written(
    schedule: sf.Schedule, error: type[Exception]
) -> None:
    """Wrong arguments, an unknown name, or something that is no workflow."""
    async with environment() as env:
        with pytest.raises(error):
            await env.client.schedules.create(schedule)
        assert await env.client.schedules.list() == ()


async def test_an_id_must_not_look_like_a_timer() -> None:
    """Runs and schedules stand in one timer index, so neither begins like the other."""
    with pytest.raises(DeclarationError, match="begin with @"):
        sf.Schedule(report, id="@r", every=60)
    async with environment() as env:
        with pytest.raises(DeclarationError, match="begin with @"):
            await env.client.start(report, id="@r")


async def test_schedules_are_listed_by_their_ids() -> None:
    """All of them, with what they start and when."""
    async with environment() as env:
        for name in ("b", "a", "c"):
            await env.client.schedules.create(sf.Schedule(report, name, id=name, cron="0 3 * * *"))
        found = await env.client.schedules.list()
        assert [(info.id, info.input) for info in found] == [(name, {"place": name}) for name in "abc"]


async def test_there_is_no_schedule_that_was_never_made() -> None:
    """Whatever is asked of it is refused with its id."""
    async with environment() as env:
        for ask in (env.client.schedules.get, env.client.schedules.pause, env.client.schedules.delete):
            with pytest.raises(ScheduleNotFoundError, match="'nobody'"):
                await ask("nobody")


# --- pausing and deleting -------------------------------------------------------------------------------------------


async def test_a_paused_schedule_does_not_fire_and_makes_up_for_nothing() -> None:
    """Ticks in the pause are neither run nor counted as missed."""
    told: list[Event] = []
    async with environment(told) as env:
        await env.client.schedules.create(EVERY)
        info = await env.client.schedules.pause("r", "the source is down")
        assert (info.is_paused, info.note, info.next_at) == (True, "the source is down", None)
        await env.advance("150 seconds")
        assert not (await env.client.schedules.resume("r")).is_paused
        await env.advance("1 minute")
        info = await env.client.schedules.get("r")
        assert (await runs(env), info.missed) == (["r@2025-06-15T15:09:40Z"], 0)
        assert len(named(told, SchedulePaused)) == 1


async def _with_a_queue(env: WorkflowEnvironment) -> None:
    await env.client.schedules.create(sf.Schedule(slow, id="s", every="1 minute", overlap="queue"))
    await env.advance("130 seconds")
    assert len((await env.client.schedules.get("s")).queued) == 1


@pytest.mark.parametrize("how", ["pause", "delete"])
async def test_runs_that_wait_for_their_turn_are_discarded(how: str) -> None:
    """The one that has begun goes on to its end; those in line are cancelled."""
    async with environment() as env:
        await _with_a_queue(env)
        await getattr(env.client.schedules, how)("s")
        await env.advance("2 minutes")
        assert await statuses(env) == ["completed", "cancelled"]


@pytest.mark.parametrize("how", ["pause", "delete"])
@pytest.mark.parametrize("number", range(1, 5))
async def test_what_is_begun_is_finished_by_another_process(how: str, number: int) -> None:
    """Whoever pauses or deletes a schedule may die in the middle of it."""
    async with environment() as env:
        await _with_a_queue(env)
        env.life.dies = Death("after", env.life.commits + number)
        asking = asyncio.ensure_future(getattr(env.engine.schedules, how)("s"))
        await env.advance("5 minutes")
        await asyncio.gather(asking, return_exceptions=True)
        env.life.dies = None
        assert await statuses(env) == ["completed", "cancelled"]


async def test_a_deleted_schedule_leaves_nothing_behind() -> None:
    """Its records are gone, and its id can be used again."""
    async with environment() as env:
        await _with_a_queue(env)
        await env.client.schedules.delete("s")
        await env.advance("2 minutes")
        for kind in ("schedule", "timer", "line", "ticket"):
            assert not (await env.client.space.scan(*env.client.space.key(kind).within(), limit=5)).records, kind
        await env.client.schedules.create(sf.Schedule(report, id="s", every="1 hour"))


# --- changing -------------------------------------------------------------------------------------------------------


async def test_a_change_keeps_counts_and_a_pause() -> None:
    """Only what the schedule says is replaced."""
    async with environment() as env:
        await env.client.schedules.create(EVERY)
        await env.advance("1 minute")
        await env.client.schedules.pause("r", "not now")
        info = await env.client.schedules.change(sf.Schedule(slow, id="r", every="1 hour"))
        assert (info.started, info.is_paused, info.note, info.workflow) == (1, True, "not now", "slow")


async def test_a_change_of_arguments_does_not_put_the_next_tick_off() -> None:
    """A period that stays the same goes on."""
    async with environment() as env:
        before = await env.client.schedules.create(EVERY)
        await env.advance("30 seconds")
        after = await env.client.schedules.change(sf.Schedule(report, "us", id="r", every="1 minute"))
        assert (after.next_at, after.input) == (before.next_at, {"place": "us"})


# --- starting by hand -----------------------------------------------------------------------------------------------


async def test_a_run_can_be_started_now() -> None:
    """Also of a paused schedule; its id is not that of a tick, and no tick is spent on it."""
    async with environment() as env:
        await env.client.schedules.create(sf.Schedule(report, "eu", id="r", every="1 minute", paused=True))
        run = await env.client.schedules.trigger("r")
        await env.settle()
        assert (await run.result(), run.id.startswith("r@now-")) == ("eu", True)
        assert (await env.client.schedules.get("r")).started == 0


async def test_a_run_that_is_started_now_keeps_to_the_overlap() -> None:
    """With skip it is refused while a run is unfinished, unless another rule is given."""
    async with environment() as env:
        await env.client.schedules.create(sf.Schedule(slow, id="s", every="1 hour"))
        await env.client.schedules.trigger("s")
        with pytest.raises(WorkflowConcurrencyLimitExceededError, match="schedule s"):
            await env.client.schedules.trigger("s")
        await env.client.schedules.trigger("s", overlap="allow")
        assert len(await runs(env)) == 2


async def test_past_ticks_can_be_made_up_for_once() -> None:
    """Each gets one run, named after it; asked again, those that have one get no other."""
    async with environment() as env:
        await env.client.schedules.create(EVERY)
        await env.advance("61 seconds")
        await env.client.schedules.pause("r")
        await env.advance("4 minutes")
        started = await env.client.schedules.backfill("r", at(0), at(181))
        await env.settle()
        assert [run.id for run in started] == ["r@2025-06-15T15:08:40Z", "r@2025-06-15T15:09:40Z"]
        assert await env.client.schedules.backfill("r", at(0), at(181)) == ()
        assert await statuses(env) == ["completed"] * 3


@pytest.mark.parametrize(
    ("start", "end", "problem"),
    [
        (at(0), at(1e6), "still to come"),
        (at(0).replace(tzinfo=None), at(1), "with a time zone"),
        (at(-1e7), at(0), None),
    ],
)
async def test_only_the_past_can_be_made_up_for(start: datetime, end: datetime, problem: str | None) -> None:
    """Ticks to come are refused, and so is a time of no zone. Before the schedule was made it has no ticks."""
    async with environment() as env:
        await env.client.schedules.create(EVERY)
        if problem is None:
            assert await env.client.schedules.backfill("r", start, end) == ()
        else:
            with pytest.raises(DeclarationError, match=problem):
                await env.client.schedules.backfill("r", start, end)


# --- declaring ------------------------------------------------------------------------------------------------------


async def _open_with(env: WorkflowEnvironment, *schedules: sf.Schedule) -> None:
    space = sf.Space(await env.client.space.store.another(), clock=env.clock)
    async with sf.Engine(space, workflows=WORKFLOWS, schedules=schedules, drive=False):
        pass
    await space.aclose()


async def test_a_declared_schedule_is_made_and_changed_with_its_declaration() -> None:
    """At each opening of the engine; its counts stay."""
    async with environment() as env:
        await _open_with(env, EVERY)
        await env.advance("1 minute")
        await _open_with(env, sf.Schedule(report, id="r", every="2 minutes"))
        info = await env.client.schedules.get("r")
        assert (info.every, info.started) == (120, 1)


async def test_what_was_done_by_hand_stays_until_the_declaration_changes() -> None:
    """A pause stays in any case; a change until the code says something else than before."""
    async with environment() as env:
        await _open_with(env, EVERY)
        await env.client.schedules.change(sf.Schedule(report, id="r", every="1 hour"))
        await env.client.schedules.pause("r", "by hand")
        await _open_with(env, EVERY)
        assert (await env.client.schedules.get("r")).every == 3_600
        await _open_with(env, sf.Schedule(report, id="r", every="3 hours"))
        info = await env.client.schedules.get("r")
        assert (info.every, info.is_paused, info.note) == (10_800, True, "by hand")


async def test_a_declared_schedule_needs_its_workflow() -> None:
    """An engine that could not start it is not made."""
    with pytest.raises(UnknownWorkflowError, match="report"):
        sf.Engine("memory://", workflows=[slow], schedules=[EVERY])

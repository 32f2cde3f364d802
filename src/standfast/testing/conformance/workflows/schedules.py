"""Schedules: each tick starts one run, however many processes there are, and whichever were away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.clock import MICROSECONDS
from standfast.errors import (
    RunCancelledError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    WorkflowConcurrencyLimitExceededError,
)
from standfast.testing.conformance.workflows.ground import WorkflowGround, eventually, let_pass, result_of, until, waits
from standfast.testing.conformance.workflows.samples import acts, collects

if TYPE_CHECKING:
    from standfast.testing.conformance.workflows.ground import OpenEngine
    from standfast.testing.simulation import VirtualClock

HOUR = timedelta(hours=1)


def hourly(schedule_id: str = "hourly", **options: Any) -> sf.Schedule:
    """Return a schedule that does not fire by itself while a test runs."""
    return sf.Schedule(acts, ["tick"], id=schedule_id, every="1 hour", **options)


def waiting(**options: Any) -> sf.Schedule:
    """Return a schedule whose runs wait for a signal."""
    return sf.Schedule(collects, 1, id="waiting", every="1 hour", **options)


async def now(engine: sf.Engine) -> datetime:
    """Return the store's time."""
    at = (await engine.space.read(engine.space.key("life"))).at
    return datetime.fromtimestamp(at / MICROSECONDS, UTC)


class TickingCases(WorkflowGround):
    """Schedules whose time comes. Where the clock is a real one, they wait for a second or two."""

    async def test_each_tick_starts_one_run(self, open_engine: OpenEngine, clock: VirtualClock | None) -> None:
        """Though two processes poll the schedule; and it says which was last."""
        engines = [await open_engine(), await open_engine()]
        every = sf.Schedule(acts, ["tick"], id="every", every="1 second", overlap="allow")
        await engines[0].schedules.create(every)

        async def has_fired() -> bool:
            await let_pass(0.25, clock, *engines)
            return bool((await engines[1].schedules.get("every")).started)

        await eventually(has_fired)
        await engines[0].schedules.pause("every")
        info = await engines[1].schedules.get("every")
        runs = (await engines[0].list(workflow="acts")).runs
        assert info.started == len(runs) >= 1
        assert info.last_run in {run.id for run in runs}
        assert {run.schedule for run in runs} == {"every"}

    async def test_ticks_that_nobody_was_there_for_are_made_up_for(
        self, open_engine: OpenEngine, client: sf.Engine, clock: VirtualClock | None
    ) -> None:
        """If the schedule says so; otherwise they are left out, and counted."""
        for name, backfill in (("made-up", True), ("left-out", False)):
            schedule = sf.Schedule(acts, [name], id=name, every="1 second", overlap="allow", backfill=backfill)
            await client.schedules.create(schedule)
        await let_pass(2.2, clock)
        engine = await open_engine()

        async def are_handled() -> bool:
            made_up, left_out = [await engine.schedules.get(name) for name in ("made-up", "left-out")]
            return made_up.started >= 2 and left_out.missed >= 1

        await eventually(are_handled)
        assert (await engine.schedules.get("made-up")).missed == 0


class ScheduleCases(WorkflowGround):
    """Making, changing and using schedules."""

    async def test_a_schedule_is_seen_by_all_processes(self, engine: sf.Engine, client: sf.Engine) -> None:
        """What it starts and when it fires next."""
        made = await client.schedules.create(sf.Schedule(acts, ["x"], id="daily", cron="0 9 * * *", zone="UTC"))
        info = await engine.schedules.get("daily")

        assert (info.workflow, info.cron, info.zone, info.overlap) == ("acts", "0 9 * * *", "UTC", "skip")
        assert info.next_at == made.next_at
        assert info.next_at is not None
        assert datetime.fromtimestamp(info.next_at / MICROSECONDS, UTC).hour == 9

    async def test_a_schedule_is_made_once(self, engine: sf.Engine, client: sf.Engine) -> None:
        """Unless it is to be kept or replaced."""
        await engine.schedules.create(hourly())
        with pytest.raises(ScheduleExistsError):
            await client.schedules.create(hourly())
        assert (await client.schedules.create(hourly(overlap="queue"), exists="keep")).overlap == "skip"
        assert (await client.schedules.create(hourly(overlap="queue"), exists="replace")).overlap == "queue"
        assert [info.id for info in await engine.schedules.list()] == ["hourly"]

    async def test_declared_schedules_are_there_when_the_engine_is(self, open_engine: OpenEngine) -> None:
        """However many engines declare them."""
        engines = [await open_engine(schedules=[hourly("first"), hourly("second")]) for _ in range(2)]
        for engine in engines:
            assert [info.id for info in await engine.schedules.list()] == ["first", "second"]

    async def test_a_paused_schedule_does_not_fire(self, engine: sf.Engine, client: sf.Engine) -> None:
        """Until it is resumed; everybody sees why."""
        await engine.schedules.create(hourly())
        await client.schedules.pause("hourly", "the source is down")
        paused = await engine.schedules.get("hourly")
        resumed = await client.schedules.resume("hourly")

        assert (paused.is_paused, paused.note, paused.next_at) == (True, "the source is down", None)
        assert (resumed.is_paused, resumed.note) == (False, "")
        assert resumed.next_at is not None

    async def test_a_schedule_is_changed(self, engine: sf.Engine) -> None:
        """From then on it fires as it says now."""
        before = await engine.schedules.create(hourly())
        after = await engine.schedules.change(sf.Schedule(acts, ["tock"], id="hourly", every="2 hours"))

        assert (after.every, after.input) == (7_200, {"names": ["tock"]})
        assert after.next_at != before.next_at

    async def test_a_deleted_schedule_is_gone(self, engine: sf.Engine) -> None:
        """It can be made anew."""
        await engine.schedules.create(hourly())
        await engine.schedules.delete("hourly")
        with pytest.raises(ScheduleNotFoundError):
            await engine.schedules.get("hourly")
        await engine.schedules.create(hourly())

    async def test_a_schedule_is_triggered_by_hand(self, engine: sf.Engine, client: sf.Engine) -> None:
        """Whatever the time is, from any process."""
        await engine.schedules.create(hourly(paused=True))
        run = await client.schedules.trigger("hourly")

        assert await result_of(run) == ["did tick"]
        assert (await run.info()).schedule == "hourly"

    async def test_a_run_that_would_overlap_is_skipped(self, engine: sf.Engine) -> None:
        """One run of a schedule is unfinished at a time."""
        await engine.schedules.create(waiting())
        run = await engine.schedules.trigger("waiting")
        with pytest.raises(WorkflowConcurrencyLimitExceededError):
            await engine.schedules.trigger("waiting")
        await run.signal("item", 1)
        await result_of(run)
        assert (await engine.schedules.trigger("waiting")).is_new

    async def test_a_run_that_would_overlap_can_wait(self, engine: sf.Engine) -> None:
        """It begins when the one before has ended; pausing the schedule discards it."""
        await engine.schedules.create(waiting(overlap="queue"))
        runs = [await engine.schedules.trigger("waiting") for _ in range(3)]
        await runs[0].signal("item", 1)
        await until(runs[1], "running", "suspended")
        assert (await engine.schedules.get("waiting")).queued == (runs[2].id,)

        await engine.schedules.pause("waiting")
        with pytest.raises(RunCancelledError):
            await result_of(runs[2])

    async def test_a_run_that_would_overlap_can_cancel(self, engine: sf.Engine) -> None:
        """The one before makes room."""
        await engine.schedules.create(waiting(overlap="cancel_running"))
        first = await engine.schedules.trigger("waiting")
        await waits(first)
        second = await engine.schedules.trigger("waiting")
        with pytest.raises(RunCancelledError):
            await result_of(first)
        await second.signal("item", 2)
        assert await result_of(second) == [2]

    async def test_past_ticks_are_made_up_for_once(self, engine: sf.Engine) -> None:
        """However often it is asked for: a tick that had its run gets no other."""
        await engine.schedules.create(sf.Schedule(acts, ["tick"], id="hourly", cron="0 * * * *"))
        end = await now(engine)
        start = end - 4 * HOUR
        made = await engine.schedules.backfill("hourly", start, end)
        again = await engine.schedules.backfill("hourly", start, end)
        for run in made:
            await result_of(run)

        assert (len(made), again) == (4, ())

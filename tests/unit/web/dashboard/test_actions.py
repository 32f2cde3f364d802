"""Each action does through its form what it said before, and is in the audit."""

from __future__ import annotations

import asyncio
import re

import httpx

import standfast as sf
from standfast.web.dashboard.access import ACTIONS, REVEAL
from standfast.web.dashboard.actions import PERFORMED
from standfast.web.dashboard.pages import DONE
from tests.unit.web.dashboard.opened import opened


@sf.workflow(concurrency=sf.Limit(2, on_limit="queue"))
async def limited(ctx: sf.Context) -> str:
    """Have a limit, and a step to fork from."""

    async def one() -> str:
        return "done"

    return await ctx.step("one", one)


def test_every_action_has_a_button_a_form_and_a_word_for_its_end() -> None:
    """None of them can be forgotten in one of the tables."""
    assert set(ACTIONS) == set(PERFORMED) == set(DONE)
    assert REVEAL not in ACTIONS


async def test_schedules_are_paused_resumed_and_triggered() -> None:
    """What is started by hand is shown."""
    async with opened("all", limited) as made:
        await made.engine.schedules.create(sf.Schedule(limited, id="nightly", cron="0 3 * * *"))
        assert "nightly" in (await made.get("schedules")).text
        await made.act("schedule.pause", id="nightly", note="a test")
        assert (await made.engine.schedules.get("nightly")).is_paused
        await made.act("schedule.resume", id="nightly")
        assert not (await made.engine.schedules.get("nightly")).is_paused
        answer = await made.act("schedule.trigger", id="nightly")
        run_id = httpx.URL(answer.headers["location"]).params["id"]
        assert await made.engine.result(run_id, timeout="10s") == "done"
        answer = await made.act("run.fork", id=run_id, step="one")
        fork = httpx.URL(answer.headers["location"]).params["id"]
        assert await made.engine.result(fork, timeout="10s") == "done"
        done = [each.action for each in (await made.engine.audit()).records]
        assert done == ["run.fork", "schedule.trigger", "schedule.resume", "schedule.pause"]


async def test_limits_are_set_and_cleared() -> None:
    """The page shows what the code says beside what was set."""
    async with opened("all", limited) as made:
        await made.act("limit.set", workflow="limited", key="", has_key="no", max="7", shown="yes")
        assert [(each.max, each.is_set) for each in (await made.engine.limits("limited")).limits] == [(7, True)]
        assert "code says 2" in (await made.get("limits")).text
        await made.act("limit.clear", workflow="limited", key="", has_key="no")
        assert not [each for each in (await made.engine.limits("limited")).limits if each.is_set]


async def test_a_limit_is_set_for_a_while_after_it_was_said_when_it_ends() -> None:
    """The first form asks for the number and the length; the second says what that comes to."""
    async with opened("all", limited) as made:
        own = {"workflow": "limited", "key": "", "has_key": "no"}
        asked = (await made.get("act/limit.set", **own)).text
        assert "Show what it will do" in asked
        assert 'name="lasts"' in asked
        told = (await made.get("act/limit.set", **own, max="7", lasts="2 hours", shown="yes")).text
        assert "7 runs may be unfinished at a time" in told
        assert "It ends by itself in 2 h" in told
        assert (await made.engine.limits("limited")).limits[0].until is None
        await made.act("limit.set", **own, max="7", lasts="2 hours", shown="yes")
        [found] = (await made.engine.limits("limited")).limits
        assert (found.max, found.then) == (7, 2)
        assert "for another" in (await made.get("limits")).text
        answer = await made.get("act/limit.set", **own, max="7", lasts="soon", shown="yes")
        assert answer.status_code == 400


async def test_a_waiter_is_cancelled_and_a_semaphore_resized() -> None:
    """With more permits the next in line holds at once."""
    async with opened() as made:
        space, address = made.engine.space, ["1", "", "api"]
        lock = space.semaphore("api", permits=1)

        async def hold() -> None:
            async with lock.hold():
                await asyncio.Event().wait()

        async with lock.hold():
            waiting = [asyncio.ensure_future(hold()) for _ in range(2)]
            async with space.watch(space.key("line")) as watch:
                while (told := await space.explain("api")).waiting < 2:
                    await watch.wait(1)
            await made.act("lock.withdraw", at=address, entry=told.waiters[0].entry)
            assert (await space.explain("api")).waiting == 1
            assert (await made.act("lock.resize", at=address, permits="2")).status_code == 303
            assert len((await space.explain("api")).holders) == 2
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


async def test_missed_ticks_are_made_up_for_after_it_was_said_which() -> None:
    """First it is asked from when to when, then it is said what happens, then it is done."""
    async with opened("all", limited) as made:
        await made.engine.schedules.create(sf.Schedule(limited, id="hourly", cron="0 * * * *"))
        question = (await made.get("act/schedule.backfill", id="hourly")).text
        assert "Show what it will do" in question
        assert "form_token" not in question
        shown = (await made.get("act/schedule.backfill", id="hourly", start="3 hours")).text
        assert "3 runs will be started now" in shown
        hidden = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', shown))
        headers = {"origin": "http://ops.test", "sec-fetch-site": "same-origin"}
        answer = await made.http.post("/act/schedule.backfill", data=hidden, headers=headers)
        assert answer.status_code == 303
        assert len((await made.engine.list(workflow="limited")).runs) == 3
        again = await made.get("act/schedule.backfill", id="hourly", start=hidden["start"], end=hidden["end"])
        assert again.status_code == 404
        assert (await made.engine.audit()).records[0].action == "schedule.backfill"


async def test_a_rate_is_closed_for_a_while_and_opened_again() -> None:
    """A cool-down has an end, and can be ended."""
    async with opened() as made:
        limiter = made.engine.space.rate_limiter("mail", interval="1 hour", capacity=3)
        await limiter.try_acquire()
        assert "2 of 3" in (await made.get("limits")).text
        address = ["1", "", "mail"]
        await made.act("rate.close", at=address, length="5 minutes")
        assert 299 < (await limiter.inspect()).closed_for <= 300
        assert "Open again" in (await made.get("limits")).text
        await made.act("rate.open", at=address)
        assert not (await limiter.inspect()).closed_for
        assert (await limiter.inspect()).tokens == 2
        assert (await made.get("act/rate.open", at=["1", "", "none"])).status_code == 409


async def test_a_run_that_has_ended_is_deleted() -> None:
    """It is gone, and its page says so."""
    async with opened("all", limited) as made:
        await (await made.engine.start(limited, id="r1")).result(timeout="10s")
        assert (await made.act("run.purge", id="r1")).headers["location"].startswith("/runs?")
        assert (await made.get("run", id="r1")).status_code == 404


async def test_a_line_tells_modes_apart_by_name_and_by_colour() -> None:
    """Each mode is named beside its colour, and a weight is a number beside its blocks."""
    async with opened() as made:
        space = made.engine.space
        async with space.semaphore("api", permits=5).hold(weight=3):
            text = (await made.get("line", at=["1", "", "api"])).text
        assert "3 of 5 in use" in text
        assert text.count('<rect x="') >= 3

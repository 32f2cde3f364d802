"""Each action does through its form what it said before, and is in the audit."""

from __future__ import annotations

import asyncio

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
        await made.act("limit.set", workflow="limited", key="", has_key="no", max="7")
        assert [(each.max, each.is_set) for each in (await made.engine.limits("limited")).limits] == [(7, True)]
        assert "code says 2" in (await made.get("limits")).text
        await made.act("limit.clear", workflow="limited", key="", has_key="no")
        assert not [each for each in (await made.engine.limits("limited")).limits if each.is_set]


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

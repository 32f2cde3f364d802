"""Start limits that let runs wait their turn, or cancel those before them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import RunCancelledError, RunTimedOutError, WorkflowConcurrencyLimitExceededError
from standfast.scope import Scope
from standfast.testing.conformance.workflows.ground import eventually
from standfast.testing.workflows import WorkflowEnvironment
from standfast.testing.workflows.mortal_store import Death
from tests.unit.workflows.engines import DONE, act, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def in_turn(ctx: sf.Context, name: str) -> str:
    """Act, one after the other."""
    return await ctx.step(act, name)


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def gated(ctx: sf.Context, name: str) -> str:
    """Wait for a signal, one after the other."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue", max_queued=2))
async def bounded(ctx: sf.Context, name: str) -> str:
    """Wait for a signal; two more may queue."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue", ttl="1 minute"))
async def impatient(ctx: sf.Context, name: str) -> str:
    """Wait for a signal; whoever queues for a minute gives up."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"), timeout="1 minute")
async def limited_in_time(ctx: sf.Context, name: str) -> str:
    """Wait for a signal for at most a minute, the time in the queue included."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=sf.Limit(1, on_limit="cancel_running"))
async def latest(ctx: sf.Context, name: str) -> str:
    """Wait for a signal, unless a newer one comes."""
    try:
        return f"{name}{await ctx.wait_signal('go')}"
    finally:
        await ctx.step(act, f"end of {name}")


@sf.workflow(
    concurrency=[sf.Limit(1, key=lambda name: name[0], on_limit="queue"), sf.Limit(2, on_limit="queue")],
)
async def by_both(ctx: sf.Context, name: str) -> str:
    """Wait for a signal: one run of each first letter, and two in all, at a time."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow
async def parent(ctx: sf.Context, name: str) -> str:
    """Wait for a child that queues."""
    return await ctx.child(gated, name)


WORKFLOWS = [in_turn, gated, bounded, impatient, limited_in_time, latest, by_both, parent]


@pytest.fixture
async def engine(url: str) -> AsyncIterator[sf.Engine]:
    """An engine with limited workflows."""
    async with sf.Engine(url, workflows=WORKFLOWS, worker=sf.admin.WorkerLimits(linger=0.01)) as opened:
        yield opened


async def statuses(*runs: sf.Run[Any]) -> list[str]:
    """Return how runs are; whether one that has begun is in memory does not matter."""
    found = [(await run.info()).status for run in runs]
    return ["running" if status == "suspended" else status for status in found]


async def go(*runs: sf.Run[Any]) -> None:
    """Let runs go on, and wait for their ends."""
    for run in runs:
        await run.signal("go", "!")
        await run.result()


async def left_over(engine: sf.Engine) -> list[Any]:
    """Return what is left of lines, timers and flags."""
    found: list[Any] = []
    for kind in ("line", "ticket", "grant", "timer", "ready", "own"):
        found += (await engine.space.scan(*engine.space.key(kind).within(), limit=500)).records
    return found


# --- waiting ----------------------------------------------------------------------------------------------------------


async def test_one_too_many_waits_and_says_so(engine: sf.Engine) -> None:
    """It is pending, tells what for, and how many are in front of it."""
    first, second, third = [await engine.start(gated, name) for name in "abc"]

    info = await third.info()

    assert (info.status, info.waits_for) == ("pending", "its turn among the runs of 'gated'")
    assert [await run.place() for run in (first, second, third)] == [None, 0, 1]


async def test_the_next_one_has_its_turn_when_one_has_ended(engine: sf.Engine) -> None:
    """In the order of their starts."""
    runs = [await engine.start(gated, name) for name in "abc"]
    await go(runs[0])

    assert await statuses(*runs) == ["completed", "running", "pending"]
    await go(runs[1], runs[2])
    assert await left_over(engine) == []


async def test_two_hundred_runs_take_turns_across_two_engines(url: str) -> None:
    """Whoever drives them, they begin in the order of their starts, and nothing is left of the line."""
    names = [f"{number:03}" for number in range(200)]
    async with sf.Engine(url, workflows=WORKFLOWS) as one, sf.Engine(url, workflows=WORKFLOWS) as other:
        runs = [await (one, other)[number % 2].start(in_turn, name) for number, name in enumerate(names)]
        await asyncio.gather(*(run.result() for run in runs))

        assert names == DONE
        assert await left_over(one) == []


async def test_a_flag_that_means_nothing_starts_no_run_before_its_turn(engine: sf.Engine) -> None:
    """Whoever looks at a run that waits finds that it has no place."""
    runs = [await engine.start(gated, name) for name in "ab"]
    await runs[1].signal("go", "!")

    await engine.resume(runs[1].id)

    assert await statuses(*runs) == ["running", "pending"]
    await runs[0].signal("go", "?")
    assert [await run.result() for run in runs] == ["a?", "b!"]


async def test_the_same_start_takes_no_second_place_in_the_queue(engine: sf.Engine) -> None:
    """It finds the run that waits."""
    await engine.start(gated, "a")
    await engine.start(gated, "b", id="b")

    assert not (await engine.start(gated, "b", id="b")).is_new
    third = await engine.start(gated, "c")

    assert await third.place() == 1


async def test_a_parent_waits_for_a_child_that_queues(engine: sf.Engine) -> None:
    """And gets its result when it had its turn."""
    first = await engine.start(gated, "a")
    waiting = await engine.start(parent, "b", id="p")
    await until(engine, "p", "suspended")
    await engine.signal("p.gated", "go", "!")
    assert await statuses(engine.run("p.gated")) == ["pending"]
    await go(first)

    assert await waiting.result() == "b!"


async def test_a_delayed_run_that_waited_does_not_begin_early() -> None:
    """It has its turn before its time, and holds its place until then."""
    async with WorkflowEnvironment(workflows=WORKFLOWS) as env:
        first = await env.start(gated, "a")
        second = await env.start(gated, "b", delay="1 hour")
        await first.signal("go", "!")
        await env.settle()
        assert await statuses(first, second) == ["completed", "pending"]

        await env.advance("61 minutes")

        assert await statuses(second) == ["running"]


# --- bounds -----------------------------------------------------------------------------------------------------------


async def test_only_so_many_may_queue(engine: sf.Engine) -> None:
    """One more gets the error of the limit; when one has left there is room again."""
    runs = [await engine.start(bounded, name) for name in "abc"]
    with pytest.raises(WorkflowConcurrencyLimitExceededError):
        await engine.start(bounded, "d")

    await go(runs[0])

    assert (await engine.start(bounded, "d")).is_new


async def test_those_who_left_the_queue_do_not_count(engine: sf.Engine) -> None:
    """One that was cancelled while it waited makes room, wherever it stood."""
    runs = [await engine.start(bounded, name) for name in "abc"]
    await runs[2].cancel()
    await until(engine, runs[2].id, "cancelled")

    assert (await engine.start(bounded, "d")).is_new
    with pytest.raises(WorkflowConcurrencyLimitExceededError):
        await engine.start(bounded, "e")


async def test_a_run_that_queued_too_long_is_cancelled() -> None:
    """It says why, and those behind it move up."""
    async with WorkflowEnvironment(workflows=WORKFLOWS) as env:
        first = await env.start(impatient, "a")
        second = await env.start(impatient, "b")
        await env.advance("30 seconds")
        third = await env.start(impatient, "c")
        await env.advance("31 seconds")
        assert await statuses(first, second, third) == ["running", "cancelled", "pending"]
        assert await third.place() == 0

        with pytest.raises(RunCancelledError, match="did not come within 60 s"):
            await second.result()


async def test_a_run_that_had_its_turn_in_time_is_left_alone() -> None:
    """What it does then takes as long as it takes."""
    async with WorkflowEnvironment(workflows=WORKFLOWS) as env:
        runs = [await env.start(impatient, name) for name in "ab"]
        await runs[0].signal("go", "!")
        await env.advance("2 minutes")

        assert await statuses(*runs) == ["completed", "running"]


async def test_a_run_that_had_its_turn_while_nobody_was_there_is_not_cancelled() -> None:
    """Its place is its own, however late somebody comes to drive it."""
    async with WorkflowEnvironment(workflows=WORKFLOWS) as env:
        first, second = [await env.start(impatient, name) for name in "ab"]
        await env.crash()
        await env.client.cancel(first.id, force=True)
        await env.advance("2 minutes")
        assert await statuses(second) == ["pending"]
        await env.restart()
        await second.signal("go", "!")

        assert await env.result(second) == "b!"


async def test_the_time_in_the_queue_counts_for_the_time_limit() -> None:
    """A run whose time is over before its turn came ends as timed out."""
    async with WorkflowEnvironment(workflows=WORKFLOWS) as env:
        await env.start(limited_in_time, "a")
        await env.advance("30 seconds")
        second = await env.start(limited_in_time, "b")
        await env.crash()
        await env.advance("61 seconds")
        await env.restart()
        await env.settle()

        with pytest.raises(RunTimedOutError):
            await second.result()


# --- leaving early ----------------------------------------------------------------------------------------------------


async def test_a_run_can_be_cancelled_while_it_queues(engine: sf.Engine) -> None:
    """None of its code runs, and nothing of it is left in the line."""
    runs = [await engine.start(gated, name) for name in "abc"]
    await runs[1].cancel("no longer needed")
    with pytest.raises(RunCancelledError, match="no longer needed"):
        await runs[1].result()

    await go(runs[0], runs[2])

    assert await left_over(engine) == []


async def test_many_who_give_up_do_not_hold_up_those_behind(engine: sf.Engine) -> None:
    """Also more of them than are in sight at once."""
    runs = [await engine.start(gated, str(number)) for number in range(30)]
    for run in runs[1:29]:
        await run.cancel()
    for run in runs[1:29]:
        await until(engine, run.id, "cancelled")

    await go(runs[0], runs[29])

    async def is_empty() -> bool:  # the flag of a signal that its run has read already goes at the next poll
        return not await left_over(engine)

    await eventually(is_empty)


@pytest.mark.parametrize("force", [False, True])
async def test_the_last_of_a_long_line_is_cancelled_at_the_cost_of_the_last_of_a_short_one(
    monkeypatch: pytest.MonkeyPatch, *, force: bool
) -> None:
    """Nothing is searched for: a run knows its ticket. It ends in the commit in which it leaves the line."""
    read: list[int] = []
    for name in ("read", "scan"):
        plain = getattr(Scope, name)

        async def counted(self: Scope, *args: Any, plain: Any = plain, **options: Any) -> Any:
            seen = await plain(self, *args, **options)
            read.append(len(seen.records))
            return seen

        monkeypatch.setattr(Scope, name, counted)
    costs: list[int] = []
    async with sf.Engine("memory://", workflows=[gated], drive=False) as client:
        for length in (50, 400):
            runs = [await client.start(gated, str(number)) for number in range(length)]
            read.clear()
            for run in runs[:-9:-1]:
                assert (await run.cancel(force=force)).status == "cancelled"
            costs.append(sum(read))
            assert await run.place() is None
    assert costs[1] <= costs[0] + 8


async def test_a_run_that_queues_can_be_ended_by_force(engine: sf.Engine) -> None:
    """Its place in the line goes with it."""
    runs = [await engine.start(gated, name) for name in "abc"]
    await engine.cancel(runs[1].id, force=True)

    assert await runs[2].place() == 0
    await go(runs[0], runs[2])


# --- taking over ------------------------------------------------------------------------------------------------------


async def test_a_new_run_can_cancel_the_one_before_it(engine: sf.Engine) -> None:
    """It begins when the old one has cleaned up, not before."""
    first = await engine.start(latest, "a")
    second = await engine.start(latest, "b")
    with pytest.raises(RunCancelledError, match=second.id):
        await first.result()
    await go(second)

    assert DONE == ["end of a", "end of b"]


async def test_of_many_that_cancel_each_other_the_last_one_stays(engine: sf.Engine) -> None:
    """Those before it are all cancelled, those that wait as well as the one that runs."""
    runs = [await engine.start(latest, name) for name in "abcd"]
    for run in runs[:-1]:
        with pytest.raises(RunCancelledError):
            await run.result()
    await go(runs[-1])

    assert DONE[-1] == "end of d"
    assert await left_over(engine) == []


async def test_room_is_made_though_whoever_asked_for_it_died() -> None:
    """The run that waits was durable before it cancelled the other one: whoever finds it does that."""
    async with WorkflowEnvironment(workflows=WORKFLOWS) as env:
        first = await env.start(latest, "a")
        env.life.dies = Death("after", env.life.commits + 1)
        second = await env.start(latest, "b", id="b")
        await env.settle()
        await second.signal("go", "!")

        assert await env.result(second) == "b!"
        assert await statuses(first) == ["cancelled"]


# --- two limits together ----------------------------------------------------------------------------------------------


async def test_a_run_that_waits_for_its_key_takes_no_place_of_all(engine: sf.Engine) -> None:
    """So it does not keep others from running."""
    a1, a2, b1 = [await engine.start(by_both, name) for name in ("a1", "a2", "b1")]

    assert await statuses(a1, a2, b1) == ["running", "pending", "running"]


async def test_a_run_waits_in_the_one_line_and_then_in_the_other(engine: sf.Engine) -> None:
    """First for its key, then for a place among all; and gives back both."""
    a1, a2, b1, c1 = [await engine.start(by_both, name) for name in ("a1", "a2", "b1", "c1")]
    assert await statuses(a1, a2, b1, c1) == ["running", "pending", "running", "pending"]
    await go(a1)
    await until(engine, c1.id, "running", "suspended")
    assert await statuses(a2) == ["pending"]

    await go(b1, a2, c1)

    assert await left_over(engine) == []


async def test_a_run_that_is_cancelled_between_two_lines_leaves_both(engine: sf.Engine) -> None:
    """The place that it has, and the place in line."""
    a1, b1, c1 = [await engine.start(by_both, name) for name in ("a1", "b1", "c1")]
    assert await c1.place() == 0
    await c1.cancel()
    await until(engine, c1.id, "cancelled")

    await go(a1, b1)

    assert await left_over(engine) == []

"""Cancelling runs whose code runs branches side by side: everybody is told, once, and nothing gets lost on the way."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import RunCancelledError, RunFailedError
from tests.unit.workflows.engines import DONE, WORKFLOWS, act, collects, engine, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

EVENTS: dict[str, asyncio.Event] = {}
"""What steps and the test tell each other; of the event loop of the test."""


@sf.step
async def stubborn(name: str) -> str:
    """Go on to the end when told to stop."""
    EVENTS[name].set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return name
    return ""


async def sleeps_long(ctx: sf.Context) -> None:
    """Wait for ever."""
    await ctx.sleep(1e6)


async def cleans_up(ctx: sf.Context, name: str, *, signals: int) -> None:
    """Wait for ever; then take signals, one after another, before the cleaning up is done."""
    try:
        await ctx.sleep(1e6)
    finally:
        for _ in range(signals):
            await ctx.wait_signal(name)
        await ctx.step(name, act, name)


async def at_once(result: str) -> str:
    """Do nothing that takes time."""
    return result


async def raises_at_once() -> None:
    """Raise before anything else happens."""
    raise ValueError("at once")


@sf.workflow
async def collects_problems(ctx: sf.Context) -> None:
    """Take whatever comes of the branches."""
    await ctx.gather(sleeps_long(ctx), sleeps_long(ctx), return_exceptions=True)
    await ctx.step("after", act, "after")


@sf.workflow
async def has_stubborn_steps(ctx: sf.Context) -> None:
    """Run steps that do not stop, then go on."""
    await ctx.gather(ctx.step(stubborn, "a"), ctx.step(stubborn, "b"))
    await ctx.step("after", act, "after")


@sf.workflow
async def has_a_winner(ctx: sf.Context) -> None:
    """Go on with the winner of a race when the loser has cleaned up."""
    await ctx.race(at_once("won"), cleans_up(ctx, "loser", signals=1))
    await ctx.step("after", act, "after")


@sf.workflow
async def has_a_culprit(ctx: sf.Context) -> None:
    """Go on though a branch raised, when the others have cleaned up."""
    try:
        await ctx.gather(raises_at_once(), cleans_up(ctx, "other", signals=1))
    except ValueError:
        await ctx.step("after", act, "after")


@sf.workflow
async def has_slow_cleaners(ctx: sf.Context) -> None:
    """Clean up in two branches, in one of them for longer."""
    await ctx.gather(cleans_up(ctx, "quick", signals=0), cleans_up(ctx, "slow", signals=1))


@sf.workflow
async def loses_inside(ctx: sf.Context) -> Any:
    """Lose a race in a branch that takes whatever comes of its own branches."""

    async def loser() -> None:
        await ctx.gather(sleeps_long(ctx), sleeps_long(ctx), return_exceptions=True)
        await ctx.step("after", act, "after")

    async def winner() -> str:
        await ctx.wait_signal("win")
        return "won"

    return await ctx.race(loser(), winner())


@sf.workflow
async def wins_from_deep_inside(ctx: sf.Context) -> Any:
    """Win a race by a branch of a branch of a branch, against one that takes its time to clean up."""

    async def deep() -> Any:
        return await ctx.race(ctx.race(ctx.race(ctx.wait_signal("win"))))

    won = await ctx.race(cleans_up(ctx, "loser", signals=2), deep())
    await ctx.wait_signal("end")
    return won[0]


@sf.workflow
async def wins_against_a_step(ctx: sf.Context) -> Any:
    """Win a race from deep inside against a step that does not stop."""

    async def deep() -> Any:
        return await ctx.race(ctx.race(ctx.race(ctx.wait_signal("win"))))

    won = await ctx.race(deep(), ctx.step(stubborn, "a"))
    await ctx.wait_signal("end")
    return won[0]


@sf.workflow
async def nobody_runs(ctx: sf.Context) -> Any:
    """Let nobody race."""
    return await ctx.race()


@sf.workflow
async def begins_at_once(ctx: sf.Context) -> list[Any]:
    """Let branches end before others have begun, and replay branches that wait for each other's events."""

    async def second() -> str:
        await ctx.wait_signal("go")
        return await ctx.step("second", act, "second")

    async def third() -> str:
        result = await ctx.step("third", act, "third")
        await ctx.wait_signal("go")
        return result

    first = await ctx.race(at_once("first"), sleeps_long(ctx))
    return [*first, *await ctx.gather(second(), third())]


async def _in_a_step(ctx: sf.Context) -> None:
    await ctx.step("waits", asyncio.Event().wait)


async def _in_a_signal(ctx: sf.Context) -> None:
    await ctx.wait_signal("never")


async def _in_a_child(ctx: sf.Context) -> None:
    await ctx.child(collects, 1)


PLACES: dict[str, Callable[[sf.Context], Awaitable[None]]] = {
    "step": _in_a_step,
    "signal": _in_a_signal,
    "child": _in_a_child,
}


@sf.workflow
async def cancelled_as_it_begins(ctx: sf.Context, place: str) -> None:
    """Be cancelled in the moment in which an operation begins."""
    await ctx.now()
    told = ctx._activation.cancel  # as when the news comes at this very moment
    asyncio.get_running_loop().call_soon(told, sf.RunCancelled("in between"))
    await PLACES[place](ctx)


MINE = [
    collects_problems,
    has_stubborn_steps,
    has_a_winner,
    has_a_culprit,
    has_slow_cleaners,
    loses_inside,
    wins_from_deep_inside,
    wins_against_a_step,
    nobody_runs,
    begins_at_once,
    cancelled_as_it_begins,
]


@pytest.fixture(autouse=True)
def events() -> None:
    """Give every test events of its own."""
    EVENTS.update(a=asyncio.Event(), b=asyncio.Event())


def opening(url: str) -> sf.Engine:
    """Return an engine that has the workflows above."""
    return engine(url, workflows=[*WORKFLOWS, *MINE])


async def test_gather_does_not_collect_that_the_run_is_cancelled(url: str) -> None:
    """With return_exceptions too, the code behind it is not reached."""
    async with opening(url) as opened:
        run = await opened.start(collects_problems)
        await until(opened, run.id, "suspended")
        await run.cancel("bored")
        with pytest.raises(RunCancelledError, match="bored"):
            await run.result()
        assert DONE == []


async def test_branches_that_end_all_the_same_leave_it_to_their_parent_to_stop(url: str) -> None:
    """Steps in flight that end instead of stopping do not make the run forget that it is cancelled."""
    async with opening(url) as opened:
        run = await opened.start(has_stubborn_steps)
        await asyncio.gather(EVENTS["a"].wait(), EVENTS["b"].wait())
        await run.cancel("bored")
        with pytest.raises(RunCancelledError, match="bored"):
            await run.result()
        assert DONE == []


@pytest.mark.parametrize("workflow", [has_a_winner, has_a_culprit])
async def test_a_run_that_is_cancelled_while_a_loser_cleans_up_stops(workflow: Any, url: str) -> None:
    """What was told to a branch that had lost already is not dropped with that branch."""
    async with opening(url) as opened:
        run = await opened.start(workflow)
        await until(opened, run.id, "suspended")
        await run.cancel("bored")
        with pytest.raises(RunCancelledError, match="bored"):
            await run.result()
        assert DONE == []


async def test_a_branch_that_has_cleaned_up_does_not_keep_another_from_doing_so(url: str) -> None:
    """When a run is cancelled each branch is told once, however long it takes to clean up."""
    async with opening(url) as opened:
        run = await opened.start(has_slow_cleaners)
        await until(opened, run.id, "suspended")
        await run.cancel("bored")
        await run.signal("slow")
        with pytest.raises(RunCancelledError, match="bored"):
            await run.result()
        assert sorted(DONE) == ["quick", "slow"]


async def test_a_branch_that_has_lost_stops_whatever_its_own_branches_do(url: str) -> None:
    """That a race is lost is not collected by a gather inside of the loser."""
    async with opening(url) as opened:
        run = await opened.start(loses_inside)
        await until(opened, run.id, "suspended")
        await run.signal("win")
        assert await run.result() == [1, "won"]
        assert DONE == []


async def test_who_has_won_a_race_is_the_same_when_it_is_replayed(url: str) -> None:
    """However long the end of a branch takes to get about: a loser is told once, and does not become the winner."""
    async with opening(url) as opened:
        run = await opened.start(wins_from_deep_inside)
        for signal in ("win", "loser", "loser", "end"):
            await until(opened, run.id, "suspended")
            await run.signal(signal)
        assert await run.result() == 1
        assert DONE == ["loser"]


async def test_a_loser_that_ended_all_the_same_has_lost_when_it_is_replayed(url: str) -> None:
    """What an event led to comes before the next one, as it did when they were made."""
    async with opening(url) as opened:
        run = await opened.start(wins_against_a_step)
        await EVENTS["a"].wait()
        await run.signal("win")
        await until(opened, run.id, "suspended")
        await run.signal("end")
        assert await run.result() == 0


@pytest.mark.parametrize("place", PLACES)
async def test_a_cancellation_that_comes_as_an_operation_begins_reaches_it(place: str, url: str) -> None:
    """It does not wait for the end of what begins."""
    async with opening(url) as opened:
        run = await opened.start(cancelled_as_it_begins, place)
        assert (await until(opened, run.id, "cancelled", "completed")).cancel == "in between"


async def test_a_race_of_nobody_is_refused(url: str) -> None:
    """Nobody can win it."""
    async with opening(url) as opened:
        run = await opened.start(nobody_runs)
        with pytest.raises(RunFailedError, match="at least one coroutine"):
            await run.result()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_branches_run_as_always_where_tasks_begin_at_once(url: str) -> None:
    """An eager task factory changes neither races nor replay."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 -- not in the oldest Python
    try:
        async with opening(url) as opened:
            run = await opened.start(begins_at_once)
            await until(opened, run.id, "suspended")
            await run.signal("go")
            await run.signal("go")
            assert await run.result() == [0, "first", "second", "third"]
    finally:
        loop.set_task_factory(before)

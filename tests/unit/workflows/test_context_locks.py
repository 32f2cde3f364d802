"""Locks of runs: in the same line as those of processes, kept through sleep, crashes and restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import (
    HoldTimeoutError,
    LeaseLostError,
    LockMismatchError,
    ReentryError,
    RunCancelledError,
    RunFailedError,
    WaitCycleError,
    WithdrawnError,
)
from standfast.events import Event, RunLocked, RunUnlocked
from standfast.locks.entry import LineEntries
from standfast.scope import address_of
from standfast.testing.workflows import WorkflowEnvironment
from standfast.workflows.context_locks import release_all

if TYPE_CHECKING:
    from pathlib import Path

SEEN: list[str] = []


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of its own."""
    SEEN.clear()
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'runs.db'}"


def opened(url: str, **options: Any) -> WorkflowEnvironment:
    """All workflows of this module, on a store."""
    options.setdefault("linger", 0)
    return WorkflowEnvironment(WORKFLOWS, store=url, **options)


async def say(words: str) -> str:
    """Note what happened, in order."""
    SEEN.append(words)
    return words


@sf.workflow
async def hold(ctx: sf.Context, key: str, days: float = 0) -> int:
    """Hold a mutex while sleeping."""
    async with ctx.mutex(key) as held:
        await ctx.step("enter", say, f"{ctx.run_id} enters")
        await ctx.sleep(f"{days} days")
        await ctx.step("leave", say, f"{ctx.run_id} leaves")
        return held.fence


@sf.workflow
async def bounded(ctx: sf.Context, key: str, hours: float) -> str:
    """Hold a mutex for an hour at most, and go on after losing it."""
    try:
        async with ctx.mutex(key, max_hold="1 hour"):
            await ctx.sleep(f"{hours} hours")
            await ctx.step("late", say, "too late")
    except LeaseLostError as lost:
        await ctx.sleep("1 hour")
        return f"lost {lost.key}"
    return "kept"


@sf.workflow
async def impatient(ctx: sf.Context, key: str) -> str:
    """Wait an hour at most."""
    try:
        async with ctx.mutex(key, timeout="1 hour"):
            return "held"
    except HoldTimeoutError as late:
        await ctx.sleep("1 hour")
        return f"{late.timeout:g} s were too long for {', '.join(late.holders)}"


@sf.workflow
async def both(ctx: sf.Context, first: str, second: str) -> str:
    """Take two keys, one after the other."""
    async with ctx.mutex(first):
        await ctx.sleep("1 minute")
        try:
            async with ctx.mutex(second):
                return "both"
        except WaitCycleError:
            return "gave way"


@sf.workflow
async def again(ctx: sf.Context) -> str:
    """Ask for a key that is held already, also from a branch."""

    async def inside() -> None:
        async with ctx.mutex("k"):
            pass

    async with ctx.mutex("k"):
        for attempt in (inside(), ctx.gather(inside())):
            with pytest.raises(ReentryError):
                await attempt
    return "refused twice"


@sf.workflow
async def side_by_side(ctx: sf.Context) -> list[str]:
    """Let two branches wait for the same key, under another one."""
    order: list[str] = []

    async def branch(name: str) -> None:
        async with ctx.mutex("k"):
            order.append(f"+{name}")
            await ctx.sleep("1 hour")
            order.append(f"-{name}")

    async with ctx.mutex("outer"):
        await ctx.gather(branch("a"), branch("b"))
    return order


@sf.workflow
async def readers(ctx: sf.Context, mode: str) -> str:
    """Read or write."""
    async with ctx.mode_lock("graph", mode, modes=("read",), alone=("write",)):
        await ctx.step("enter", say, f"+{mode}")
        await ctx.sleep("1 hour")
        await ctx.step("leave", say, f"-{mode}")
    return mode


@sf.workflow
async def permit(ctx: sf.Context) -> None:
    """Use one of two permits for an hour."""
    async with ctx.semaphore("pool", permits=2):
        await ctx.step("enter", say, "+")
        await ctx.sleep("1 hour")
        await ctx.step("leave", say, "-")


@sf.workflow
async def nested(ctx: sf.Context) -> str:
    """Lose the outer of two locks."""
    try:
        async with ctx.mutex("outer"), ctx.mutex("inner"):
            await ctx.wait_signal("go")
            await ctx.step("write", say, "written")
    except LeaseLostError as lost:
        return f"lost {lost.key}"
    return "kept"


@sf.workflow
async def stubborn(ctx: sf.Context) -> str:
    """Go on inside the block after the lock is lost."""
    async with ctx.mutex("k", max_hold="1 minute"):
        await ctx.sleep("2 minutes")
        with pytest.raises(LeaseLostError):
            await ctx.step("late", say, "too late")
        await ctx.sleep("1 minute")
        return await ctx.step("later", say, "went on")


@sf.workflow
async def parent(ctx: sf.Context, side_by_side: int = 0) -> str:
    """Let a child wait for a key that its parent holds: around the child, or only beside it."""

    async def beside() -> None:
        async with ctx.mutex("k"):
            await ctx.sleep("1 hour")

    if side_by_side:
        await ctx.gather(beside(), ctx.child(hold, "k"))
        return "waited"
    async with ctx.mutex("k"):
        try:
            await ctx.child(hold, "k")
        except RunFailedError as failed:
            return type(failed.__cause__).__name__
    return "held twice"


WORKFLOWS: list[Any] = [parent, stubborn, hold, bounded, impatient, both, again, side_by_side, readers, permit, nested]


async def place_of(env: WorkflowEnvironment, run_id: str, key: str = "k", name: str = "mutex") -> str:
    """Say where a run stands."""
    entries = LineEntries(env.client.runtime.lines)
    found = await entries.find(address_of(key), f"{run_id}:{name}")
    return "nowhere" if found is None else type(found).__name__


async def test_a_lock_is_held_and_the_place_in_line_kept_while_the_fleet_is_down(url: str) -> None:
    """Two days of sleep inside the block, nobody alive for one of them: still held, and still first in line."""
    async with opened(url) as env:
        first = await env.start(hold, "k", 2, id="a")
        await env.settle()
        second = await env.start(hold, "k", id="b")
        third = await env.start(hold, "k", id="c")
        await env.advance("12 hours")
        await env.crash()
        env.clock.advance(86_400)
        assert [await place_of(env, each) for each in "abc"] == ["RunGrant", "Waiting", "Waiting"]
        await env.restart()
        await env.advance("2 days")
        fences = [await run.result() for run in (first, second, third)]
    assert fences == sorted(fences)
    assert SEEN == ["a enters", "a leaves", "b enters", "b leaves", "c enters", "c leaves"]


async def test_a_run_and_a_process_stand_in_the_same_line(url: str) -> None:
    """The run waits for the process, whether it is in memory or not, and gets the lock when the process lets go."""
    async with opened(url) as env:
        async with env.client.space.mutex("k").hold():
            run = await env.start(hold, "k", id="a")
            await env.advance("1 minute")
            assert (await run.info()).status == "suspended"
            assert await place_of(env, "a") == "Waiting"
        assert await env.result(run) > 0


async def test_a_block_that_is_left_gives_the_lock_back(url: str) -> None:
    """Nothing of the run is left in the line when its block has ended, and the process behind it is granted."""
    async with opened(url) as env:
        assert await env.result(await env.start(hold, "k", id="a")) > 0
        assert await place_of(env, "a") == "nowhere"
        async with env.client.space.mutex("k").try_hold():
            pass


async def test_a_dead_process_in_front_is_noticed_without_loading_the_run(url: str) -> None:
    """The worker looks after the line of a run that is not in memory: the run is loaded once, when it holds."""
    async with opened(url) as env:
        space = sf.Space(await env.client.space.store.another(), clock=env.clock)
        await space.mutex("k").hold(on_lost="tell").__aenter__()  # its heartbeat does not follow the clock
        run = await env.start(hold, "k", id="a")
        await env.advance("1 second")
        claims = (await run.info()).claims
        await env.advance("2 minutes")
        assert await run.result() > 0
        assert (await run.info()).claims == claims + 1
        await space.store.aclose()


async def test_a_lock_that_was_released_by_force_is_raised_at_the_next_operation(url: str) -> None:
    """The loss of the outer lock is raised where the run goes on, recorded there, and the inner one is given back."""
    async with opened(url) as env:
        run = await env.start(nested, id="a")
        await env.settle()
        assert await env.client.space.mutex("outer").force_release("a:mutex")
        await run.signal("go")
        assert await env.result(run) == "lost outer"
        assert "lost" in [entry.kind for entry in await run.history()]
        assert await place_of(env, "a", "inner", "mutex#2") == "nowhere"
    assert SEEN == []


@pytest.mark.parametrize("crash", [False, True])
async def test_max_hold_ends_the_hold_of_a_live_run(url: str, *, crash: bool) -> None:
    """After its longest time the run is told, also when it is replayed, and the next one holds."""
    async with opened(url) as env:
        run = await env.start(bounded, "k", 2, id="a")
        await env.settle()
        other = await env.start(hold, "k", id="b")
        await env.advance("2.5 hours")
        if crash:
            await env.crash()
            await env.restart()
        assert await env.result(run) == "lost k"
        assert await other.result() > 0
    assert SEEN == ["b enters", "b leaves"]


async def test_a_loss_is_told_once(url: str) -> None:
    """A run that goes on all the same is told again on leaving, and not before, however often it is replayed."""
    async with opened(url) as env:
        with pytest.raises(RunFailedError) as failed:
            await env.result(await env.start(stubborn))
    assert isinstance(failed.value.__cause__, LeaseLostError)
    assert SEEN == ["went on"]


async def test_a_hold_within_its_longest_time_is_kept(url: str) -> None:
    """A run that leaves in time is told nothing."""
    async with opened(url) as env:
        assert await env.result(await env.start(bounded, "k", 0.5)) == "kept"


@pytest.mark.parametrize("crash", [False, True])
async def test_waiting_too_long_is_raised_and_recorded(url: str, *, crash: bool) -> None:
    """The run leaves the line, is told who holds, and is told the same when it is replayed."""
    async with opened(url) as env:
        await env.start(hold, "k", 1, id="a")
        await env.settle()
        run = await env.start(impatient, "k", id="b")
        await env.advance("1.5 hours")
        assert await place_of(env, "b") == "nowhere"
        if crash:
            await env.crash()
            await env.restart()
        assert await env.result(run) == "3600 s were too long for a"


async def test_runs_that_wait_for_each_other_are_told(url: str) -> None:
    """Of two that would wait for ever one gives way, and the other one gets both."""
    async with opened(url) as env:
        one, two = await env.start(both, "x", "y"), await env.start(both, "y", "x")
        assert {await env.result(one), await env.result(two)} == {"both", "gave way"}


async def test_a_key_is_not_waited_for_by_the_run_that_holds_it(url: str) -> None:
    """Neither by the same branch nor by one that it waits for."""
    async with opened(url) as env:
        assert await env.result(await env.start(again)) == "refused twice"


async def test_a_child_does_not_wait_for_its_parent_for_ever(url: str) -> None:
    """It is refused what its parent holds while it waits for the child, and waits for what ends without it."""
    async with opened(url) as env:
        assert await env.result(await env.start(parent)) == "ReentryError"
        assert await env.result(await env.start(parent, 1)) == "waited"


async def test_branches_of_one_run_take_turns(url: str) -> None:
    """Branches that run side by side exclude each other, under a lock that their parent holds."""
    async with opened(url) as env:
        order = await env.result(await env.start(side_by_side))
    assert order in (["+a", "-a", "+b", "-b"], ["+b", "-b", "+a", "-a"])


async def test_a_run_that_is_cancelled_while_it_waits_leaves_the_line(url: str) -> None:
    """Those behind it do not wait for it."""
    async with opened(url) as env:
        await env.start(hold, "k", 1, id="a")
        await env.settle()
        run = await env.start(hold, "k", id="b")
        await env.settle()
        await run.cancel("enough")
        await env.settle()
        with pytest.raises(RunCancelledError):
            await run.result()
        assert await place_of(env, "b") == "nowhere"


async def test_a_run_that_is_cancelled_while_it_holds_gives_the_lock_back(url: str) -> None:
    """The block is left like any other."""
    async with opened(url) as env:
        run = await env.start(hold, "k", 1, id="a")
        await env.settle()
        await run.cancel("enough")
        await env.settle()
        assert await place_of(env, "a") == "nowhere"


async def test_an_operator_takes_a_run_out_of_the_line(url: str) -> None:
    """The run is told."""
    async with opened(url) as env:
        await env.start(hold, "k", 1, id="a")
        await env.settle()
        run = await env.start(hold, "k", id="b")
        await env.settle()
        assert await env.client.space.mutex("k").withdraw("b:mutex")
        await env.settle()
        with pytest.raises(RunFailedError) as failed:
            await run.result()
        assert isinstance(failed.value.__cause__, WithdrawnError)


async def test_a_key_is_one_kind_of_lock_at_a_time(url: str) -> None:
    """A run that asks for a mutex where a semaphore is in use is refused."""
    async with opened(url) as env, env.client.space.semaphore("k", permits=2).hold():
        run = await env.start(hold, "k")
        await env.settle()
        with pytest.raises(RunFailedError) as failed:
            await run.result()
        assert isinstance(failed.value.__cause__, LockMismatchError)


async def test_readers_share_and_a_writer_is_alone(url: str) -> None:
    """Modes mean for runs what they mean for processes."""
    async with opened(url) as env:
        for mode in ("read", "read", "write"):
            await env.start(readers, mode)
            await env.settle()
        await env.advance("1 day")
    assert SEEN == ["+read", "+read", "-read", "-read", "+write", "-write"]


async def test_permits_bound_how_many_runs_are_inside(url: str) -> None:
    """Five runs on two permits: never more than two at a time, and all get through."""
    async with opened(url) as env:
        runs = [await env.start(permit) for _ in range(5)]
        for run in runs:
            await env.result(run)
    inside = [SEEN[: n + 1].count("+") - SEEN[: n + 1].count("-") for n in range(len(SEEN))]
    assert (max(inside), len(SEEN)) == (2, 10)


async def test_what_a_run_left_behind_is_found_in_its_history(url: str) -> None:
    """Whoever ends a run without its code leaves every line in which it stood, held or not, once."""
    async with opened(url) as env:
        await env.start(nested, id="a")
        await env.settle()
        await env.crash()
        assert await release_all(env.client.runtime, "a") == 2
        assert await place_of(env, "a", "outer") == await place_of(env, "a", "inner", "mutex#2") == "nowhere"
        await release_all(env.client.runtime, "a")


@sf.workflow
async def takes_turns(ctx: sf.Context) -> int:
    """Hold a lock for a minute."""
    async with ctx.mutex("events") as held:
        await ctx.sleep("1 minute")
        return held.fence


async def test_events_tell_which_run_got_which_lock_and_how_long_it_waited() -> None:
    """One for each that got it and gave it back; a replay tells nothing again."""
    events: list[Event] = []
    async with WorkflowEnvironment([takes_turns], linger=0, hooks=[events.append]) as env:
        first, second = await env.start(takes_turns, id="one"), await env.start(takes_turns, id="two")
        fences = [await env.result(first), await env.result(second)]

    got = [event for event in events if isinstance(event, RunLocked)]
    gave = [event for event in events if isinstance(event, RunUnlocked)]
    assert [(event.run, event.key, event.fence) for event in got] == [
        ("one", "events", fences[0]),
        ("two", "events", fences[1]),
    ]
    assert (got[0].waited, 60 <= got[1].waited < 61) == (0.0, True)
    assert [(event.run, event.fence, 60 <= event.held < 61) for event in gave] == [
        ("one", fences[0], True),
        ("two", fences[1], True),
    ]

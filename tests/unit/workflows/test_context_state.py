"""States in workflows: changed once by each operation, the same again when the run is replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import ArgumentTypeError, RunFailedError, SessionStateValidationError, StaleWriteError
from standfast.locks import DurableMutex, DurableSemaphore, initial_lock_record
from standfast.testing.workflows import WorkflowEnvironment
from standfast.workflows.context_state import clear_execution

if TYPE_CHECKING:
    from pathlib import Path

SEEN: list[Any] = []


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of its own."""
    SEEN.clear()
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'runs.db'}"


def opened(url: str) -> WorkflowEnvironment:
    """All workflows of this module, on a store; a run leaves the memory whenever it waits."""
    return WorkflowEnvironment(WORKFLOWS, store=url, linger=0)


async def say(words: str) -> None:
    """Note what happened, in order."""
    SEEN.append(words)


@sf.workflow
async def everything(ctx: sf.Context) -> list[Any]:
    """Use every method of a state, and sleep, so that all of it is replayed."""
    count = ctx.state.run("count", type=int, initial=10)
    names = ctx.state.run("names", type=list[str])
    facts = ctx.state.run("facts", type=dict[str, int])
    heard: list[int | None] = []
    seen: list[Any] = [await count.get(), await count.increment(5), await count.decrement()]
    seen += [await names.append("a", "b", "c"), await names.remove_first(), await names.remove_last()]
    seen += [await facts.merge({"x": 1}), await facts.merge({"y": 2})]

    def double(value: int | None) -> int:
        heard.append(value)
        return 2 * (value or 0)

    await count.update(double)
    version = await count.set(7)
    await count.set(8, expected_version=version)
    with pytest.raises(StaleWriteError):
        await count.set(9, expected_version=version)
    with pytest.raises(ArgumentTypeError):
        await ctx.state.run("names").increment()
    await facts.delete()
    await ctx.sleep("1 hour")
    return [*seen, heard[-1], await count.get(), await facts.get()]


@sf.workflow
async def count_up(ctx: sf.Context, times: int) -> int:
    """Add to what all runs of this workflow share, and sleep in between."""
    visits = ctx.state.workflow("visits", type=int, initial=0)
    for _ in range(times):
        await visits.increment()
        await ctx.sleep("1 minute")
    return await visits.get() or 0


@sf.workflow
async def others(ctx: sf.Context) -> Any:
    """Another workflow, with the same key."""
    return await ctx.state.workflow("visits").get()


@sf.workflow
async def child(ctx: sf.Context) -> None:
    """Write into the state of the execution, and into its own."""
    await ctx.state.execution("log", type=list[str]).append(ctx.run_id)
    await ctx.state.run("own", type=str).set("the child's")


@sf.workflow
async def parent(ctx: sf.Context) -> list[Any]:
    """Share a state with a child."""
    await ctx.state.execution("log", type=list[str]).append(ctx.run_id)
    await ctx.child(child)
    return [await ctx.state.execution("log").get(), await ctx.state.run("own").get()]


@sf.workflow
async def private(ctx: sf.Context) -> list[Any]:
    """Use a session state."""
    cart = ctx.state.session("cart", type=list[str], initial=["bag"])
    cart.append("milk")
    taken = cart.get()
    assert taken is not None
    taken.append("not in the cart")
    await ctx.sleep("1 hour")
    total = ctx.state.session("total", type=int)
    total.increment(3)
    before = [cart.get(), total.get(), ctx.state.session("facts").merge({"a": 1})]
    cart.delete()
    return [*before, cart.get()]


@sf.workflow
async def limits(ctx: sf.Context) -> None:
    """Go past every limit of session states."""
    for key, value in (("", 1), ("k" * 257, 1), ("large", "x" * 33_000)):
        with pytest.raises(SessionStateValidationError):
            ctx.state.session(key).set(value)
    for number in range(256):
        ctx.state.session(f"{number}").set(number)
    ctx.state.session("3").set(4)
    ctx.state.session("one more").set(1)


@sf.workflow
async def by_hand(ctx: sf.Context, length: float) -> None:
    """Hold a mutex by hand on a state, polling each second."""
    lock, slot = DurableMutex(lease="30s"), ctx.state.workflow("lock", initial=initial_lock_record())
    await lock.acquire(slot, ctx.run_id, poll=1, sleep=ctx.sleep)
    await ctx.step("enter", say, f"{ctx.run_id}:enter")
    await ctx.sleep(length)
    if length < 0.5:
        raise RuntimeError("it dies with the lock")
    await ctx.step("exit", say, f"{ctx.run_id}:exit")
    await lock.release(slot, ctx.run_id)


@sf.workflow
async def pooled(ctx: sf.Context) -> None:
    """Use one of two permits by hand."""
    lock, slot = DurableSemaphore(2, lease="1 hour"), ctx.state.workflow("pool")
    while not (await lock.try_acquire(slot, ctx.run_id)).acquired:
        await ctx.sleep("1 second")
    await ctx.step("enter", say, "+")
    await ctx.sleep("5 seconds")
    await ctx.step("exit", say, "-")
    await lock.release(slot, ctx.run_id)


@sf.workflow
async def limited(ctx: sf.Context) -> None:
    """Pass a rate limiter."""
    async with ctx.rate_limiter("mails", interval="1 minute", capacity=2):
        await ctx.step("mail", say, ctx.run_id)


@sf.workflow
async def hurried(ctx: sf.Context) -> str:
    """Wait half a minute for a token."""
    try:
        await ctx.rate_limiter("mails", interval="1 minute", capacity=2).acquire(timeout="30s")
    except sf.StandfastError as late:
        return type(late).__name__
    return "passed"


WORKFLOWS: list[Any] = [
    everything, count_up, others, parent, child, private, limits, by_hand, pooled, limited, hurried,
]  # fmt: skip


async def test_every_method_returns_the_same_when_it_is_replayed(url: str) -> None:
    """What a run saw of its states before it slept, and what its updaters computed, is the same after it."""
    async with opened(url) as env:
        seen = await env.result(await env.start(everything))
    assert seen[:8] == [10, 15, 14, ["a", "b", "c"], "a", "c", {"x": 1}, {"x": 1, "y": 2}]
    assert seen[8:] == [14, 8, None]


async def test_each_increment_counts_once_whatever_dies(url: str) -> None:
    """Crashes between the increments change nothing, and an administrator sees the same state."""
    async with opened(url) as env:
        runs = [await env.start(count_up, 4) for _ in range(3)]
        for _ in range(4):
            await env.advance("61 seconds")
            await env.crash()
            await env.restart()
        assert max([await env.result(run) for run in runs]) == 12
        assert await env.client.state.workflow("count_up", "visits").get() == 12
        assert await env.result(await env.start(others)) is None


async def test_a_change_costs_one_commit(url: str) -> None:
    """The change, its record and everything that was noted before are written together."""
    async with opened(url) as env:
        run = await env.start(everything, id="a")
        await env.settle()
        chunks = await env.client.space.scan(*env.client.space.key("step", "a").within(), limit=100)
        kinds = [entry.kind for entry in await run.history()]
    assert len(chunks.records) <= kinds.count("state") + 2


async def test_a_parent_and_its_children_share_a_state_until_they_are_purged(url: str) -> None:
    """The state of the execution belongs to the first run; that of a run to it alone."""
    async with opened(url) as env:
        log, own = await env.result(await env.start(parent, id="p"))
        assert (log, own) == (["p", "p.child"], None)
        assert await clear_execution(env.client.runtime, "p") == 1
        assert await env.client.space.state.execution("p", "log").get() is None
        assert await env.client.space.state.run("p.child", "own").get() == "the child's"


async def test_a_session_state_is_private_and_made_again_by_the_replay(url: str) -> None:
    """It is a copy on the way in and out, and reads as its initial value once it is deleted."""
    async with opened(url) as env:
        assert await env.result(await env.start(private)) == [["bag", "milk"], 3, {"a": 1}, ["bag"]]


async def test_session_states_have_limits(url: str) -> None:
    """Keys have a length, and all of a run's together a number and a size; what is there can be changed."""
    async with opened(url) as env:
        with pytest.raises(RunFailedError) as failed:
            await env.result(await env.start(limits))
    assert isinstance(failed.value.__cause__, SessionStateValidationError)
    assert failed.value.__cause__.key == "one more"


async def test_runs_that_lock_by_hand_take_turns_in_order(url: str) -> None:
    """The second waits for the first, polling, and enters after it has left."""
    async with opened(url) as env:
        await env.start(by_hand, 5, id="a")
        await env.settle()
        await env.result(await env.start(by_hand, 1, id="b"))
    assert SEEN == ["a:enter", "a:exit", "b:enter", "b:exit"]


async def test_a_lock_by_hand_of_a_run_that_failed_ends_with_its_lease(url: str) -> None:
    """The waiter gets in when the lease is over, and not before."""
    async with opened(url) as env:
        failed = await env.start(by_hand, 0.1, id="a")
        await env.settle()
        waiting = await env.start(by_hand, 1, id="b")
        await env.advance("20 seconds")
        assert ((await failed.info()).status, SEEN) == ("failed", ["a:enter"])
        await env.result(waiting)
    assert SEEN == ["a:enter", "b:enter", "b:exit"]


async def test_permits_by_hand_bound_how_many_runs_are_inside(url: str) -> None:
    """Five runs on two permits: never more than two at a time, and all get through."""
    async with opened(url) as env:
        for run in [await env.start(pooled) for _ in range(5)]:
            await env.result(run)
    inside = [SEEN[: n + 1].count("+") - SEEN[: n + 1].count("-") for n in range(len(SEEN))]
    assert (max(inside), len(SEEN)) == (2, 10)


async def test_tokens_are_taken_once_and_waited_for_asleep(url: str) -> None:
    """Two pass at once, one more each minute, through crashes; one in a hurry gives up and leaves the line."""
    async with opened(url) as env:
        runs = [await env.start(limited, id=f"r{n}") for n in range(4)]
        await env.settle()
        hurry = await env.start(hurried)
        await env.advance("40 seconds")
        assert (SEEN, await hurry.result()) == (["r0", "r1"], "RateTimeoutError")
        await env.crash()
        await env.restart()
        await env.advance("21 seconds")
        assert len(SEEN) == 3
        for run in runs:
            await env.result(run)
    assert sorted(SEEN) == ["r0", "r1", "r2", "r3"]

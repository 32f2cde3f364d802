"""Every way to start a run goes by its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import RunFailedError, WorkflowConcurrencyLimitExceededError
from standfast.testing.workflows import WorkflowEnvironment
from tests.unit.workflows.engines import BROKEN, DONE, act, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@sf.workflow(concurrency=1)
async def alone(ctx: sf.Context, name: str) -> str:
    """Act, and wait for a signal; one run at a time."""
    await ctx.step(act, name)
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def queued(ctx: sf.Context, name: str) -> str:
    """Wait for a signal, one after the other."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def acting(ctx: sf.Context, name: str) -> str:
    """Act twice, and wait for a signal in between, one after the other."""
    before = await ctx.step("before", act, name)
    signal = await ctx.wait_signal("go")
    return f"{before}{signal}{await ctx.step('after', act, 'after')}"


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"), timeout=10)
async def timed(ctx: sf.Context, name: str) -> str:
    """Act, and wait for a signal, one after the other and not for long."""
    return f"{await ctx.step(act, name)}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue", ttl=100))
async def patient(ctx: sf.Context, name: str) -> str:
    """Act, and wait for a signal, one after the other; wait for that for a while."""
    return f"{await ctx.step(act, name)}{await ctx.wait_signal('go')}"


@sf.workflow
async def above(ctx: sf.Context, depth: int) -> int:
    """Be the first of a family."""
    return await ctx.child(below, depth)


@sf.workflow
async def between(ctx: sf.Context, depth: int) -> int:
    """Have no limit, and a child that has one."""
    return await ctx.child(below, depth)


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def below(ctx: sf.Context, depth: int) -> int:
    """Wait for a grandchild that needs the very place that this run has."""
    return 0 if depth == 0 else await ctx.child(between, depth - 1)


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def going_on(ctx: sf.Context, left: int) -> int:
    """Go on as a new run, and wait for a child then that needs the same place."""
    if left == 2:
        await ctx.continue_as_new(1)
    return 0 if left == 0 else await ctx.child(going_on, 0)


@pytest.fixture
async def engine(url: str) -> AsyncIterator[sf.Engine]:
    """An engine with limited workflows."""
    async with sf.Engine(url, workflows=[alone, queued, acting], worker=sf.admin.WorkerLimits(linger=0.01)) as opened:
        yield opened


async def test_start_or_signal_is_refused_at_the_limit(engine: sf.Engine) -> None:
    """Neither the run nor the signal is there."""
    await engine.start(alone, "a")

    with pytest.raises(WorkflowConcurrencyLimitExceededError):
        await engine.start_or_signal(alone, "b", id="b", signal="go", value="!")


async def test_start_or_signal_queues(engine: sf.Engine) -> None:
    """The signal waits for the run, and the run for its turn."""
    first, _ = await engine.start_or_signal(queued, "a", id="a", signal="no", value="?")
    second, _ = await engine.start_or_signal(queued, "b", id="b", signal="go", value="!")
    assert await second.place() == 0

    await first.signal("go", "!")

    assert [await first.result(), await second.result()] == ["a!", "b!"]


async def test_a_retried_run_needs_a_place_again(engine: sf.Engine) -> None:
    """It waits for one: that it is to run was said already."""
    BROKEN.add("a")
    broken = await engine.start(alone, "a")
    with pytest.raises(RunFailedError):
        await broken.result()
    other = await engine.start(alone, "b")
    BROKEN.clear()

    await engine.retry(broken.id)
    assert (await broken.info()).status == "pending"
    await other.signal("go", "!")
    await other.result()
    await broken.signal("go", "!")

    assert await broken.result() == "a!"
    assert not (await engine.space.scan(*engine.space.key("line").within(), limit=10)).records


async def test_a_fork_is_refused_at_the_limit(engine: sf.Engine) -> None:
    """It is a start like any other."""
    run = await engine.start(alone, "a")
    await until(engine, run.id, "suspended")

    with pytest.raises(WorkflowConcurrencyLimitExceededError):
        await engine.fork(run.id, "act")


async def test_a_fork_that_queued_goes_on_from_its_history(engine: sf.Engine) -> None:
    """What it has taken over is not done again when it has its turn."""
    run = await engine.start(acting, "a")
    await run.signal("go", "-")
    assert await run.result() == "a-after"
    other = await engine.start(acting, "b")
    fork = await engine.fork(run.id, "after")
    assert await fork.place() == 0
    await other.signal("go", "-")

    assert await fork.result() == "a-after"
    assert DONE.count("a") == 1


# --- retries --------------------------------------------------------------------------------------------------------


async def test_a_retried_run_that_queues_has_its_time_limit() -> None:
    """Its time goes on while it waits for its turn, and is over then."""
    async with WorkflowEnvironment([timed]) as env:
        BROKEN.add("b")
        second = await env.start(timed, "b")
        await env.settle()
        await env.start(timed, "a", delay=100)
        BROKEN.clear()

        await env.client.retry(second.id)
        await env.advance(11)

        assert (await second.info()).status == "timed_out"


async def test_a_retried_run_queues_for_as_long_as_a_new_one() -> None:
    """What it has waited before, or run, does not count."""
    async with WorkflowEnvironment([patient]) as env:
        BROKEN.add("b")
        second = await env.start(patient, "b")
        await env.advance(200)
        await env.start(patient, "a")
        BROKEN.clear()

        await env.client.retry(second.id)
        await env.advance(99)
        assert (await second.info()).status == "pending"
        await env.advance(2)

        assert (await second.info()).status == "cancelled"


# --- families -------------------------------------------------------------------------------------------------------


async def test_a_child_that_would_wait_for_a_run_further_up_is_refused() -> None:
    """Its parent's parent would hold the only place for as long as it waits for both."""
    async with WorkflowEnvironment([above, between, below]) as env:
        with pytest.raises(RunFailedError, match="WorkflowConcurrencyLimitExceededError"):
            await env.result(await env.start(above, 1))


async def test_a_child_that_would_wait_for_a_parent_that_went_on_is_refused() -> None:
    """The parent has its place under the id that it was started with."""
    async with WorkflowEnvironment([going_on]) as env:
        with pytest.raises(RunFailedError, match="WorkflowConcurrencyLimitExceededError"):
            await env.result(await env.start(going_on, 2))

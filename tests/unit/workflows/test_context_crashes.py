"""Locks, states and rate limiters of runs, with the process killed at every commit and unloaded at every wait."""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import HoldTimeoutError, LeaseLostError
from standfast.testing.workflows import crash_everywhere, unload_everywhere

if TYPE_CHECKING:
    from pathlib import Path


async def work(number: int) -> int:
    """Do something."""
    return number


@sf.workflow
async def locking(ctx: sf.Context) -> list[int]:
    """Take locks one in another and one after the other, with steps and sleep inside."""
    seen: list[int] = []
    async with ctx.mutex("outer") as outer:
        seen.append(await ctx.step("first", work, 1))
        async with ctx.semaphore("inner", permits=2):
            await ctx.sleep("1 minute")
            seen.append(await ctx.step("second", work, 2))
    async with ctx.mutex("outer") as again:
        assert again.fence > outer.fence
    return seen


@sf.workflow
async def counting(ctx: sf.Context) -> list[Any]:
    """Change states, some of them under a lock, and say how far it is."""
    count, names = ctx.state.run("count", type=int), ctx.state.workflow("names", type=list[str])
    seen: list[Any] = [await count.increment()]
    async with ctx.mutex("k") as hold:
        seen.append(await names.append("a"))
        await names.set(["b"], guard=hold.guard)
        ctx.set_progress("half")
        seen.append(await count.get())
    return [*seen, await ctx.step("first", work, 1), await count.increment()]


@sf.workflow
async def branching(ctx: sf.Context) -> list[str]:
    """Let branches wait for each other's locks and change the same state; what they share keeps its order."""
    order: list[str] = []

    async def branch(name: str) -> None:
        await ctx.state.run("all", type=list[str]).append(name)
        order.append(name)
        async with ctx.mutex("k"):
            order.append(f"+{name}")
            await ctx.step(f"step-{name}", work, 1)
            order.append(f"-{name}")

    await ctx.gather(branch("a"), branch("b"), branch("c"))
    return order


@sf.workflow
async def losing(ctx: sf.Context) -> list[str]:
    """Lose a lock by its longest time, wait too long for another one, and pass a rate limiter."""
    seen: list[str] = []
    try:
        async with ctx.mutex("short", max_hold="1 minute"), ctx.mutex("inner"):
            await ctx.sleep("2 minutes")
            await ctx.step("late", work, 1)
    except LeaseLostError as lost:
        seen.append(f"lost {lost.key}")
    for _ in range(2):
        async with ctx.rate_limiter("rate", interval="1 minute"):
            seen.append("passed")
    return seen


@sf.workflow
async def late(ctx: sf.Context) -> list[str]:
    """Wait too long for a lock that another branch holds; cancel the wait for it; and get it in the end."""
    seen: list[str] = []

    async def holds() -> None:
        async with ctx.mutex("taken"):
            await ctx.sleep("5 minutes")

    async def waits() -> None:
        try:
            async with ctx.mutex("taken", timeout="1 minute"):
                seen.append("held too early")
        except HoldTimeoutError as problem:
            seen.append(f"told after {problem.timeout:g} s")
        await ctx.race(ctx.sleep("1 minute"), takes())
        await takes()

    async def takes() -> None:
        async with ctx.mutex("taken"):
            seen.append("held")

    await ctx.gather(holds(), waits())
    return seen


ALL: list[Any] = [locking, counting, branching, losing, late]


@pytest.mark.parametrize("workflow", ALL, ids=lambda each: each.name)
async def test_a_crash_at_any_commit_changes_nothing(workflow: Any) -> None:
    """The run ends as if nothing had happened, with the same history, and no step that is recorded runs again."""
    seen = await crash_everywhere(workflow)
    assert seen.crashes == 2 * seen.commits


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_crashes_change_nothing_if_tasks_are_eager() -> None:
    """A process that dies while it starts the run is replaced before its call has failed."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 -- not in the oldest Python
    try:
        seen = await crash_everywhere(counting)
    finally:
        loop.set_task_factory(None)
    assert seen.crashes == 2 * seen.commits


@pytest.mark.parametrize("workflow", ALL, ids=lambda each: each.name)
async def test_an_unload_at_any_wait_changes_nothing(workflow: Any) -> None:
    """Nothing is recorded and nothing released: every lock is granted as often as without it."""
    assert (await unload_everywhere(workflow)).commits


@pytest.mark.heavy
@pytest.mark.parametrize("workflow", [locking, counting], ids=lambda each: each.name)
async def test_a_crash_at_any_commit_changes_nothing_on_a_disk(workflow: Any, tmp_path: Path) -> None:
    """As in memory."""
    files = itertools.count()
    await crash_everywhere(workflow, store=lambda: f"sqlite:///{tmp_path / str(next(files))}.db")

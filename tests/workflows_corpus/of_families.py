"""Shapes of families: children, their failures, and cancellations that reach them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import standfast as sf
from standfast.errors import RunFailedError
from tests.workflows_corpus.of_steps import add, fails, loop, one_step, shout
from tests.workflows_corpus.of_waits import sleeps
from tests.workflows_corpus.shape import Shape

if TYPE_CHECKING:
    from standfast.testing.workflows import WorkflowEnvironment


@sf.workflow
async def has_a_child(ctx: sf.Context) -> int:
    """Run a child."""
    return await ctx.child(one_step)


@sf.workflow
async def has_children(ctx: sf.Context) -> list[int]:
    """Run children one after the other, one of which sleeps."""
    return [await ctx.child(loop, 2), await ctx.child(sleeps), await ctx.step(add, 1, 1)]


@sf.workflow
async def gathers_children(ctx: sf.Context) -> list[int]:
    """Run children side by side."""
    return await ctx.gather(ctx.child(one_step), ctx.child(loop, 2), ctx.child(sleeps))


@sf.workflow
async def grandparent(ctx: sf.Context) -> int:
    """Run a child that runs a child."""
    await ctx.step(shout, "old")
    return await ctx.child(has_a_child)


@sf.workflow
async def child_fails(ctx: sf.Context) -> str:
    """Run a child that fails, and go on."""
    try:
        await ctx.child(fails)
    except RunFailedError as problem:
        return await ctx.step(shout, type(problem.__cause__).__name__)
    return "never"


@sf.workflow
async def races_a_child(ctx: sf.Context) -> int:
    """Race a child against a sleep: the child is cancelled."""
    winner, _ = await ctx.race(ctx.child(sleeps), ctx.sleep("1 hour"))
    return winner


@sf.workflow
async def tidies_up(ctx: sf.Context) -> None:
    """Wait to be cancelled, and clean up with several steps."""
    try:
        await ctx.wait_signal("never")
    finally:
        await ctx.step(shout, "one")
        await ctx.sleep("1 minute")
        await ctx.step(shout, "two")


@sf.workflow
async def survives_its_cancellation(ctx: sf.Context) -> str:
    """Catch the cancellation, and end as if nothing had happened."""
    try:
        await ctx.sleep("1 day")
    except sf.RunCancelled as cancelled:
        return await ctx.step(shout, cancelled.reason)
    return "never"


@sf.workflow
async def cancelled_in_branches(ctx: sf.Context) -> None:
    """Be cancelled while branches wait: each is told."""

    async def branch(number: int) -> None:
        try:
            await ctx.sleep(f"{number} days")
        finally:
            await ctx.step(add, number, number)

    await ctx.gather(branch(1), branch(2))


@sf.workflow
async def cancelled_with_child(ctx: sf.Context) -> None:
    """Be cancelled while a child runs, which then is, too."""
    await ctx.step(add, 1, 1)
    await ctx.child(tidies_up)


@sf.workflow
async def ignores_cancellation(ctx: sf.Context) -> str:
    """Suppress the cancellation in the way of asyncio, and go on."""
    try:
        await ctx.sleep("1 day")
    except asyncio.CancelledError:
        await ctx.sleep("1 hour")
    return await ctx.step(shout, "still here")


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def one_at_a_time(ctx: sf.Context, number: int) -> int:
    """Be the only one of its kind that runs."""
    await ctx.sleep("1 hour")
    return await ctx.step(add, number, number)


@sf.workflow
async def children_in_line(ctx: sf.Context) -> list[int]:
    """Run children of which only one may run at a time."""
    return await ctx.gather(*(ctx.child(one_at_a_time, number) for number in range(3)))


@sf.workflow(concurrency=sf.Limit(2))
async def limited(ctx: sf.Context) -> int:
    """Hold a place of a limit from the start to the end."""
    await ctx.sleep("1 hour")
    return await ctx.step(add, 1, 1)


async def cancelled(env: WorkflowEnvironment, run: sf.Run[Any]) -> None:
    """Cancel the run while it waits."""
    await env.advance("10 minutes")
    await run.cancel("nobody wants it")


SHAPES: Final = (
    Shape(has_a_child, workflows=(one_step,)),
    Shape(has_children, workflows=(loop, sleeps)),
    Shape(gathers_children, workflows=(one_step, loop, sleeps)),
    Shape(grandparent, workflows=(has_a_child, one_step)),
    Shape(child_fails, workflows=(fails,)),
    Shape(races_a_child, workflows=(sleeps,)),
    Shape(tidies_up, script=cancelled),
    Shape(survives_its_cancellation, script=cancelled),
    Shape(cancelled_in_branches, script=cancelled),
    Shape(cancelled_with_child, workflows=(tidies_up,), script=cancelled),
    Shape(ignores_cancellation, script=cancelled),
    Shape(children_in_line, workflows=(one_at_a_time,)),
    Shape(limited),
)

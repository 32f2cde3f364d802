"""Shapes of branches: gathered, nested, racing, cancelled, and sharing variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import standfast as sf
from standfast.errors import SignalTimeoutError
from tests.workflows_corpus.of_steps import add, break_down, shout, third_time_lucky
from tests.workflows_corpus.of_waits import signalled
from tests.workflows_corpus.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Coroutine


@sf.workflow
async def gathers_steps(ctx: sf.Context) -> list[int]:
    """Take three steps side by side."""
    return await ctx.gather(*(ctx.step(add, number, number) for number in range(3)))


@sf.workflow
async def gathers_branches(ctx: sf.Context) -> list[str]:
    """Let two branches each do several things."""

    async def branch(number: int) -> str:
        first = await ctx.step(add, number, 1)
        await ctx.sleep(f"{number + 1} hours")
        return await ctx.step(shout, f"branch {first}")

    return await ctx.gather(branch(0), branch(1))


@sf.workflow
async def gathers_in_gather(ctx: sf.Context) -> Any:
    """Gather inside of gather."""

    async def inner(number: int) -> list[int]:
        return await ctx.gather(ctx.step(add, number, 1), ctx.step(add, number, 2))

    return await ctx.gather(inner(10), inner(20), ctx.step(add, 0, 0))


@sf.workflow
async def gathers_after_gather(ctx: sf.Context) -> list[Any]:
    """Gather twice, one after the other."""
    first = await ctx.gather(ctx.step(add, 1, 1), ctx.sleep("1 hour"))
    second = await ctx.gather(ctx.step(shout, "a"), ctx.step(shout, "b"))
    return [first, second]


@sf.workflow
async def gathers_a_failure(ctx: sf.Context) -> str:
    """Let one of several fail: the others are cancelled, and clean up."""

    async def patient() -> None:
        try:
            await ctx.sleep("1 day")
        finally:
            await ctx.step("tidy", shout, "tidied up")

    try:
        await ctx.gather(patient(), ctx.step(break_down, "first"))
    except ValueError as problem:
        return await ctx.step(shout, str(problem))
    return "never"


@sf.workflow
async def gathers_exceptions(ctx: sf.Context) -> list[str]:
    """Let one of several fail, and all come to their end."""
    found = await ctx.gather(
        ctx.step(break_down, "one"), ctx.step(third_time_lucky, "two"), ctx.sleep("1 hour"), return_exceptions=True
    )
    return [type(each).__name__ for each in found]


@sf.workflow
async def races_a_sleep(ctx: sf.Context) -> Any:
    """Race a step against a sleep."""
    winner = await ctx.race(ctx.step(add, 1, 1), ctx.sleep("1 hour"))
    await ctx.step(shout, "over")
    return winner


@sf.workflow
async def races_sleeps(ctx: sf.Context) -> int:
    """Race two sleeps."""
    winner, _ = await ctx.race(ctx.sleep("2 hours"), ctx.sleep("1 hour"))
    return winner


@sf.workflow
async def races_signal_and_sleep(ctx: sf.Context) -> Any:
    """Race a signal that comes against a sleep."""
    winner, value = await ctx.race(ctx.sleep("1 day"), ctx.wait_signal("go"))
    return winner, value, await ctx.step(add, 1, 1)


@sf.workflow
async def races_signal_in_vain(ctx: sf.Context) -> int:
    """Race a signal that never comes against a sleep."""
    winner, _ = await ctx.race(ctx.wait_signal("go"), ctx.sleep("1 day"))
    return winner


@sf.workflow
async def races_signals(ctx: sf.Context) -> list[Any]:
    """Race two signals; the one that lost is still there to be taken."""
    winner, value = await ctx.race(ctx.wait_signal("a"), ctx.wait_signal("b"))
    return [winner, value, await ctx.wait_signal("a")]


@sf.workflow
async def races_with_cleanup(ctx: sf.Context) -> Any:
    """Let the loser of a race clean up."""

    async def loser() -> None:
        try:
            await ctx.wait_signal("never")
        finally:
            await ctx.step("tidy", shout, "lost")

    return await ctx.race(loser(), ctx.sleep("1 hour"))


@sf.workflow
async def races_in_gather(ctx: sf.Context) -> list[Any]:
    """Race inside of gather."""
    return await ctx.gather(
        ctx.race(ctx.sleep("1 hour"), ctx.sleep("2 hours")), ctx.race(ctx.step(add, 1, 1), ctx.sleep("3 hours"))
    )


@sf.workflow
async def branches_share(ctx: sf.Context) -> list[str]:
    """Let branches write into one list: the order is the same when it is replayed."""
    seen: list[str] = []

    async def branch(name: str) -> None:
        for number in range(2):
            seen.append(f"{name}{number}")
            await ctx.step(add, number, number)
        seen.append(f"{name} ends")

    await ctx.gather(branch("a"), branch("b"))
    await ctx.sleep("1 hour")
    return sorted(seen)


@sf.workflow
async def branch_waits_for_signal(ctx: sf.Context) -> list[Any]:
    """Let one branch wait for a signal in vain while another one sleeps."""

    async def asks() -> str:
        try:
            await ctx.wait_signal("answer", timeout="30 minutes")
        except SignalTimeoutError:
            return await ctx.step(shout, "nobody")
        return "never"

    work: list[Coroutine[Any, Any, Any]] = [asks(), ctx.sleep("1 hour")]
    return await ctx.gather(*work)


SHAPES: Final = (
    Shape(gathers_steps),
    Shape(gathers_branches),
    Shape(gathers_in_gather),
    Shape(gathers_after_gather),
    Shape(gathers_a_failure),
    Shape(gathers_exceptions),
    Shape(races_a_sleep),
    Shape(races_sleeps),
    Shape(races_signal_and_sleep, script=signalled(("go", 1))),
    Shape(races_signal_in_vain),
    Shape(races_signals, script=signalled(("b", 2), ("a", 1))),
    Shape(races_with_cleanup),
    Shape(races_in_gather),
    Shape(branches_share),
    Shape(branch_waits_for_signal),
)

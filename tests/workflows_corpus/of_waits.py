"""Shapes of waiting: sleeps, signals, predicates, updates, and their time-outs."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import standfast as sf
from standfast.errors import SignalTimeoutError
from tests.workflows_corpus.of_steps import add, shout
from tests.workflows_corpus.shape import Shape

if TYPE_CHECKING:
    from standfast.testing.workflows import WorkflowEnvironment


@sf.workflow
async def sleeps(ctx: sf.Context) -> int:
    """Sleep between two steps."""
    first = await ctx.step(add, 1, 1)
    await ctx.sleep("2 days")
    return await ctx.step(add, first, 1)


@sf.workflow
async def sleeps_twice(ctx: sf.Context) -> str:
    """Sleep, and sleep on."""
    await ctx.sleep("1 hour")
    await ctx.sleep("1 hour")
    return "awake"


@sf.workflow
async def sleeps_until(ctx: sf.Context) -> str:
    """Sleep until a moment that it works out, and until one that is over."""
    now = await ctx.now()
    await ctx.sleep_until(now + timedelta(hours=3))
    await ctx.sleep_until(now)
    return await ctx.step(shout, "late")


@sf.workflow
async def sleeps_in_try(ctx: sf.Context) -> list[str]:
    """Sleep inside of try and finally: an unload goes through it, and does nothing."""
    done = []
    try:
        await ctx.sleep("1 day")
        done.append("slept")
    except Exception:  # noqa: BLE001 -- what a hasty user writes; an unload is none
        done.append("wrong")
    finally:
        done.append(await ctx.step(shout, "finally"))
    return done


@sf.workflow
async def takes_a_signal(ctx: sf.Context) -> Any:
    """Wait for a signal."""
    return await ctx.wait_signal("go")


@sf.workflow
async def takes_signals(ctx: sf.Context) -> list[Any]:
    """Wait for several signals, of two names, with steps in between."""
    first = await ctx.wait_signal("go")
    await ctx.step(shout, str(first))
    other = await ctx.wait_signal("stop")
    return [first, other, await ctx.wait_signal("go")]


@sf.workflow
async def signal_in_time(ctx: sf.Context) -> Any:
    """Wait for a signal that comes before the time is over."""
    found = await ctx.wait_signal("go", timeout="1 hour")
    return await ctx.step(shout, str(found))


@sf.workflow
async def signal_too_late(ctx: sf.Context) -> str:
    """Wait for a signal that does not come in time."""
    try:
        await ctx.wait_signal("go", timeout="1 hour")
    except SignalTimeoutError as problem:
        return await ctx.step(shout, problem.name)
    return "never"


@sf.workflow
async def signal_or_default(ctx: sf.Context) -> list[Any]:
    """Wait twice for a signal that comes once."""
    return [await ctx.wait_signal("go", timeout="1 hour", default=n) for n in range(2)]


@sf.workflow
async def takes_updates(ctx: sf.Context) -> int:
    """Count what updates bring, until there is enough."""
    total = 0

    def more(amount: int) -> int:
        nonlocal total
        total += amount
        return total

    def check(amount: int) -> None:
        if amount < 0:
            raise ValueError("only more, never less")

    ctx.on_update("more", more, validate=check)
    ctx.on_query("total", lambda: total)
    await ctx.wait_until(lambda: total >= 10)
    return total


@sf.workflow
async def updated_between_steps(ctx: sf.Context) -> list[str]:
    """Take updates while it takes steps and waits."""
    seen: list[str] = []
    ctx.on_update("say", seen.append)
    await ctx.step(add, 1, 1)
    await ctx.wait_until(lambda: len(seen) >= 1)
    await ctx.step(shout, seen[0])
    await ctx.wait_until(lambda: len(seen) >= 2)
    return seen


@sf.workflow
async def gives_up_waiting(ctx: sf.Context) -> bool:
    """Wait for something that never comes true."""
    held = await ctx.wait_until(lambda: False, timeout="1 day")
    await ctx.step(shout, str(held))
    return held


@sf.workflow
async def already_true(ctx: sf.Context) -> bool:
    """Wait for what is true already."""
    return await ctx.wait_until(lambda: True, timeout="1 day")


@sf.workflow(timeout="1 hour")
async def takes_too_long(ctx: sf.Context) -> None:
    """Sleep longer than is allowed, and clean up."""
    try:
        await ctx.sleep("1 day")
    finally:
        await ctx.step(shout, "out of time")


def signalled(*signals: tuple[str, Any]) -> Any:
    """Return a script that sends signals, with time in between."""

    async def script(env: WorkflowEnvironment, run: sf.Run[Any]) -> None:
        for number, (name, value) in enumerate(signals):
            await env.advance("10 minutes")
            await run.signal(name, value, signal_id=f"{number}")

    return script


async def signalled_first(_: WorkflowEnvironment, run: sf.Run[Any]) -> None:
    """Send what is wanted before it is waited for."""
    await run.signal("go", 1)
    await run.signal("stop", 2)
    await run.signal("go", 3)


async def updated(env: WorkflowEnvironment, run: sf.Run[Any]) -> None:
    """Send updates, one of which is refused."""
    await env.settle()
    for number, amount in enumerate((3, 4, 5)):
        await run.update("more", amount, update_id=f"{number}")
        await env.settle()


async def told(env: WorkflowEnvironment, run: sf.Run[Any]) -> None:
    """Say two things."""
    for number, word in enumerate(("one", "two")):
        await env.settle()
        await run.update("say", word, update_id=f"{number}")


SHAPES: Final = (
    Shape(sleeps),
    Shape(sleeps_twice),
    Shape(sleeps_until),
    Shape(sleeps_in_try),
    Shape(takes_a_signal, script=signalled(("go", {"by": "kim"}))),
    Shape(takes_signals, script=signalled_first),
    Shape(signal_in_time, script=signalled(("go", "yes"))),
    Shape(signal_too_late),
    Shape(signal_or_default, script=signalled(("go", "once"))),
    Shape(takes_updates, script=updated),
    Shape(updated_between_steps, script=told),
    Shape(gives_up_waiting),
    Shape(already_true),
    Shape(takes_too_long),
)

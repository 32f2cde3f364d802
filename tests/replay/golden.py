"""The workflows of the golden histories. Neither they nor the histories are ever edited: new ones are added.

``python -m tests.replay.golden`` records the histories that are missing, and leaves the others as they are.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import standfast as sf
from standfast.errors import HoldTimeoutError, RunFailedError, SignalTimeoutError
from standfast.testing.workflows import WorkflowEnvironment, save_history

if TYPE_CHECKING:
    from standfast.workflows.definition import Workflow

FOLDER: Final = Path(__file__).parent / "histories"


async def double(number: int) -> int:
    """Return twice as much."""
    return 2 * number


async def refuse(about: str) -> None:
    """Fail."""
    raise ValueError(about)


@sf.step(retry=sf.Retry(attempts=2, delay=30.0))
async def second_time(number: int) -> int:
    """Fail once."""
    if sf.current_step().attempt == 1:
        raise ConnectionError("not yet")
    return number


@sf.step(semantics="at_most_once")
async def only_once(number: int) -> int:
    """Be run at most once."""
    return number


@sf.workflow(name="golden.steps")
async def steps(ctx: sf.Context, rounds: int) -> int:
    """Take steps in a loop."""
    total = 1
    for _ in range(rounds):
        total = await ctx.step(double, total)
    return await ctx.step("last", double, total)


@sf.workflow(name="golden.failures")
async def failures(ctx: sf.Context) -> str:
    """Catch a failure, retry a step, and fail in the end."""
    try:
        await ctx.step(refuse, "first")
    except ValueError as problem:
        await ctx.step(double, len(str(problem)))
    await ctx.step(second_time, 2)
    raise ValueError("last")


@sf.workflow(name="golden.once")
async def once(ctx: sf.Context) -> int:
    """Take a step that is run at most once."""
    return await ctx.step(only_once, 3)


@sf.workflow(name="golden.sleeping")
async def sleeping(ctx: sf.Context) -> int:
    """Sleep between steps."""
    await ctx.sleep("1 day")
    return await ctx.step(double, 4)


@sf.workflow(name="golden.chance")
async def chance(ctx: sf.Context) -> str:
    """Read the time, and throw dice."""
    now, number, name = await ctx.now(), (await ctx.random()).randrange(1_000_000), await ctx.uuid()
    await ctx.step(double, number)
    return f"{now.isoformat()} {number} {name}"


@sf.workflow(name="golden.signals")
async def signals(ctx: sf.Context) -> list[Any]:
    """Take a signal, one in time, and miss one."""
    found = [await ctx.wait_signal("go"), await ctx.wait_signal("go", timeout="1 hour")]
    try:
        await ctx.wait_signal("go", timeout="1 hour")
    except SignalTimeoutError:
        found.append(await ctx.step(double, 5))
    return found


@sf.workflow(name="golden.updates")
async def updates(ctx: sf.Context) -> list[str]:
    """Take updates until there are two, and wait for a third in vain."""
    seen: list[str] = []
    ctx.on_update("say", seen.append)
    await ctx.wait_until(lambda: len(seen) == 2)
    await ctx.step(double, len(seen))
    await ctx.wait_until(lambda: len(seen) == 3, timeout="1 hour")
    return seen


@sf.workflow(name="golden.gather")
async def gather(ctx: sf.Context) -> list[Any]:
    """Run branches side by side, nested, sharing a list."""
    seen: list[int] = []

    async def branch(number: int) -> int:
        seen.append(await ctx.step(double, number))
        await ctx.sleep(f"{number} hours")
        seen.append(number)
        return number

    inner = await ctx.gather(branch(2), branch(1), ctx.gather(ctx.step(double, 7), ctx.step(double, 8)))
    return [inner, seen]


@sf.workflow(name="golden.race")
async def race(ctx: sf.Context) -> list[Any]:
    """Let the first of several win; the loser cleans up."""

    async def loser() -> None:
        try:
            await ctx.wait_signal("never")
        finally:
            await ctx.step(double, 9)

    return list(await ctx.race(loser(), ctx.sleep("1 hour")))


@sf.workflow(name="golden.failing_branch")
async def failing_branch(ctx: sf.Context) -> str:
    """Let one branch fail, so that the others are cancelled."""
    try:
        await ctx.gather(ctx.sleep("1 day"), ctx.step(refuse, "one"), ctx.wait_signal("never"))
    except ValueError as problem:
        return str(problem)
    return "never"


@sf.workflow(name="golden.child")
async def child(ctx: sf.Context) -> int:
    """Run another workflow."""
    return await ctx.child(steps, 2)


@sf.workflow(name="golden.failing_child")
async def failing_child(ctx: sf.Context) -> str:
    """Run another workflow that fails."""
    try:
        await ctx.child(failures)
    except RunFailedError as problem:
        return type(problem.__cause__).__name__
    return "never"


@sf.workflow(name="golden.cancelled")
async def cancelled(ctx: sf.Context) -> None:
    """Be cancelled, and clean up."""
    try:
        await ctx.sleep("1 day")
    finally:
        await ctx.step(double, 10)


@sf.workflow(name="golden.timed_out", timeout="1 hour")
async def timed_out(ctx: sf.Context) -> None:
    """Take too long."""
    try:
        await ctx.wait_signal("never")
    finally:
        await ctx.step(double, 11)


@sf.workflow(name="golden.patched")
async def patched(ctx: sf.Context) -> int:
    """Ask whether the code is the changed one."""
    return await ctx.step(double, 12) if await ctx.patched("change") else 0


@sf.workflow(name="golden.continued")
async def continued(ctx: sf.Context, left: int) -> int:
    """Go on as a new run."""
    await ctx.step(double, left)
    if left:
        await ctx.continue_as_new(left - 1)
    return left


@sf.workflow(name="golden.waiting")
async def waiting(ctx: sf.Context) -> None:
    """Wait, and not have ended when it is saved."""
    await ctx.step(double, 13)
    await ctx.sleep("1 hour")
    await ctx.wait_signal("never")


@sf.workflow(name="golden.locks")
async def locks(ctx: sf.Context) -> int:
    """Hold locks of every kind, sleep in one, and wait for one in vain."""
    async with ctx.mutex("golden-mutex", max_hold="3 days"):
        await ctx.sleep("1 hour")
        async with ctx.semaphore("golden-semaphore", permits=2, weight=2):
            await ctx.step(double, 14)
    async with ctx.mode_lock("golden-modes", "read", modes=("read",), alone=("write",)):
        await ctx.gather(_in_turn(ctx, 1), _in_turn(ctx, 2))
    return await ctx.step("last", double, 15)


async def _in_turn(ctx: sf.Context, number: int) -> int:
    async with ctx.mutex("golden-turns"):
        return await ctx.step(double, number)


@sf.workflow(name="golden.waiting_in_line")
async def waiting_in_line(ctx: sf.Context) -> str:
    """Give up waiting for a lock that a child holds."""
    number, _ = await ctx.race(_too_long(ctx), ctx.child(holder))
    return f"branch {number}"


async def _too_long(ctx: sf.Context) -> None:
    await ctx.sleep("1 minute")
    try:
        async with ctx.mutex("golden-line", timeout="1 minute"):
            await ctx.step(double, 16)
    except HoldTimeoutError:
        await ctx.step("gave-up", double, 17)


@sf.workflow(name="golden.holder")
async def holder(ctx: sf.Context) -> None:
    """Hold a lock for a day."""
    async with ctx.mutex("golden-line"):
        await ctx.sleep("1 day")


@sf.workflow(name="golden.states")
async def states(ctx: sf.Context) -> list[Any]:
    """Change states of every kind, and keep to a rate."""
    await ctx.state.workflow("visits", type=int, initial=0).increment()
    await ctx.state.execution("log", type=list[str], initial=[]).append("begun")
    own = ctx.state.run("own", type=dict[str, int], initial={})
    await own.update(lambda value: {**(value or {}), "a": 1})
    await own.merge({"b": 2})
    for _ in range(2):
        async with ctx.rate_limiter("golden-rate", interval="1 minute"):
            await ctx.step(double, 18)
    return [await own.get(), await ctx.state.workflow("visits", type=int, initial=0).get()]


WORKFLOWS: Final[dict[str, Workflow[..., Any]]] = {
    each.name: each
    for each in (
        *(steps, failures, once, sleeping, chance, signals, updates, gather, race, failing_branch, child),
        *(failing_child, cancelled, timed_out, patched, continued, waiting, locks, waiting_in_line, holder, states),
    )
}
ARGUMENTS: Final[dict[str, tuple[Any, ...]]] = {"golden.steps": (3,), "golden.continued": (1,)}


async def record(name: str, path: Path) -> None:
    """Run a workflow, and save its history."""
    async with WorkflowEnvironment(WORKFLOWS.values()) as env:
        run = await env.start(WORKFLOWS[name], *ARGUMENTS.get(name, ()), id=name)
        await env.settle()
        if name == "golden.signals":
            await run.signal("go", "first")
            await env.advance("1 minute")
            await run.signal("go", {"second": 2})
        if name == "golden.updates":
            await run.update("say", "one")
            await run.update("say", "two")
        if name == "golden.cancelled":
            await run.cancel("the golden rule")
        await env.advance("2 days")
        await save_history(run, path)


async def main() -> None:
    """Record what is missing."""
    for name in WORKFLOWS:
        path = FOLDER / f"{name.removeprefix('golden.')}.json"
        if not path.exists():
            await record(name, path)
            print(f"recorded {path.name}")


if __name__ == "__main__":
    asyncio.run(main())

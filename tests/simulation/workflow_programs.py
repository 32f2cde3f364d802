"""Workflows for simulations, each with what it must come to, whatever happens on the way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import standfast as sf
from standfast.errors import HoldTimeoutError, LeaseLostError

if TYPE_CHECKING:
    from collections.abc import Coroutine


async def remember(words: list[str]) -> list[str]:
    """Return what was said."""
    return words


async def take_a_while(number: int) -> int:
    """Do something for a moment of virtual time."""
    await asyncio.sleep(number % 7 * 0.04)
    return number


@sf.step(retry=sf.Retry(attempts=3, delay=0.2))
async def stumble(number: int) -> int:
    """Fail once or twice."""
    await asyncio.sleep(0.01)
    if sf.current_step().attempt <= 1 + number % 2:
        raise ConnectionError("stumbled")
    return number


@sf.workflow
async def chain(ctx: sf.Context, length: int) -> int:
    """Take steps, with a sleep and a stumble in between."""
    total = 0
    for number in range(length):
        total += await ctx.step(take_a_while, number)
        if number == 1:
            await ctx.sleep(0.7)
    return total + await ctx.step(stumble, length)


@sf.workflow
async def collect(ctx: sf.Context, count: int) -> list[str]:
    """Take signals, with a step after each."""
    found = []
    for number in range(count):
        found.append(await ctx.wait_signal("item"))
        await ctx.step(take_a_while, number)
    return found


@sf.workflow
async def tell(ctx: sf.Context, count: int) -> list[str]:
    """Take updates until there are enough, with a step in between."""
    heard: list[str] = []
    ctx.on_update("say", heard.append)
    await ctx.step(take_a_while, count)
    await ctx.wait_until(lambda: len(heard) >= count)
    await ctx.step(take_a_while, len(heard))
    return heard


@sf.workflow
async def fan(ctx: sf.Context, width: int) -> list[Any]:
    """Run branches side by side that share a list."""
    seen: list[str] = []

    async def branch(number: int) -> int:
        first = await ctx.step(take_a_while, 3 * number)
        seen.append(f"{number} began")
        if number % 2:
            await ctx.sleep(0.1 * number)
        seen.append(f"{number} ended")
        return first + await ctx.step(take_a_while, number)

    results = await ctx.gather(*(branch(number) for number in range(width)))
    told = await ctx.step(remember, list(seen))
    await ctx.sleep(0.2)
    return [*results, "as it was" if told == seen else f"{told} became {seen}", sorted(seen)]


@sf.workflow
async def contest(ctx: sf.Context, length: int) -> str:
    """Let a sleep win against a signal that never comes; the loser cleans up."""

    async def patient() -> None:
        try:
            await ctx.wait_signal("never")
        finally:
            await ctx.step("tidy", take_a_while, length)

    winner, _ = await ctx.race(patient(), ctx.sleep(0.1 * length))
    return f"{winner} {await ctx.step(take_a_while, length)}"


@sf.workflow
async def family(ctx: sf.Context, size: int) -> list[Any]:
    """Run children side by side, and one after them."""
    together: list[Coroutine[Any, Any, Any]] = [ctx.child(chain, number + 1) for number in range(size)]
    return [*await ctx.gather(*together), await ctx.child(contest, 2)]


@sf.workflow
async def tidy(ctx: sf.Context, length: int) -> int:
    """Do something that somebody may cancel, and clean up after it."""
    try:
        await ctx.step(take_a_while, length)
        await ctx.sleep(0.5 * length)
    finally:
        await ctx.step("clean up", take_a_while, length)
        await ctx.sleep(0.1)
        await ctx.step("clean up more", take_a_while, length)
    return length


@sf.workflow
async def onwards(ctx: sf.Context, left: int) -> int:
    """Go on as a new run."""
    await ctx.step(take_a_while, left)
    if left:
        await ctx.continue_as_new(left - 1)
    return left


@sf.workflow
async def guarded(ctx: sf.Context, length: int) -> int:
    """Do something that no two runs may do at a time, and sleep meanwhile."""
    async with ctx.mutex("shared"):
        await ctx.step("enter the mutex", take_a_while, length)
        await ctx.sleep(0.1 * length)
        await ctx.step("leave the mutex", take_a_while, length)
    return length


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def queued(ctx: sf.Context, length: int) -> int:
    """Be the only run of its kind."""
    await ctx.step("enter the limit", take_a_while, length)
    await ctx.sleep(0.1 * length)
    await ctx.step("leave the limit", take_a_while, length)
    return length


PLACES: Final = 3
"""How many runs of a crowd there are at a time."""


@sf.workflow(concurrency=sf.Limit(PLACES, on_limit="queue"))
async def crowded(ctx: sf.Context, length: int) -> int:
    """Be one of a few runs of its kind."""
    await ctx.step("enter the crowd", take_a_while, length)
    await ctx.sleep(0.1 * length)
    await ctx.step("leave the crowd", take_a_while, length)
    return length


# --- for operators: everything that can be taken from a run, or be waited for -------------------------------------


@sf.workflow
async def bounded(ctx: sf.Context, length: int) -> int:
    """Hold a mutex for longer than it may, if it does much; go on without it."""
    try:
        async with ctx.mutex("bounded", max_hold=1.2):
            await ctx.step("enter the bounded", take_a_while, length)
            await ctx.sleep(0.4 * length)
            await ctx.step("leave the bounded", take_a_while, length)
    except LeaseLostError:
        await ctx.step("go on without it", take_a_while, length)
    return await ctx.step("go on", take_a_while, length)


POOL: Final = 3
"""The permits of the semaphore that runs take some of."""

HEAVIEST: Final = 2
"""The most that one run takes of them."""


@sf.workflow
async def metered(ctx: sf.Context, length: int) -> int:
    """Take one or two of three permits, twice."""
    for _ in range(2):
        async with ctx.semaphore("pool", permits=POOL, weight=1 + length % HEAVIEST):
            await ctx.step(take_a_while, length)
            await ctx.sleep(0.1 * length)
            await ctx.step(take_a_while, length)
    return length


@sf.workflow
async def reader(ctx: sf.Context, length: int) -> int:
    """Share a mode lock with others, then have it alone."""
    async with ctx.mode_lock("page", "read", modes=("read", "write"), alone=("write",)):
        await ctx.step(take_a_while, length)
        await ctx.sleep(0.1 * length)
    async with ctx.mode_lock("page", "write", modes=("read", "write"), alone=("write",)):
        await ctx.step(take_a_while, length)
    return length


@sf.workflow
async def keeper(ctx: sf.Context, count: int) -> list[str]:
    """Hold the shared mutex until signals have come."""
    async with ctx.mutex("shared"):
        await ctx.step("enter the mutex", take_a_while, count)
        found = [await ctx.wait_signal("item") for _ in range(count)]
        await ctx.step("leave the mutex", take_a_while, count)
    return found


@sf.workflow
async def impatient(ctx: sf.Context, length: int) -> int:
    """Wait for the shared mutex, though not for long."""
    try:
        async with ctx.mutex("shared", timeout=0.3 * length):
            await ctx.step("enter the mutex", take_a_while, length)
            await ctx.sleep(0.05)
            await ctx.step("leave the mutex", take_a_while, length)
    except HoldTimeoutError:
        await ctx.step("go without it", take_a_while, length)
    return length


@sf.workflow
async def turns(ctx: sf.Context, size: int) -> list[int]:
    """Hold a lock, and let children and branches stand in lines meanwhile."""

    async def branch(number: int) -> int:
        async with ctx.mutex(f"turn {number % 2}"):
            await ctx.sleep(0.05 * number)
            return await ctx.step(take_a_while, number)

    async with ctx.mutex("turns"):
        branches: list[Coroutine[Any, Any, int]] = [branch(number) for number in range(size)]
        found: list[int] = await ctx.gather(*branches, *(ctx.child(queued, number + 1) for number in range(size)))
    return [*found, await ctx.child(guarded, 1)]


@sf.workflow
async def tally(ctx: sf.Context, length: int) -> int:
    """Count in a state, exactly once each time, between sleeps."""
    counter = ctx.state.run("count", type=int, initial=0)
    for number in range(length):
        await counter.increment()
        await ctx.step(take_a_while, number)
        await ctx.sleep(0.1)
    return await counter.get() or 0


WORKFLOWS: Final = (chain, collect, tell, fan, contest, family, tidy, onwards, guarded, queued)
OPERATED: Final = (*WORKFLOWS, bounded, metered, reader, keeper, impatient, turns, tally)
"""All of them, with those that operators have most to do with."""

CROWD: Final = (crowded, crowded, crowded, queued, onwards)
"""Those of a world in which limits only count."""


def expected(name: str, size: int, sent: list[str]) -> Any:
    """Return what a run must return; for what was sent the order does not count."""
    results: dict[str, Any] = {
        "chain": sum(range(size)) + size,
        "collect": sorted(sent),
        "tell": sorted(sent),
        "fan": [
            *(4 * n for n in range(size)),
            "as it was",
            sorted(f"{n} {w}" for n in range(size) for w in ("began", "ended")),
        ],
        "contest": f"1 {size}",
        "family": [*(sum(range(n + 1)) + n + 1 for n in range(size)), "1 2"],
        "tidy": size,
        "onwards": 0,
        "guarded": size,
        "queued": size,
        "crowded": size,
        "bounded": size,
        "metered": size,
        "reader": size,
        "keeper": sorted(sent),
        "impatient": size,
        "turns": [*range(size), *range(1, size + 1), 1],
        "tally": size,
    }
    return results[name]

"""Workflows for simulations, each with what it must come to, whatever happens on the way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import standfast as sf

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


WORKFLOWS: Final = (chain, collect, tell, fan, contest, family, tidy, onwards, guarded, queued)


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
    }
    return results[name]

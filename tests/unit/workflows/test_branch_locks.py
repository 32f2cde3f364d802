"""Branches that take and leave locks of their own side by side: none loses its lock because another one moves."""

from __future__ import annotations

import asyncio

import standfast as sf
from standfast.space import Space
from standfast.stores.memory import open_memory
from standfast.testing import Faults, FaultyStore, VirtualClock, simulate


async def note(number: int) -> int:
    """Do nothing."""
    return number


@sf.workflow
async def child(ctx: sf.Context, number: int) -> int:
    """Do nothing."""
    return await ctx.step(note, number)


@sf.workflow
async def each_its_own(ctx: sf.Context) -> list[int]:
    """Hold a lock, and let branches hold others, beside children that are started."""

    async def branch(number: int) -> int:
        async with ctx.mutex(f"stock {number % 2}"):
            await ctx.sleep(0.01 * number)
            return await ctx.step(note, number)

    async with ctx.mutex("all"):
        return await ctx.gather(*(work for number in range(3) for work in (branch(number), ctx.child(child, number))))


async def run_once(seed: int) -> list[int]:
    """Run it on a store that answers late."""
    clock = VirtualClock(asyncio.get_running_loop())
    store = FaultyStore(open_memory(clock=clock), faults=Faults(delay=0.5), seed=seed)
    space = Space(store, clock=clock)
    async with sf.Engine(space, workflows=[each_its_own, child]) as engine:
        found = await (await engine.start(each_its_own)).result(timeout=60)
    await space.aclose()
    return found


def test_no_branch_loses_its_lock_because_another_one_takes_or_leaves_one() -> None:
    """On a store that answers late, in many orders: a look at locks is not confused by those that move meanwhile."""
    for seed in range(60):
        assert simulate(seed, run_once, seed) == [0, 0, 1, 1, 2, 2]

"""Branches that take and leave locks of their own side by side: none loses its lock because another one moves."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import standfast as sf
from standfast.errors import LeaseLostError, RunFailedError, StandfastError
from standfast.space import Space
from standfast.stores import Delete, Put
from standfast.stores.memory import open_memory
from standfast.testing import Faults, FaultyStore, VirtualClock, simulate
from standfast.testing.workflows import WorkflowEnvironment
from standfast.workflows.context_locks import LockAcquisition
from standfast.workflows.records import RunKeys, events_of, packed_chunk
from tests.sizes import rounds

if TYPE_CHECKING:
    import pytest

    from standfast.clock import Instant
    from standfast.workflows.context_locks import Place


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


@sf.workflow
async def loses_it_at_the_end(ctx: sf.Context) -> list[int]:
    """Hold locks for about as long as they may be held, and go on without them."""
    done: list[int] = []
    for number in range(4):
        with suppress(LeaseLostError):
            async with ctx.mutex("short", max_hold=0.05):
                await ctx.step(note, number)
                await ctx.sleep(0.04)
        done.append(await ctx.step(note, number))
    return done


@sf.workflow
async def all_depend_on_one(ctx: sf.Context) -> None:
    """Hold a lock, and let branches hold others while that one may be taken away, and each ends the others."""

    async def branch(number: int) -> None:
        async with ctx.mutex(f"stock {number}"):
            await ctx.sleep(0.02)
            await ctx.step(note, number)
            await ctx.sleep(0.02 + 0.01 * number)

    async with ctx.mutex("all"):
        await ctx.gather(*(work for number in range(3) for work in (branch(number), ctx.child(child, number))))


async def lose_all(seed: int) -> list[str]:
    """Take the lock away on which all depend; return what is still held when the run has ended."""
    clock = VirtualClock(asyncio.get_running_loop())
    calm = open_memory(clock=clock)
    rough = FaultyStore(calm, faults=Faults(delay=0.5, lose_reply=0.15), seed=seed)
    spaces = [Space(calm, clock=clock), Space(rough, clock=clock)]
    worker = sf.Engine(spaces[1], workflows=[all_depend_on_one, child], worker=sf.admin.WorkerLimits(linger=0))
    async with sf.Engine(spaces[0], workflows=[all_depend_on_one, child], drive=False) as client:
        await opened(worker)
        run = await client.start(all_depend_on_one, id="run")
        await asyncio.sleep(0.03 + seed % 7 * 0.01)
        await spaces[0].mutex("all").force_release("run:mutex")
        with suppress(RunFailedError):
            await run.result(timeout=60)
        held = [line.key async for line in spaces[0].lines()]
        with suppress(StandfastError):  # it cannot be sure that it has handed back everything
            await worker.aclose()
    return held


async def opened(worker: sf.Engine) -> None:
    """Open an engine on a store that fails now and then."""
    while True:
        try:
            return await worker.open()
        except StandfastError:
            continue


def test_branches_leave_their_locks_whatever_they_are_told_meanwhile() -> None:
    """That the lock around them is lost, and that another branch has ended first, keeps none from leaving its own.

    Nor is the run quarantined because a record of several of its branches was refused, once.
    """
    for seed in rounds("branches that lose their locks", full=1_000, quick=40):
        assert simulate(seed, lose_all, seed) == [], seed


GATE: Final[list[asyncio.Event]] = []


async def stay() -> None:
    """Stay until the gate is open."""
    await GATE[-1].wait()


@sf.workflow
async def leaves_and_stays(ctx: sf.Context) -> str:
    """Leave one lock, and hold another one beside that."""

    async def leaves() -> None:
        async with ctx.mutex("left"):
            pass
        await ctx.step("outside", stay)

    async def stays() -> None:
        async with ctx.mutex("kept"):
            await ctx.sleep("1 hour")
            await ctx.step("inside", stay)

    await ctx.gather(leaves(), stays())
    return "done"


async def test_a_lock_that_was_left_before_a_crash_is_not_lost_after_it() -> None:
    """Also if the process died before it learned that it had left, and other branches had recorded more by then."""
    GATE.append(asyncio.Event())
    async with WorkflowEnvironment([leaves_and_stays]) as env:
        run = await env.start(leaves_and_stays)
        await env.advance("2 hours")
        await env.crash()
        space, keys = env.client.space, RunKeys(env.client.space, run.id)
        events = [event for event in await events_of(space, keys) if event.kind != "went_on"]
        assert [event.kind for event in events][-2:] == ["sleep", "slept"]
        chunks = (await space.scan(*keys.history(), limit=100)).records.values()
        await space.commit(*(Delete(chunk.key, chunk.version) for chunk in chunks))
        await space.commit(Put(keys.chunk(0), packed_chunk(events)))
        GATE[-1].set()
        await env.restart()
        assert await env.result(run) == "done"


@sf.workflow
async def waits_its_turn(ctx: sf.Context) -> str:
    """Wait for a lock that a process holds."""
    async with ctx.mutex("k"):
        return "held"


async def test_a_turn_that_comes_while_the_store_is_asked_for_it_is_not_overheard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer says that it is not its turn, and comes after the news that it is: the run looks once more."""
    asked, answered, look_after = asyncio.Event(), asyncio.Event(), LockAcquisition.look_after

    async def late(standing: LockAcquisition) -> tuple[Place, Instant | None]:
        answer = await look_after(standing)
        asked.set()
        await answered.wait()
        return answer

    monkeypatch.setattr(LockAcquisition, "look_after", late)
    async with sf.Engine("memory://", workflows=[waits_its_turn]) as engine:
        ready = engine.space.key("ready", "the-run")
        async with engine.space.mutex("k").hold():
            run = await engine.start(waits_its_turn, id="the-run")
            await asked.wait()
        async with asyncio.timeout(10), engine.space.watch(ready) as watch:
            while engine.runtime.loaded["the-run"].inbox_poll.is_polling or (await engine.space.read(ready)).records:
                await watch.wait(0.05)
        answered.set()
        assert await run.result(timeout=10) == "held"


async def run_once(seed: int, workflow: sf.Workflow[[], list[int]]) -> list[int]:
    """Run one on a store that answers late."""
    clock = VirtualClock(asyncio.get_running_loop())
    store = FaultyStore(open_memory(clock=clock), faults=Faults(delay=0.5), seed=seed)
    space = Space(store, clock=clock)
    async with sf.Engine(space, workflows=[workflow, child]) as engine:
        found = await (await engine.start(workflow)).result(timeout=60)
    await space.aclose()
    return found


def test_no_branch_loses_its_lock_because_another_one_takes_or_leaves_one() -> None:
    """On a store that answers late, in many orders: a look at locks is not confused by those that move meanwhile."""
    for seed in range(60):
        assert simulate(seed, run_once, seed, each_its_own) == [0, 0, 1, 1, 2, 2]


def test_a_lock_that_is_lost_while_it_is_being_left_is_not_lost_once_more_afterwards() -> None:
    """It is raised where the block ends, if at all, and not at the next operation, which is outside of the block."""
    for seed in range(60):
        assert simulate(seed, run_once, seed, loses_it_at_the_end) == [0, 1, 2, 3]

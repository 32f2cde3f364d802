"""Locks, rates and states of runs: held by the run, not by the process that drives it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import standfast as sf
from standfast.errors import (
    HoldTimeoutError,
    LeaseLostError,
    ReentryError,
    StaleWriteError,
    WaitCycleError,
    WouldWaitError,
)
from standfast.testing.conformance.workflows.ground import SOON, WorkflowGround, eventually, result_of, until, waits
from standfast.testing.conformance.workflows.samples import act, enters

if TYPE_CHECKING:
    from standfast.testing.conformance.workflows.ground import OpenEngine


@sf.workflow
async def impatient(ctx: sf.Context, key: str) -> str:
    """Wait for a mutex, but not for long."""
    try:
        async with ctx.mutex(key, timeout=0.01):
            return "held"
    except HoldTimeoutError:
        return "gave up"


@sf.workflow
async def loses(ctx: sf.Context, key: str) -> str:
    """Hold a mutex for longer than it may."""
    try:
        async with ctx.mutex(key, max_hold=0.02):
            await ctx.sleep(0.04)
            await ctx.step(act, "too late")
    except LeaseLostError:
        return "lost"
    return "kept"


@sf.workflow
async def enters_again(ctx: sf.Context, key: str) -> str:
    """Ask for what it holds."""
    async with ctx.mutex(key):
        try:
            async with ctx.mutex(key):
                return "held twice"
        except ReentryError:
            return "refused"


@sf.workflow
async def crosses(ctx: sf.Context, first: str, second: str) -> str:
    """Take two keys, one after the other."""
    async with ctx.mutex(first):
        await ctx.wait_signal("go")
        try:
            async with ctx.mutex(second):
                return "both"
        except WaitCycleError:
            return "gave way"


@sf.workflow
async def shares(ctx: sf.Context, name: str) -> None:
    """Use one of two permits."""
    async with ctx.semaphore("pool", permits=2):
        await ctx.step("in", act, f"+{name}")
        await ctx.wait_signal("go")


@sf.workflow
async def reads(ctx: sf.Context, mode: str) -> None:
    """Read or write."""
    async with ctx.mode_lock("graph", mode, modes=("read",), alone=("write",)):
        await ctx.step("in", act, f"+{mode}")
        await ctx.wait_signal("go")


@sf.workflow
async def is_slow(ctx: sf.Context) -> None:
    """Act at a limited rate."""
    for n in range(3):
        async with ctx.rate_limiter("mails", interval="20ms"):
            await ctx.step(act, str(n))


@sf.workflow
async def counts(ctx: sf.Context, times: int) -> int:
    """Add to what all runs of this workflow share, and sleep in between."""
    visits = ctx.state.workflow("visits", type=int, initial=0)
    for _ in range(times):
        await visits.increment()
        await ctx.sleep(0.001)
    return await visits.get() or 0


@sf.workflow
async def remembers(ctx: sf.Context) -> list[Any]:
    """Use the states of a run, and wait, so that all of it is replayed."""
    names, facts = ctx.state.run("names", type=list[str]), ctx.state.run("facts", type=dict[str, int])
    seen: list[Any] = [await names.append("a", "b"), await facts.merge({"x": 1})]
    version = await names.set(["c"])
    try:
        await names.set(["d"], expected_version=version - 1)
    except StaleWriteError:
        seen.append("stale")
    await ctx.wait_signal("go")
    return [*seen, await names.get(), await facts.get()]


class HoldingCases(WorkflowGround):
    """Locks that runs hold while they sleep."""

    async def test_runs_hold_a_mutex_one_after_the_other(self, engine: sf.Engine, done: list[str]) -> None:
        """In the order in which they asked, whichever of them are in memory."""
        runs = [await engine.start(enters, "k", "a", id="a")]
        await until(runs[0], "suspended")
        for name in "bc":
            runs.append(await engine.start(enters, "k", name, id=name))
            await waits(runs[-1])
        for run in runs:
            await run.signal("go")
            await result_of(run)

        assert done == ["a in", "a out", "b in", "b out", "c in", "c out"]

    async def test_a_run_and_a_process_stand_in_one_line(self, engine: sf.Engine, client: sf.Engine) -> None:
        """The same key, the same line."""
        run = await engine.start(enters, "k", "run")
        await waits(run)
        waiting = asyncio.create_task(_passes(client, "k"))
        await run.signal("go")
        await result_of(run)

        assert await waiting > 0

    async def test_a_run_that_sleeps_holds_on(self, open_engine: OpenEngine, client: sf.Engine) -> None:
        """It is in no worker's memory, and still no other gets in."""
        engine = await open_engine(linger=0)
        run = await engine.start(enters, "k", "a")
        await waits(run)
        await engine.aclose()

        assert await _is_held(client, "k")

    async def test_a_run_that_fails_gives_its_locks_back(self, open_engine: OpenEngine, client: sf.Engine) -> None:
        """Also one that is ended by force."""
        engine = await open_engine(linger=0)
        run = await engine.start(enters, "k", "a")
        await waits(run)
        await client.cancel(run.id, force=True)

        await eventually(lambda: _is_free(client, "k"))

    async def test_a_run_waits_no_longer_than_it_says(self, open_engine: OpenEngine) -> None:
        """Then it leaves the line."""
        engine = await open_engine(impatient)
        async with engine.space.mutex("k").hold():
            assert await result_of(await engine.start(impatient, "k")) == "gave up"
        assert await result_of(await engine.start(impatient, "k")) == "held"

    async def test_a_lock_is_taken_away_after_its_longest_time(self, open_engine: OpenEngine, done: list[str]) -> None:
        """The run is told at its next operation, which does not happen."""
        engine = await open_engine(loses)
        assert await result_of(await engine.start(loses, "k")) == "lost"
        assert done == []

    async def test_a_run_does_not_wait_for_itself(self, open_engine: OpenEngine) -> None:
        """What it holds already is refused."""
        engine = await open_engine(enters_again)
        assert await result_of(await engine.start(enters_again, "k")) == "refused"

    async def test_runs_that_wait_for_each_other_are_told(self, open_engine: OpenEngine) -> None:
        """Exactly one gives way, and the other gets both."""
        engine = await open_engine(crosses, linger=0)
        runs = [await engine.start(crosses, "a", "b"), await engine.start(crosses, "b", "a")]
        for run in runs:
            await waits(run)
            await run.signal("go")

        assert sorted([await result_of(run) for run in runs]) == ["both", "gave way"]

    async def test_permits_bound_how_many_runs_are_inside(self, open_engine: OpenEngine, done: list[str]) -> None:
        """One more than there are waits."""
        engine = await open_engine(shares)
        runs = [await engine.start(shares, name) for name in "abc"]
        for run in runs:
            await waits(run)
        assert len(done) == 2

        for run in runs:
            await run.signal("go")
        for run in runs:
            await result_of(run)
        assert sorted(done) == ["+a", "+b", "+c"]

    async def test_readers_share_and_a_writer_is_alone(self, open_engine: OpenEngine, done: list[str]) -> None:
        """Readers are inside together; a writer waits for all of them."""
        engine = await open_engine(reads)
        runs = [await engine.start(reads, mode) for mode in ("read", "read")]
        for run in runs:
            await waits(run)
        writer = await engine.start(reads, "write")
        await waits(writer)
        assert done == ["+read", "+read"]

        for run in (*runs, writer):
            await run.signal("go")
        await result_of(writer)
        assert done == ["+read", "+read", "+write"]

    async def test_a_rate_is_kept(self, open_engine: OpenEngine, done: list[str]) -> None:
        """Three things at one in twenty milliseconds take at least forty."""
        engine = await open_engine(is_slow)
        run = await engine.start(is_slow)
        await result_of(run)

        assert done == ["0", "1", "2"]
        assert (await run.info()).seconds >= 0.039


class StateCases(WorkflowGround):
    """What runs keep, for themselves and in common."""

    async def test_each_change_of_a_shared_state_counts_once(self, open_engine: OpenEngine, client: sf.Engine) -> None:
        """However many runs change it, and however often each is replayed."""
        engine = await open_engine(counts, linger=0)
        runs = await asyncio.gather(*(engine.start(counts, 3) for _ in range(4)))
        results = [await result_of(run) for run in runs]

        assert max(results) == 12
        assert await client.state.workflow("counts", "visits", type=int).get() == 12

    async def test_a_states_answers_are_the_same_when_replayed(self, open_engine: OpenEngine) -> None:
        """Each call is recorded with what it answered."""
        engine = await open_engine(remembers, linger=0)
        run = await engine.start(remembers)
        await waits(run)
        await run.signal("go")

        assert await result_of(run) == [["a", "b"], {"x": 1}, "stale", ["c"], {"x": 1}]

    async def test_the_states_of_a_run_go_with_it(self, open_engine: OpenEngine, client: sf.Engine) -> None:
        """Others can look at them until it is purged."""
        engine = await open_engine(remembers)
        run = await engine.start(remembers)
        await run.signal("go")
        await result_of(run)
        assert await client.state.run(run.id, "names").get() == ["c"]

        await client.purge(run.id)
        assert await client.state.run(run.id, "names").get() is None


async def _passes(engine: sf.Engine, key: str) -> int:
    async with asyncio.timeout(SOON), engine.space.mutex(key).hold() as hold:
        return hold.fence


async def _is_held(engine: sf.Engine, key: str) -> bool:
    try:
        async with engine.space.mutex(key).try_hold():
            return False
    except WouldWaitError:
        return True


async def _is_free(engine: sf.Engine, key: str) -> bool:
    return not await _is_held(engine, key)

"""A fleet: several processes on one store, some of which go away, with a word or without."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import standfast as sf
from standfast.errors import StepInterruptedError
from standfast.testing.conformance.workflows.ground import (
    SOON,
    Doomed,
    WorkflowGround,
    eventually,
    result_of,
    until,
    waits,
)
from standfast.testing.conformance.workflows.samples import act, acts, collects, enters, parent, sleeps, takes_turns

if TYPE_CHECKING:
    from standfast.testing.conformance.workflows.ground import OpenEngine


@sf.workflow
async def begins(ctx: sf.Context) -> str:
    """Wait between two steps, in a step that never ends in the first process."""
    await ctx.step("before", act, "before")
    await ctx.wait_signal("go")
    return await ctx.step("after", act, "after")


@sf.step(semantics="at_most_once")
async def risky() -> str:
    """Hang, the first time."""
    await act("risky")
    await asyncio.Event().wait()
    return "never"


@sf.workflow
async def dares(ctx: sf.Context) -> str:
    """Do something that must not be done twice."""
    try:
        return await ctx.step(risky)
    except StepInterruptedError:
        return "interrupted"


class FleetCases(WorkflowGround):
    """Processes that work together."""

    async def test_a_run_is_driven_by_one_who_drives(self, engine: sf.Engine, client: sf.Engine) -> None:
        """Whichever process started it, it is taken up, and its result reaches the caller that waits for it."""
        run = await client.start(acts, ["a"])

        assert await result_of(run) == ["did a"]
        assert await engine.result(run.id, timeout=SOON) == ["did a"]

    async def test_every_run_is_driven_once(self, open_engine: OpenEngine, client: sf.Engine, done: list[str]) -> None:
        """Though several processes could."""
        for _ in range(2):
            await open_engine()
        runs = await asyncio.gather(*(client.start(acts, [str(n)]) for n in range(20)))
        for run in runs:
            await result_of(run)

        assert sorted(done) == sorted(map(str, range(20)))

    async def test_a_signal_reaches_a_run_elsewhere(self, open_engine: OpenEngine, client: sf.Engine) -> None:
        """Also one that is in no worker's memory."""
        engine = await open_engine(linger=0)
        run = await engine.start(collects, 2)
        await waits(run)
        await client.signal(run.id, "item", 1)
        await waits(run)
        await client.signal(run.id, "item", 2)

        assert await result_of(run) == [1, 2]

    async def test_a_process_that_stops_hands_its_runs_over(
        self, engine: sf.Engine, open_engine: OpenEngine, done: list[str]
    ) -> None:
        """Others go on with them at once; nothing is done again."""
        run = await engine.start(collects, 1)
        other = await open_engine()
        await engine.aclose()
        await other.signal(run.id, "item", "x")

        assert await other.result(run.id, timeout=SOON) == ["x"]
        assert done == []

    async def test_a_run_that_slept_while_nobody_was_there_goes_on(
        self, engine: sf.Engine, open_engine: OpenEngine, done: list[str]
    ) -> None:
        """The next worker takes up what is due."""
        run = await engine.start(sleeps, 0.02)
        await until(run, "suspended", "running")
        await engine.aclose(grace=0)
        await asyncio.sleep(0.02)

        other = await open_engine()
        assert await other.result(run.id, timeout=SOON) == "did after"
        assert done == ["before", "after"]

    async def test_a_run_waits_for_a_process_that_has_its_code(
        self, engine: sf.Engine, open_engine: OpenEngine
    ) -> None:
        """One that does not have it leaves it alone."""
        client = await open_engine(begins, drive=False)
        run = await client.start(begins)
        await run.signal("go")
        await result_of(await engine.start(acts, ["a"]))
        assert (await run.info()).status == "pending"

        await open_engine(begins)
        assert await result_of(run) == "did after"

    async def test_children_are_driven_anywhere(
        self, open_engine: OpenEngine, engine: sf.Engine, done: list[str]
    ) -> None:
        """A parent and its children need not be in one process."""
        await open_engine()
        run = await engine.start(parent, [str(n) for n in range(8)])

        assert await result_of(run) == [[f"did {n}"] for n in range(8)]
        assert len(done) == 8

    async def test_nothing_is_left_of_a_process_that_stopped(self, engine: sf.Engine, client: sf.Engine) -> None:
        """No worker, and nothing that it owned."""
        await result_of(await engine.start(acts, ["a"]))
        await engine.aclose()

        for kind in ("worker", "own", "fleet"):
            page = await client.space.scan(*client.space.key(kind).within(), limit=10)
            assert page.records == {}


class TakingOverCases(WorkflowGround):
    """Processes that go away without a word: others take over when the lease is over."""

    async def test_a_lost_worker_is_taken_over_from(
        self, doomed: Doomed, open_engine: OpenEngine, done: list[str]
    ) -> None:
        """Others do so by themselves; what was recorded is not done again."""
        run = await doomed.engine.start(sleeps, 3_600)
        await until(run, "running", "suspended")
        other = await open_engine()
        gone = await doomed.engine.start(collects, 1)
        await doomed.lose()
        await other.signal(gone.id, "item", "x")

        assert await other.result(gone.id, timeout=SOON) == ["x"]
        assert done == ["before"]

    async def test_what_a_lost_worker_writes_is_refused(
        self, short_lived: Doomed, open_engine: OpenEngine, done: list[str]
    ) -> None:
        """When it is back, its runs are in other hands: it cannot record anything for them."""
        run = await short_lived.engine.start(collects, 2)
        other = await open_engine()
        await short_lived.lose()
        await other.recover_all()
        short_lived.find()
        for value in ("x", "y"):
            await other.signal(run.id, "item", value)

        assert await other.result(run.id, timeout=SOON) == ["x", "y"]
        assert [entry.value for entry in await other.history(run.id) if entry.kind == "signal"] == ["x", "y"]
        assert done == []

    async def test_an_interrupted_step_of_at_most_once_is_not_run_again(
        self, open_engine: OpenEngine, short_lived: Doomed, done: list[str]
    ) -> None:
        """It is unknown whether it happened; the run is told."""
        short_lived.engine.register(dares)
        run = await short_lived.engine.start(dares)
        await eventually(lambda: _is(done == ["risky"]))
        await short_lived.lose()
        other = await open_engine(dares)

        assert await other.result(run.id, timeout=SOON) == "interrupted"
        assert done == ["risky"]

    async def test_locks_and_slots_outlive_a_lost_worker(
        self, short_lived: Doomed, open_engine: OpenEngine, done: list[str]
    ) -> None:
        """They belong to the runs: no other gets in before those have ended."""
        first = await short_lived.engine.start(enters, "k", "a")
        await waits(first)
        slot = await short_lived.engine.start(takes_turns, "t")
        await waits(slot)
        await short_lived.lose()
        other = await open_engine()
        second, next_slot = await other.start(enters, "k", "b"), await other.start(takes_turns, "t")
        for run_id in (first.id, slot.id, second.id, next_slot.id):
            await other.signal(run_id, "go", "!")

        assert await result_of(second) == "b"
        assert await result_of(next_slot) == "t !"
        assert [each for each in done if each != "t"] == ["a in", "a out", "b in", "b out"]


async def _is(condition: bool) -> bool:  # noqa: FBT001 -- a condition for eventually
    return condition

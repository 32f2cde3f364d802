"""Branches, children, and runs that go on as new ones."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import RunFailedError
from standfast.testing.conformance.workflows.ground import WorkflowGround, result_of, until, waits
from standfast.testing.conformance.workflows.samples import act, counts_down, fails, guardian, parent

if TYPE_CHECKING:
    from standfast.testing.conformance.workflows.ground import OpenEngine


async def branch(ctx: sf.Context, name: str) -> str:
    """Act twice, and sleep in between."""
    await ctx.step(act, f"{name}1")
    await ctx.sleep(0.005)
    return await ctx.step(act, f"{name}2")


async def broken() -> None:
    """Raise."""
    raise LookupError("broken")


@sf.workflow
async def gathers(ctx: sf.Context, names: list[str]) -> list[str]:
    """Act in branches."""
    return await ctx.gather(*(branch(ctx, name) for name in names))


@sf.workflow
async def gathers_failures(ctx: sf.Context, *, collect: bool) -> list[str]:
    """Let one branch fail beside another."""
    answers = await ctx.gather(branch(ctx, "a"), broken(), return_exceptions=collect)
    return [str(answer) for answer in answers]


@sf.workflow
async def races(ctx: sf.Context) -> tuple[int, Any]:
    """Let a signal race against an hour."""
    return await ctx.race(ctx.sleep("1 hour"), ctx.wait_signal("first"), ctx.wait_signal("second"))


@sf.workflow
async def nests(ctx: sf.Context) -> list[Any]:
    """Gather inside of a gather."""

    async def inner(name: str) -> list[str]:
        return await ctx.gather(branch(ctx, f"{name}x"), branch(ctx, f"{name}y"))

    return await ctx.gather(inner("a"), inner("b"))


@sf.workflow
async def has_a_failing_child(ctx: sf.Context) -> str:
    """Go on after a child has failed."""
    try:
        await ctx.child(fails, "no luck")
    except RunFailedError as problem:
        return f"{problem.__cause__!r}"
    return "it ended"


class BranchCases(WorkflowGround):
    """Several things of one run at a time."""

    async def test_branches_return_their_results_in_order(self, open_engine: OpenEngine, done: list[str]) -> None:
        """Whichever ends first; every step of each is done once."""
        engine = await open_engine(gathers, linger=0)
        run = await engine.start(gathers, ["a", "b", "c"])

        assert await result_of(run) == ["did a2", "did b2", "did c2"]
        assert sorted(done) == ["a1", "a2", "b1", "b2", "c1", "c2"]

    async def test_steps_of_branches_have_ids_of_their_own(self, open_engine: OpenEngine) -> None:
        """So that a replay knows them whatever their order was."""
        engine = await open_engine(gathers)
        run = await engine.start(gathers, ["a", "b"])
        await result_of(run)

        ids = {entry.id for entry in await run.history() if entry.kind == "step"}
        assert len(ids) == 4
        assert all("/" in each for each in ids)

    async def test_the_first_failure_ends_the_branches(self, open_engine: OpenEngine) -> None:
        """It is raised where they were gathered."""
        engine = await open_engine(gathers_failures)
        with pytest.raises(RunFailedError) as caught:
            await result_of(await engine.start(gathers_failures, kwargs={"collect": False}))
        assert isinstance(caught.value.__cause__, LookupError)

    async def test_failures_of_branches_can_be_collected(self, open_engine: OpenEngine) -> None:
        """Then all of them run to their end."""
        engine = await open_engine(gathers_failures)
        run = await engine.start(gathers_failures, kwargs={"collect": True})
        assert await result_of(run) == ["did a2", "broken"]

    async def test_the_first_of_a_race_wins(self, open_engine: OpenEngine) -> None:
        """The others are cancelled, and do not hold up the run."""
        engine = await open_engine(races, linger=0)
        run = await engine.start(races)
        await waits(run)
        await run.signal("second", "me")

        assert list(await result_of(run)) == [2, "me"]

    async def test_branches_have_branches(self, open_engine: OpenEngine, done: list[str]) -> None:
        """As deep as one likes."""
        engine = await open_engine(nests, linger=0)
        run = await engine.start(nests)

        assert await result_of(run) == [["did ax2", "did ay2"], ["did bx2", "did by2"]]
        assert len(done) == len(set(done)) == 8

    async def test_more_branches_than_one_commit_takes_changes(self, open_engine: OpenEngine, done: list[str]) -> None:
        """What they record is written in as many commits as it takes."""
        engine = await open_engine(gathers)
        names = [f"n{n}-" for n in range(40)]
        run = await engine.start(gathers, names)

        assert await result_of(run) == [f"did {name}2" for name in names]
        assert len(done) == len(set(done)) == 80


class ChildCases(WorkflowGround):
    """Runs that start runs."""

    async def test_children_return_to_their_parent(self, engine: sf.Engine, done: list[str]) -> None:
        """Each is a run of its own."""
        run = await engine.start(parent, ["a", "b", "c"])
        assert await result_of(run) == [["did a"], ["did b"], ["did c"]]

        page = await engine.list(parent=run.id)
        assert [(info.workflow, info.parent, info.status) for info in page.runs] == [("acts", run.id, "completed")] * 3
        assert sorted(done) == ["a", "b", "c"]

    async def test_many_children_are_waited_for(self, engine: sf.Engine) -> None:
        """More than one commit takes changes."""
        names = [str(n) for n in range(30)]
        assert await result_of(await engine.start(parent, names)) == [[f"did {name}"] for name in names]

    async def test_a_failing_child_is_told_to_its_parent(self, open_engine: OpenEngine) -> None:
        """With what it raised; the parent decides what follows."""
        engine = await open_engine(has_a_failing_child)
        run = await engine.start(has_a_failing_child)
        assert await result_of(run) == "ValueError('no luck')"

    async def test_a_parent_sleeps_while_its_child_waits(self, open_engine: OpenEngine) -> None:
        """Neither is in memory; news for the child wakes both."""
        engine = await open_engine(linger=0)
        run = await engine.start(guardian)
        await waits(run)
        [child] = (await engine.list(parent=run.id)).runs
        await waits(engine.run(child.id))
        await engine.signal(child.id, "item", "news")

        assert await result_of(run) == ["news"]

    async def test_a_cancelled_parent_cancels_its_children(self, engine: sf.Engine) -> None:
        """Nothing is left that waits for them."""
        run = await engine.start(guardian)
        await waits(run)
        [child] = (await engine.list(parent=run.id)).runs
        await run.cancel("enough")

        assert (await until(run, "cancelled")).cancel == "enough"
        await until(engine.run(child.id), "cancelled")


class ContinuingCases(WorkflowGround):
    """Runs that go on as new ones."""

    async def test_a_run_goes_on_as_a_new_one(self, engine: sf.Engine, done: list[str]) -> None:
        """The handle of the first one has the result of the last."""
        run = await engine.start(counts_down, 3, id="count")

        assert await result_of(run) == "zero"
        assert done == ["3", "2", "1", "0"]
        assert (await run.info()).continues

    async def test_each_of_them_has_a_history_of_its_own(self, engine: sf.Engine) -> None:
        """So that none grows for ever."""
        run = await engine.start(counts_down, 2, id="count")
        await result_of(run)

        infos = (await engine.list(workflow="counts_down")).runs
        histories = [await engine.history(info.id) for info in infos]
        assert len(infos) == 3
        assert [sum(entry.kind == "step" for entry in each) for each in histories] == [1, 1, 1]

    async def test_signals_follow_to_the_new_run(self, open_engine: OpenEngine) -> None:
        """None is lost that was sent to a run which went on as another one meanwhile."""
        engine = await open_engine(relays)
        run = await engine.start(relays.bind([]), id="relay")
        await asyncio.gather(*(run.signal("item", n) for n in range(6)))

        assert sorted(await result_of(run)) == list(range(6))

    async def test_a_start_with_the_id_of_one_that_went_on_is_the_same(self, engine: sf.Engine) -> None:
        """The chain is one run to the caller that starts it."""
        run = await engine.start(counts_down, 1, id="count")
        await result_of(run)
        again = await engine.start(counts_down, 1, id="count")

        assert not again.is_new
        assert await result_of(again) == "zero"


@sf.workflow
async def relays(ctx: sf.Context, taken: list[Any]) -> list[Any]:
    """Take two signals in each run, until there are six."""
    taken = [*taken, await ctx.wait_signal("item"), await ctx.wait_signal("item")]
    if len(taken) < 6:
        await ctx.continue_as_new(taken)
    return taken

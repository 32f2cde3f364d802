"""Starting runs again, forking them at a step, and letting them go on after they ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import standfast as sf
from standfast.errors import (
    DeclarationError,
    HoldTimeoutError,
    RunFailedError,
    RunNotFoundError,
    UnknownWorkflowError,
    WorkflowAlreadyExistsError,
)
from tests.unit.workflows.engines import BROKEN, DONE, WORKFLOWS, act, acts, collects, engine, sleeps, until


@sf.step(retry=sf.Retry(attempts=2, delay=0.0))
async def twice(name: str) -> str:
    """Try to act two times."""
    return str(await act.function(name))


@sf.step(semantics="at_most_once")
async def once(name: str) -> str:
    """Act at most once an attempt."""
    return str(await act.function(name))


@sf.workflow
async def careful(ctx: sf.Context) -> str:
    """Act, and clean up whatever happens."""
    try:
        return await ctx.step("risky", twice, "risky")
    finally:
        await ctx.step("cleanup", act, "cleanup")


@sf.workflow
async def branches(ctx: sf.Context) -> list[str]:
    """Act in two branches, one of which may fail."""

    async def branch(name: str) -> str:
        await ctx.step("one", act, f"{name}1")
        return await ctx.step("two", once, f"{name}2")

    return await ctx.gather(branch("a"), branch("b"))


@sf.workflow
async def parent(ctx: sf.Context) -> list[str]:
    """Let a child act."""
    await ctx.step("before", act, "before")
    return await ctx.child(acts, ["x", "y"])


@sf.workflow(timeout=0.1)
async def limited(ctx: sf.Context) -> str:
    """Wait for a signal for a tenth of a second at most."""
    await ctx.step("begin", act, "begin")
    result: str = await ctx.wait_signal("item")
    return result


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def guarded(ctx: sf.Context, name: str) -> str:
    """Act while holding a lock, one run at a time."""
    await ctx.step("before", act, f"before {name}")
    async with ctx.mutex("door"):
        await ctx.wait_signal("item")
        return await ctx.step("inside", act, name)


ALL = [*WORKFLOWS, guarded, careful, branches, parent, limited]


def opened_on(url: str, **options: Any) -> sf.Engine:
    """Return an engine that has all of these."""
    return engine(url, **{"workflows": ALL, **options})


# --- restart ------------------------------------------------------------------------------------------------------


async def test_a_restarted_run_does_everything_again(url: str) -> None:
    """A new run has the input of the old one, and knows where it came from."""
    async with opened_on(url) as opened:
        run = await opened.start(acts, ["x"], tags=["t"])
        await run.result()
        again = await opened.restart(run.id, id="again")
        assert await again.result() == ["x"]
        info = await again.info()
        assert (DONE, info.forked_from, info.tags) == (["x", "x"], run.id, ("t",))


async def test_a_run_is_restarted_with_the_only_code_that_is_there(url: str) -> None:
    """A changed version serves as well, if there is no choice and it takes the input."""

    @sf.workflow(name="acts", version="2")
    async def newer(ctx: sf.Context, names: list[str]) -> str:
        return await ctx.step("newer", act, "".join(names))

    async with engine(url, drive=False) as client, engine(url, workflows=[newer]) as worker:
        run = await client.start(acts, ["x", "y"])
        assert await (await worker.restart(run.id)).result() == "xy"
        with pytest.raises(UnknownWorkflowError):
            await worker.restart((await client.start(sleeps, 1)).id)


# --- fork ---------------------------------------------------------------------------------------------------------


async def test_a_fork_runs_only_what_comes_from_the_step_on(url: str) -> None:
    """Steps before it are recorded in the new run; the old run stays as it was."""
    async with opened_on(url) as opened:
        run = await opened.start(acts, ["x", "y", "z"])
        await run.result()
        DONE.clear()
        fork = await opened.fork(run.id, "y", id="fork")
        assert await fork.result() == ["x", "y", "z"]
        assert DONE == ["y", "z"]
        assert [entry.id for entry in await fork.history()] == ["x", "y", "z"]
        assert len(await run.history()) == 3


async def test_a_long_history_is_forked(url: str) -> None:
    """It is copied in as many commits as it takes."""
    names = [f"{n}" for n in range(500)]
    async with opened_on(url) as opened:
        run = await opened.start(acts, names)
        await run.result()
        DONE.clear()
        assert await (await opened.fork(run.id, "498")).result() == names
        assert DONE == ["498", "499"]


async def test_a_fork_in_a_branch_drops_what_came_later_in_all_branches(url: str) -> None:
    """What remains is how the history was at that moment."""
    async with opened_on(url) as opened:
        run = await opened.start(branches)
        await run.result()
        events = [entry.id for entry in await run.history()]
        DONE.clear()
        fork = await opened.fork(run.id, events[2])
        assert await fork.result() == ["a2", "b2"]
        assert sorted([entry.id for entry in await fork.history()]) == sorted(events)
        assert len(DONE) < 4


async def test_a_fork_starts_its_own_children(url: str) -> None:
    """A child whose end was not recorded at the step belongs to the old run."""
    async with opened_on(url) as opened:
        run = await opened.start(parent)
        await run.result()
        fork = await opened.fork(run.id, "acts")
        assert await fork.result() == ["x", "y"]
        assert DONE.count("before") == 1
        assert DONE.count("x") == 2


async def test_a_fork_needs_a_step_that_is_there_and_an_id_that_is_free(url: str) -> None:
    """Otherwise nothing is written; the error names the steps that there are."""
    async with opened_on(url) as opened:
        run = await opened.start(acts, ["x"])
        await run.result()
        with pytest.raises(DeclarationError, match="there are x"):
            await opened.fork(run.id, "y")
        with pytest.raises(WorkflowAlreadyExistsError):
            await opened.fork(run.id, "x", id=run.id)
        with pytest.raises(RunNotFoundError):
            await opened.fork("nobody", "x")
        assert len((await opened.list()).runs) == 1


async def test_of_several_forks_with_one_id_one_is_made(url: str) -> None:
    """The others are told; its history is of one piece."""
    async with opened_on(url) as one, opened_on(url) as two:
        run = await one.start(acts, ["x", "y"])
        await run.result()
        asked = (each.fork(run.id, "y", id="fork") for each in (one, two, one, two))
        made = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(each, sf.Run) for each in made) == 1
        assert await one.result("fork") == ["x", "y"]


# --- retry --------------------------------------------------------------------------------------------------------


async def test_a_failed_run_goes_on_at_the_step_that_failed(url: str) -> None:
    """Steps that were recorded do not run again."""
    async with opened_on(url) as opened:
        BROKEN.add("y")
        run = await opened.start(acts, ["x", "y", "z"])
        with pytest.raises(RunFailedError):
            await run.result()
        BROKEN.clear()
        assert (await opened.retry(run.id)).status in ("running", "completed")
        assert await run.result() == ["x", "y", "z"]
        assert DONE == ["x", "y", "y", "z"]


async def test_a_step_that_runs_again_has_all_its_attempts_and_so_does_what_cleaned_up(url: str) -> None:
    """Everything from the step on that failed is forgotten."""
    async with opened_on(url) as opened:
        BROKEN.add("risky")
        run = await opened.start(careful)
        with pytest.raises(RunFailedError):
            await run.result()
        await opened.retry(run.id)
        with pytest.raises(RunFailedError):
            await run.result()
        assert DONE == ["risky", "risky", "cleanup"] * 2
        BROKEN.clear()
        await opened.retry(run.id)
        assert await run.result() == "risky"


async def test_other_branches_keep_what_they_recorded(url: str) -> None:
    """Only the operation that failed is forgotten, and what came after it."""
    async with opened_on(url) as opened:
        BROKEN.add("a2")
        run = await opened.start(branches)
        with pytest.raises(RunFailedError):
            await run.result()
        BROKEN.clear()
        await opened.retry(run.id)
        assert await run.result() == ["a2", "b2"]
        assert (DONE.count("a1"), DONE.count("b1"), DONE.count("a2")) == (1, 1, 2)


async def test_children_that_failed_go_on_with_their_parent(url: str) -> None:
    """The child goes on from its own history, and the parent gets its result."""
    async with opened_on(url) as opened:
        BROKEN.add("y")
        run = await opened.start(parent)
        with pytest.raises(RunFailedError):
            await run.result()
        BROKEN.clear()
        await opened.retry(run.id)
        assert await run.result() == ["x", "y"]
        assert DONE == ["before", "x", "y", "y"]


async def test_a_cancelled_run_goes_on_where_it_was(url: str) -> None:
    """It waits for what it waited for, and signals reach it again."""
    async with opened_on(url) as opened:
        run = await opened.start(collects, 2)
        await run.signal("item", 1)
        await until(opened, run.id, "suspended")
        await run.cancel()
        await until(opened, run.id, "cancelled")
        info = await opened.retry(run.id)
        assert info.cancel is None
        await run.signal("item", 2)
        assert await run.result() == [1, 2]


async def test_a_run_that_timed_out_gets_its_time_again(url: str) -> None:
    """As much as it had at first."""
    async with opened_on(url) as opened:
        run = await opened.start(limited)
        await until(opened, run.id, "timed_out")
        await opened.retry(run.id)
        await run.signal("item", "in time")
        assert await run.result() == "in time"
        assert DONE == ["begin"]


async def test_a_completed_run_is_not_retried_and_an_unfinished_one_is_left(url: str) -> None:
    """There is nothing to go on with."""
    async with opened_on(url) as opened:
        run, other = await opened.start(acts, ["x"]), await opened.start(collects, 1)
        await run.result()
        with pytest.raises(DeclarationError, match="completed"):
            await opened.retry(run.id)
        await until(opened, other.id, "suspended")
        assert (await opened.retry(other.id)).status == "suspended"
        with pytest.raises(RunNotFoundError):
            await opened.retry("nobody")


async def test_a_run_can_go_on_from_an_earlier_step(url: str) -> None:
    """Everything from that step on runs again."""
    async with opened_on(url) as opened:
        BROKEN.add("z")
        run = await opened.start(acts, ["x", "y", "z"])
        with pytest.raises(RunFailedError):
            await run.result()
        BROKEN.clear()
        await opened.retry(run.id, step="y")
        assert await run.result() == ["x", "y", "z"]
        assert DONE == ["x", "y", "z", "y", "z"]


async def test_what_happened_inside_of_a_lock_is_not_gone_on_with(url: str) -> None:
    """The lock is in other hands by now; going on from the lock itself is possible, and enters its line again."""
    async with opened_on(url) as opened:
        BROKEN.add("a")
        run = await opened.start(guarded, "a", id="a")
        await run.signal("item")
        await until(opened, "a", "failed")
        for attempt in (opened.retry("a"), opened.fork("a", "inside")):
            with pytest.raises(DeclarationError, match="resume from 'mutex'"):
                await attempt
        BROKEN.clear()
        await opened.retry("a", step="mutex")
        await run.signal("item")
        assert await run.result() == "a"
        assert DONE == ["before a", "a", "a"]


async def test_a_run_that_learnt_at_the_end_of_a_lock_that_it_was_lost_keeps_its_history(url: str) -> None:
    """A retry is refused, nothing is cut, and going on from the lock does again what was done inside."""

    @sf.workflow
    async def loses(ctx: sf.Context) -> str:
        await ctx.step("before", act, "before")
        async with ctx.mutex("door"):
            await ctx.step("inside", act, "inside")
            await ctx.wait_signal("item")
        return await ctx.step("after", act, "after")

    async with opened_on(url, workflows=[loses]) as opened:
        run = await opened.start(loses, id="a")
        await until(opened, "a", "suspended")
        assert await opened.space.mutex("door").force_release("a:mutex")
        await run.signal("item")
        await until(opened, "a", "failed")
        before = await run.history()
        assert before[-2].kind == "released"
        assert before[-2].failure is not None
        with pytest.raises(DeclarationError, match="resume from 'mutex'"):
            await opened.retry("a")
        assert await run.history() == before
        await opened.retry("a", step="mutex")
        await run.signal("item")
        assert await run.result() == "after"
        assert DONE == ["before", "inside", "inside", "after"]


async def test_a_run_that_was_ended_by_force_inside_of_a_lock_is_not_gone_on_with(url: str) -> None:
    """Its history says that it holds what was given back since."""
    async with opened_on(url) as opened:
        run = await opened.start(guarded, "a", id="a")
        await until(opened, "a", "suspended")
        await run.cancel(force=True)
        with pytest.raises(DeclarationError, match="resume from 'mutex'"):
            await opened.retry("a")


async def test_a_run_that_gave_up_waiting_for_a_lock_before_can_be_forked_and_retried(url: str) -> None:
    """What it recorded of the lock that it did not get stays as it is."""

    @sf.workflow
    async def gives_up(ctx: sf.Context) -> str:
        try:
            async with ctx.mutex("door", timeout=0.01):
                return "held"
        except HoldTimeoutError:
            await ctx.step("late", act, "late")
        return await ctx.step("last", act, "last")

    async with opened_on(url, workflows=[gives_up]) as opened, opened.space.mutex("door").hold():
        BROKEN.add("last")
        run = await opened.start(gives_up, id="a")
        await until(opened, "a", "failed")
        BROKEN.clear()
        assert await (await opened.fork("a", "last")).result(timeout=5) == "last"
        await opened.retry("a")
        assert await run.result(timeout=5) == "last"
    assert DONE == ["late", "last", "last", "last"]


async def test_a_run_that_goes_on_waits_for_its_turn_again(url: str) -> None:
    """It left the line of its limit when it ended; while another one runs, it is pending."""
    async with opened_on(url) as opened:
        first = await opened.start(guarded, "a", id="a")
        await until(opened, "a", "suspended")
        second = await opened.start(guarded, "b", id="b")
        assert (await first.cancel(force=True)).status == "cancelled"
        await until(opened, "b", "suspended")
        assert (await opened.retry("a", step="mutex")).status == "pending"
        await second.signal("item")
        assert await second.result() == "b"
        await first.signal("item")
        assert await first.result() == "a"


async def test_a_run_is_restarted_with_another_input_that_fits_the_code() -> None:
    """The arguments are given by name; what the code does not take is refused before anything is written."""
    async with engine("memory://") as opened:
        await (await opened.start(acts, ["a"], id="first")).result(timeout="10s")
        again = await opened.restart("first", input={"names": ["b", "c"]})
        assert await again.result(timeout="10s") == await (await opened.start(acts, ["b", "c"])).result(timeout="10s")
        assert (await opened.get(again.id)).forked_from == "first"
        for wrong in ({"other": 1}, {}, {"names": 7}):
            with pytest.raises(sf.errors.StandfastError):
                await opened.restart("first", id="never", input=wrong)
        with pytest.raises(RunNotFoundError):
            await opened.get("never")

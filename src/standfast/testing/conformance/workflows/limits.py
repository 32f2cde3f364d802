"""Start limits: how many unfinished runs there are at a time, in all processes together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import RunCancelledError, WorkflowConcurrencyLimitExceededError
from standfast.testing.conformance.workflows.ground import WorkflowGround, result_of, until, waits
from standfast.testing.conformance.workflows.samples import act, takes_turns

if TYPE_CHECKING:
    from standfast.testing.conformance.workflows.ground import OpenEngine


def initial(name: str) -> str:
    """Return what runs have in common whose names begin alike."""
    return name[0]


def limited(name: str, *limits: sf.Limit) -> sf.Workflow[..., str]:
    """Return a workflow with limits, that waits for a signal."""

    @sf.workflow(name=name, concurrency=limits)
    async def waits_its_turn(ctx: sf.Context, name: str) -> str:
        await ctx.step(act, name)
        return f"{name} {await ctx.wait_signal('go')}"

    return waits_its_turn


TWO = limited("two", sf.Limit(2))
BY_NAME = limited("by-name", sf.Limit(1, key=initial))
BOTH = limited("both", sf.Limit(1, key=initial, on_limit="queue"), sf.Limit(2, on_limit="queue"))
QUEUED = limited("queued", sf.Limit(1, on_limit="queue", max_queued=2))
BRIEFLY = limited("briefly", sf.Limit(1, on_limit="queue", ttl=0.02))
LATEST = limited("latest", sf.Limit(1, on_limit="cancel_running"))
JOINED = limited("joined", sf.Limit(1, key=str, on_limit="join"))
CROWD = limited("crowd", sf.Limit(12, on_limit="queue"))
LIMITED = (TWO, BY_NAME, BOTH, QUEUED, BRIEFLY, LATEST, JOINED, CROWD)


async def ended(*runs: sf.Run[Any]) -> None:
    """Let runs go on to their ends."""
    for run in runs:
        await run.signal("go", "!")
    for run in runs:
        await result_of(run)


class StartLimitCases(WorkflowGround):
    """Runs that are too many."""

    @pytest.fixture
    async def engine(self, open_engine: OpenEngine) -> sf.Engine:
        """A process with limited workflows."""
        return await open_engine(*LIMITED)

    @pytest.fixture
    async def other(self, open_engine: OpenEngine) -> sf.Engine:
        """Another one."""
        return await open_engine(*LIMITED)

    async def test_one_too_many_is_refused(self, engine: sf.Engine, other: sf.Engine) -> None:
        """Until one has ended, in whichever process it was started."""
        first, second = await engine.start(TWO, "a"), await other.start(TWO, "b")
        for each in (engine, other):
            with pytest.raises(WorkflowConcurrencyLimitExceededError):
                await each.start(TWO, "c")
        await ended(first)

        await ended(second, await other.start(TWO, "c"))

    async def test_of_many_starts_at_once_as_many_as_fit_happen(self, engine: sf.Engine, other: sf.Engine) -> None:
        """Also if both processes start at the same moment."""
        answers = await asyncio.gather(
            *((engine, other)[n % 2].start(TWO, str(n)) for n in range(10)), return_exceptions=True
        )

        started = [answer for answer in answers if not isinstance(answer, BaseException)]
        assert len(started) == 2
        assert {type(each) for each in answers} == {sf.Run, WorkflowConcurrencyLimitExceededError}
        await ended(*started)

    async def test_each_key_has_a_limit_of_its_own(self, engine: sf.Engine) -> None:
        """One of a key is in the way of no other key."""
        runs = [await engine.start(BY_NAME, name) for name in ("a1", "b1")]
        with pytest.raises(WorkflowConcurrencyLimitExceededError) as caught:
            await engine.start(BY_NAME, "a2")
        assert caught.value.partition_key == "a"
        await ended(*runs)

    async def test_a_refused_start_leaves_nothing(self, engine: sf.Engine) -> None:
        """There is no run, and its id is free."""
        runs = [await engine.start(TWO, name) for name in "ab"]
        with pytest.raises(WorkflowConcurrencyLimitExceededError):
            await engine.start(TWO, "c", id="c")
        assert len((await engine.list(workflow="two")).runs) == 2
        await ended(*runs)
        assert (await engine.start(TWO, "c", id="c")).is_new

    async def test_who_waits_begins_in_order(self, engine: sf.Engine, done: list[str]) -> None:
        """First come, first served; a run says how many are in front of it."""
        runs = [await engine.start(QUEUED, name) for name in "abc"]
        assert [await run.place() for run in runs] == [None, 0, 1]
        assert (await runs[2].info()).status == "pending"
        await ended(*runs)

        assert done == ["a", "b", "c"]

    async def test_more_than_a_line_lists_are_counted(self, engine: sf.Engine, other: sf.Engine) -> None:
        """Of many that two processes start at once as many as fit begin; the others when those end."""
        runs = await asyncio.gather(*((engine, other)[n % 2].start(CROWD, str(n)) for n in range(18)))
        waiting = [run for run in runs if await run.place() is not None]
        assert len(waiting) == 6
        [limit] = [each for each in (await other.limits()).limits if each.workflow == "crowd"]
        assert (limit.max, limit.in_use, limit.waiting) == (12, 12, 6)
        await ended(*(run for run in runs if run not in waiting))
        await ended(*waiting)
        [limit] = [each for each in (await engine.limits()).limits if each.workflow == "crowd"]
        assert (limit.in_use, limit.waiting) == (0, 0)

    async def test_a_queue_may_be_full(self, engine: sf.Engine) -> None:
        """One more than may wait is refused."""
        runs = [await engine.start(QUEUED, name) for name in "abc"]
        with pytest.raises(WorkflowConcurrencyLimitExceededError):
            await engine.start(QUEUED, "d")
        await ended(*runs)

    async def test_one_that_waits_too_long_is_cancelled(self, engine: sf.Engine, done: list[str]) -> None:
        """Nothing of it was begun."""
        first, second = [await engine.start(BRIEFLY, name) for name in "ab"]
        with pytest.raises(RunCancelledError):
            await result_of(second)
        await ended(first)
        assert done == ["a"]

    async def test_the_end_of_a_run_elsewhere_lets_the_next_begin(self, engine: sf.Engine, other: sf.Engine) -> None:
        """Slots are handed on between processes."""
        first = await engine.start(QUEUED, "a")
        second = await other.start(QUEUED, "b")
        await ended(first)
        await until(second, "running", "suspended")
        await ended(second)

    async def test_a_cancelled_run_leaves_the_queue(self, engine: sf.Engine) -> None:
        """Those behind it move up."""
        runs = [await engine.start(QUEUED, name) for name in "abc"]
        await runs[1].cancel()
        assert await runs[2].place() == 0
        await ended(runs[0], runs[2])

    async def test_a_key_and_the_whole_are_limited_together(self, engine: sf.Engine, done: list[str]) -> None:
        """One that waits for its key takes no place of the others."""
        runs = {name: await engine.start(BOTH, name) for name in ("a1", "a2", "b1", "c1")}
        await waits(runs["b1"])
        assert sorted(done) == ["a1", "b1"]
        await ended(*runs.values())
        assert sorted(done) == ["a1", "a2", "b1", "c1"]

    async def test_the_latest_takes_the_place_of_the_one_before(self, engine: sf.Engine) -> None:
        """Which is cancelled first."""
        first = await engine.start(LATEST, "a")
        await waits(first)
        second = await engine.start(LATEST, "b")
        with pytest.raises(RunCancelledError):
            await result_of(first)
        await ended(second)

    async def test_one_too_many_can_join(self, engine: sf.Engine, other: sf.Engine) -> None:
        """It gets the handle of the run that is there."""
        first, second = await engine.start(JOINED, "a"), await other.start(JOINED, "a")

        assert (second.id, second.is_new) == (first.id, False)
        await ended(first)
        assert await result_of(second) == "a !"

    async def test_an_operator_changes_a_limit(self, engine: sf.Engine, other: sf.Engine) -> None:
        """For all processes, until it is cleared; more room lets waiting runs begin."""
        runs = [await engine.start(QUEUED, name) for name in "abc"]
        await other.set_limit(QUEUED, 3)
        for run in runs:
            await until(run, "running", "suspended")
        await other.clear_limit(QUEUED)
        await ended(*runs)

    async def test_a_smaller_limit_ends_nobody(self, engine: sf.Engine) -> None:
        """It takes effect as runs end."""
        runs = [await engine.start(TWO, name) for name in "ab"]
        await engine.set_limit(TWO, 1)
        await ended(runs[0])
        with pytest.raises(WorkflowConcurrencyLimitExceededError):
            await engine.start(TWO, "c")
        await ended(runs[1])
        await engine.start(TWO, "c")

    async def test_a_run_under_a_limit_goes_on_as_others_do(self, engine: sf.Engine) -> None:
        """Nothing is left of its place when it has ended."""
        for number in range(3):
            run = await engine.start(takes_turns, "a")
            await run.signal("go", number)
            assert await result_of(run) == f"a {number}"

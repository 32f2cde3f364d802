"""Runs of workflows: their steps, how they end, and that a crash changes nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import (
    DuplicateStepIdError,
    ResultTimeoutError,
    RunCancelledError,
    RunFailedError,
    RunNotFoundError,
    RunTimedOutError,
    StepTimeoutError,
    WorkflowAlreadyExistsError,
)
from standfast.testing.conformance.workflows.ground import WorkflowGround, result_of, until, waits
from standfast.testing.conformance.workflows.samples import (
    act,
    act_in_a_thread,
    acts,
    cleans_up,
    collects,
    fails,
    persists,
)
from standfast.testing.workflows import crash_everywhere

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.stores import Store
    from standfast.testing.conformance.workflows.ground import OpenEngine
    from standfast.testing.workflows import WorkflowEnvironment


@sf.step(timeout=0.01)
async def hangs() -> None:
    """Never end."""
    await asyncio.Event().wait()


@sf.workflow
async def gives_up(ctx: sf.Context) -> str:
    """Say what became of a step that takes too long."""
    try:
        await ctx.step(hangs)
    except StepTimeoutError as problem:
        return type(problem).__name__
    return "it ended"


@sf.workflow
async def chooses(ctx: sf.Context) -> list[str]:
    """Ask for the time and for chance, and wait in between."""
    chosen = [str(await ctx.now()), str(await ctx.uuid()), str((await ctx.random()).random())]
    ctx.on_query("chosen", lambda: chosen)
    await ctx.wait_signal("go")
    return chosen


@sf.workflow
async def mixes(ctx: sf.Context, name: str) -> list[str]:
    """Run steps of each kind, several times."""
    return [
        await ctx.step(act, name),
        await ctx.step(act, name),
        await ctx.step(act_in_a_thread, name),
        await ctx.step("named", act, name),
    ]


@sf.workflow
async def echoes(ctx: sf.Context, value: dict[str, list[Any]]) -> dict[str, list[Any]]:  # noqa: ARG001 -- it does nothing
    """Return what it was given."""
    return value


@sf.workflow
async def repeats_itself(ctx: sf.Context) -> None:
    """Give two steps one id."""
    for _ in range(2):
        await ctx.step("same", act, "same")


class RunningCases(WorkflowGround):
    """What a run does, and what is recorded of it."""

    async def test_a_run_returns_what_its_code_returns(self, engine: sf.Engine, done: list[str]) -> None:
        """Its steps were done, in order, and once each."""
        run = await engine.start(acts, ["a", "b", "c"])

        assert await result_of(run) == ["did a", "did b", "did c"]
        assert done == ["a", "b", "c"]

    async def test_steps_are_recorded_in_the_history(self, engine: sf.Engine) -> None:
        """Each with its id and its result, in the order in which they were done."""
        run = await engine.start(acts, ["a", "b"])
        await result_of(run)

        steps = [(entry.id, entry.value) for entry in await run.history() if entry.kind == "step"]
        assert steps == [("a", "did a"), ("b", "did b")]

    async def test_steps_are_told_apart_by_number_or_name(self, open_engine: OpenEngine) -> None:
        """The second of a name has a number, plain functions run in a thread, and a given id is kept."""
        engine = await open_engine(mixes)
        run = await engine.start(mixes, "x")
        assert await result_of(run) == ["did x"] * 4

        ids = [entry.id for entry in await run.history() if entry.kind == "step"]
        assert ids == ["act", "act#2", "act_in_a_thread", "named"]

    async def test_two_steps_cannot_have_one_id(self, open_engine: OpenEngine) -> None:
        """It would not be known which of them is recorded."""
        engine = await open_engine(repeats_itself)
        with pytest.raises(RunFailedError) as caught:
            await result_of(await engine.start(repeats_itself))
        assert isinstance(caught.value.__cause__, DuplicateStepIdError)

    @pytest.mark.parametrize("failures", [0, 1, 2])
    async def test_a_step_that_fails_is_tried_again(self, engine: sf.Engine, done: list[str], failures: int) -> None:
        """As often as it is declared, with a pause in between."""
        assert await result_of(await engine.start(persists, failures)) == "did it"
        assert done == ["it"] * (failures + 1)

    async def test_a_step_that_keeps_failing_fails_the_run(self, engine: sf.Engine, done: list[str]) -> None:
        """After its last attempt what it raised is raised in the run, and where its result is asked for."""
        with pytest.raises(RunFailedError) as caught:
            await result_of(await engine.start(persists, 99))
        assert isinstance(caught.value.__cause__, ConnectionError)
        assert done == ["it"] * 3

    async def test_a_step_that_takes_too_long_is_stopped(self, open_engine: OpenEngine) -> None:
        """The run can go on from it."""
        engine = await open_engine(gives_up)
        assert await result_of(await engine.start(gives_up)) == "StepTimeoutError"

    async def test_a_run_that_raises_has_failed(self, engine: sf.Engine) -> None:
        """What it raised comes back as itself, each time that it is asked for."""
        run = await engine.start(fails, "no luck")
        for _ in range(2):
            with pytest.raises(RunFailedError) as caught:
                await result_of(run)
            assert repr(caught.value.__cause__) == "ValueError('no luck')"
        assert (await run.info()).status == "failed"

    async def test_time_and_chance_are_recorded(self, open_engine: OpenEngine) -> None:
        """A run that was taken out of memory and replayed gets the same ones."""
        engine = await open_engine(chooses, linger=0)
        run = await engine.start(chooses)
        await waits(run)
        before = await run.query("chosen")
        await run.signal("go")

        assert await result_of(run) == before
        assert len(set(before)) == 3

    async def test_a_run_waits_for_its_delay(self, engine: sf.Engine, done: list[str]) -> None:
        """It is durable at once, and begins later."""
        late = await engine.start(acts, ["late"], delay="1 hour")
        soon = await engine.start(acts, ["soon"], delay=0.02)

        assert await result_of(soon) == ["did soon"]
        assert (await soon.info()).seconds >= 0.02
        assert (await late.info()).status == "pending"
        assert done == ["soon"]

    async def test_a_result_is_waited_for_no_longer_than_asked(self, engine: sf.Engine) -> None:
        """The run resumes."""
        run = await engine.start(collects, 1)
        with pytest.raises(ResultTimeoutError):
            await run.result(timeout=0.01)
        await run.signal("item", 1)
        assert await result_of(run) == [1]


class StartingCases(WorkflowGround):
    """Starting the same thing once."""

    async def test_a_start_with_the_same_id_is_the_same_run(self, engine: sf.Engine, done: list[str]) -> None:
        """Also when it has ended; the second start says that it is not new."""
        first = await engine.start(acts, ["a"], id="order-1")
        await result_of(first)
        again = await engine.start(acts, ["a"], id="order-1")

        assert (first.is_new, again.is_new, again.id) == (True, False, "order-1")
        assert await result_of(again) == ["did a"]
        assert done == ["a"]

    async def test_a_start_with_the_same_key_is_the_same_run(self, engine: sf.Engine, done: list[str]) -> None:
        """For runs whose id does not matter."""
        runs = [await engine.start(acts, ["a"], idempotency_key="request-7") for _ in range(3)]
        for run in runs:
            await result_of(run)

        assert len({run.id for run in runs}) == 1
        assert [run.is_new for run in runs] == [True, False, False]
        assert done == ["a"]

    async def test_another_input_with_the_same_id_is_refused(self, engine: sf.Engine) -> None:
        """It was not meant to be the same."""
        await engine.start(acts, ["a"], id="order-1")
        with pytest.raises(WorkflowAlreadyExistsError):
            await engine.start(acts, ["b"], id="order-1")

    async def test_of_many_who_start_the_same_one_does(self, open_engine: OpenEngine, done: list[str]) -> None:
        """However many ask at once, in both processes, there is one run."""
        engines = [await open_engine(), await open_engine()]

        runs = await asyncio.gather(*(engines[n % 2].start(acts, ["a"], id="order-1") for n in range(12)))

        assert sum(run.is_new for run in runs) == 1
        assert {tuple(await result_of(run)) for run in runs} == {("did a",)}
        assert done == ["a"]

    async def test_many_runs_are_started_at_once(self, engine: sf.Engine, done: list[str]) -> None:
        """Each does what it was started for."""
        runs = await asyncio.gather(*(engine.start(acts, [str(n)]) for n in range(40)))

        assert await asyncio.gather(*map(result_of, runs)) == [[f"did {n}"] for n in range(40)]
        assert sorted(done) == sorted(map(str, range(40)))

    async def test_arguments_and_results_come_back_as_they_were(self, open_engine: OpenEngine) -> None:
        """Whatever they are made of: nothing is lost in storage."""
        engine = await open_engine(echoes)
        value: dict[str, list[Any]] = {
            "words": ["", "\0", "é", "日本", "\U0001f512", "a" * 5_000, "';--"],
            "numbers": [2**60, -1, 0.1, None],
        }
        run = await engine.start(echoes, value, tags=["strange"])

        assert await result_of(run) == value
        info = await run.info()
        assert (info.input, info.result, info.tags) == ({"value": value}, value, ("strange",))

    async def test_a_run_that_is_not_there_is_not_found(self, engine: sf.Engine) -> None:
        """Whatever is asked of it."""
        missing = engine.run("not-there")
        for ask in (missing.info, missing.history, missing.result):
            with pytest.raises(RunNotFoundError):
                await ask()
        with pytest.raises(RunNotFoundError):
            await missing.signal("item")

    async def test_a_run_that_waits_is_in_nobodys_way(self, engine: sf.Engine, done: list[str]) -> None:
        """Others are started and end beside it."""
        slow = await engine.start(collects, 1)
        await result_of(await engine.start(acts, ["quick"]))
        await slow.signal("item", "late")

        assert await result_of(slow) == ["late"]
        assert done == ["quick"]


@sf.workflow
async def stubborn(ctx: sf.Context) -> str:
    """Go on though it was told to stop."""
    try:
        await ctx.wait_signal("never")
    except sf.RunCancelled:
        return await ctx.step(act, "went on")
    return "never"


@sf.workflow(timeout=0.02)
async def takes_too_long(ctx: sf.Context) -> None:
    """Wait for longer than it may."""
    try:
        await ctx.wait_signal("never")
    finally:
        await ctx.step("clean", act, "clean")


class CancellingCases(WorkflowGround):
    """Runs that do not come to the end of their code."""

    @pytest.mark.parametrize("linger", [0, 60], ids=["out of memory", "in memory"])
    async def test_a_cancelled_run_cleans_up(self, open_engine: OpenEngine, done: list[str], linger: float) -> None:
        """Its code is told where it waits; a caller that asks for its result is told, too."""
        engine = await open_engine(linger=linger)
        run = await engine.start(cleans_up)
        await until(run, "suspended" if linger == 0 else "running", "suspended")
        await run.cancel("enough")

        with pytest.raises(RunCancelledError):
            await result_of(run)
        assert done == ["clean"]
        assert (await run.info()).cancel == "enough"

    async def test_a_run_is_cancelled_from_elsewhere(
        self, engine: sf.Engine, client: sf.Engine, done: list[str]
    ) -> None:
        """By a process that does not drive it."""
        run = await engine.start(cleans_up)
        await client.cancel(run.id)

        with pytest.raises(RunCancelledError):
            await result_of(run)
        assert done in (["clean"], [])

    async def test_a_run_that_nobody_has_begun_ends_at_once(self, engine: sf.Engine, done: list[str]) -> None:
        """None of its code runs."""
        run = await engine.start(acts, ["a"], delay="1 hour")
        assert (await run.cancel()).status == "cancelled"
        assert done == []

    async def test_a_run_may_end_well_though_it_was_cancelled(self, open_engine: OpenEngine) -> None:
        """Its code has the last word."""
        engine = await open_engine(stubborn)
        run = await engine.start(stubborn)
        await waits(run)
        await run.cancel()
        assert await result_of(run) == "did went on"

    async def test_a_run_that_has_ended_is_left_as_it_is(self, engine: sf.Engine) -> None:
        """Cancelling it does nothing."""
        run = await engine.start(acts, ["a"])
        await result_of(run)
        assert (await run.cancel()).status == "completed"

    async def test_a_run_is_ended_by_force(self, engine: sf.Engine, client: sf.Engine, done: list[str]) -> None:
        """Whatever its code does, and nothing of it is run."""
        run = await engine.start(cleans_up)
        await waits(run)
        assert (await client.cancel(run.id, force=True)).status == "cancelled"

        with pytest.raises(RunCancelledError):
            await result_of(run)
        assert done == []

    async def test_a_run_that_takes_too_long_is_stopped(self, open_engine: OpenEngine, done: list[str]) -> None:
        """It can clean up, and a caller that asks is told."""
        engine = await open_engine(takes_too_long, linger=0)
        run = await engine.start(takes_too_long)

        with pytest.raises(RunTimedOutError):
            await result_of(run)
        assert done == ["clean"]
        assert (await run.info()).status == "timed_out"

    async def test_a_signal_that_comes_with_the_cancellation_is_not_taken(self, engine: sf.Engine) -> None:
        """A run that was told to stop waits for nothing more."""
        run = await engine.start(collects, 2)
        await run.signal("item", 1)
        await waits(run)
        await run.cancel()

        with pytest.raises(RunCancelledError):
            await result_of(run)


@sf.workflow
async def naps(ctx: sf.Context) -> str:
    """Sleep between two steps."""
    await ctx.step("before", act, "before")
    await ctx.sleep(0.005)
    return await ctx.step("after", act, "after")


@sf.workflow
async def guards(ctx: sf.Context) -> list[Any]:
    """Take a signal under a lock, and count it."""
    async with ctx.mutex("k"):
        found = await ctx.wait_signal("item")
        return [found, await ctx.state.run("count", type=int, initial=0).increment()]


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def delegates(ctx: sf.Context) -> list[Any]:
    """Let a child act beside a branch of its own, under a limit."""
    return await ctx.gather(ctx.child(acts, ["a"]), ctx.step("own", act, "own"))


async def send(_env: WorkflowEnvironment, run: sf.Run[Any]) -> None:
    """Send a signal, as a caller outside does."""
    await run.signal("item", "x", signal_id="once")


class CrashingCases(WorkflowGround):
    """A process that dies right before or right after each of its commits. Deaths are seen at once here."""

    async def test_steps_and_sleeps_survive_every_crash(self, open_another: Callable[[], Awaitable[Store]]) -> None:
        """What was recorded is not done again, and the end is the same."""
        survived = await crash_everywhere(naps, store=open_another)
        assert survived.crashes >= 4

    async def test_locks_and_states_survive_every_crash(self, open_another: Callable[[], Awaitable[Store]]) -> None:
        """The lock is taken once and given back, and the count is one."""
        survived = await crash_everywhere(guards, script=send, store=open_another)
        assert survived.crashes >= 4

    async def test_children_and_limits_survive_every_crash(self, open_another: Callable[[], Awaitable[Store]]) -> None:
        """The child is started once, and nothing is left of the limit."""
        survived = await crash_everywhere(delegates, workflows=[acts], store=open_another)
        assert survived.crashes >= 4

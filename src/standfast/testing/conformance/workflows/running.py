"""Running: steps are done once and recorded, and a run is started once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import (
    DuplicateStepIdError,
    ResultTimeoutError,
    RunFailedError,
    RunNotFoundError,
    StepTimeoutError,
    WorkflowAlreadyExistsError,
)
from standfast.testing.conformance.workflows.ground import WorkflowGround, result_of, waits
from standfast.testing.conformance.workflows.samples import act, act_in_a_thread, acts, collects, fails, persists

if TYPE_CHECKING:
    from standfast.testing.conformance.workflows.ground import OpenEngine


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
        """After its last attempt what it raised is raised in the run, and told whoever asks for the result."""
        with pytest.raises(RunFailedError) as caught:
            await result_of(await engine.start(persists, 99))
        assert isinstance(caught.value.__cause__, ConnectionError)
        assert done == ["it"] * 3

    async def test_a_step_that_takes_too_long_is_stopped(self, open_engine: OpenEngine) -> None:
        """The run can go on from it."""
        engine = await open_engine(gives_up)
        assert await result_of(await engine.start(gives_up)) == "StepTimeoutError"

    async def test_a_run_that_raises_has_failed(self, engine: sf.Engine) -> None:
        """What it raised comes back as itself, each time that somebody asks."""
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
        """The run goes on."""
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
        missing = engine.run("nobody")
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

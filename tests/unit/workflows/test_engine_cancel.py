"""Cancelling runs: politely, before they began, and by force."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import RunCancelledError, RunNotFoundError
from standfast.workflows import messages as sending
from standfast.workflows.activation import Activation
from standfast.workflows.control import RunCancelled
from standfast.workflows.termination import end_by_force
from tests.unit.workflows.engines import DONE, act, acts, collects, engine, has_children, sleeps, until

if TYPE_CHECKING:
    from standfast.workflows.queries import RunInfo

EVENTS: dict[str, asyncio.Event] = {}
"""What the step and the test tell each other; of the event loop of the test."""


@sf.step
async def blocks() -> str:
    """Wait for the test, whatever happens."""
    EVENTS["started"].set()
    try:
        await EVENTS["go"].wait()
    except asyncio.CancelledError:
        await EVENTS["go"].wait()
    return "late"


@sf.workflow
async def goes_on_for_ever(ctx: sf.Context, number: int) -> None:
    """Go on as a new run, again and again."""
    await ctx.step("number", act, str(number))
    await ctx.continue_as_new(number + 1)


@sf.workflow
async def goes_on_once_told(ctx: sf.Context, seconds: float) -> str:
    """Go on as a new run when it is cancelled."""
    try:
        await ctx.sleep(seconds)
    except asyncio.CancelledError:
        await ctx.continue_as_new(0.0)
    return "went on"


@sf.workflow
async def stubborn(ctx: sf.Context) -> None:
    """Do not stop when told to."""
    try:
        await ctx.step(blocks)
    finally:
        await ctx.step("cleanup", act, "cleanup")


async def test_a_run_cleans_up_when_it_is_cancelled(url: str) -> None:
    """Its code is told where it waits; whoever asks for the result is told why there is none."""
    async with engine(url) as opened:
        run = await opened.start(sleeps, 1e6)
        await until(opened, run.id, "suspended")
        await run.cancel("bored")
        with pytest.raises(RunCancelledError, match="bored"):
            await run.result()
        assert (await run.cancel("again")).cancel == "bored"


async def test_a_run_that_nobody_has_begun_ends_at_once(url: str) -> None:
    """No worker, and none of its code, is needed to cancel it."""
    async with engine(url, drive=False) as client:
        waiting, delayed = await client.start(acts, ["x"]), await client.start(acts, ["x"], delay=60)
        for run in (waiting, delayed):
            assert (await run.cancel()).status == "cancelled"
        async with engine(url) as worker:
            assert await (await worker.start(acts, ["y"])).result() == ["y"]
        assert DONE == ["y"]
        assert not (await client.space.scan(*client.space.key("timer").within(), limit=10)).records


async def test_a_run_that_is_taken_up_while_it_is_cancelled_is_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody had begun it when the cancellation looked; somebody has when it is written."""
    async with engine(url, drive=False) as client, AsyncExitStack() as workers:
        run = await client.start(sleeps, 1e6)

        async def later(*args: Any, **options: Any) -> Any:
            worker = await workers.enter_async_context(engine(url))
            await until(worker, run.id, "suspended")
            return await end_by_force(*args, **options)

        monkeypatch.setattr(sending, "end_by_force", later)
        await run.cancel("bored")
        assert (await until(client, run.id, "cancelled")).cancel == "bored"


async def test_a_chain_of_runs_is_cancelled_wherever_it_is(url: str) -> None:
    """A cancellation that comes too late for a run that goes on as a new one is for that one."""
    async with engine(url, workflows=[goes_on_for_ever]) as opened:
        for _ in range(10):
            run = await opened.start(goes_on_for_ever, 1)
            await run.cancel("enough")
            with pytest.raises(RunCancelledError, match="enough"):
                await run.result(timeout=10)


async def test_a_run_that_goes_on_because_it_was_cancelled_does_so(url: str) -> None:
    """Its code was told, and that is its answer; the new run is not cancelled again."""
    async with engine(url, workflows=[goes_on_once_told]) as opened:
        run = await opened.start(goes_on_once_told, 1e6)
        await until(opened, run.id, "suspended")
        await run.cancel("go on")
        assert await run.result() == "went on"


async def test_a_cancelled_child_tells_its_parent(url: str) -> None:
    """A child that was ended before it began does not keep its parent waiting."""
    async with engine(url, workflows=[has_children]) as opened:
        run = await opened.start(has_children, ["1"], id="a")
        child = (await until_listed(opened, run.id)).id
        assert (await opened.cancel(child)).status == "cancelled"
        assert (await until(opened, run.id, "failed")).failure is not None


async def until_listed(opened: sf.Engine, parent: str) -> RunInfo:
    """Wait until a run has a child."""
    async with opened.space.watch(opened.space.key("life")) as watch:
        while not (children := (await opened.list(parent=parent)).runs):
            await watch.wait(0.5)
    return children[0]


async def test_force_ends_a_run_whatever_its_code_does(url: str) -> None:
    """The run ends though a step is running; the step's late result is refused and nothing is cleaned up."""
    EVENTS.update(started=asyncio.Event(), go=asyncio.Event())
    async with engine(url, workflows=[stubborn]) as worker, engine(url, drive=False) as operator:
        run = await worker.start(stubborn)
        await EVENTS["started"].wait()
        assert (await operator.cancel(run.id, "stuck", force=True)).status == "cancelled"
        EVENTS["go"].set()
        with pytest.raises(RunCancelledError, match="stuck"):
            await run.result()
        while worker.runtime.loaded:  # noqa: ASYNC110 -- nothing tells when a run is out of memory
            await asyncio.sleep(0)
        assert (await run.info()).status == "cancelled"
        assert await run.history() == ()
        assert DONE == []


async def test_force_ends_everything_that_a_run_has_started(url: str) -> None:
    """Children and their children end with it."""
    async with engine(url) as opened:
        run = await opened.start(has_children, ["1", "2"], id="a")
        other = await opened.start(collects, 1, id="a.b")
        await until(opened, run.id, "suspended")
        await run.cancel(force=True)
        statuses = {each.id: each.status for each in (await opened.list()).runs}
        assert statuses.pop(other.id) != "cancelled"
        assert set(statuses.values()) == {"cancelled"}
        assert len(statuses) == 3


async def test_children_of_a_run_with_a_very_long_id_end_and_go_with_it(url: str) -> None:
    """Their ids are not made of its own, which has no room for more."""
    async with engine(url) as opened:
        run = await opened.start(has_children, ["1", "2"], id="a" * 240)
        await until(opened, run.id, "suspended")
        assert not any(each.id.startswith(f"{run.id}.") for each in (await opened.list(parent=run.id)).runs)
        await run.cancel(force=True)
        runs = (await opened.list()).runs
        assert [each.status for each in runs] == ["cancelled"] * 3
        assert await opened.purge(run.id) == 3
        assert (await opened.list()).runs == ()


async def test_what_has_ended_is_not_cancelled(url: str) -> None:
    """Neither politely nor by force; and one that never was is told."""
    async with engine(url) as opened:
        run = await opened.start(acts, ["x"])
        await run.result()
        assert (await run.cancel()).status == (await run.cancel(force=True)).status == "completed"
        with pytest.raises(RunNotFoundError):
            await opened.cancel("nobody")
        with pytest.raises(RunNotFoundError):
            await opened.cancel("nobody", force=True)


@pytest.mark.parametrize("workflow", [sleeps, stubborn])
async def test_one_that_is_told_before_its_code_begins_hears_of_it(
    workflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes a run up looks for news at once, and may find them before the first line of the code is run."""
    EVENTS.update(started=asyncio.Event(), go=asyncio.Event())
    EVENTS["go"].set()
    begin = Activation.run_code

    async def told_first(activation: Activation) -> Any:
        activation.cancel(RunCancelled("too early"))
        return await begin(activation)

    monkeypatch.setattr(Activation, "run_code", told_first)
    async with engine("memory://", workflows=[sleeps, stubborn]) as one:
        run = await one.start(workflow, *([3_600.0] if workflow is sleeps else []))
        with pytest.raises(RunCancelledError, match="too early"):
            await run.result(timeout=10)

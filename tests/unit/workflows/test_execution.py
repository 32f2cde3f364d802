"""What whoever waits for a run is told when it has no result."""

from __future__ import annotations

from typing import Any

import pytest

import standfast as sf
from standfast.errors import RunCancelledError, RunFailedError, RunTimedOutError
from standfast.testing.workflows import WorkflowEnvironment
from standfast.workflows import execution


@sf.workflow(timeout="1 minute")
async def waits(ctx: sf.Context) -> None:
    """Wait for longer than is allowed."""
    await ctx.wait_signal("never")


@sf.workflow
async def parent(ctx: sf.Context) -> None:
    """Wait for a child that does."""
    await ctx.child(waits)


async def test_a_time_out_says_how_much_time_there_was() -> None:
    """The error has the limit of the workflow, if its code is here."""
    async with WorkflowEnvironment(workflows=[waits]) as env:
        run = await env.start(waits)
        with pytest.raises(RunTimedOutError, match="within 60 s"):
            await env.result(run)
        with pytest.raises(RunTimedOutError, match="within 60 s"):
            await env.client.result(run.id)


async def test_a_parent_is_told_that_its_child_timed_out() -> None:
    """The error of the child is what caused that of its parent, as itself."""
    async with WorkflowEnvironment(workflows=[parent, waits]) as env:
        with pytest.raises(RunFailedError) as failed:
            await env.result(await env.start(parent, id="a"))

    assert isinstance(of_child := failed.value.__cause__, RunFailedError)
    assert isinstance(of_child.__cause__, RunTimedOutError)
    assert of_child.__cause__.run_id == "a.waits"


async def test_a_parent_is_told_why_its_child_was_cancelled() -> None:
    """The reason reaches it."""
    async with WorkflowEnvironment(workflows=[parent, waits]) as env:
        run = await env.start(parent, id="a")
        await env.settle()
        await env.client.cancel("a.waits", "it rains")
        with pytest.raises(RunFailedError, match="it rains") as failed:
            await env.result(run)

    assert isinstance(of_child := failed.value.__cause__, RunFailedError)
    assert isinstance(of_child.__cause__, RunCancelledError)


def test_a_time_out_of_code_that_is_not_here_says_so_without_a_number() -> None:
    """Zero seconds would be wrong."""
    assert str(RunTimedOutError("a", 0.0)) == "the run 'a' did not end in time"


@sf.workflow
async def ends(_ctx: sf.Context) -> str:
    """End at once."""
    return "over"


async def test_news_that_come_while_the_end_is_written_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is gone by the time that a look would come to its inbox."""
    polls: list[bool] = []
    real = execution._write_state

    async def write(activation: Any, *args: Any) -> object:
        activation.notify()
        polls.append(activation.inbox_poll.is_polling)
        return await real(activation, *args)

    monkeypatch.setattr(execution, "_write_state", write)
    async with sf.Engine("memory://", workflows=[ends]) as engine:
        assert await (await engine.start(ends)).result() == "over"

    assert polls == [False]

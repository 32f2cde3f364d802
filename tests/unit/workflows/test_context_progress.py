"""Progress: the last word of a run about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import EncodeError, RunFailedError
from standfast.testing.workflows import WorkflowEnvironment

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of its own."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'runs.db'}"


def opened(url: str) -> WorkflowEnvironment:
    """All workflows of this module, on a store."""
    return WorkflowEnvironment(WORKFLOWS, store=url, linger=0)


@sf.workflow
async def slow(ctx: sf.Context) -> None:
    """Say how far it is, each hour."""
    for done in range(4):
        ctx.set_progress("a word that nobody sees")
        ctx.set_progress({"done": done, "of": 4})
        await ctx.sleep("1 hour")
    ctx.set_progress("all done")


@sf.workflow
async def quick(ctx: sf.Context) -> None:
    """Say something and end."""
    ctx.set_progress("over")


@sf.workflow
async def wrong(ctx: sf.Context) -> None:
    """Say what cannot be said."""
    with pytest.raises(EncodeError):
        ctx.set_progress({1, 2})
    ctx.set_progress("x" * 70_000)


WORKFLOWS: list[Any] = [slow, quick, wrong]


async def test_the_last_word_of_a_run_is_seen_while_it_waits_and_when_it_has_ended(url: str) -> None:
    """It is written with the next commit, through replays and crashes, and stays at the end."""
    async with opened(url) as env:
        run = await env.start(slow)
        for done in range(4):
            await env.settle()
            assert (await run.info()).progress == {"done": done, "of": 4}
            await env.crash()
            assert (await run.info()).progress == {"done": done, "of": 4}
            await env.restart()
            await env.advance("1 hour")
        await run.result()
        assert (await run.info()).progress == "all done"


async def test_a_run_that_never_waits_is_heard_too(url: str) -> None:
    """What is said last is written by the commit that ends the run; one that says nothing has no progress."""
    async with opened(url) as env:
        run = await env.start(quick)
        await env.result(run)
        assert (await run.info()).progress == "over"


async def test_what_cannot_be_stored_is_refused(url: str) -> None:
    """Progress is JSON-shaped, and short."""
    async with opened(url) as env:
        with pytest.raises(RunFailedError) as failed:
            await env.result(await env.start(wrong))
    assert isinstance(failed.value.__cause__, EncodeError)

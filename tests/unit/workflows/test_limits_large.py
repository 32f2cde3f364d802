"""Limits of more runs than a line lists: they are counted, and everything goes as with a few."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import RunFailedError, WorkflowConcurrencyLimitExceededError
from standfast.locks.line_records import FEW_HOLDERS, LIMIT
from standfast.locks.survey import read_lines
from standfast.testing.workflows import WorkflowEnvironment
from tests.unit.workflows.engines import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MANY = FEW_HOLDERS + 4


@sf.workflow(concurrency=sf.Limit(100_000))
async def crowd(ctx: sf.Context, name: str) -> str:
    """Wait for a signal, very many at a time."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=sf.Limit(MANY))
async def bounded(ctx: sf.Context, name: str) -> str:
    """Wait for a signal."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=sf.Limit(MANY, on_limit="queue"))
async def queued(ctx: sf.Context, name: str) -> str:
    """Wait for a signal, the others wait meanwhile."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=sf.Limit(MANY, on_limit="join"))
async def joined(ctx: sf.Context, name: str) -> str:
    """Wait for a signal, for all that come too late as well."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=sf.Limit(MANY, on_limit="cancel_running"))
async def newest(ctx: sf.Context, name: str) -> str:
    """Wait for a signal, or for a newer one."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=sf.Limit(FEW_HOLDERS + 1, on_limit="queue"))
async def nested(ctx: sf.Context, depth: int) -> int:
    """Wait for a child that needs a place beside this one."""
    return 0 if depth == 0 else await ctx.child(nested, depth - 1)


@pytest.fixture
async def engine(url: str) -> AsyncIterator[sf.Engine]:
    """An engine with limited workflows."""
    workflows = [crowd, bounded, queued, joined, newest]
    async with sf.Engine(url, workflows=workflows, worker=sf.admin.WorkerLimits(linger=0.01)) as opened:
        yield opened


async def in_use(engine: sf.Engine, workflow: str) -> int:
    """Count the runs that have a place."""
    page = await read_lines(engine.space, LIMIT, workflow)
    return sum(each.holders for each in page.lines)


async def test_more_runs_than_one_record_lists_are_unfinished_at_a_time(engine: sf.Engine) -> None:
    """All of them hold a place, are counted, and leave it when they end."""
    runs = [await engine.start(crowd, str(number), id=f"run-{number}") for number in range(420)]
    assert await in_use(engine, "crowd") == 420
    [limit] = [each for each in (await engine.limits()).limits if each.workflow == "crowd"]
    assert (limit.max, limit.in_use) == (100_000, 420)
    for run in runs:
        await engine.signal(run.id, "go", "!")
    assert [await run.result() for run in runs] == [f"{number}!" for number in range(420)]
    assert await in_use(engine, "crowd") == 0


async def test_the_limit_is_kept_whoever_is_counted(engine: sf.Engine) -> None:
    """One more is refused; when one that is counted has ended, there is room."""
    for number in range(MANY):
        await engine.start(bounded, "x", id=f"run-{number:02}")
    with pytest.raises(WorkflowConcurrencyLimitExceededError):
        await engine.start(bounded, "x", id="late")
    await engine.signal(f"run-{MANY - 1}", "go", "!")
    await engine.run(f"run-{MANY - 1}").result()
    await engine.start(bounded, "x", id="late")
    assert await in_use(engine, "bounded") == MANY


async def test_waiting_runs_have_their_turns_in_order_as_counted_ones_end(engine: sf.Engine) -> None:
    """The place of each goes to the first that waits, also if that one is counted then."""
    for number in range(MANY + 3):
        await engine.start(queued, "x", id=f"run-{number:02}")
    assert [(await engine.get(f"run-{MANY + n:02}")).status for n in range(3)] == ["pending"] * 3
    for number in (MANY - 1, 0, MANY - 2):
        await engine.signal(f"run-{number:02}", "go", "!")
        await engine.run(f"run-{number:02}").result()
    for number in range(MANY, MANY + 3):
        await engine.signal(f"run-{number:02}", "go", "!")
        assert await engine.run(f"run-{number:02}").result() == "x!"


async def test_the_oldest_is_joined_wherever_it_is_listed(engine: sf.Engine) -> None:
    """Also when the oldest is one that is only counted."""
    for number in range(MANY):
        await engine.start(joined, "x", id=f"run-{99 - number}")
    assert (await engine.start(joined, "x")).id == "run-99"
    for number in range(FEW_HOLDERS):
        await engine.signal(f"run-{99 - number}", "go", "!")
        await engine.run(f"run-{99 - number}").result()
        await engine.start(joined, "x", id=f"new-{number}")
    assert (await engine.start(joined, "x")).id == f"run-{99 - FEW_HOLDERS}"


async def test_the_oldest_is_cancelled_wherever_it_is_listed(engine: sf.Engine) -> None:
    """Just one, and the new run takes its place."""
    for number in range(MANY):
        await engine.start(newest, "x", id=f"run-{99 - number}")
    for number in range(FEW_HOLDERS + 1):
        await engine.start(newest, "x", id=f"new-{number}")
        await until(engine, f"run-{99 - number}", "cancelled")
    assert await in_use(engine, "newest") == MANY
    assert (await engine.get(f"run-{99 - FEW_HOLDERS - 1}")).status != "cancelled"


@pytest.mark.parametrize("verb", ["cancel", "force", "purge", "restart", "erase"])
async def test_an_operator_frees_the_place_of_one_that_is_counted(engine: sf.Engine, verb: str) -> None:
    """Whatever is done to it, none is counted that is not there."""
    for number in range(MANY):
        await engine.start(bounded, "x", id=f"run-{number:02}")
    last = f"run-{MANY - 1}"
    if verb == "purge":
        await engine.purge(last, force=True)
    else:
        await engine.cancel(last, "enough", force=verb != "cancel")
        await until(engine, last, "cancelled")
    if verb == "erase":
        await engine.purge(last)
    assert await in_use(engine, "bounded") == MANY - 1
    if verb == "restart":
        await engine.restart(last)
        assert await in_use(engine, "bounded") == MANY
    else:
        await engine.start(bounded, "x", id="another")
    with pytest.raises(WorkflowConcurrencyLimitExceededError):
        await engine.start(bounded, "x", id="late")


async def test_a_smaller_limit_ends_none_that_is_counted(engine: sf.Engine) -> None:
    """They go on; nobody comes in until as many have left, and a larger one lets the next in at once."""
    for number in range(MANY + 1):
        await engine.start(queued, "x", id=f"run-{number:02}")
    await engine.set_limit(queued, 2)
    await engine.signal(f"run-{MANY - 1}", "go", "!")
    await engine.run(f"run-{MANY - 1}").result()
    assert (await engine.get(f"run-{MANY}")).status == "pending"
    await engine.clear_limit(queued)
    await engine.signal(f"run-{MANY}", "go", "!")
    assert await engine.run(f"run-{MANY}").result() == "x!"


async def test_a_run_that_would_wait_for_its_counted_parents_is_refused() -> None:
    """All places are held by runs that wait for it: that would never end."""
    async with WorkflowEnvironment([nested]) as env:
        assert await env.result(await env.start(nested, FEW_HOLDERS)) == 0
        with pytest.raises(RunFailedError, match="WorkflowConcurrencyLimitExceededError"):
            await env.result(await env.start(nested, FEW_HOLDERS + 1))

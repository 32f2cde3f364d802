"""Start limits and crashes: at whichever commit a process dies, no place is lost and none is given twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

import standfast as sf
from standfast.errors import WorkflowConcurrencyLimitExceededError
from standfast.stores.protocol import Delete, Put
from standfast.testing.workflows import WorkflowEnvironment, crash_everywhere
from standfast.workflows.records import RUN_STATES, RunKeys

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def gated(ctx: sf.Context, name: str) -> str:
    """Wait for a signal, one after the other."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=[sf.Limit(1, key=lambda name: name[0], on_limit="queue"), sf.Limit(1, on_limit="queue")])
async def by_both(ctx: sf.Context, name: str) -> str:
    """Wait for a signal: one run of each first letter, and one in all, at a time."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=sf.Limit(1, on_limit="cancel_running"))
async def latest(ctx: sf.Context, name: str) -> str:
    """Wait for a signal, unless a newer one comes."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=1)
async def alone(ctx: sf.Context, name: str) -> str:
    """Wait for a signal, one run at a time."""
    return f"{name}{await ctx.wait_signal('go')}"


WORKFLOWS = [gated, by_both, latest, alone]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str] | None:
    """How to make a new store, again and again."""
    numbers = iter(range(1_000))
    return None if request.param == "memory" else lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db"


async def lines(env: WorkflowEnvironment) -> list[Any]:
    """Return what is left of lines."""
    found: list[Any] = []
    for kind in ("line", "ticket", "grant"):
        found += (await env.client.space.scan(*env.client.space.key(kind).within(), limit=100)).records
    return found


async def behind(env: WorkflowEnvironment, first: sf.Run[Any], workflow: sf.Workflow[..., Any], *names: str) -> None:
    """Start more runs behind one, let all of them have their turns in order, and see that nothing is left."""
    runs = [first, *[await env.client.start(workflow, name, id=name) for name in names]]
    for run in runs:
        await run.signal("go", "!")
    for run, name in zip(runs[1:], names, strict=True):
        assert await env.result(run) == f"{name}!"
    assert await lines(env) == []


async def test_a_queue_survives_crashes(store: Callable[[], str] | None) -> None:
    """Every run has its turn, whichever commit is the last one of a process."""

    async def script(env: WorkflowEnvironment, run: sf.Run[Any]) -> None:
        await behind(env, run, gated, "b", "c")

    assert (await crash_everywhere(gated, "a", script=script, store=store)).crashes > 4


async def test_two_lines_survive_crashes(store: Callable[[], str] | None) -> None:
    """No run is left in one line without having been let into the other."""

    async def script(env: WorkflowEnvironment, run: sf.Run[Any]) -> None:
        await behind(env, run, by_both, "a2", "b1")

    assert (await crash_everywhere(by_both, "a1", script=script, store=store)).crashes > 4


async def test_a_crashed_run_holds_its_place_until_it_has_ended() -> None:
    """While nobody drives it a start is refused; when another process has completed it, the next start succeeds."""
    async with WorkflowEnvironment(workflows=WORKFLOWS) as env:
        run = await env.start(alone, "a")
        await env.crash()
        with pytest.raises(WorkflowConcurrencyLimitExceededError):
            await env.client.start(alone, "b")

        await env.restart()
        await run.signal("go", "!")
        assert await env.result(run) == "a!"

        assert (await env.client.start(alone, "b")).is_new


async def test_a_driver_that_lost_its_run_frees_nothing() -> None:
    """Whoever was taken for dead neither ends the run nor gives its place away."""
    async with WorkflowEnvironment(workflows=WORKFLOWS) as env:
        run = await env.start(alone, "a")
        await env.settle()
        space, worker = env.client.space, env.engine.runtime.worker
        assert worker is not None
        keys = RunKeys(space, run.id)
        seen = await space.read(own := keys.own(worker.presence), keys.state)
        taken = structs.replace(RUN_STATES.decode(seen.records[keys.state].value), owner="somebody.1")
        put = Put(keys.state, RUN_STATES.encode(taken), seen.version(keys.state))
        await space.commit(Delete(own, seen.version(own)), put)
        await run.signal("go", "!")
        await env.settle()

        assert (await run.info()).status == "running"
        with pytest.raises(WorkflowConcurrencyLimitExceededError):
            await env.client.start(alone, "b")

"""Workflows that schedules start in tests, and what the tests ask about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import standfast as sf
from standfast.testing.workflows import WorkflowEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.events import Event


@sf.workflow
async def report(ctx: sf.Context, place: str = "") -> str:
    """End at once."""
    return f"{place}{await ctx.uuid()}"[: len(place)]


@sf.workflow
async def slow(ctx: sf.Context) -> str:
    """Take a minute and a half."""
    await ctx.sleep("90 seconds")
    return "done"


@sf.workflow
async def stubborn(ctx: sf.Context) -> None:
    """Clean up for half a minute when it is cancelled."""
    try:
        await ctx.sleep("1 day")
    finally:
        await ctx.sleep("30 seconds")


@sf.workflow(concurrency=1)
async def alone(ctx: sf.Context) -> None:
    """Take a minute and a half, one run at a time."""
    await ctx.sleep("90 seconds")


@sf.workflow
async def failing(ctx: sf.Context) -> None:
    """Fail."""
    raise ValueError(await ctx.now())


@sf.workflow
async def dated(ctx: sf.Context) -> str:
    """Tell for which moment it was started."""
    return str(ctx.scheduled_at)


WORKFLOWS = (report, slow, stubborn, alone, failing, dated)


def environment(told: list[Event] | None = None, *, store: str = "memory://") -> WorkflowEnvironment:
    """Return an environment with these workflows."""
    hooks = [] if told is None else [told.append]
    return WorkflowEnvironment(WORKFLOWS, hooks=hooks, store=store)


async def statuses(env: WorkflowEnvironment) -> list[str]:
    """Return how all runs are, in the order of their ids."""
    return [run.status for run in sorted((await env.client.list()).runs, key=lambda run: run.id)]


async def runs(env: WorkflowEnvironment) -> list[str]:
    """Return the ids of all runs, in their order."""
    return sorted(run.id for run in (await env.client.list()).runs)


def named(told: Iterable[Event], kind: type[Event]) -> list[Event]:
    """Return the events of one kind."""
    return [event for event in told if isinstance(event, kind)]

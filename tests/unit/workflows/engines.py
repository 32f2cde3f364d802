"""Engines for tests, workflows that tell what they did, and how to wait for a run to be so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import standfast as sf

if TYPE_CHECKING:
    from standfast.workflows.queries import RunInfo

DONE: list[str] = []
"""What steps did, in order."""

BROKEN: set[str] = set()
"""Steps that raise."""


@sf.step
async def act(name: str) -> str:
    """Do something that others see."""
    DONE.append(name)
    if name in BROKEN:
        raise ValueError(name)
    return name


@sf.workflow
async def acts(ctx: sf.Context, names: list[str]) -> list[str]:
    """Do one thing after another."""
    return [await ctx.step(name, act, name) for name in names]


@sf.workflow
async def collects(ctx: sf.Context, count: int) -> list[Any]:
    """Take so many signals."""
    return [await ctx.wait_signal("item") for _ in range(count)]


@sf.workflow
async def sleeps(ctx: sf.Context, seconds: float) -> str:
    """Sleep, then act."""
    await ctx.sleep(seconds)
    return await ctx.step("after", act, "after")


@sf.workflow
async def has_children(ctx: sf.Context, names: list[str]) -> list[Any]:
    """Start a child for each name at once."""
    return await ctx.gather(*(ctx.child(collects, int(name)) for name in names))


WORKFLOWS = [acts, collects, sleeps, has_children]


def engine(url: str, *, linger: float = 0.01, max_loaded: int = 10_000, **options: Any) -> sf.Engine:
    """Return an engine that has the workflows above."""
    worker = sf.admin.WorkerLimits(linger=linger, max_loaded=max_loaded)
    return sf.Engine(url, **{"workflows": WORKFLOWS, "worker": worker, **options})


async def until(engine: sf.Engine, run_id: str, *statuses: str) -> RunInfo:
    """Wait until a run is in one of these states."""
    async with engine.space.watch(engine.space.key("life", run_id)) as watch:
        while (info := await engine.get(run_id)).status not in statuses:
            await watch.wait(0.5)
    return info

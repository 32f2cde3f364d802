"""``ctx.log``: a run's own log, each line once however often its code is replayed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.events import Event, RunMoved

if TYPE_CHECKING:
    from pathlib import Path


async def nothing() -> None:
    """Do nothing."""


def in_a_thread(log: Any) -> None:
    """Log from a plain function, which runs in a thread."""
    log.warning("in a step")


@sf.workflow
async def talks(ctx: sf.Context) -> str:
    """Log between operations of every kind."""
    ctx.on_update("add", lambda number: ctx.log.info("update %d", number))
    ctx.on_query("how", lambda: "well")
    ctx.log.info("begins")
    await ctx.step(nothing)
    ctx.log.info("waits")
    first = await ctx.wait_signal("go")
    ctx.log.info("goes on with %s", first)
    await ctx.sleep(0.3)
    ctx.log.info("slept")
    return "done"


@sf.workflow
async def branches(ctx: sf.Context) -> None:
    """Log in a step, and in branches."""

    async def branch() -> None:
        ctx.log.info("in a branch")
        await ctx.step(in_a_thread, ctx.log)

    await ctx.gather(branch(), branch())


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, __name__)


def own(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the workflows of this module have logged."""
    return [record.getMessage() for record in caplog.records if record.name == __name__]


async def test_each_line_is_logged_once_over_any_number_of_workers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither replay, nor coming to a wait again, nor a copy that is queried repeats one."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    suspended = asyncio.Event()

    def watch(event: Event) -> None:
        if isinstance(event, RunMoved) and event.status == "suspended":
            suspended.set()

    async with sf.Engine(url, workflows=[talks], worker=sf.admin.WorkerLimits(linger=0), hooks=[watch]) as engine:
        run = await engine.start(talks, id="t-1")
        await suspended.wait()
        await run.query("how")
    assert own(caplog) == ["begins", "waits"]
    async with sf.Engine(url, workflows=[talks], worker=sf.admin.WorkerLimits(linger=0)) as engine:
        run = engine.run("t-1")
        await run.update("add", 7)
        await run.signal("go", "news")
        assert await run.result() == "done"
    assert own(caplog) == ["begins", "waits", "update 7", "goes on with news", "slept"]


async def test_a_line_says_where_it_comes_from(caplog: pytest.LogCaptureFixture) -> None:
    """The run, the workflow, the branch, the step and the fence, in one shape."""
    async with sf.Engine("memory://", workflows=[branches]) as engine:
        await (await engine.start(branches, id="b-1")).result()
    fields = [vars(record)["standfast"] for record in caplog.records if record.name == __name__]
    paths = sorted(each["branch"] for each in fields if "step" not in each)
    assert len(set(paths)) == 2
    assert all(each["run"] == "b-1" and each["workflow"] == "branches" and each["fence"] > 0 for each in fields)
    steps = [each for each in fields if "step" in each]
    assert [each["attempt"] for each in steps] == [1, 1]
    assert sorted(each["step"] for each in steps) == [f"{path}/in_a_thread" for path in paths]

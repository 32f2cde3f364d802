"""A store with everything in it goes through every server and back into a file; then all of it goes on."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.clock import later
from standfast.stores import Put
from standfast.testing.conformance.workflows.ground import eventually
from tests.integration.moving.places import SERVERS, fresh_url
from tests.integration.moving.transfers import carried, content

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.services
LEASE = "3s"


@sf.workflow
async def guarded(ctx: sf.Context, name: str) -> tuple[str, int]:
    """Hold a lock until told to go on."""
    async with ctx.mutex("door") as hold:
        await ctx.wait_signal("go")
        return name, hold.fence


@sf.workflow
async def sleepy(ctx: sf.Context) -> str:
    """Sleep for longer than it takes to begin the move."""
    await ctx.sleep(timedelta(seconds=2))
    return "awake"


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def limited(ctx: sf.Context, name: str) -> str:
    """Be the only one of its kind."""
    await ctx.wait_signal("go")
    return name


@sf.workflow
async def daily(ctx: sf.Context) -> str:
    """Do something every day."""
    return await ctx.step(str, "done")


def engine_on(url: str) -> sf.Engine:
    """Return an engine for these workflows."""
    yearly = sf.Schedule(daily, id="yearly", cron="0 0 1 1 *")
    return sf.Engine(url, workflows=[guarded, sleepy, limited, daily], schedules=[yearly], lease=LEASE)


async def begin(url: str) -> None:
    """Leave runs behind that hold, wait, sleep and queue; a state; and a record that expires one day."""
    async with engine_on(url) as engine:
        first = await engine.start(guarded, "first", id="first")
        await eventually(lambda: has(engine.space, "holders"))
        await engine.start(guarded, "second", id="second")
        await eventually(lambda: has(engine.space, "waiters"))
        await engine.start(sleepy, id="sleepy")
        await engine.start(limited, "one", id="one")
        await engine.start(limited, "two", id="two")
        await engine.space.state.shared("visits", type=int, initial=0).update(lambda visits: (visits or 0) + 5)
        seen = await engine.space.read(engine.space.key("note"))
        await engine.space.commit(Put(engine.space.key("note"), b"soon", expires_at=later(seen.at, 3600)))
        assert (await first.info()).status != "completed"


async def has(space: sf.Space, what: str) -> bool:
    """Tell whether anybody holds the door, or waits there."""
    return bool(getattr(await space.explain("door"), what))


async def finish(url: str) -> dict[str, Any]:
    """Let everything go on, and return what came of it."""
    async with engine_on(url) as engine:
        runs = {name: engine.run(name) for name in ("first", "second", "sleepy", "one", "two")}
        for name in ("first", "second", "one", "two"):
            await runs[name].signal("go")
        results = {name: await run.result(timeout="30s") for name, run in runs.items()}
        results["visits"] = await engine.space.state.shared("visits", type=int, initial=0).get()
        results["yearly"] = (await engine.schedules.get("yearly")).cron
        results["note"] = (await engine.space.read(engine.space.key("note"))).get(engine.space.key("note"))
        async with engine.space.mutex("door").hold() as hold:
            results["fence"] = hold.fence
    return results


@pytest.mark.heavy
async def test_everything_goes_on_after_a_tour_of_all_servers(tmp_path: Path) -> None:
    """Runs complete, locks pass on in order, fences grow, and records have the versions that they had."""
    here = fresh_url("sqlite", tmp_path)
    await begin(here)
    before = await content(here)

    for kind in (*SERVERS, "sqlite"):
        there = fresh_url(kind, tmp_path)
        await carried(here, there)
        assert await content(there) == before, kind
        here = there

    results = await finish(here)
    fences = [results["first"][1], results["second"][1], results["fence"]]
    assert fences == sorted(set(fences))
    assert [results[name] for name in ("sleepy", "one", "two", "visits")] == ["awake", "one", "two", 5]
    assert results["yearly"] == "0 0 1 1 *"
    assert results["note"].value == b"soon"

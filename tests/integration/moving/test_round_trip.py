"""A store with everything in it goes from every kind of server to every other one; then all of it goes on."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.clock import later as moment_after
from standfast.flows.dispatcher import Dispatcher
from standfast.flows.request import NOBODY, Call
from standfast.stores import Put
from standfast.testing.conformance.workflows.ground import eventually
from tests.integration.moving.places import KINDS, fresh_url
from tests.integration.moving.transfers import carried, content, exported, imported

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


desk = sf.Flow("desk", concurrency="queue")


@desk.action(concurrency=sf.Debounce("1 hour"))
async def later(request: sf.Request, text: str) -> str:
    """Answer much later."""
    del request
    return text


@desk.action
async def soon(request: sf.Request, text: str) -> str:
    """Answer at once."""
    del request
    return text.upper()


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
        await engine.space.commit(Put(engine.space.key("note"), b"soon", expires_at=moment_after(seen.at, 3600)))
        assert (await first.info()).status != "completed"
        assert await (await engine.start(daily, id="done")).result(timeout="30s") == "done"
    async with Dispatcher(url, [desk]) as dispatcher:
        done = await dispatcher.dispatch(Call(flow="desk", action="soon", inputs={"text": "a"}, attended=False))
        assert await done.result() == "A"
        waiting = await dispatcher.dispatch(Call(flow="desk", action="later", inputs={"text": "b"}, session="talk"))
        REQUESTS[:] = [done.id, waiting.id]


REQUESTS: list[str] = []
"""The one that was answered, and the one that waits."""


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
        results["history"] = [each.kind for each in await engine.run("done").history()]
        async with engine.space.mutex("door").hold() as hold:
            results["fence"] = hold.fence
    async with Dispatcher(url, [desk]) as dispatcher:
        results["requests"] = [(await dispatcher.info(NOBODY, each)).status for each in REQUESTS]
    return results


def check(results: dict[str, Any]) -> None:
    """See that everything went on where it was."""
    fences = [results["first"][1], results["second"][1], results["fence"]]
    assert fences == sorted(set(fences))
    assert [results[name] for name in ("sleepy", "one", "two", "visits")] == ["awake", "one", "two", 5]
    assert results["yearly"] == "0 0 1 1 *"
    assert results["note"].value == b"soon"
    assert "step" in results["history"]
    assert results["requests"] == ["completed", "waiting"]


@pytest.mark.heavy
@pytest.mark.parametrize("stride", range(1, len(KINDS)))
async def test_everything_goes_on_after_a_tour_of_all_servers(stride: int, tmp_path: Path) -> None:
    """Runs complete, locks pass on in order, fences grow, and records have the versions that they had.

    Each tour goes from every kind of store to the one that is ``stride`` further on. Together they are all pairs,
    and the work goes on at another kind after each.
    """
    start = fresh_url("sqlite", tmp_path)
    await begin(start)
    before, data = await content(start), await exported(start)
    pairs = set[tuple[str, str]]()
    here = start
    for first in range(len(KINDS)):
        if any(KINDS[first] == source for source, _ in pairs):
            continue  # it was on the way
        if first:
            here = fresh_url(KINDS[first], tmp_path)
            await imported(here, data)
        place = first
        while True:
            source, target = KINDS[place], KINDS[(place + stride) % len(KINDS)]
            there = fresh_url(target, tmp_path)
            await (imported(there, data) if here == start else carried(here, there))
            assert await content(there) == before, (source, target)
            pairs.add((source, target))
            here, place = there, (place + stride) % len(KINDS)
            if place == first:
                break
    assert len(pairs) == len(KINDS)
    there = fresh_url(KINDS[stride], tmp_path)
    await carried(here, there)
    check(await finish(there))

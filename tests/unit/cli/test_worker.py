"""``standfast workers``: which processes drive runs, as people and programs are told."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import standfast as sf

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Ask


@sf.workflow(version="2")
async def waits(ctx: sf.Context) -> None:
    """Wait for something that does not come."""
    await ctx.sleep("1 day")


@sf.workflow
async def added(ctx: sf.Context) -> None:
    """Come later."""
    raise NotImplementedError(ctx)


async def test_a_worker_is_listed_with_what_it_is_and_does(ask: Ask, url: str) -> None:
    """Its process, its version, the runs that it drives, and the workflows that it has."""
    async with sf.Engine(url, workflows=[waits], worker=sf.admin.WorkerLimits(linger="1 hour")) as engine:
        await engine.start(waits)
        shown = await ask("workers", "--json")
        [worker] = await engine.workers()

    [told] = json.loads(shown.stdout)["workers"]
    assert (told["id"], told["process"], told["is_alive"]) == (worker.id, os.getpid(), True)
    assert (told["runs"], told["workflows"], told["room"]) == (1, [["waits", "2"]], 10_000)
    assert told["package"]
    assert worker.silent_for is not None
    assert 0 <= worker.silent_for < 30


async def test_workers_are_listed_for_people(ask: Ask, url: str) -> None:
    """In a table; and what to do if there is none."""
    none = await ask("workers", "--namespace", "other")
    async with sf.Engine(url, workflows=[waits]):
        pass
    stopped = await ask("workers")
    async with sf.Engine(url, workflows=[waits]):
        some = await ask("workers")

    assert none.exit_code == 1  # there is no store yet
    assert stopped.stdout.startswith("no worker is here")
    title, row = some.stdout.splitlines()
    assert title.split()[:4] == ["WORKER", "HOST", "PROCESS", "PROGRAM"]
    assert row.rstrip().endswith("waits@2")


async def test_a_workflow_that_comes_later_is_told(ask: Ask, url: str) -> None:
    """And the worker goes on with what it does: the record that guards its claims is left alone."""
    async with sf.Engine(url, workflows=[waits]) as engine:
        run = await engine.start(waits)
        engine.register(added)
        while "added" not in (await ask("workers")).stdout:
            pass
        assert (await run.info()).status != "quarantined"
        await engine.cancel(run.id)
        assert not engine.runtime.worker or engine.runtime.may_act()

"""Schedules among real processes that are killed while they handle ticks: one run for each tick."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import pytest

import standfast as sf
from standfast.events import TickFired
from tests.integration.workflows.checks import check, check_ticks, records_of
from tests.integration.workflows.flows import in_a_row
from tests.sizes import rounds

if TYPE_CHECKING:
    from tests.integration.workflows.ledger import Ledger
    from tests.integration.workflows.nursery import Nursery

SCHEDULES: Final = [
    sf.Schedule(in_a_row, 1, id="strict", every="1 second", overlap="queue", backfill=True, most_backfilled=1_000),
    sf.Schedule(in_a_row, 1, id="loose", every="1 second", overlap="allow", backfill=True, most_backfilled=1_000),
    sf.Schedule(in_a_row, 1, id="plain", every="1 second", overlap="allow"),
]


@pytest.mark.heavy
async def test_each_tick_starts_one_run_however_many_workers_are_killed(
    engine: sf.Engine, nursery: Nursery, ledger: Ledger
) -> None:
    """No tick is lost and none is there twice, while those who handle them are killed at random moments."""
    chooser = random.Random(7)
    for schedule in SCHEDULES:
        await engine.schedules.create(schedule)
    await nursery.spawn_ready(2)
    for _ in rounds("kills of workers at ticks", full=100, quick=3):
        await _next_tick(engine)
        nursery.kill(chooser.choice(nursery.alive))
        await nursery.spawn_ready()
    await _next_tick(engine)
    for schedule in SCHEDULES:
        info = await engine.schedules.pause(schedule.id)
        await check_ticks(engine, info)
    await _all_ended(engine)
    assert check(ledger.entries(), await records_of(engine)).problems == ()


async def _next_tick(engine: sf.Engine, schedule_id: str = "strict") -> None:
    """Wait until some worker has handled another tick."""
    before = (await engine.schedules.get(schedule_id)).next_at
    async with engine.space.watch(engine.space.key("schedule")) as watch:
        while (await engine.schedules.get(schedule_id)).next_at == before:
            await watch.wait(0.5)


async def _all_ended(engine: sf.Engine) -> None:
    for run in (await engine.list(limit=10_000)).runs:
        if run.status != "cancelled":  # one that stood in line when its schedule was paused
            await engine.run(run.id).result(timeout=60)


async def test_two_engines_race_for_every_tick_and_one_wins(url: str) -> None:
    """Both see the same tick at the same moment; there is one run, and one engine tells of it."""
    fired: list[str] = []

    def told(event: object) -> None:
        if isinstance(event, TickFired):
            fired.append(event.run)

    schedules = [sf.Schedule(in_a_row, 0, id=f"s{number}", every="1 second") for number in range(10)]
    async with (
        sf.Engine(url, workflows=[in_a_row], schedules=schedules, hooks=[told]) as one,
        sf.Engine(url, workflows=[in_a_row], hooks=[told]),
    ):
        for _ in range(3):
            await _next_tick(one, "s9")
        infos = await one.schedules.list()
        page = await one.list(limit=1_000)
    assert len(fired) == len(set(fired))
    assert {run.id for run in page.runs} <= set(fired)
    assert min(info.started for info in infos) >= 2

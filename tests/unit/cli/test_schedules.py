"""``standfast schedules``: what is listed, and what is done without the code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

import standfast as sf
from standfast.cli import schedules
from standfast.clock import Instant
from standfast.workflows.schedules.schedules import LATE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.cli.conftest import Ask


@sf.workflow
async def report(ctx: sf.Context, region: str) -> str:
    """Report."""
    del ctx
    return region


@sf.workflow(concurrency=sf.Limit(1, key=lambda region: region))
async def keyed(ctx: sf.Context, region: str) -> str:
    """Report, one region at a time."""
    del ctx
    return region


@pytest.fixture
async def engine(url: str) -> AsyncIterator[sf.Engine]:
    """An engine that drives nothing, where a worker has been before that had the workflows."""
    async with sf.Engine(url, workflows=[report, keyed]):
        pass
    async with sf.Engine(url, workflows=[report, keyed], drive=False) as opened:
        await opened.schedules.create(sf.Schedule(report, "eu", id="daily", cron="0 9 * * mon-fri"))
        await opened.schedules.create(sf.Schedule(report, "us", id="often", every="1 hour"))
        yield opened


@pytest.mark.usefixtures("engine")
async def test_schedules_are_listed_in_words(ask: Ask) -> None:
    """When they fire, and that they are on time."""
    rows = (await ask("schedules", "list")).stdout.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["daily", "often"]
    assert "At 09:00 on Monday through Friday" in rows[0]
    assert "Every hour" in rows[1]
    assert all(row.endswith("on time") for row in rows)


async def test_ticks_that_were_missed_are_listed_apart_from_those_that_were_skipped(engine: sf.Engine) -> None:
    """As ``show`` tells them: what was skipped was decided, what was missed was not noticed in time."""
    info = structs.replace(await engine.schedules.get("often"), started=7, skipped=1, refused=2, missed=20)
    assert schedules.row_of(info, Instant(0))[4:7] == ("7", "3", "20")


async def test_a_schedule_that_no_worker_fires_is_late(engine: sf.Engine) -> None:
    """After a while in which a worker that lives would have fired it."""
    info = await engine.schedules.get("often")
    assert info.fires_at is not None
    assert not info.is_late(Instant(info.fires_at + 1_000_000))
    assert info.is_late(Instant(info.fires_at + int(LATE * 1_000_000) + 1))


@pytest.mark.usefixtures("engine")
async def test_the_ticks_to_come_are_shown(ask: Ask) -> None:
    """As many as are asked for; of a paused one, those that it would have."""
    shown = json.loads((await ask("schedules", "show", "daily", "--ticks", "3", "--json")).stdout)
    await ask("schedules", "pause", "daily", "--note", "the source is down")
    paused = (await ask("schedules", "show", "daily", "--ticks", "2")).stdout

    assert len(shown["next"]) == 3
    assert shown["next"][0] == shown["schedule"]["next_at"]
    assert "paused: the source is down" in paused
    assert "would be: " in paused


async def test_a_schedule_is_paused_and_resumed(engine: sf.Engine, ask: Ask) -> None:
    """And one that is not there has the exit code for that."""
    assert (await ask("schedules", "pause", "daily")).stdout == "daily is paused\n"
    assert (await engine.schedules.get("daily")).is_paused
    assert (await ask("schedules", "resume", "daily")).stdout.startswith("daily fires again, next at ")
    assert not (await engine.schedules.get("daily")).is_paused
    assert (await ask("schedules", "pause", "nightly")).exit_code == 3


async def test_a_schedule_is_triggered_without_its_code(engine: sf.Engine, ask: Ask) -> None:
    """The run has the input of the schedule, and counts as one of its."""
    shown = await ask("schedules", "trigger", "daily", "--json")
    info = await engine.get(json.loads(shown.stdout)["run"])
    assert (info.workflow, info.input, info.schedule) == ("report", {"region": "eu"}, "daily")


async def test_a_limit_with_a_key_needs_the_code(engine: sf.Engine, ask: Ask) -> None:
    """Only the code can tell the key; nothing is started."""
    await engine.schedules.create(sf.Schedule(keyed, "eu", id="keyed", every="1 hour"))
    shown = await ask("schedules", "trigger", "keyed")
    assert shown.exit_code == 2
    assert "in a process that has the code" in shown.stderr
    assert not (await engine.list()).runs


async def test_a_backfill_is_tried_dry_first(engine: sf.Engine, ask: Ask) -> None:
    """It says which ticks it would make up for, and starts nothing; then it starts those, and no others again."""
    span = ("--from", "2026-01-05", "--to", "2026-01-10")
    dry = await ask("schedules", "backfill", "daily", *span, "--dry-run")
    unsure = await ask("schedules", "backfill", "daily", *span)
    before = len((await engine.list()).runs)
    done = await ask("schedules", "backfill", "daily", *span, "--yes")
    again = await ask("schedules", "backfill", "daily", *span, "--yes")

    assert dry.stdout.startswith("5 of 5 ticks would be made up for; nothing was done\n  2026-01-05 09:00:00Z")
    assert (unsure.exit_code, before) == (2, 0)
    assert done.stdout == "started 5 runs of daily\n"
    assert again.exit_code == 3
    assert "5 have had their run" in again.stderr

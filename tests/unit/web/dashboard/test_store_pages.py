"""The first screen and that of the store: throughput, leases that were lost, size and retention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import standfast as sf
from standfast.clock import MICROSECONDS, Instant
from standfast.web.dashboard import Dashboard, store_pages
from standfast.web.dashboard.store_pages import MINUTES, Throughput
from standfast.workflows.run_index import RunCount
from tests.unit.web.dashboard.opened import Opened, opened

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


@sf.workflow
async def short(ctx: sf.Context) -> None:
    """Do nothing."""
    del ctx


async def test_now_draws_how_many_runs_ended_in_each_minute() -> None:
    """The bars are drawn by the server, and named for those who do not see them."""
    async with opened("all", short) as made:
        for number in range(3):
            await (await made.engine.start(short, id=f"r{number}")).result(timeout="10s")
        text = (await made.get("")).text
        assert 'aria-label="Runs that ended in each of the last 30 minutes, at most 3"' in text
        assert "<title>3</title>" in text


async def test_a_minute_that_is_over_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page counts some minutes, and the next pages the others; then only the last two are counted again."""
    asked: list[object] = []

    async def count(*_: object, **__: object) -> object:
        asked.append(None)
        return RunCount(1)

    monkeypatch.setattr(store_pages, "count_runs", count)
    async with sf.open("memory://") as space:
        throughput, now = Throughput(), Instant(1_000 * 60 * MICROSECONDS + 5)
        first = await throughput.read(space, now)
        assert 0 < len([each for each in first if each is not None]) <= store_pages.AT_ONCE + 1
        for _ in range(MINUTES):
            await throughput.read(space, now)
        assert None not in await throughput.read(space, now)
        asked.clear()
        await throughput.read(space, now)
        assert len(asked) == 2


async def test_leases_that_were_lost_need_a_person() -> None:
    """A hold that expired is told with its key."""
    async with opened() as made:
        space = made.engine.space
        async with space.mutex("till").hold(on_lost="tell"):
            told = await space.explain("till")
            await space.mutex("till").force_release(told.holders[0].entry)
        assert "lost in the last day" not in (await made.get("")).text  # it was evicted: an operator knows
        lock = space.mutex("safe")
        async with lock.hold(max_hold="1ms", on_lost="tell"), lock.hold(owner="another"):
            pass
        text = (await made.get("")).text
        assert "1 lease was lost in the last day" in text
        assert "safe, expired" in text


async def test_the_store_says_how_large_it_is_what_is_in_it_and_for_how_long(tmp_path: Path) -> None:
    """A file says its size; an engine that deletes runs says after how long."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with sf.Engine(url, workflows=[short], retention=sf.admin.Retention(completed="3 days")) as engine:
        made = Opened(engine)
        async with made.dashboard, made.http:
            await (await engine.start(short, id="r1")).result(timeout="10s")
            text = (await made.get("store")).text
            assert "sqlite" in text
            assert " kB" in text or " MB" in text
            assert "3 days" in text
            assert '<td>runs</td><td class="num">1</td>' in text
    async with sf.open("memory://") as space:
        dashboard = Dashboard(space)
        assert "a worker with retention= may" in (await _shown(dashboard, "/store"))


async def _shown(dashboard: Dashboard, path: str) -> str:
    import httpx  # noqa: PLC0415 -- only here

    headers = {"authorization": f"Bearer {dashboard.token}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(dashboard), base_url="http://ops.test") as http:
        return (await http.get(path, headers=headers)).text

"""A day in a fleet: everything that can happen to workers on one server, while clients go on as if nothing did."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Final, final

import pytest

import standfast as sf
from tests import services
from tests.integration.faults.proxy import proxy_to
from tests.integration.fleet.places import place_on
from tests.integration.workflows.checks import check, check_lanes, check_locks, check_ticks, records_of
from tests.integration.workflows.flows import LEDGER, WORKFLOWS, in_a_row, queued
from tests.integration.workflows.ledger import Ledger
from tests.integration.workflows.nursery import Nursery
from tests.integration.workflows.payments import paid_twice_on_server, prepare
from tests.integration.workflows.storm import Storm, nothing_is_left
from tests.sizes import remark, rounds, size

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.faults.proxy import Proxy
    from tests.services.server import Server

pytestmark = [pytest.mark.services, pytest.mark.heavy]

LEASE: Final = 2.0
CLIENTS: Final = size(full=20, quick=8)
LANES: Final = ["north", "south", "west"]
TICKS: Final = sf.Schedule(
    in_a_row, 1, id="ticks", every="1 second", overlap="queue", backfill=True, most_backfilled=1_000
)


@final
class Day:
    """Four workers, one of them behind a network that fails, and what happens to them."""

    def __init__(self, storm: Storm, ledger: Ledger, near: Nursery, far: Nursery) -> None:
        self.storm, self._ledger, self._near, self._far = storm, ledger, near, far
        self.lanes: Final[dict[str, list[sf.Run[int]]]] = {lane: [] for lane in LANES}
        self._over: Final = asyncio.Event()

    async def begin(self) -> None:
        """Start the workers."""
        await self._near.spawn_ready(3, lease=LEASE)
        await self._far.spawn_ready(1, lease=LEASE)

    async def stand_in_lane(self, lane: str) -> None:
        """Start one run after another that has to wait for those before it."""
        while not self._over.is_set():
            number = len(self.lanes[lane]) + 1
            self.lanes[lane].append(await self.storm.start(queued, lane, number))
            await asyncio.sleep(0.1)  # they come faster than they are done

    async def go_wrong(self, server: Server, proxy: Proxy) -> None:
        """Stop one worker past its lease; meanwhile kill one and cut the connections of another; restart the server."""
        stopped, killed, _ = self._near.alive
        self._near.stop(stopped)
        for place in range(5):
            await asyncio.sleep(1)  # the day goes on
            if place == 1:
                self._near.kill(killed)
                await self._near.spawn(lease=LEASE)
            if place in (2, 3):
                self._ledger.write("stop", pid=self._far.alive[0], name="cut off")
                proxy.cut()
        os.kill(stopped, signal.SIGCONT)
        await asyncio.sleep(1)  # it has to find out
        self._ledger.write("fault", name="restart")
        await asyncio.to_thread(server.restart)
        await asyncio.sleep(1)  # and so have all others

    async def end(self, clients: list[asyncio.Task[None]]) -> None:
        """Start no more runs, and wait for those that were started."""
        self._over.set()
        await self.storm.last(clients)
        for runs in self.lanes.values():
            assert [await run.result(timeout=60) for run in runs] == list(range(1, len(runs) + 1))


async def live_through(server: Server, url: str, path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let a day pass, and return what there was of it."""
    ledger = Ledger(path)
    monkeypatch.setenv(LEDGER, ledger.path)
    monkeypatch.setenv("STANDFAST_STORE", url)
    engine = sf.Engine(url, workflows=WORKFLOWS.values(), drive=False, lease=LEASE)
    async with (
        proxy_to(url) as proxy,
        engine,
        Nursery(ledger) as near,
        Nursery(ledger, {"STANDFAST_STORE": proxy.url}) as far,
    ):
        day = Day(Storm(engine, near, seed, lease=LEASE, patient=True), ledger, near, far)
        await day.begin()
        await engine.schedules.create(TICKS)
        work = [*(day.storm.client() for _ in range(CLIENTS)), *map(day.stand_in_lane, LANES)]
        clients = [asyncio.create_task(each) for each in work]
        await day.go_wrong(server, proxy)
        ticks = await engine.schedules.pause(TICKS.id)
        await day.end(clients)
        await nothing_is_left(engine.space)
        await check_ticks(engine, ticks)
        found = check(entries := ledger.entries(), await records_of(engine))
    ledger.close()
    assert found.problems == ()
    assert check_locks(entries) == []
    assert check_lanes(entries) == []
    started = f"{len(day.storm.started)} runs, {sum(map(len, day.lanes.values()))} in lanes, {ticks.started} ticks"
    again = f"{found.duplicates} done again, {found.interrupted} interrupted, {found.late} late"
    return f"{started}, {found.attempts} attempts of steps, {again}"


@pytest.mark.timeout(600)
async def test_a_day_in_a_fleet_loses_nothing_doubles_nothing_and_keeps_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A worker is killed, one is stopped past its lease, one is cut off, and the server is killed and comes back."""
    with services.private("postgresql") as server:
        await prepare(server.url)
        for number in rounds("days in a fleet", full=5, quick=1):
            url = place_on(server.url, "postgresql")
            told = await live_through(server, url, tmp_path / f"ledger {number}", seed + number, monkeypatch)
            remark("days in a fleet", told)
        assert await paid_twice_on_server(server.url) == []

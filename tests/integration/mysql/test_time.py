"""The server's time: UTC whatever its zone, and read when the locks are held."""

# ruff: noqa: S608 -- the names are made up here

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from standfast.clock import SYSTEM_CLOCK
from standfast.keys import RecordKey
from standfast.stores import Commit, Conflict, Delete, Put
from standfast.stores.address import Address
from standfast.stores.mysql.connection import connect, read_options
from standfast.stores.mysql.sql import NOW
from tests import services
from tests.integration.fleet.clocks import Dial
from tests.integration.mysql.ground import opened, place, prefix_of, run_sql

if TYPE_CHECKING:
    from pathlib import Path

KEY = RecordKey("n", "k")


@pytest.mark.parametrize("zone", ["+00:00", "+05:45", "-11:00", "SYSTEM"])
async def test_the_zone_of_a_session_does_not_matter(mysql_url: str, zone: str) -> None:
    """The same instant, wherever the session thinks it is."""
    [[at]] = await run_sql(mysql_url, f"SET time_zone='{zone}'", f"SELECT {NOW}")

    assert abs(at - SYSTEM_CLOCK.wall()) < 60_000_000


@pytest.mark.services
async def test_an_hour_that_comes_twice_comes_once() -> None:
    """Where clocks are set back in autumn, the server's time is the one of UTC, also in the hour that is repeated."""
    autumn = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)  # half past two in Berlin, for the second time
    offset = (autumn.timestamp() * 1e6 - SYSTEM_CLOCK.wall()) / 1e6
    environment = services.faketime(f"{offset:+.0f}s") | {"TZ": "Europe/Berlin"}

    with services.private("mysql", environment=environment, arguments=["--default-time-zone=SYSTEM"]) as server:
        link = await connect(read_options(Address(server.url)))
        [[[at, local]]] = await link.run(f"SELECT {NOW},HOUR(CONVERT_TZ(NOW(),@@time_zone,'SYSTEM'))", 5)
        await link.aclose()

    assert abs(at - autumn.timestamp() * 1e6) < 60_000_000
    assert local == 2


async def test_a_deadline_that_passes_while_waiting_for_a_lock_is_missed(mysql_url: str) -> None:
    """The time is read when the rows are locked, not when the commit set out."""
    url = place(mysql_url)
    async with opened(url) as [store]:
        await store.commit(Put(KEY, b""))
        seen = await store.read(KEY)
        rows = f"{prefix_of(url)}_records"
        holder = asyncio.create_task(
            run_sql(url, "START TRANSACTION", f"SELECT * FROM {rows} FOR UPDATE", "DO SLEEP(0.5)", "ROLLBACK")
        )
        while not await run_sql(url, "SELECT 1 FROM information_schema.processlist WHERE info='DO SLEEP(0.5)'"):  # noqa: ASYNC110 -- nobody tells when it is so
            await asyncio.sleep(0)
        answer = await store.commit(Put(KEY, b"late", seen.version(KEY)), before=type(seen.at)(seen.at + 300_000))
        await holder

    assert isinstance(answer, Conflict)
    assert answer.current == {}


@pytest.mark.services
async def test_a_clock_that_is_set_back_brings_no_deleted_record_back(tmp_path: Path) -> None:
    """The row that remembers its version is dead at every time, not only from its deletion on."""
    dial = Dial(tmp_path / "dial")
    with services.private("mysql", environment=dial.environment) as server:
        async with opened(place(server.url)) as [store]:
            made = await store.commit(Put(KEY, b"gone"))
            assert isinstance(made, Commit)
            await store.commit(Delete(KEY, made.versions[KEY]))
            dial.step(-60)

            assert (await store.read(KEY)).get(KEY) is None
            assert not (await store.scan(KEY, KEY.successor(), limit=1)).records
            again = await store.commit(Put(KEY, b"anew"))

    assert isinstance(again, Commit)
    assert again.versions[KEY] > made.versions[KEY]

"""Deaths on PostgreSQL: a process that died is seen soon, and one that lost its session is not taken for dead."""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

import standfast as sf
from standfast.clock import monotonic
from standfast.errors import LeaseLostError
from standfast.stores.liveness import GRACE
from standfast.stores.url import open_store
from tests import services
from tests.integration.faults.proxy import proxy_to
from tests.integration.fleet.places import place, place_on
from tests.integration.locks.conftest import spread
from tests.integration.locks.crew import Crew
from tests.integration.locks.kills import kill_the_holder
from tests.integration.locks.ledger import Ledger
from tests.integration.postgresql.programs.linger import linger
from tests.integration.sqlite.children import Child
from tests.sizes import remark, rounds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from standfast.locks import Hold
    from tests.integration.locks.crew import Member
    from tests.services.server import Server

pytestmark = [pytest.mark.services, pytest.mark.heavy]

LEASE: Final = 30.0
SOON: Final = 10.0
"""Seconds in which a busy machine sees a death; far less than a lease."""

LONG_ENOUGH: Final = 2 * GRACE
"""Seconds after which a process would have been taken for dead, if it were to be."""


@asynccontextmanager
async def crew_on(url: str, tmp_path: Path, number: int) -> AsyncIterator[Crew]:
    """Start a crew."""
    path = tmp_path / "ledger.db"
    async with sf.open(url) as space:
        crew = Crew(space, url, ledger := Ledger(path), path, LEASE)
        crew.start(number)
        yield crew
        crew.close()
    ledger.close()


async def held_and_waited_for(crew: Crew, how: str = "stay") -> tuple[Member, Member]:
    """Let one hold the mutex and the other one wait for it."""
    holder, waiter = crew.members
    holder.tell(how)
    holder.held()
    if how == "bear":
        assert holder.child.hear() == ["born"]
    waiter.tell("pass")
    await crew.lined_up(waiter)
    return holder, waiter


def goes_on(holder: Member, waiter: Member) -> None:
    """Check that nobody takes over from the holder, and that it goes on as if nothing had happened."""
    assert waiter.child.is_silent(LONG_ENOUGH)
    holder.tell("go")
    left_at = holder.left()
    assert waiter.held().at > left_at - 1.0
    waiter.left()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server whose sessions can be ended without harm to other tests."""
    with services.private("postgresql") as server:
        yield server


async def end_sessions(url: str) -> int:
    """End the sessions that lifelines are tied to; return how many there were."""
    connection = await asyncpg.connect(url)
    try:
        ended = await connection.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'standfast lifeline'"
        )
        return len(ended)
    finally:
        await connection.close()


# --- deaths ------------------------------------------------------------------------------------------------------


async def test_a_killed_holder_is_followed_long_before_its_lease_lapses(tmp_path: Path) -> None:
    """Its session is gone, and when the grace has passed it is dead."""
    label, took = "kills of holders seen by PostgreSQL", list[float]()
    async with crew_on(place("postgresql"), tmp_path, 3) as crew:
        for seed in rounds(label, full=100, quick=2):
            took.append(await kill_the_holder(crew, random.Random(seed)))
            crew.fill_up(3)
            remark(label, spread(took))

    assert min(took) >= GRACE
    assert max(took) < SOON


async def test_the_runs_of_a_killed_worker_go_on_elsewhere_long_before_its_lease_lapses() -> None:
    """Other workers see that it died."""
    url, label, took = place("postgresql"), "kills of workers seen by PostgreSQL", list[float]()
    program = "tests.integration.postgresql.programs.linger"
    async with sf.Engine(url, workflows=[linger], drive=False) as engine:
        worker = Child(program, url)
        assert worker.hear() == ["ready"]
        await engine.start(linger)
        assert worker.hear()[0] == "began"
        for _ in rounds(label, full=30, quick=1):
            other = Child(program, url)
            assert other.hear() == ["ready"]
            killed_at = monotonic()
            worker.kill()
            worker = other
            took.append(float(worker.hear()[1]) - killed_at)
            remark(label, spread(took))
        worker.kill()

    assert max(took) < SOON


async def test_a_newcomer_sees_that_somebody_died_before_it_came(tmp_path: Path) -> None:
    """Nobody saw the death, nor the process when it lived; the newcomer lets the grace pass, and no lease."""
    async with crew_on(place("postgresql"), tmp_path, 1) as crew:
        [holder] = crew.members
        holder.tell("stay")
        holder.held()
        holder.kill()
        [newcomer] = crew.start(1)
        asked_at = monotonic()
        newcomer.tell("pass")

        assert newcomer.held().at - asked_at < SOON


async def test_a_forked_child_does_not_keep_its_parent_alive(tmp_path: Path) -> None:
    """It has inherited the socket, and lets go of it."""
    async with crew_on(place("postgresql"), tmp_path, 2) as crew:
        holder, waiter = await held_and_waited_for(crew, "bear")
        killed_at = monotonic()

        holder.child.process.kill()

        assert waiter.held().at - killed_at < SOON


# --- the living --------------------------------------------------------------------------------------------------


async def test_a_holder_that_loses_its_session_keeps_what_it_holds(server: Server, tmp_path: Path) -> None:
    """It ties its lifeline again before anybody takes it for dead."""
    url = place_on(server.url, "postgresql")
    async with crew_on(url, tmp_path, 2) as crew:
        holder, waiter = await held_and_waited_for(crew)

        assert await end_sessions(server.url) >= 2

        goes_on(holder, waiter)


async def test_nobody_is_taken_for_dead_because_the_server_restarts(server: Server, tmp_path: Path) -> None:
    """All sessions are lost at once, and all processes prove themselves again."""
    url = place_on(server.url, "postgresql")
    async with crew_on(url, tmp_path, 2) as crew:
        holder, waiter = await held_and_waited_for(crew)

        server.quit()
        server.restart()

        goes_on(holder, waiter)


async def test_a_stopped_holder_is_not_taken_for_dead(tmp_path: Path) -> None:
    """It has its session still; only its lease can decide."""
    async with crew_on(place("postgresql"), tmp_path, 2) as crew:
        holder, waiter = await held_and_waited_for(crew)

        holder.child.stop()
        assert waiter.child.is_silent(3.0)
        holder.child.send(signal.SIGCONT)

        goes_on(holder, waiter)


# --- those who are cut off ---------------------------------------------------------------------------------------


async def was_lost_when_taken(space: sf.Space, before: Hold) -> bool:
    """Take the mutex; tell whether it was lost by then to whoever held it before."""
    async with space.mutex("it").hold():
        return before.is_lost


async def test_a_holder_that_is_cut_off_knows_it_before_anybody_takes_over() -> None:
    """It cannot prove itself: it stops by its own clock, and others go on when the grace has passed."""
    url = place("postgresql")
    async with (
        proxy_to(url) as proxy,
        sf.open(proxy.url, lease=LEASE) as cut_off,
        sf.open(url, lease=LEASE) as other,
        cut_off.mutex("it").hold(on_lost="tell") as hold,
    ):
        proxy.swallow()
        proxy.cut()
        cut_at = monotonic()
        assert await asyncio.create_task(was_lost_when_taken(other, hold))
        assert monotonic() - cut_at < SOON
        with pytest.raises(LeaseLostError):
            hold.check()
        proxy.carry_on()


# --- where there is no session -----------------------------------------------------------------------------------


async def test_without_a_direct_session_no_deaths_are_seen(pgbouncer_url: str) -> None:
    """A pooler's session belongs to nobody."""
    store = await open_store(place_on(pgbouncer_url, "pgbouncer"))
    try:
        assert not store.capabilities.sees_process_death
        assert store.liveness_token() == ""
    finally:
        await store.aclose()


async def test_it_can_be_left_to_leases() -> None:
    """By an option of the URL: then a session less is needed, and an outage of the server costs no lock."""
    store = await open_store(f"{place('postgresql')}&lifeline=false")
    try:
        assert not store.capabilities.sees_process_death
        assert store.liveness_token() == ""
    finally:
        await store.aclose()

"""Deaths on servers: a process that died is seen soon, and one that lost its session is not taken for dead."""

from __future__ import annotations

import asyncio
import random
import signal
import urllib.error
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import asyncmy
import asyncmy.errors
import asyncpg
import pytest
import redis.asyncio

import standfast as sf
from standfast.clock import monotonic
from standfast.errors import LeaseLostError
from standfast.stores.liveness import GRACE
from standfast.stores.url import open_store
from tests import services
from tests.integration.etcd.clusters import ask
from tests.integration.faults.proxy import proxy_to
from tests.integration.fleet.places import place, place_on
from tests.integration.locks.conftest import spread
from tests.integration.locks.crew import Crew
from tests.integration.locks.kills import kill_the_first_waiters, kill_the_holder
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

KINDS: Final = ("postgresql", "redis", "mysql", "cloudflare", "etcd")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Which server."""
    kind: str = request.param
    return kind


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, Server]]:
    """A server whose sessions can be ended without harm to other tests."""
    with services.private(request.param) as server:
        yield request.param, server


NO_SUCH_SESSION: Final = 1094
"""MariaDB's error for a session that has ended since it was listed."""

NO_SUCH_LEASE: Final = 404


async def end_sessions(kind: str, url: str) -> None:
    """End the sessions that tokens are attached to, and perhaps others; some end by themselves meanwhile.

    A process that has lost one of its sessions closes others, so what was listed may be gone when its turn comes.
    """
    at = urlsplit(url)
    if kind == "postgresql":
        connection = await asyncpg.connect(url)
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'standfast liveness'"
        )
        await connection.close()
    elif kind == "redis":
        client: Any = redis.asyncio.Redis.from_url(url)
        assert await client.execute_command("CLIENT", "KILL", "TYPE", "pubsub") >= 2
        await client.aclose()
    elif kind == "etcd":
        for lease in (await asyncio.to_thread(ask, url, "/v3/lease/leases"))["leases"]:
            try:
                await asyncio.to_thread(ask, url, "/v3/lease/revoke", ID=lease["ID"])
            except urllib.error.HTTPError as error:
                if error.code != NO_SUCH_LEASE:
                    raise
    else:
        address: dict[str, Any] = {"host": at.hostname, "port": at.port, "user": at.username, "password": at.password}
        own: Any = await asyncmy.connect(**address)
        async with own.cursor() as cursor:
            await cursor.execute("SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID()")
            for (each,) in await cursor.fetchall():
                try:
                    await cursor.execute(f"KILL {each}")
                except asyncmy.errors.OperationalError as error:
                    if error.args[0] != NO_SUCH_SESSION:
                        raise
        await own.ensure_closed()


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


# --- deaths ------------------------------------------------------------------------------------------------------


async def test_a_killed_holder_is_followed_long_before_its_lease_lapses(kind: str, tmp_path: Path) -> None:
    """Its session is gone, and when the grace has passed it is dead."""
    label, took = f"kills of holders seen by {kind}", list[float]()
    async with crew_on(place(kind), tmp_path, 3) as crew:
        for seed in rounds(label, full=100, quick=2):
            took.append(await kill_the_holder(crew, random.Random(seed)))
            crew.fill_up(3)
            remark(label, spread(took))

    assert min(took) >= GRACE
    assert max(took) < SOON


async def test_killed_waiters_are_passed_over_long_before_their_lease_lapses(kind: str, tmp_path: Path) -> None:
    """Whoever comes behind them waits for the grace, not for a lease."""
    label, took = f"kills of waiters seen by {kind}", list[float]()
    async with crew_on(place(kind), tmp_path, 4) as crew:
        for seed in rounds(label, full=30, quick=2):
            took.append(await kill_the_first_waiters(crew, random.Random(seed)))
            crew.fill_up(4)
            remark(label, spread(took))

    assert max(took) < SOON


async def test_the_runs_of_a_killed_worker_go_on_elsewhere_long_before_its_lease_lapses(kind: str) -> None:
    """Other workers see that it died."""
    url, label, took = place(kind), f"kills of workers seen by {kind}", list[float]()
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


async def test_a_newcomer_sees_that_somebody_died_before_it_came(kind: str, tmp_path: Path) -> None:
    """Nobody saw the death, nor the process when it lived; the newcomer lets the grace pass, and no lease."""
    async with crew_on(place(kind), tmp_path, 1) as crew:
        [holder] = crew.members
        holder.tell("stay")
        holder.held()
        holder.kill()
        [newcomer] = crew.start(1)
        asked_at = monotonic()
        newcomer.tell("pass")

        assert newcomer.held().at - asked_at < SOON


async def test_a_forked_child_does_not_keep_its_parent_alive(kind: str, tmp_path: Path) -> None:
    """It has inherited the socket, and lets go of it."""
    async with crew_on(place(kind), tmp_path, 2) as crew:
        holder, waiter = await held_and_waited_for(crew, "bear")
        killed_at = monotonic()

        holder.child.process.kill()

        assert waiter.held().at - killed_at < SOON


# --- the living --------------------------------------------------------------------------------------------------


async def test_a_holder_that_loses_its_session_keeps_what_it_holds(server: tuple[str, Server], tmp_path: Path) -> None:
    """It ties its liveness token again before anybody takes it for dead."""
    kind, own = server
    if kind == "cloudflare":
        pytest.skip("from outside, only a restart ends a WebSocket there")
    url = place_on(own.url, kind)
    async with crew_on(url, tmp_path, 2) as crew:
        holder, waiter = await held_and_waited_for(crew)

        await end_sessions(kind, own.url)

        goes_on(holder, waiter)


async def test_nobody_is_taken_for_dead_because_the_server_restarts(server: tuple[str, Server], tmp_path: Path) -> None:
    """All sessions are lost at once, and all processes prove themselves again."""
    kind, own = server
    url = place_on(own.url, kind)
    async with crew_on(url, tmp_path, 2) as crew:
        holder, waiter = await held_and_waited_for(crew)

        own.quit()
        own.restart()

        goes_on(holder, waiter)


async def test_a_stopped_holder_is_not_taken_for_dead(kind: str, tmp_path: Path) -> None:
    """It has its session still; only its lease can decide."""
    if kind == "etcd":
        pytest.skip("there the session is a lease, which runs on while its process is stopped")
    async with crew_on(place(kind), tmp_path, 2) as crew:
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


async def test_a_holder_that_is_cut_off_knows_it_before_anybody_takes_over(kind: str) -> None:
    """It cannot prove itself: it stops by its own clock, and others go on when the grace has passed."""
    url = place(kind)
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


async def test_it_can_be_left_to_leases(kind: str) -> None:
    """By an option of the URL: then a session less is needed, and an outage of the server costs no lock."""
    store = await open_store(f"{place(kind)}&liveness=false")
    try:
        assert not store.capabilities.sees_process_death
        assert store.liveness_token() == ""
    finally:
        await store.aclose()

"""PostgreSQL that fails over: all connections of a handle follow together, and what is gone is missed aloud."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import standfast as sf
from standfast.errors import OutcomeUnknownError, StoreReadOnlyError, StoreRewoundError, StoreUnavailableError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from standfast.stores.url import open_store
from tests.integration.faults.program import insistently
from tests.services import replicated
from tests.services.relay import port_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from standfast.stores import GroupedStore
    from tests.services.replicated import Group
    from tests.services.server import Server

pytestmark = [pytest.mark.services, pytest.mark.heavy, pytest.mark.timeout(60)]

KEY = RecordKey("space", "a")


@contextlib.asynccontextmanager
async def opened(url: str, options: str = "timeout=2s") -> AsyncGenerator[GroupedStore]:
    """Open a store and close it."""
    store = await open_store(f"{url}?{options}")
    try:
        yield store
    finally:
        await store.aclose()


def named(servers: Group) -> str:
    """Return a URL that names all members, and nothing that follows the primary."""
    first = servers.members[0].url
    place = f"127.0.0.1:{port_of(first)}"
    return first.replace(place, ",".join(f"127.0.0.1:{port_of(each.url)}" for each in servers.members))


def sessions(server: Server) -> list[str]:
    """Return the names of the sessions of this program on a server."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        asked = "select application_name from pg_stat_activity where application_name like 'standfast%'"
        return sorted(row[0] for row in connection.execute(asked).fetchall())


async def until(reached: Callable[[], bool], what: str) -> None:
    """Wait for something that servers show."""
    await asyncio.to_thread(replicated.until, reached, what)


def lose_the_last(servers: Group) -> None:
    """Let an asynchronous standby take over that lacks what was committed since ``lag``."""
    servers.primary.kill()
    servers.part()
    servers.promote(servers.members[2])


async def caught_up(servers: Group) -> None:
    """Wait until the last standby has all that the primary has."""

    def is_there() -> bool:
        places = []
        for url, place in (
            (servers.primary.url, "pg_current_wal_lsn()"),
            (servers.members[2].url, "pg_last_wal_replay_lsn()"),
        ):
            with psycopg.connect(url, autocommit=True) as connection:
                row: Any = connection.execute(f"select ({place} - '0/0')::bigint").fetchone()
                places.append(row[0])
        return bool(places[1] >= places[0])

    await until(is_there, "the standby caught up")


async def test_all_connections_of_a_handle_follow_to_the_new_primary() -> None:
    """Also those whose old server is alive and leaves them open: reader, listener and liveness session."""
    with replicated.postgresql() as servers:
        space = await sf.open(f"{servers.url}?timeout=2s", lease=5)
        async with space.mutex("a").hold():
            pass
        old = servers.primary
        assert {"standfast", "standfast liveness"} <= set(sessions(old))
        servers.promote(servers.members[1], cut=False)
        with psycopg.connect(old.url, autocommit=True) as connection:  # as when a pooler recycles one connection
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'standfast'"
                r" and query ~ '\m(write|choose|create_or_append|move_or_delete)\('"
            )

        async def hold() -> None:
            async with space.mutex("a").hold(timeout=5):
                pass

        await insistently(hold)
        await until(lambda: sessions(old) == [], "nothing is left at the old primary")
        assert {"standfast", "standfast liveness"} <= set(sessions(servers.primary))
        await space.aclose()


async def test_a_primary_that_was_replaced_and_comes_back_is_not_used() -> None:
    """It takes writes as before; the handle has seen a later timeline, and says which server it refuses."""
    with replicated.postgresql() as servers:
        async with opened(servers.url) as store:
            await store.commit(Put(KEY, b"1"))
            old = servers.primary
            servers.promote(servers.members[1])
            await insistently(lambda: store.commit(Put(RecordKey("space", "b"), b"2")))
            assert servers.entry is not None
            servers.entry.point_at(port_of(old.url))

            with pytest.raises(StoreUnavailableError, match=r"\(epoch 1\) was replaced by .* \(epoch 2\)"):
                await store.read(KEY)

            servers.entry.point_at(port_of(servers.primary.url))
            await insistently(lambda: store.read(KEY))


async def test_an_acknowledged_commit_that_a_standby_lacks_is_missed_aloud() -> None:
    """Whatever is asked first, by every handle that came from the one; who opens the store anew goes on."""
    with replicated.postgresql(synchronous=False) as servers:
        async with opened(servers.url) as store:
            other = await store.another()
            await store.commit(Put(KEY, b"1"))
            await caught_up(servers)
            servers.lag()
            assert isinstance(await store.commit(Put(RecordKey("space", "b"), b"2")), Commit)
            lose_the_last(servers)

            with pytest.raises(StoreRewoundError, match="lacks commits that were acknowledged"):
                await insistently(lambda: store.read(KEY))
            with pytest.raises(StoreRewoundError):
                await store.commit(Put(RecordKey("space", "c"), b"3"))
            with pytest.raises(StoreRewoundError):
                await other.read(KEY)
            await other.aclose()
        async with opened(servers.url) as anew:
            assert isinstance(await anew.commit(Put(RecordKey("space", "c"), b"3")), Commit)


async def test_a_lock_whose_release_was_lost_is_free_when_its_lease_is_over() -> None:
    """Its holder's process lives, and has noticed that it cannot rely on what it knows: it renews nothing any more."""
    with replicated.postgresql(synchronous=False) as servers:
        holder = await sf.open(f"{servers.url}?timeout=2s", lease=2)
        async with holder.mutex("a").hold():
            await caught_up(servers)
            servers.lag()
        lose_the_last(servers)

        other = await sf.open(f"{servers.url}?timeout=2s", lease=2)

        async def hold() -> None:
            async with other.mutex("a").hold():
                pass

        async with asyncio.timeout(20):
            await asyncio.create_task(hold())  # of a task of its own: to the store, the other one is the holder
        await other.aclose()
        with contextlib.suppress(StoreRewoundError):
            await holder.aclose()


async def test_a_synchronous_standby_that_stalls_is_said_and_loses_nothing() -> None:
    """The commit is not called written, also when it is settled, until a standby has it."""
    with replicated.postgresql() as servers:
        async with opened(servers.url, "timeout=1s") as store:
            await store.commit(Put(KEY, b"1"))
            servers.lag()
            with pytest.raises(OutcomeUnknownError, match="synchronous standby") as unknown:
                await store.commit(Put(RecordKey("space", "b"), b"2"))
            with pytest.raises(StoreUnavailableError, match="synchronous standby"):
                await store.settle(unknown.value.attempt)

            servers.catch_up()
            settled: list[object] = []

            async def settle() -> None:
                settled.append(await store.settle(unknown.value.attempt))

            await insistently(settle)
            assert isinstance(settled[-1], Commit)


async def test_synchronous_replication_loses_no_acknowledged_commit() -> None:
    """The primary is killed in the middle of many; every one that was answered is there, and the handle goes on."""
    with replicated.postgresql() as servers:
        async with opened(servers.url) as store:
            acknowledged: list[RecordKey] = []
            over = asyncio.Event()

            async def write(name: int) -> None:
                for number in range(10_000):
                    key = RecordKey("space", f"{name}-{number}")
                    if over.is_set():
                        return
                    with contextlib.suppress(StoreUnavailableError, OutcomeUnknownError):
                        if isinstance(await store.commit(Put(key, b"")), Commit):
                            acknowledged.append(key)
                    await asyncio.sleep(0)

            writers = [asyncio.create_task(write(name)) for name in range(4)]
            await until(lambda: len(acknowledged) > 200, "some were acknowledged")
            await asyncio.to_thread(servers.primary.kill)
            await asyncio.to_thread(servers.promote, servers.members[1])
            before = len(acknowledged)
            await until(lambda: len(acknowledged) > before + 200, "it went on")
            over.set()
            await asyncio.gather(*writers)

            for first in range(0, len(acknowledged), 50):
                some = acknowledged[first : first + 50]
                assert set((await store.read(*some)).records) == set(some)


async def test_a_url_that_names_all_hosts_finds_the_primary() -> None:
    """When it is opened and after a failover, also while the old primary is up and takes writes."""
    with replicated.postgresql() as servers:
        async with opened(named(servers)) as store:
            await store.commit(Put(KEY, b"1"))
            old = servers.primary
            servers.promote(servers.members[1])
            with psycopg.connect(old.url, autocommit=True) as connection:
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'standfast%'"
                )

            await insistently(lambda: store.commit(Put(RecordKey("space", "b"), b"2")))

            async with opened(named(servers)) as anew:
                assert RecordKey("space", "b") in (await anew.read(RecordKey("space", "b"))).records
            await asyncio.to_thread(old.kill)
            await asyncio.to_thread(servers.members[2].stop)  # does not answer at all
            async with opened(named(servers), "timeout=2s&connect_timeout=2s") as third:
                assert RecordKey("space", "b") in (await third.read(RecordKey("space", "b"))).records


async def test_a_url_whose_hosts_are_all_replicas_is_refused() -> None:
    """In words, as one replica is."""
    with replicated.postgresql() as servers:
        url = named(servers).replace(f"127.0.0.1:{port_of(servers.primary.url)},", "")
        with pytest.raises(StoreReadOnlyError, match="all of its hosts are replicas"):
            await open_store(url)


@pytest.mark.parametrize("off", ["-10s", "+10s"])
async def test_fences_grow_over_a_failover_to_a_server_with_another_clock(off: str) -> None:
    """Ten seconds behind or ahead: versions go on above all that were given out, and the lock is taken again."""
    with replicated.postgresql(clock_of_standbys=off) as servers:
        space = await sf.open(f"{servers.url}?timeout=2s", lease=2)
        fences: list[int] = []

        async def hold() -> None:
            async with space.mutex("a").hold(timeout=15) as hold:
                fences.append(hold.fence)

        for _ in range(5):
            await hold()
        await asyncio.to_thread(servers.primary.kill)
        await asyncio.to_thread(servers.promote, servers.members[1])
        for _ in range(5):
            await insistently(hold)
        await space.aclose()
        assert fences == sorted(set(fences))
        assert len(fences) >= 10

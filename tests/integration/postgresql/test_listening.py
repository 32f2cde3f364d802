"""Hints over a connection of their own: when it breaks, with a pooler in between, and after the user's own SQL."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from standfast.keys import RecordKey
from standfast.stores import Delete, Put, Wake
from standfast.stores.postgresql import connection as listening
from standfast.stores.remote import connection
from standfast.stores.remote import subscriptions as hearing
from standfast.stores.url import open_store
from tests import services
from tests.integration.faults.proxy import proxy_to
from tests.integration.postgresql.ground import opened, place, run_sql, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services.server import Server

A, B = RecordKey("n", "t", "k", "a"), RecordKey("n", "t", "k", "b")
LISTENERS = "FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server whose sessions may be ended."""
    with services.private("postgresql") as server:
        yield server


@pytest.fixture
def no_slow_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is pushed is heard."""
    monkeypatch.setattr(hearing, "SLOW_CHECK", 1_000.0)


def listening_at(url: str, other: str) -> str:
    """Return a URL that listens at the address of another one."""
    return f"{url}&listen={urlsplit(other).hostname}:{urlsplit(other).port}"


async def silence(watch: Any) -> None:
    """Take the hints that are there already: the first check tells to look at everything."""
    while await watch.wait(0.3) is not None:
        pass


@pytest.mark.services
@pytest.mark.usefixtures("no_slow_check")
async def test_a_listening_session_that_is_ended_is_replaced_and_what_was_missed_is_told(own_server: Server) -> None:
    """By a hint to look at everything, as soon as it is there again."""
    url = place(own_server.url)
    async with opened(url, url) as [mine, other], mine.watch(A) as watch:
        await silence(watch)
        ended = await run_sql(url, f"SELECT pid, pg_terminate_backend(pid) {LISTENERS}")
        await other.commit(Put(A, b""))
        assert await watch.wait(10) is not None
        await until(lambda: _others_listen(url, {row[0] for row in ended}))
        await silence(watch)
        await other.commit(Delete(A, (await other.read(A)).version(A)))
        hint = await watch.wait(10)

    assert len(ended) == 1
    assert hint is not None
    assert A in hint.about


async def _others_listen(url: str, old: set[int]) -> bool:
    return any(pid not in old for (pid,) in await run_sql(url, f"SELECT pid {LISTENERS}"))


@pytest.mark.services
@pytest.mark.usefixtures("no_slow_check")
async def test_a_listening_connection_that_is_swallowed_is_noticed_and_replaced(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told that it is gone: asking now and then finds it out, with pauses and no busy loop."""
    monkeypatch.setattr(listening, "KEEPALIVE", 0.2)
    monkeypatch.setattr(connection, "LONGEST_PAUSE", 0.2)
    url = place(own_server.url, timeout="1s", connect_timeout="1s")
    async with proxy_to(own_server.url) as proxy:
        mine, other = await open_store(listening_at(url, proxy.url)), await open_store(url)
        async with mine.watch(A) as watch:
            await silence(watch)
            proxy.swallow()
            await other.commit(Put(A, b""))
            assert await watch.wait(2) is None
            requests = proxy.carried["request"]
            proxy.cut()
            proxy.carry_on()

            assert await watch.wait(20) is not None
        await mine.aclose()
        await other.aclose()
    assert proxy.carried["request"] - requests < 200


@pytest.mark.services
async def test_nothing_is_missed_for_longer_than_the_slow_check(own_server: Server) -> None:
    """However deaf the listening connection is."""
    url = place(own_server.url)
    async with proxy_to(own_server.url) as proxy, opened(listening_at(url, proxy.url), url) as [mine, other]:
        async with mine.watch(A) as watch:
            await silence(watch)
            proxy.swallow()
            started = time.monotonic()
            await other.commit(Put(A, b""))
            hint = await watch.wait(10)
        took = time.monotonic() - started
        proxy.carry_on()

    assert hint is not None
    assert took < hearing.SLOW_CHECK + 2


async def test_behind_a_pooler_changes_are_polled_for(pgbouncer_url: str) -> None:
    """It says so, and nobody listens through it: the pooler would give the session away."""
    url = place(pgbouncer_url)
    async with opened(url, url) as [mine, other], mine.watch(A) as watch:
        await silence(watch)
        await other.commit(Put(A, b""))

        assert mine.capabilities.wakes == "poll"
        assert await watch.wait(5) is not None


@pytest.mark.usefixtures("no_slow_check")
async def test_behind_a_pooler_hints_come_over_an_address_of_their_own(pgbouncer_url: str, postgresql_url: str) -> None:
    """With ``listen=`` they are pushed."""
    url = listening_at(place(pgbouncer_url), postgresql_url)
    async with opened(url, url) as [mine, other], mine.watch(A) as watch:
        await silence(watch)
        await other.commit(Put(A, b""))
        hint = await watch.wait(5)

    assert mine.capabilities.wakes == "push"
    assert hint is not None
    assert A in hint.about


async def test_a_pooler_can_be_named_where_it_is_not_recognised(postgresql_url: str) -> None:
    """``pooler=transaction`` relies on nothing of a session."""
    url = place(postgresql_url, pooler="transaction")
    async with opened(url) as [store]:
        await store.commit(Put(A, b""))
        await store.read(A)
        prepared = await run_sql(url, "SELECT FROM pg_stat_activity WHERE query LIKE 'LISTEN%@%'")

        assert store.capabilities.wakes == "poll"
    assert prepared == []


@pytest.mark.usefixtures("no_slow_check")
async def test_a_commit_with_the_users_own_sql_is_heard_by_others(postgresql_url: str) -> None:
    """What was put, what was deleted, and whom it wakes; also by a handle that has never written before."""
    url = place(postgresql_url)
    async with opened(url, url, url) as [mine, other, third], mine.watch(A, B) as watch:
        await silence(watch)
        await other.commit_with(lambda sql: sql.execute("SELECT 1"), Put(A, b""))
        first = await watch.wait(10)
        version = (await other.read(A)).version(A)
        await third.commit_with(lambda _: None, Delete(A, version), wake=[Wake(B)])
        heard = [await watch.wait(10)]
        await asyncio.sleep(0)

    assert first is not None
    assert A in first.about
    assert heard[0] is not None
    assert A in heard[0].about

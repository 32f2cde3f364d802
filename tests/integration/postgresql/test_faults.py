"""Sessions that are ended, locks that are not to be had, limits of a role, a server that stops: nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import AttemptClosedError, OutcomeUnknownError, StoreError, StoreUnavailableError
from standfast.keys import RecordKey
from standfast.stores import Commit, Decision, Put
from standfast.stores.remote import Intent, Landed, Row, Written
from standfast.stores.url import open_store
from tests import services
from tests.integration.faults.proxy import Fault, proxy_to
from tests.integration.postgresql.ground import (
    connected,
    made,
    make_user,
    opened,
    place,
    run_sql,
    schema_of,
    server_of,
    until,
)
from tests.sizes import rounds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import asyncpg

    from standfast.stores import GroupedStore, Snapshot
    from tests.services.server import Server

pytestmark = pytest.mark.services

A, B = RecordKey("n", "a"), RecordKey("n", "b")


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server that looks for deadlocks soon, and whose sessions may be ended."""
    with services.private("postgresql", arguments=["-c", "deadlock_timeout=50ms"]) as server:
        yield server


def intent(number: int) -> Intent:
    """An intent that creates a record."""
    return Intent("handle", number, {A: 0}, (Row(A, b"v", 0),), (), 1)


def counted(seen: Snapshot) -> Decision[None]:
    """Add one to a counter."""
    record = seen.get(A)
    number = 0 if record is None else int(record.value)
    return Decision(None, (Put(A, b"%d" % (number + 1), seen.version(A)),))


async def end_sessions(url: str) -> int:
    """End the sessions of all stores on a server; return how many there were."""
    rows = await run_sql(
        url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'standfast'"
    )
    return len(rows)


async def sessions(url: str) -> int:
    """Return how many sessions stores have on a server."""
    [[count]] = await run_sql(url, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'standfast'")
    return int(count)


@contextlib.asynccontextmanager
async def locked(url: str, key: RecordKey) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """Lock a record in a transaction of somebody else's, for as long as the block lasts."""
    lock = f"SELECT FROM {schema_of(url)}.records WHERE key = $1 FOR UPDATE"
    async with connected(url) as connection, connection.transaction():
        await connection.execute(lock, key)
        yield connection


# --- sessions that are ended ----------------------------------------------------------------------------------------


async def test_idle_sessions_that_an_administrator_ends_are_opened_again(own_server: Server) -> None:
    """Reads and commits go on; whoever calls notices nothing."""
    async with opened(place(own_server.url)) as [store]:
        await store.commit(Put(A, b"1"))
        await store.read(A)
        assert await end_sessions(own_server.url) >= 2
        seen = await store.read(A)

        assert isinstance(await store.commit(Put(A, b"2", seen.version(A))), Commit)


async def test_sessions_that_are_ended_while_they_write_lose_and_repeat_nothing(own_server: Server) -> None:
    """What was committed is settled, and done once."""
    done = 0

    async def count(store: GroupedStore) -> None:
        nonlocal done
        while done < 60:
            with contextlib.suppress(StoreUnavailableError):
                await store.update([A], counted)
                done += 1

    url = place(own_server.url)
    async with opened(url, url) as stores:
        counting = asyncio.gather(*(count(store) for store in stores))
        for goal in range(0, 60, 6):
            await until(lambda goal=goal: _is_reached(done >= goal), within=40)  # type: ignore[misc]  # of a default
            await end_sessions(own_server.url)
        await counting

        assert int((await stores[0].read(A)).records[A].value) == done


async def _is_reached(goal: bool) -> bool:  # noqa: FBT001 -- as it was compared
    return goal


async def test_calls_that_are_cancelled_leave_no_session_behind(own_server: Server) -> None:
    """At whatever moment; and the store goes on."""
    rng = random.Random(7)
    async with opened(place(own_server.url)) as [store]:
        for number in range(40):
            call: Any = store.update([A], counted) if number % 2 else store.scan(*RecordKey("n").within(), limit=5)
            task = asyncio.create_task(call)
            await asyncio.wait({task}, timeout=rng.uniform(0, 0.004))
            task.cancel()
            await asyncio.wait({task})
        await store.read(A)
        await until(lambda: _has_at_most(own_server.url, 2))
    await until(lambda: _has_at_most(own_server.url, 0))


async def _has_at_most(url: str, count: int) -> bool:
    return await sessions(url) <= count


# --- locks that are not to be had -----------------------------------------------------------------------------------


async def test_a_deadlock_with_somebody_elses_transaction_is_survived(own_server: Server) -> None:
    """PostgreSQL ends one of both, here the one that looks first; a commit that was chosen is sent again."""
    url = place(own_server.url)
    async with opened(url) as [store]:
        first = await store.commit(Put(A, b"1"), Put(B, b"1"))
        assert isinstance(first, Commit)
        async with locked(url, B) as other:
            await other.execute("SET LOCAL deadlock_timeout = '1min'")
            commit = asyncio.create_task(store.commit(Put(A, b"2", first.versions[A]), Put(B, b"2", first.versions[B])))
            await until(lambda: _someone_waits(url))
            await other.execute(f"SELECT FROM {schema_of(url)}.records WHERE key = $1 FOR UPDATE", A)

        assert isinstance(await commit, Commit)


async def _someone_waits(url: str) -> bool:
    return bool(
        await run_sql(
            url, "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'standfast'"
        )
    )


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
async def test_a_limit_of_the_role_makes_a_commit_fail_for_certain(own_server: Server, setting: str) -> None:
    """Nothing was written, that is known, and the same works when nobody is in the way."""
    url = await make_user(await made(own_server.url), "SELECT @.grant_to('$')", f"ALTER ROLE $ SET {setting} = '400ms'")
    async with opened(url) as [store]:
        first = await store.commit(Put(A, b"1"))
        assert isinstance(first, Commit)
        async with locked(url, A):
            with pytest.raises(StoreUnavailableError):
                await store.commit(Put(A, b"2", first.versions[A]))

        assert isinstance(await store.commit(Put(A, b"3", first.versions[A])), Commit)


async def test_work_that_idles_for_too_long_has_done_nothing(own_server: Server) -> None:
    """The session is ended by the server; the store goes on with another one."""
    limit = "ALTER ROLE $ SET idle_in_transaction_session_timeout = '50ms'"
    url = await make_user(await made(own_server.url), "SELECT @.grant_to('$')", limit)

    async def idle(_: Any) -> None:
        await asyncio.sleep(0.3)

    async with opened(url) as [store]:
        with pytest.raises(StoreUnavailableError):
            await store.commit_with(idle, Put(A, b""))
        assert (await store.read(A)).get(A) is None

        await store.commit_with(lambda _: None, Put(A, b""))


async def test_a_role_that_prefers_another_isolation_gets_the_same_answers() -> None:
    """Also through a pooler, where no setting of a session can be relied on: serialization failures are tried again."""
    with services.private("postgresql") as server, services.private("pgbouncer", behind=server.url) as pooler:
        await run_sql(server.url, "ALTER ROLE standfast SET default_transaction_isolation = 'serializable'")
        url = place(pooler.url)
        async with opened(url, url, url) as stores:
            await asyncio.gather(*(store.update([A], counted) for store in stores for _ in range(20)))

            assert (await stores[0].read(A)).records[A].value == b"60"


# --- a server that stops --------------------------------------------------------------------------------------------


async def test_a_server_that_was_restarted_is_found_again() -> None:
    """While it is away nothing can be done; after that everything is there."""
    with services.private("postgresql") as server:
        async with opened(f"{server.url}?timeout=1s&connect_timeout=1s") as [store]:
            written = await store.commit(Put(A, b"1"))
            server.kill()
            with pytest.raises(StoreUnavailableError):
                await store.read(A)
            server.restart()
            seen = await store.read(A)

        assert isinstance(written, Commit)
        assert seen.version(A) == written.versions[A]


@pytest.mark.heavy
async def test_whenever_the_network_falls_silent_everybody_gets_an_answer(own_server: Server) -> None:
    """From any piece on that is sent or received nothing arrives any more: no call, and no closing, waits for ever."""
    url = await made(own_server.url)
    async with proxy_to(url) as proxy:
        for seed in rounds("silences of PostgreSQL", full=80, quick=2):
            proxy.fault = Fault(
                "request" if seed % 2 else "reply", sum(proxy.carried.values()) + seed // 2 + 1, "swallow"
            )
            proxy.carried = dict.fromkeys(proxy.carried, sum(proxy.carried.values()))
            started = time.monotonic()
            with contextlib.suppress(StoreError):
                await _use_all(f"{proxy.url}&timeout=200ms&connect_timeout=200ms")
            assert time.monotonic() - started < 30, f"{proxy.fault}"
            proxy.carry_on()
        assert proxy.struck > 0


async def _use_all(url: str) -> None:
    """Open a store, do one of everything at once, and close it."""
    async with opened(url) as [store], store.watch(A):
        seen = await store.read(A, B)
        calls: list[Any] = [
            store.commit(Put(A, b"", seen.version(A))),
            store.update([B], lambda now: Decision(None, (Put(B, b"", now.version(B)),))),
            store.scan(*RecordKey("n").within(), limit=5),
            store.commit_with(lambda _: None, Put(A.child("x"), b"", seen.version(A.child("x")))),
        ]
        await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.heavy
async def test_nobody_waits_for_ever_for_a_server_that_stands_still() -> None:
    """Whatever is asked of it, closing included."""
    with services.private("postgresql") as server:
        store = await open_store(f"{server.url}?timeout=300ms&connect_timeout=300ms")
        await store.commit(Put(A, b""))
        async with store.watch(A):
            server.stop()
            started = time.monotonic()
            calls: list[Any] = [
                store.read(A),
                store.scan(*RecordKey("n").within(), limit=5),
                store.commit(Put(B, b"")),
                store.update([A], counted),
                store.commit_with(lambda _: None, Put(B, b"")),
                store.another(),
                open_store(f"{server.url}?timeout=300ms&connect_timeout=300ms"),
            ]
            answers = await asyncio.gather(*calls, return_exceptions=True)
        await store.aclose()
        took = time.monotonic() - started
        server.cont()

    assert [type(each) for each in answers if not isinstance(each, StoreError)] == []
    assert took < 30


async def test_a_write_that_a_frozen_server_did_not_answer_is_unknown_and_then_settled() -> None:
    """It may land when the server goes on, or not: closing the attempt says which, for good."""
    with services.private("postgresql") as own:
        async with opened(f"{own.url}?timeout=500ms") as [store]:
            server = server_of(store)
            await server.write(Intent("handle", 1, {B: 0}, (Row(B, b"v", 0),), (), 1))
            own.stop()
            with pytest.raises(OutcomeUnknownError):
                await server.write(intent(2))
            own.cont()
            landed = await server.close_attempt("handle", 2, b"")
            seen = await server.read([A])

    assert (landed is None) == (seen.get(A) is None)


# --- attempts and versions ------------------------------------------------------------------------------------------


async def test_a_closed_attempt_can_not_be_written_any_more(own_server: Server) -> None:
    """Not even if it had only been late; and what follows it can."""
    async with opened(place(own_server.url)) as [store]:
        server = server_of(store)

        assert await server.close_attempt("handle", 1, b"") is None
        with pytest.raises(AttemptClosedError):
            await server.write(intent(1))
        assert (await server.read([A])).get(A) is None
        await server.write(intent(2))


async def test_an_attempt_that_landed_says_with_which_versions(own_server: Server) -> None:
    """As often as it is asked."""
    async with opened(place(own_server.url)) as [store]:
        server = server_of(store)
        written = await server.write(intent(1))

        assert isinstance(written, Written)
        for _ in range(2):
            assert await server.close_attempt("handle", 1, b"") == Landed(written.at, written.versions)


@pytest.mark.parametrize("last", ["1", "(extract(epoch FROM now()) * 1000000)::bigint + 86400000000"])
async def test_versions_grow_after_a_restore_and_after_a_clock_that_was_ahead(own_server: Server, last: str) -> None:
    """Whatever the counter was set to, and also for a key that was deleted."""
    url = place(own_server.url)
    async with opened(url) as [store]:
        before = await store.commit(Put(A, b"1"))
        assert isinstance(before, Commit)
    await run_sql(url, f"SELECT setval('@.versions', {last})")
    async with opened(url) as [store]:
        after = await store.commit(Put(A, b"2", before.versions[A]), Put(B, b""))

    assert isinstance(after, Commit)
    assert before.versions[A] < after.versions[A] < 2**53

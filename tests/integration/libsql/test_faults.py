"""What happens to a commit on a libSQL server when answers, streams or the server itself get lost."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from standfast.errors import StoreError, StoreUnavailableError
from standfast.events import OutcomeSettled
from standfast.stores import Commit, Conflict, Delete, Put
from standfast.stores.address import Address
from standfast.stores.libsql import connection as calling
from standfast.stores.libsql.connection import LibsqlConnection, read_options
from standfast.stores.libsql.hrana import HranaBatch
from standfast.stores.remote.backend import RemoteBackend
from tests import services
from tests.integration.libsql.conftest import opened, sql
from tests.integration.libsql.wire import wire_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.keys import RecordKey
    from standfast.stores import GroupedStore
    from tests.services.server import Server

    MakeKey = Callable[..., RecordKey]

pytestmark = pytest.mark.services


async def test_a_commit_whose_answer_is_lost_happens_once(url: str, key: MakeKey) -> None:
    """The attempt tells that it was written, and with which version."""
    settled: list[object] = []
    async with wire_to(url) as wire, opened(wire.url, hooks=[settled.append]) as store:
        await store.commit(Put(key("first"), b""))  # from here on it knows the time, and reads nothing
        wire.lose_replies = 1
        verdict = await store.commit(Put(key("a"), b"once"))

        assert isinstance(verdict, Commit)
        assert (await store.read(key("a"))).version(key("a")) == verdict.versions[key("a")]
        assert [event.written for event in settled if isinstance(event, OutcomeSettled)] == [True]


async def test_a_commit_that_never_arrives_is_sent_again(url: str, key: MakeKey) -> None:
    """Its attempt is closed first, so that it cannot arrive any more."""
    settled: list[object] = []
    async with wire_to(url) as wire, opened(wire.url, hooks=[settled.append]) as store:
        await store.commit(Put(key("first"), b""))  # from here on it knows the time, and reads nothing
        wire.lose_requests = 1
        assert isinstance(await store.commit(Put(key("a"), b"once")), Commit)
        assert [event.written for event in settled if isinstance(event, OutcomeSettled)] == [False]


async def test_a_read_whose_connection_broke_is_asked_again(url: str, key: MakeKey) -> None:
    """Nobody notices."""
    async with wire_to(url) as wire, opened(wire.url) as store:
        await store.commit(Put(key("a"), b"there"))
        wire.lose_replies = 1
        assert (await store.read(key("a"))).records[key("a")].value == b"there"


async def test_a_killed_server_keeps_what_it_acknowledged(server: Server, key: MakeKey) -> None:
    """After SIGKILL and a start, records are there, versions go on growing, and old streams are not missed."""
    async with opened(server.url) as store:
        first = await store.commit(Put(key("a"), b"1"))
        assert isinstance(first, Commit)
        server.kill()
        with pytest.raises(StoreError):
            await store.read(key("a"))
        server.restart()
        second = await store.commit(Put(key("a"), b"2", expected=first.versions[key("a")]))

        assert isinstance(second, Commit)
        assert second.versions[key("a")] > first.versions[key("a")]


async def test_a_server_that_does_not_answer_is_given_up_in_time(server: Server, key: MakeKey) -> None:
    """Calls end within their limits while it is frozen, and go on when it is back."""
    async with opened(f"{server.url}&timeout=500ms&connect_timeout=500ms") as store:
        server.stop()
        async with asyncio.timeout(10):
            with pytest.raises(StoreUnavailableError):
                await store.read(key("a"))
        server.cont()
        assert isinstance(await store.commit(Put(key("a"), b"")), Commit)


async def test_a_server_that_is_down_is_not_hammered(server: Server, key: MakeKey) -> None:
    """Each failed connection makes the next one wait longer."""
    async with opened(server.url) as store:
        server.kill()
        started = asyncio.get_running_loop().time()
        for _ in range(5):
            with pytest.raises(StoreUnavailableError):
                await store.read(key("a"))
        assert asyncio.get_running_loop().time() - started > 0.2
        server.restart()


async def test_a_stream_that_has_expired_is_replaced(
    store: GroupedStore, key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that closes streams sooner than expected refuses the request, which is sent on a new one."""
    await store.commit(Put(key("a"), b""))
    monkeypatch.setattr(calling.Streams, "take", lambda _: "a baton that the server does not know")

    assert isinstance(await store.commit(Put(key("b"), b"")), Commit)

    monkeypatch.undo()


async def test_a_server_that_speaks_only_the_older_protocol_is_spoken_to(
    url: str, key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where version 3 is not found, version 2 will do."""
    monkeypatch.setattr(calling, "_VERSIONS", ("v9", "v2"))
    async with opened(url) as store:
        assert isinstance(await store.commit(Put(key("a"), b"")), Commit)
        assert isinstance(await store.commit(Put(key("a"), b"")), Conflict)


async def test_records_that_are_too_much_for_one_answer_are_read_all_the_same(key: MakeKey) -> None:
    """By a read, by a scan, and as what a conflict shows; and nobody is kept waiting by it."""
    keys = [key(f"{n}") for n in range(8)]
    with services.private("libsql", arguments=["--max-response-size", "20KB"]) as server:
        async with opened(server.url) as store, opened(server.url) as other:
            await store.commit(*(Put(each, b"x" * 5_000) for each in keys))

            assert len((await store.read(*keys)).records) == 8
            assert len((await store.scan(key(), key("z"), limit=100)).records) == 8
            async with asyncio.timeout(4):
                conflict = await other.commit(*(Delete(each, 1) for each in keys))
                assert isinstance(conflict, Conflict)
                assert len(conflict.current) == 8
                assert isinstance(await store.commit(Put(key("z"), b"")), Commit)


async def test_time_and_versions_do_not_go_back_with_the_clock_of_the_server(
    store: GroupedStore, url: str, key: MakeKey
) -> None:
    """They never fall behind what a commit has carried, by whichever clock."""
    ahead = 3_000_000_000_000_000
    await sql(url, "UPDATE {p}clock SET at = 3000000000000000, count = 3000000000000007")

    commit = await store.commit(Put(key("a"), b""))

    assert isinstance(commit, Commit)
    assert commit.at == ahead
    assert commit.versions[key("a")] == ahead + 8
    assert (await store.read(key("a"))).at == ahead


async def test_a_restored_backup_gives_no_version_out_again(store: GroupedStore, url: str, key: MakeKey) -> None:
    """New versions are never below the server's time, whatever its counter says."""
    first = await store.commit(Put(key("a"), b""))
    assert isinstance(first, Commit)
    await sql(url, "DELETE FROM {p}records", "UPDATE {p}clock SET count = 5, at = 5")

    again = await store.commit(Put(key("a"), b""))

    assert isinstance(again, Commit)
    assert again.versions[key("a")] > first.versions[key("a")]


async def test_another_writer_is_waited_for(store: GroupedStore, url: str, key: MakeKey) -> None:
    """While somebody else is in a transaction a commit waits, and nothing of it is lost."""
    caller, batch = LibsqlConnection(read_options(Address(url))), HranaBatch()
    batch.add("BEGIN IMMEDIATE")
    await caller.write(batch)
    waiting = asyncio.create_task(store.commit(Put(key("a"), b"")))
    await asyncio.sleep(0)
    batch = HranaBatch()
    batch.add("ROLLBACK")
    await caller.write(batch)

    assert isinstance(await waiting, Commit)
    await caller.aclose()


async def test_expired_records_and_old_attempts_are_swept(store: GroupedStore, url: str, key: MakeKey) -> None:
    """And nothing else is."""
    backend = store._backend  # sweeping is upkeep, and has no call of its own
    assert isinstance(backend, RemoteBackend)
    at = (await store.read(key("a"))).at
    await store.commit(Put(key("a"), b"", expires_at=at), Put(key("b"), b""))
    await sql(url, "INSERT INTO {p}attempts VALUES ('old', 1, 0, NULL, NULL)")

    assert await backend.server.sweep(10) == 1

    assert await sql(url, "SELECT count(*) FROM {p}records", "SELECT count(*) FROM {p}attempts") == [[[1]], [[1]]]


async def test_more_handles_than_the_server_has_connections_work_side_by_side(key: MakeKey) -> None:
    """None is kept by who calls now and then, and who finds none asks again."""
    with services.private("libsql", arguments=["--max-concurrent-connections", "4"]) as server:
        async with contextlib.AsyncExitStack() as stack:
            stores = [await stack.enter_async_context(opened(server.url)) for _ in range(8)]
            commits = [store.commit(Put(key(f"{n}"), b"")) for n, store in enumerate(stores)]
            assert all(isinstance(verdict, Commit) for verdict in await asyncio.gather(*commits))

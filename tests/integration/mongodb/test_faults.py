"""What becomes of commits when MongoDB fails in the middle, on a server of this module's own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from pymongo import MongoClient

from standfast.errors import OutcomeUnknownError, StoreFullError, StoreUnavailableError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from standfast.stores.mongodb import records as abandoned
from standfast.stores.remote.server import Intent, Landed, Row
from standfast.stores.url import open_store
from tests import services
from tests.integration.mongodb.fail_points import FailPoints, server_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from standfast.stores import GroupedStore
    from tests.services.server import Server

pytestmark = pytest.mark.services

K = RecordKey("faults", "k")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that may be hurt."""
    with services.private("mongodb") as server:
        yield server


@pytest.fixture
async def store(server: Server) -> AsyncIterator[GroupedStore]:
    """One handle, with little patience."""
    store = await open_store(f"{server.url}&timeout=1s")
    yield store
    await store.aclose()


@pytest.fixture
def failing(server: Server) -> Iterator[FailPoints]:
    """What makes the server fail."""
    with MongoClient[dict[str, Any]](server.url) as client:
        yield FailPoints(client)


def creating(handle: str, number: int = 1) -> Intent:
    """Return an intent that creates a record of its own."""
    key = RecordKey("faults", handle)
    return Intent(handle, number, {key: 0}, (Row(key, b"", 0),), (), 1)


async def test_a_lost_answer_is_settled(store: GroupedStore, failing: FailPoints) -> None:
    """The commit landed, its answer and that to the driver's own second try got lost, and it is found out."""
    with failing.commands("commitTransaction", times=2, closeConnection=True):
        answer = await store.commit(Put(K, b"lost answer"))

    assert isinstance(answer, Commit)
    assert (await store.read(K)).records[K].version == answer.versions[K]


async def test_an_answer_that_is_lost_for_good_is_an_unknown_outcome(store: GroupedStore, failing: FailPoints) -> None:
    """And the attempt can be closed: it was written, or never will be."""
    server = server_of(store)
    with (
        failing.commands("commitTransaction", times=5, closeConnection=True),
        pytest.raises(OutcomeUnknownError),
    ):
        await server.write(creating("unknown"))

    landed = await server.close_attempt("unknown", 1, b"")
    seen = await store.read(RecordKey("faults", "unknown"))
    assert isinstance(landed, Landed) == bool(seen.records)


async def test_an_attempt_that_was_closed_is_never_written(store: GroupedStore) -> None:
    """Whoever claims it first has it."""
    server = server_of(store)
    assert await server.close_attempt("closed", 1, b"") is None

    with pytest.raises(Exception, match="closed"):
        await server.write(creating("closed"))

    assert not (await store.read(RecordKey("faults", "closed"))).records


@pytest.mark.parametrize("command", ["find", "update"])
async def test_a_transaction_that_was_undone_is_tried_again(
    store: GroupedStore, failing: FailPoints, command: str
) -> None:
    """A conflict with another transaction is nobody's answer."""
    key = RecordKey("faults", "again", command)
    await store.commit(Put(key.child("before"), b""))  # from then on the handle knows the server's time
    with failing.commands(command, errorCode=112, errorLabels=["TransientTransactionError"]):
        answer = await store.commit(Put(key, b""))

    assert isinstance(answer, Commit)


async def test_a_full_disk_is_reported_as_such(store: GroupedStore, failing: FailPoints) -> None:
    """Nothing was written then."""
    key = RecordKey("faults", "full")
    with failing.commands("update", errorCode=14031), pytest.raises(StoreFullError, match="make room"):
        await store.commit(Put(key, b""))

    assert not (await store.read(key)).records


async def test_a_record_that_a_dead_process_keeps_is_reported_in_time(store: GroupedStore, server: Server) -> None:
    """The transaction of a process that died holds its records until the server ends it."""
    key = RecordKey("faults", "kept")
    prefix = "standfast_records"
    with MongoClient[dict[str, Any]](server.url) as client, client.start_session() as session:
        session.start_transaction()
        records = client.get_default_database()[prefix]
        records.insert_one({"_id": key.decode("latin-1"), "version": 1, "value": b""}, session=session)

        with pytest.raises(StoreUnavailableError, match="transactionLifetimeLimitSeconds"):
            await store.commit(Put(key, b""))


async def test_a_transaction_that_a_dead_process_left_open_is_ended(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever meets it does not wait until the server ends it by itself, a minute later."""
    monkeypatch.setattr(abandoned, "FIRST_LOOK", 0.0)
    monkeypatch.setattr(abandoned, "STANDS_STILL", 1_000)
    store = await open_store(server.url)
    dead = await open_store(server.url)
    writing = server_of(dead)._writing

    async with writing._connection.transaction() as session:
        await writing._prepare(creating("dead"), session)
        verdict = await store.commit(Put(RecordKey("faults", "dead"), b"alive"))

    assert isinstance(verdict, Commit)
    await dead.aclose()
    await store.aclose()


async def test_a_server_that_stands_still_is_given_up_in_time(store: GroupedStore, server: Server) -> None:
    """And works again when it goes on."""
    key = RecordKey("faults", "still")
    await store.read(key)
    server.stop()
    try:
        async with asyncio.timeout(10):
            with pytest.raises(StoreUnavailableError):
                await read_on(store, key)
    finally:
        server.cont()

    assert isinstance(await eventually(store, key), Commit)


async def test_a_watch_hears_again_after_the_server_was_restarted(server: Server) -> None:
    """Its stream is opened anew, and whoever watches looks at everything."""
    store, other = await open_store(server.url), await open_store(server.url)
    key = RecordKey("faults", "watched")
    async with store.watch(key) as watch:
        await watch.wait(0)
        server.kill()
        server.restart()
        hint = await watch.wait(20)
        assert hint is not None
        assert not hint.complete
        for _ in range(20):
            await eventually(other, key)
            hint = await watch.wait(1)
            if hint is not None and key in hint.about:
                break
        assert hint is not None
        assert key in hint.about
    await asyncio.gather(store.aclose(), other.aclose())


async def read_on(store: GroupedStore, key: RecordKey) -> None:
    """Read until that fails: a server that is stopped may answer once more."""
    while True:
        await store.read(key)


async def eventually(store: GroupedStore, key: RecordKey) -> Commit | None:
    """Put a record, however often that takes until the server is there again."""
    for _ in range(20):
        try:
            seen = await store.read(key)
            answer = await store.commit(Put(key, b"", seen.version(key)))
        except StoreUnavailableError:
            await asyncio.sleep(0)
        else:
            return answer if isinstance(answer, Commit) else None
    return None

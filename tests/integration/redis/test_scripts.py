"""A script happens as a whole or not at all, whatever state the server is in, and its numbers are exact."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import Instant
from standfast.errors import StoreBusyError, StoreCorruptError, StoreFullError
from standfast.keys import RecordKey
from standfast.stores import Commit, Delete, Put
from standfast.stores.protocol import MAX_VERSION
from standfast.stores.redis import RedisServer
from standfast.stores.redis.server import LOOKED_AT
from standfast.stores.remote import Intent, RemoteBackend, Row, Written

if TYPE_CHECKING:
    import redis.asyncio

    from standfast.stores import GroupedStore
    from tests.integration.redis.conftest import Open

pytestmark = pytest.mark.services

KEY = RecordKey("space", "a")
OTHER = RecordKey("space", "b")


def server_of(store: GroupedStore) -> RedisServer:
    """Return the server under a store."""
    assert isinstance(store.backend, RemoteBackend)
    assert isinstance(store.backend.server, RedisServer)
    return store.backend.server


async def everything(admin: redis.asyncio.Redis, prefix: str) -> dict[bytes, Any]:
    """Return all that lies on the server for a prefix."""
    return {key: await admin.dump(key) async for key in admin.scan_iter(f"*{prefix}*")}


async def test_a_full_server_refuses_a_commit_before_its_first_write(
    open_it: Open, admin: redis.asyncio.Redis, prefix: str
) -> None:
    """Deletes and puts in one commit: none of it is there, and with room again all of it is."""
    store = await open_it()
    first = await store.commit(Put(KEY, b"1"))
    assert isinstance(first, Commit)
    before = await everything(admin, prefix)
    await admin.config_set("maxmemory", 1)

    with pytest.raises(StoreFullError, match="maxmemory"):
        await store.commit(Delete(KEY, first.versions[KEY]), Put(OTHER, b"2"))

    assert await everything(admin, prefix) == before
    await admin.config_set("maxmemory", 0)
    assert isinstance(await store.commit(Delete(KEY, first.versions[KEY]), Put(OTHER, b"2")), Commit)


async def test_a_full_server_still_lets_go(open_it: Open, admin: redis.asyncio.Redis) -> None:
    """Deleting needs no room, and neither does reading."""
    store = await open_it()
    first = await store.commit(Put(KEY, b"1"))
    assert isinstance(first, Commit)
    await admin.config_set("maxmemory", 1)

    assert (await store.read(KEY)).get(KEY) is not None
    assert isinstance(await store.commit(Delete(KEY, first.versions[KEY])), Commit)

    assert (await store.read(KEY)).get(KEY) is None


@pytest.mark.parametrize("name", ["order", "expiries", "records", "head"])
async def test_a_key_that_holds_something_else_is_met_before_the_first_write(
    open_it: Open, admin: redis.asyncio.Redis, prefix: str, name: str
) -> None:
    """Whichever key of a namespace somebody else has taken, nothing is written beside it."""
    store = await open_it()
    await admin.set(f"{{{prefix}:space}}:{name}", "mine")
    before = await everything(admin, prefix)

    with pytest.raises(StoreCorruptError, match="prefix"):
        await store.commit(Put(KEY, b"1", expires_at=Instant(MAX_VERSION)))

    assert await everything(admin, prefix) == before


async def test_scripts_that_the_server_lost_are_sent_again(open_it: Open, admin: redis.asyncio.Redis) -> None:
    """After a failover or a flush of scripts nobody notices anything."""
    store = await open_it()
    await store.commit(Put(KEY, b"1"))
    await admin.script_flush()

    await store.commit(Put(OTHER, b"2"))

    assert len((await store.read(KEY, OTHER)).records) == 2


async def test_a_server_that_is_busy_with_a_script_says_so(open_it: Open, admin: redis.asyncio.Redis) -> None:
    """Somebody's endless script is named as the reason; nothing was written, and after it all goes on."""
    store = await open_it(timeout="30s")
    await admin.config_set("busy-reply-threshold", 1)
    endless: asyncio.Future[Any] = asyncio.ensure_future(admin.eval("while true do end", 0))
    async with asyncio.timeout(20):
        while True:
            try:
                await store.read(KEY)
            except StoreBusyError:
                break

    with pytest.raises(StoreBusyError, match="SCRIPT KILL"):
        await store.commit(Put(KEY, b"1"))

    await admin.script_kill()
    with pytest.raises(Exception, match="killed"):
        await endless
    assert (await store.read(KEY)).get(KEY) is None
    assert isinstance(await store.commit(Put(KEY, b"1")), Commit)


async def test_versions_are_exact_up_to_the_last_one(open_it: Open, admin: redis.asyncio.Redis, prefix: str) -> None:
    """Close to 2^53 each version is one more than the last, in answers and in what is stored."""
    store, start = await open_it(), MAX_VERSION - 100
    await admin.set(f"{{{prefix}:space}}:head", f"{start:016d}{0:016d}{0:016d}")

    commits = [await store.commit(Put(RecordKey("space", str(each)), b"")) for each in range(5)]

    versions = [version for commit in commits if isinstance(commit, Commit) for version in commit.versions.values()]
    assert versions == [start + 1 + each for each in range(5)]
    found = await store.scan(*RecordKey("space").within(), limit=10)
    assert [record.version for record in found.records.values()] == versions


async def test_an_expiry_is_exact_to_the_microsecond(open_it: Open) -> None:
    """The last instant that there is comes back as it was given."""
    store = await open_it()
    await store.commit(Put(KEY, b"", expires_at=Instant(MAX_VERSION)))

    record = (await store.read(KEY)).get(KEY)

    assert record is not None
    assert record.expires_at == MAX_VERSION


async def test_a_clock_that_was_set_back_stands_still(open_it: Open, admin: redis.asyncio.Redis, prefix: str) -> None:
    """Up to a minute, time is never earlier than at the last write."""
    store = await open_it()
    now = (await store.read(KEY)).at
    ahead = now + 30_000_000
    await admin.set(f"{{{prefix}:space}}:head", f"{ahead:016d}{ahead:016d}{0:016d}")

    assert (await store.read(KEY)).at == ahead
    commit = await store.commit(Put(KEY, b""))

    assert commit.at == ahead
    assert isinstance(commit, Commit)
    assert commit.versions[KEY] == ahead + 1


async def test_an_intent_of_thousands_of_records_fits_into_one_script(open_it: Open) -> None:
    """More keys than Lua can pass to one command at a time."""
    server = server_of(await open_it())
    keys = [RecordKey("space", f"{number:05d}") for number in range(9_000)]
    rows = tuple(Row(key, b"v", 0) for key in keys)

    written = await server.write(Intent("handle", 1, dict.fromkeys(keys, 0), rows, (), 1))

    assert isinstance(written, Written)
    assert len((await server.read(keys)).records) == len(keys)


async def test_a_page_is_filled_however_much_has_expired_before_it(open_it: Open) -> None:
    """What has expired and is not swept yet is passed over, in several calls if need be."""
    server = server_of(await open_it())
    old = [RecordKey("space", "a", f"{number:05d}") for number in range(LOOKED_AT + 500)]
    rows = (*(Row(key, b"", 0, Instant(1)) for key in old), Row(OTHER, b"", 0))
    await server.write(Intent("handle", 1, dict.fromkeys((*old, OTHER), 0), rows, (), 1))

    page = await server.scan(*RecordKey("space").within(), limit=1, reverse=False)

    assert list(page.records) == [OTHER]
    assert page.more is None


async def test_expired_records_are_swept_and_leave_nothing(
    open_it: Open, admin: redis.asyncio.Redis, prefix: str
) -> None:
    """Records, order and expiries are gone; only the head and the attempts stay."""
    store = await open_it()
    await store.commit(Put(KEY, b"", expires_at=Instant(1)))

    assert await server_of(store).sweep(500) == 1

    names = {key.rpartition(b":")[2] for key in await everything(admin, prefix)}
    assert names == {b"head", b"attempts", b"id"}


async def test_closing_leaves_no_trace_of_a_handle(open_it: Open, admin: redis.asyncio.Redis, prefix: str) -> None:
    """Its attempts and its topics are gone with it."""
    store = await open_it()
    async with store.watch(KEY):
        await store.commit(Put(KEY, b""))
    await store.aclose()

    names = {key.rpartition(b":")[2] for key in await everything(admin, prefix)}
    assert names == {b"head", b"records", b"order", b"id"}

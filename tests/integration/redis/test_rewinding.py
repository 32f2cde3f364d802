"""A server that lost acknowledged commits: whoever has seen more says so, and fences go on growing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.errors import StoreError, StoreRewoundError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from standfast.stores.url import open_store
from tests import services

if TYPE_CHECKING:
    import redis.asyncio

    from tests.integration.redis.conftest import Open
    from tests.services.server import Server

pytestmark = pytest.mark.services

KEY = RecordKey("space", "a")


async def test_a_writer_notices_that_everything_is_gone(open_it: Open, admin: redis.asyncio.Redis) -> None:
    """A flush, or a restart without persistence: nothing is written until the store is opened anew."""
    store = await open_it()
    before = await store.commit(Put(KEY, b"1"))
    await admin.flushall()

    for _ in range(2):
        with pytest.raises(StoreRewoundError, match="missing"):
            await store.commit(Put(KEY, b"2"))

    assert await admin.dbsize() == 0
    after = await (await open_it()).commit(Put(KEY, b"2"))
    assert isinstance(before, Commit)
    assert isinstance(after, Commit)
    assert after.versions[KEY] > before.versions[KEY]


async def test_a_reader_notices_that_something_is_gone(open_it: Open, admin: redis.asyncio.Redis, prefix: str) -> None:
    """It has only read a later version than there is now."""
    reader, writer = await open_it(), await open_it()
    await writer.commit(Put(KEY, b"1"))
    names = [f"{{{prefix}:space}}:{name}" for name in ("head", "records", "order")]
    backup = {name: await admin.dump(name) or b"" for name in names}
    await writer.commit(Put(RecordKey("space", "b"), b"2"))
    await reader.read(KEY)

    for name, dumped in backup.items():
        await admin.restore(name, 0, dumped, replace=True)

    with pytest.raises(StoreRewoundError):
        await reader.read(KEY)


async def test_a_writer_notices_although_others_have_written_since(open_it: Open, admin: redis.asyncio.Redis) -> None:
    """The versions are higher again, but its own last attempt is not there."""
    store = await open_it()
    await store.commit(Put(KEY, b"1"))
    await admin.flushall()
    await (await open_it()).commit(Put(RecordKey("space", "b"), b"2"))

    with pytest.raises(StoreRewoundError):
        await store.commit(Put(KEY, b"3"))


async def test_handles_that_came_from_one_know_what_it_has_seen(open_it: Open, admin: redis.asyncio.Redis) -> None:
    """What one of them notices is true for all."""
    store = await open_it()
    other = await store.another()
    await store.commit(Put(KEY, b"1"))
    await admin.flushall()

    with pytest.raises(StoreRewoundError):
        await other.read(KEY)
    with pytest.raises(StoreRewoundError):
        await store.read(KEY)
    await other.aclose()


async def test_a_restart_without_persistence_is_noticed(prefix: str) -> None:
    """Whatever is asked first after it."""
    with services.private("redis", arguments=["--appendonly", "no"]) as server:
        store = await open_store(f"{server.url}?prefix={prefix}&durable=false")
        await store.commit(Put(KEY, b"1"))
        server.restart()

        with pytest.raises(StoreRewoundError):
            await store.commit(Put(RecordKey("space", "b"), b"2"))
        await store.aclose()


async def test_a_restart_with_persistence_is_not_mistaken_for_a_loss(server: Server, open_it: Open) -> None:
    """Killed in the middle, everything that was answered is there."""
    store = await open_it()
    commits = [await store.commit(Put(RecordKey("space", str(number)), b"")) for number in range(20)]
    server.kill()
    server.restart()

    found = await store.scan(*RecordKey("space").within(), limit=100)

    assert sorted(found.records) == sorted(
        key for commit in commits if isinstance(commit, Commit) for key in commit.versions
    )
    await store.commit(Put(KEY, b"on"))


async def test_a_lost_store_is_a_store_error() -> None:
    """Whoever handles errors of stores handles this one."""
    assert issubclass(StoreRewoundError, StoreError)

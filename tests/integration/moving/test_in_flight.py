"""Writes that are under way at the moment when a store is frozen: they land before that, or never."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from standfast.errors import StoreMovedError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from standfast.stores.backend import EXPORTED
from standfast.stores.url import open_store
from tests.integration.moving.places import fresh_url

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from standfast.stores import GroupedStore

pytestmark = pytest.mark.services
K = RecordKey("space", "default", "k")
NEW = RecordKey("another", "default", "k")


class Pause:
    """Stops a method of an object before or after it does its work, until it is let go."""

    def __init__(self, holder: Any, name: str, monkeypatch: pytest.MonkeyPatch, *, after: bool = False) -> None:
        self.reached, self.released = asyncio.Event(), asyncio.Event()
        self._work: Callable[..., Awaitable[Any]] = getattr(holder, name)
        self._after = after
        monkeypatch.setattr(holder, name, self._paused)

    async def _paused(self, *arguments: Any, **options: Any) -> Any:
        if not self._after:
            await self._wait()
        result = await self._work(*arguments, **options)
        if self._after:
            await self._wait()
        return result

    async def _wait(self) -> None:
        self.reached.set()
        await self.released.wait()


async def opened(kind: str, folder: Path) -> tuple[GroupedStore, GroupedStore]:
    """Return two handles on a store with a record; the first has written it."""
    store = await open_store(fresh_url(kind, folder))
    await store.commit(Put(K, b"value"))
    return store, await store.another()


async def refused(store: GroupedStore, other: GroupedStore, pause: Pause, key: RecordKey) -> None:
    """Freeze a store while a handle is about to create a record, and see that it is refused."""
    late = asyncio.create_task(store.commit(Put(key, b"late")))
    await pause.reached.wait()
    await other.transfer().freeze(EXPORTED)
    pause.released.set()

    with pytest.raises(StoreMovedError):
        await late
    assert (await other.read(key)).get(key) is None
    await store.aclose()
    await other.aclose()


async def test_a_transaction_that_began_before_is_undone_on_mongodb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen the store open, and is about to write."""
    store, other = await opened("mongodb", tmp_path)
    pause = Pause(server_of(store)._writing, "_change", monkeypatch)

    await refused(store, other, pause, K.child("late"))


async def test_a_transaction_that_has_written_is_waited_for_on_mongodb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is committed, and then the store is frozen, and what it wrote is there."""
    store, other = await opened("mongodb", tmp_path)
    pause = Pause(server_of(store)._writing, "_change", monkeypatch, after=True)
    written = asyncio.create_task(store.commit(Put(NEW, b"in time")))
    await pause.reached.wait()

    freezing = asyncio.create_task(other.transfer().freeze(EXPORTED))
    done, _ = await asyncio.wait({freezing}, timeout=0.3)
    pause.released.set()

    assert not done
    assert isinstance(await written, Commit)
    await freezing
    assert NEW in [record.key async for page in other.transfer().dump() for record in page]
    await store.aclose()
    await other.aclose()


@pytest.mark.parametrize("is_first", [False, True])
async def test_a_request_that_was_on_its_way_is_refused_on_dynamodb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    """However long it was: also the first one of a handle."""
    store, other = await opened("dynamodb", tmp_path)
    writer, freezer = (other, store) if is_first else (store, other)
    pause = Pause(server_of(writer), "_transact", monkeypatch)

    await refused(writer, freezer, pause, K.child("late"))


async def test_a_namespace_that_is_being_opened_is_frozen_on_redis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first writer has read that the store is open, and is about to write."""
    store, other = await opened("redis", tmp_path)
    pause = Pause(server_of(store), "_floor", monkeypatch, after=True)

    await refused(store, other, pause, NEW)


async def test_a_transaction_of_the_users_is_waited_for_on_postgresql(postgresql_url: str, tmp_path: Path) -> None:
    """It has written a record that is not committed yet; when it is, the store is frozen and the record is there."""
    url = fresh_url("postgresql", tmp_path)
    store = await open_store(url)
    schema = url.rpartition("schema=")[2]
    connection: Any = await asyncpg.connect(postgresql_url)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(f"INSERT INTO {schema}.attempts VALUES ('user', 1, 1, '{{1}}')")  # noqa: S608 -- made here

    freezing = asyncio.create_task(store.transfer().freeze(EXPORTED))
    done, _ = await asyncio.wait({freezing}, timeout=0.3)
    await transaction.commit()

    assert not done
    await freezing
    with pytest.raises(asyncpg.PostgresError, match="frozen"):
        await connection.execute(f"UPDATE {schema}.attempts SET number = 2, versions = '{{2}}'")  # noqa: S608 -- made here
    await connection.close()
    await store.aclose()


def server_of(store: GroupedStore) -> Any:
    """Return the server of a handle, to get in its way."""
    backend: Any = store.backend
    return backend.server

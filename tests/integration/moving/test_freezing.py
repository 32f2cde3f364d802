"""What a backend promises to those who move everything in it, on every server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.clock import Instant
from standfast.errors import StoreMovedError
from standfast.keys import RecordKey
from standfast.stores import Commit, Conflict, Decision, Delete, Put, Record
from standfast.stores.backend import EXPORTED, OPEN
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from standfast.stores import GroupedStore

K = RecordKey("space", "default", "k")
OTHER = RecordKey("elsewhere", "default", "k")
LATE = Instant(9_000_000_000_000_000)
FAR = 2_500_000_000_000_000


async def test_a_frozen_store_refuses_every_handle(store: GroupedStore, other: GroupedStore, url: str) -> None:
    """A handle that has written, one that has not, and one that is opened later are all refused, and change nothing."""
    version = (await put(store, K)).versions[K]

    await store.transfer().freeze(EXPORTED)

    for handle in (store, other):
        with pytest.raises(StoreMovedError, match="exported"):
            await handle.commit(Put(K, b"late", version))
        with pytest.raises(StoreMovedError):
            await handle.commit(Put(OTHER, b"late"))
    later = await open_store(url)
    with pytest.raises(StoreMovedError):
        await later.commit(Delete(K, version))
    assert (await later.read(K)).version(K) == version
    await later.aclose()


async def test_a_frozen_store_refuses_an_update_and_lets_it_look(store: GroupedStore) -> None:
    """What an update would write is refused; one that writes nothing is answered."""
    version = (await put(store, K)).versions[K]
    await store.transfer().freeze(EXPORTED)

    seen = await store.update([K], lambda seen: Decision(seen.version(K)))
    with pytest.raises(StoreMovedError):
        await store.update([K], lambda seen: Decision(None, (Put(K, b"late", seen.version(K)),)))

    assert seen.answer == version


async def test_several_updates_that_ride_together_are_refused(store: GroupedStore, other: GroupedStore) -> None:
    """Versions that were reserved before do not help."""
    await put(store, K)
    await other.transfer().freeze(EXPORTED)

    many = [store.update([K], lambda seen: Decision(None, (Put(K, b"late", seen.version(K)),))) for _ in range(8)]
    answers = await asyncio.gather(*many, return_exceptions=True)

    assert {type(answer) for answer in answers} == {StoreMovedError}


async def test_work_that_shares_the_transaction_is_refused(store: GroupedStore) -> None:
    """Where the store takes the user's SQL along, that is undone too."""
    if not store.capabilities.commit_with:
        return
    await store.transfer().freeze(EXPORTED)

    with pytest.raises(StoreMovedError):
        await store.commit_with(lambda sql: sql.execute("SELECT 1"), Put(K, b"late"))

    assert (await store.read(K)).get(K) is None


async def test_a_thawed_store_takes_writes_again(store: GroupedStore, other: GroupedStore) -> None:
    """Handles that were refused go on, with higher versions."""
    version = (await put(store, K)).versions[K]
    await store.transfer().freeze(EXPORTED)
    with pytest.raises(StoreMovedError):
        await other.commit(Put(K, b"late", version))

    await other.transfer().thaw()

    for handle in (store, other):
        done = await handle.commit(Put(K, b"again", version))
        assert isinstance(done, Commit)
        assert done.versions[K] > version
        version = done.versions[K]
    assert isinstance(await store.commit(Put(OTHER, b"new")), Commit)


async def test_the_first_reason_stays(store: GroupedStore) -> None:
    """To freeze twice is to freeze once, and the store says why."""
    moving = store.transfer()
    assert await moving.frozen() == OPEN

    await moving.freeze(7_000_000_000_000)
    await moving.freeze(EXPORTED)

    assert await moving.frozen() == 7_000_000_000_000
    with pytest.raises(StoreMovedError, match="import"):
        await store.commit(Put(K, b"late"))
    await moving.thaw()
    assert await moving.frozen() == OPEN


async def test_everything_of_all_namespaces_is_dumped_once(store: GroupedStore) -> None:
    """Whatever namespaces there are, and with more records than fit a page; the expired are left out."""
    keys = [
        RecordKey(namespace, "default", f"{number:03d}")
        for namespace in ("a", "b}:c", "\N{SNOWMAN}")
        for number in range(90)
    ]
    for first in range(0, len(keys), 45):
        await store.commit(*(Put(key, bytes(key)) for key in keys[first : first + 45]))
    await store.commit(Put(OTHER, b"over", expires_at=Instant(1)))

    found = [record async for page in store.transfer().dump() for record in page]

    assert sorted((record.key, record.value) for record in found) == sorted((key, bytes(key)) for key in keys)


async def test_records_are_put_as_they_are_into_a_frozen_store(store: GroupedStore, other: GroupedStore) -> None:
    """Version, value and expiry are kept, and putting them twice is putting them once."""
    records = [Record(K, b"\x00\xff" * 100, 1_700_000_000_000_000), Record(OTHER, b"", 5, LATE)]
    moving = store.transfer()
    await moving.freeze(2)

    await moving.put(records)
    await moving.put(records)
    await moving.thaw()

    assert (await other.read(K)).get(K) == records[0]
    assert (await other.read(OTHER)).get(OTHER) == records[1]
    assert isinstance(await other.commit(Put(K, b"wrong", 1)), Conflict)
    done = await other.commit(Put(K, b"next", records[0].version))
    assert isinstance(done, Commit)
    assert done.versions[K] > records[0].version


async def test_a_lifted_store_goes_on_above(store: GroupedStore, other: GroupedStore) -> None:
    """New keys, in namespaces old and new, get versions above: also where versions follow the time."""
    await put(store, K)
    await store.transfer().freeze(2)
    # DynamoDB follows the service's time alone, and waits for it.
    above = FAR if store.capabilities.backend != "dynamodb" else (await store.read(K)).at + 200_000

    await store.transfer().lift(above)
    await store.transfer().thaw()

    for handle, key in ((store, K.child("new")), (other, K.child("newer")), (store, OTHER)):
        assert (await put(handle, key)).versions[key] > above
    assert await store.transfer().last() > above


async def test_the_last_version_is_known_when_its_record_is_gone(store: GroupedStore) -> None:
    """A version that was given out to a deleted record counts."""
    version = (await put(store, K)).versions[K]
    await store.commit(Delete(K, version))

    assert await store.transfer().last() >= version


async def put(store: GroupedStore, key: RecordKey) -> Commit:
    """Create a record."""
    done = await store.commit(Put(key, b"value"))
    assert isinstance(done, Commit)
    return done

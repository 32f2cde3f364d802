"""What MongoDB does with keys, versions and expiry, on a real server."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores import Commit, Conflict, Delete, Put
from standfast.stores.mongodb.records import STORE, to_id
from standfast.stores.protocol import MAX_VERSION
from standfast.stores.remote.server import Intent, Row, Written
from standfast.stores.url import open_store
from tests.integration.mongodb.fail_points import server_of

if TYPE_CHECKING:
    from pymongo import MongoClient
    from pymongo.collection import Collection

    from standfast.stores import GroupedStore

    Records = Collection[dict[str, Any]]

DIFFICULT = [
    "",
    ".",
    "$",
    "$where",
    "a.b",
    "a$",
    "a",
    "ab",
    "b",
    "\x00",
    "\x00\x01",
    "\x7f",
    "\x80",
    "ÿ",
    "ż",
    "中",
    "😀",
]


async def put(store: GroupedStore, key: RecordKey, value: bytes = b"", expires_at: Instant | None = None) -> int:
    """Put a record, whatever is there."""
    seen = await store.read(key)
    answer = await store.commit(Put(key, value, seen.version(key), expires_at))
    assert isinstance(answer, Commit)
    return answer.versions[key]


async def until_absent(store: GroupedStore, key: RecordKey) -> None:
    """Return when a record has expired."""
    while (await store.read(key)).records:
        pass


async def test_ranges_are_in_the_order_of_bytes(store: GroupedStore) -> None:
    """Also of keys of different lengths, and with the characters that mean something to MongoDB."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    random_parts = ["".join(chr(rng.randrange(0x500)) for _ in range(rng.randrange(1, 9))) for _ in range(40)]
    keys = sorted({RecordKey("order", part) for part in [*DIFFICULT, *random_parts]})
    await store.commit(*[Put(key, b"") for key in keys])

    forth = await store.scan(*RecordKey("order").within(), limit=100)
    back = await store.scan(*RecordKey("order").within(), limit=100, reverse=True)

    assert list(forth.records) == keys
    assert list(back.records) == keys[::-1]


async def test_the_longest_keys_are_kept(store: GroupedStore) -> None:
    """A thousand bytes, all of which take two in the index."""
    key = RecordKey("long", "\x80" * 490)
    await put(store, key, b"here")

    assert (await store.read(key)).records[key].value == b"here"
    assert key in (await store.scan(*RecordKey("long").within(), limit=10)).records


async def test_an_expired_record_is_absent_although_it_is_still_there(store: GroupedStore, records: Records) -> None:
    """Expiry is judged by a condition, never by who deletes when."""
    key = RecordKey("expiry", "k")
    at = (await store.read(key)).at
    version = await put(store, key, b"old", Instant(at + 1_000))
    await until_absent(store, key)

    assert records.find_one({"_id": to_id(key)}) is not None
    assert isinstance(await store.commit(Delete(key, version)), Conflict)
    assert await put(store, key, b"new") > version


async def test_a_key_that_came_and_went_meanwhile_gets_no_lower_version(
    store: GroupedStore, other: GroupedStore
) -> None:
    """A transaction that has begun cannot create it with a version that was drawn before."""
    key = RecordKey("versions", "came-and-went")
    server = server_of(store)
    await put(store, RecordKey("versions", "warm"))  # now the handle has versions in advance
    highest = 0
    for _ in range(3):
        highest = await put(other, key)
        await other.commit(Delete(key, highest))

    answer = await server.write(Intent("came-and-went", 1, {key: 0}, (Row(key, b"", 0),), (), 1))

    assert isinstance(answer, Written)
    assert answer.versions[0] > highest


async def test_versions_grow_though_the_counter_was_set_back(store: GroupedStore, records: Records) -> None:
    """As by a restored backup: they are not below the server's time, either."""
    key = RecordKey("versions", "restored")
    before = await put(store, key)
    records.update_one({"_id": STORE}, {"$set": {"last": 0, "drawn_by": ""}})
    fresh = RecordKey("versions", "restored", "other")

    after = await put(store, fresh)

    assert before < after < MAX_VERSION
    assert after >= (await store.read(key)).at - 1_000_000


async def test_racing_handles_never_set_a_version_back(store: GroupedStore, other: GroupedStore) -> None:
    """However the creations and deletions of one key fall together."""
    key = RecordKey("versions", "race")
    seen: list[int] = []

    async def come_and_go(mine: GroupedStore) -> None:
        for _ in range(15):
            answer = await mine.commit(Put(key, b""))
            if isinstance(answer, Commit):
                seen.append(answer.versions[key])
                await mine.commit(Delete(key, answer.versions[key]))

    await asyncio.gather(come_and_go(store), come_and_go(other))

    assert seen == sorted(set(seen))


async def test_a_commit_may_be_larger_than_a_command(store: GroupedStore) -> None:
    """Thirty of the largest values are ten megabytes: several commands, and still one transaction."""
    keys = [RecordKey("large", f"{n:03}") for n in range(30)]

    answer = await store.commit(*[Put(key, bytes([n]) * 350_000) for n, key in enumerate(keys)])

    assert isinstance(answer, Commit)
    found = (await store.read(*keys)).records
    assert [found[key].value[:1] for key in keys] == [bytes([n]) for n in range(30)]


async def test_sweeping_removes_what_has_expired(store: GroupedStore, records: Records) -> None:
    """Nothing else does: there is no index that lets the server delete."""
    key = RecordKey("swept", "k")
    at = (await store.read(key)).at
    await put(store, key, b"", Instant(at + 1_000))
    await until_absent(store, key)

    swept = await server_of(store).sweep(500)

    assert swept >= 1
    assert records.find_one({"_id": to_id(key)}) is None


def test_what_came_and_went_after_a_snapshot_is_a_conflict(
    driver: MongoClient[dict[str, Any]], records: Records
) -> None:
    """What the order of versions rests on: a deleted key is not forgotten while a transaction could create it."""
    with driver.start_session() as session:
        # A session sees what it has written: so the snapshot is taken after the collection was made.
        records.with_options(write_concern=WriteConcern("majority")).insert_one({"_id": "first"}, session=session)
        session.start_transaction(ReadConcern("snapshot"))
        records.find_one({"_id": STORE}, session=session)
        records.insert_one({"_id": "came-and-went"})
        records.delete_one({"_id": "came-and-went"})

        with pytest.raises(OperationFailure, match="WriteConflict"):
            records.replace_one({"_id": "came-and-went"}, {"version": 1}, upsert=True, session=session)


async def test_reads_may_be_linearizable(url: str, store: GroupedStore) -> None:
    """Then each of them is confirmed by most of the set."""
    key = RecordKey("linearizable", "k")
    version = await put(store, key, b"here")
    careful = await open_store(f"{url}&reads=linearizable")

    assert (await careful.read(key)).version(key) == version
    assert list((await careful.scan(*RecordKey("linearizable").within(), limit=5)).records) == [key]
    await careful.aclose()

"""Records on MariaDB: keys are bytes, versions grow whatever happens to clocks, nothing is lost in a crowd."""

# ruff: noqa: S608 -- the names are made up here

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from standfast.keys import RecordKey
from standfast.stores import Commit, Delete, Put
from standfast.stores.protocol import Decision
from standfast.stores.remote import Intent, Row, WriteRefused, Written
from tests.integration.mysql.ground import opened, place, prefix_of, run_sql, server_of

if TYPE_CHECKING:
    from standfast.stores import GroupedStore
    from standfast.stores.protocol import Snapshot

A, B = RecordKey("n", "a"), RecordKey("n", "b")
FAR = 3_000_000_000_000_000
"""A version that the server's clock reaches in the year 2065."""


async def version_of(store: GroupedStore, key: RecordKey) -> int:
    """The version to expect of a key."""
    return (await store.read(key)).version(key)


async def test_keys_that_look_alike_are_different(mysql_url: str) -> None:
    """No collation folds case or accents, and no padding hides spaces at the end."""
    keys = [
        RecordKey("n", text) for text in ("key", "Key", "kéy", "ke\u0301y", "key ", "key\0", "\uff4bey", "\u017f", "s")
    ]

    async with opened(place(mysql_url)) as [store]:
        await store.commit(*(Put(key, bytes(key)) for key in keys))
        seen = await store.scan(*RecordKey("n").within(), limit=100)

    assert list(seen.records) == sorted(keys)
    assert all(record.value == record.key for record in seen.records.values())


async def test_the_longest_keys_differ_in_their_last_byte(mysql_url: str) -> None:
    """An index of the whole key, not of its beginning, tells them apart."""
    keys = [RecordKey("n", "x" * 994 + last) for last in "ab"]

    async with opened(place(mysql_url)) as [store]:
        await store.commit(*(Put(key, b"") for key in keys))

        assert len((await store.read(*keys)).records) == 2
        assert len(keys[0]) == 1_000


async def test_a_commit_of_many_large_values_is_sent_in_parts(mysql_url: str) -> None:
    """More than the server takes in one packet is still one transaction."""
    changes = [Put(RecordKey("n", str(number)), bytes([number]) * 350_000) for number in range(30)]

    async with opened(place(mysql_url, timeout="30s")) as [store]:
        assert isinstance(await store.commit(*changes), Commit)
        seen = await store.read(*(change.key for change in changes))

    assert {record.key: record.value for record in seen.records.values()} == {put.key: put.value for put in changes}


async def test_a_key_that_comes_back_has_a_higher_version_although_the_clock_was_set_back(mysql_url: str) -> None:
    """The row of a deleted record keeps its version; once it is swept, the floor does."""
    url = place(mysql_url)
    async with opened(url) as [store]:
        await store.commit(Put(A, b""))
        await run_sql(url, f"UPDATE {prefix_of(url)}_records SET version={FAR}")
        await store.commit(Delete(A, FAR))
        again = await store.commit(Put(A, b""))

    assert isinstance(again, Commit)
    assert again.versions[A] > FAR


async def test_what_was_swept_is_remembered_by_the_floor(mysql_url: str) -> None:
    """Nothing is left of the record, and a new one at its key has a higher version all the same."""
    url = place(mysql_url)
    async with opened(url) as [store]:
        await store.commit(Put(A, b""))
        await run_sql(url, f"UPDATE {prefix_of(url)}_records SET version={FAR}, expires_at=1")
        assert await server_of(store).sweep(10) == 1
        assert await run_sql(url, f"SELECT * FROM {prefix_of(url)}_records") == []
        again = await store.commit(Put(A, b""))

    assert isinstance(again, Commit)
    assert again.versions[A] > FAR


async def test_what_died_a_moment_ago_is_not_swept(mysql_url: str) -> None:
    """A transaction that is under way may still have to see its version."""
    async with opened(place(mysql_url)) as [store]:
        await store.commit(Put(A, b""))
        await store.commit(Delete(A, await version_of(store, A)))

        assert await server_of(store).sweep(10) == 0


async def test_reserved_versions_below_what_was_swept_are_stale(mysql_url: str) -> None:
    """A key may have come and gone with a higher version since they were taken."""
    url = place(mysql_url)
    async with opened(url) as [store]:
        server = server_of(store)
        taken = await server.reserve(1, b"")
        await run_sql(url, f"UPDATE {prefix_of(url)}_facts SET number={FAR} WHERE name='floor'")
        refused = await server.write(Intent("h", 1, {A: 0}, (Row(A, b"", 0),), (), 1, taken))
        answer = await server.write(Intent("h", 2, {A: 0}, (Row(A, b"", 0),), (), 1))

    assert isinstance(refused, WriteRefused)
    assert refused.stale
    assert isinstance(answer, Written)
    assert answer.versions[0] > FAR


async def until_seen(url: str, statement: str) -> None:
    """Return when the server is at a statement that looks like this."""
    while not await run_sql(url, f"SELECT 1 FROM information_schema.processlist WHERE info LIKE '{statement}'"):  # noqa: ASYNC110 -- nobody tells when it is so
        await asyncio.sleep(0)


async def test_who_creates_a_key_a_moment_later_writes_over_nothing(mysql_url: str) -> None:
    """Not even if the key was absent when the guards were judged: the other record is found, and shown."""
    url = place(mysql_url)
    prefix = prefix_of(url)
    async with opened(url) as [store]:
        server = server_of(store)
        await server.write(Intent("h", 1, {B: 0}, (Row(B, b"", 0),), (), 1))
        held = f"SELECT * FROM {prefix}_attempts FOR UPDATE"
        holder = asyncio.create_task(run_sql(url, "START TRANSACTION", held, "DO SLEEP(0.5)", "COMMIT"))
        await until_seen(url, "DO SLEEP(0.5)")
        late = asyncio.create_task(server.write(Intent("h", 2, {A: 0}, (Row(A, b"mine", 0),), (), 1)))
        await until_seen(url, f"INSERT INTO `{prefix}_attempts`%")
        await run_sql(url, f"INSERT INTO {prefix}_records VALUES (x'{A.hex()}',7,NULL,'theirs')")
        answer = await late
        await holder

    assert isinstance(answer, WriteRefused)
    assert [record and record.value for record in answer.current.values()] == [b"theirs"]


async def append(store: GroupedStore, key: RecordKey, text: bytes) -> None:
    """Append to a record."""

    def decide(seen: Snapshot) -> Decision[None]:
        record = seen.get(key)
        return Decision(None, (Put(key, (record.value if record else b"") + text, seen.version(key)),))

    await store.update([key], decide)


async def test_a_storm_on_the_same_keys_in_any_order_loses_nothing(mysql_url: str) -> None:
    """Eight tasks on four handles, each commit over several keys: no update is lost, and no deadlock gets out."""
    seed = random.randrange(2**32)
    print(f"{seed=}")
    url, keys = place(mysql_url), [RecordKey("n", str(number)) for number in range(6)]

    async def task(store: GroupedStore, number: int) -> None:
        dice = random.Random(f"{seed}/{number}")
        for _ in range(15):
            for key in dice.sample(keys, 3):
                await append(store, key, bytes([number]))
            await add_to_all(store, dice.sample(keys, 4), bytes([number]))

    async with opened(*[url] * 4) as stores:
        await asyncio.gather(*(task(stores[number % 4], number) for number in range(8)))
        seen = await stores[0].read(*keys)

    assert sum(len(record.value) for record in seen.records.values()) == 8 * 15 * (3 + 4)


async def add_to_all(store: GroupedStore, keys: list[RecordKey], text: bytes) -> None:
    """Append to several records at once; sometimes one that is not there is made by somebody else meanwhile."""

    def decide(seen: Snapshot) -> Decision[None]:
        values = {key: record.value if (record := seen.get(key)) else b"" for key in keys}
        return Decision(None, tuple(Put(key, value + text, seen.version(key)) for key, value in values.items()))

    await store.update(keys, decide)


@pytest.mark.parametrize("value", [b"", b"\0", b"'\\\"`;--", bytes(range(256)), "日本".encode()])
async def test_values_are_kept_to_the_byte(mysql_url: str, value: bytes) -> None:
    """Written over what is there or anew, alone or among others."""
    async with opened(place(mysql_url)) as [store]:
        await store.commit(Put(A, value), Put(B, value))
        await store.commit(Put(A, value, await version_of(store, A)))

        assert [record.value for record in (await store.read(A, B)).records.values()] == [value, value]

"""Versions without a counter: they grow whatever the clocks say, and dead items go when nobody can need them."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import Instant, later
from standfast.errors import InvalidChangeError
from standfast.stores import Commit, Conflict, Decision, Delete, Put
from standfast.stores.dynamodb.items import GRACE
from standfast.stores.url import open_store
from tests.integration.dynamodb.conftest import Wire, server_of

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.stores import GroupedStore, Snapshot

HOUR = 3_600


async def created(store: GroupedStore, key: RecordKey) -> int:
    """Create a record and return its version."""
    verdict = await store.commit(Put(key, b""))
    assert isinstance(verdict, Commit)
    return verdict.versions[key]


async def ahead(monkeypatch: pytest.MonkeyPatch, store: GroupedStore, seconds: float) -> None:
    """Let a handle take the time for later than it is."""
    server = server_of(store)
    await server.now()

    async def now() -> Instant:
        at = server.link.time.now()
        assert at is not None
        return later(at, seconds)

    monkeypatch.setattr(server, "now", now)


async def test_versions_are_the_time_so_that_a_restored_table_gives_none_out_again(
    store: GroupedStore, key: Any
) -> None:
    """A new record has at least the time in microseconds, whatever the table has forgotten."""
    at = (await store.read(key("a"))).at

    assert await created(store, key("a")) >= at


async def test_a_version_from_a_clock_that_was_ahead_is_exceeded(
    url: str, store: GroupedStore, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others put, delete and create over it, and each version is higher than the one before."""
    other = await open_store(url)
    await ahead(monkeypatch, other, HOUR)
    versions = [await created(other, key("a"))]
    put = await store.commit(Put(key("a"), b"", versions[0]))
    assert isinstance(put, Commit)
    versions.append(put.versions[key("a")])
    await store.commit(Delete(key("a"), versions[-1]))
    versions.append(await created(store, key("a")))
    await other.aclose()

    assert all(old < new for old, new in itertools.pairwise(versions))


async def test_a_tombstone_with_a_higher_version_costs_one_more_try(
    url: str, store: GroupedStore, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal has the version to exceed; no caller notices."""
    other = await open_store(url)
    await ahead(monkeypatch, other, HOUR)
    high = await created(other, key("a"))
    await other.commit(Delete(key("a"), high))
    await other.aclose()
    wire = Wire(server_of(store))

    assert await created(store, key("a")) > high
    assert len(wire.requests("transact_write_items")) == 2


async def test_updates_that_see_each_other_grow_past_a_tombstone_too(
    url: str, store: GroupedStore, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions that were chosen ahead are given up if they turn out to be too low."""
    other = await open_store(url)
    await ahead(monkeypatch, other, HOUR)
    high = await created(other, key("a"))
    await other.commit(Delete(key("a"), high))
    await other.aclose()

    def append(seen: Snapshot) -> Decision[int]:
        record = seen.get(key("a"))
        value = (b"" if record is None else record.value) + b"+"
        return Decision(len(value), (Put(key("a"), value, seen.version(key("a"))),))

    decided = await asyncio.gather(*(store.update([key("a")], append) for _ in range(5)))

    assert [each.answer for each in decided] == [1, 2, 3, 4, 5]
    versions = [high, *(each.versions[key("a")] for each in decided)]
    assert versions == sorted(set(versions))


async def test_the_last_trace_of_a_record_is_removed_when_its_grace_is_over(
    store: GroupedStore, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handle removes the tombstones that it left, not before nobody can need them."""
    await store.commit(Delete(key("a"), await created(store, key("a"))))
    wire = Wire(server_of(store))

    assert await server_of(store).sweep(10) == 0
    await ahead(monkeypatch, store, GRACE / 1e6 + 5)
    assert await server_of(store).sweep(10) == 1

    assert len(wire.requests("delete_item")) == 1


async def test_a_record_that_was_created_anew_is_not_swept(
    store: GroupedStore, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removal is guarded by the version of what is dead."""
    await store.commit(Delete(key("a"), await created(store, key("a"))))
    version = await created(store, key("a"))
    await ahead(monkeypatch, store, GRACE / 1e6 + 5)

    assert await server_of(store).sweep(10) == 0

    assert (await store.read(key("a"))).version(key("a")) == version


async def test_what_others_left_is_found_by_scanning_and_removed(
    url: str, store: GroupedStore, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tombstones and expired records of a process that died do not lie in the way for ever."""
    await store.commit(Delete(key("a"), await created(store, key("a"))))
    await store.commit(Put(key("b"), b"", expires_at=later((await store.read(key("b"))).at, 0.001)))
    other = await open_store(url)
    await ahead(monkeypatch, other, GRACE / 1e6 + 5)

    assert (await other.scan(*key().within(), limit=10)).records == {}
    assert await server_of(other).sweep(10) == 2

    await other.aclose()


async def test_a_scan_reads_past_many_dead_items(store: GroupedStore, key: Any) -> None:
    """A page is filled with what is alive, in both directions, and says where it goes on."""
    for start in range(0, 300, 60):
        puts = [Put(key(f"{n:03}"), b"") for n in range(start, start + 60)]
        verdict = await store.commit(*puts)
        assert isinstance(verdict, Commit)
        dead = {key: version for key, version in verdict.versions.items() if not str(key).endswith("7)")}
        await store.commit(*(Delete(key, version) for key, version in dead.items()))

    for reverse in (False, True):
        page = await store.scan(*key().within(), limit=29, reverse=reverse)
        assert len(page.records) == 29
        assert page.more is not None


async def test_a_hundred_changes_are_one_too_many(store: GroupedStore, key: Any) -> None:
    """The service takes a hundred items, and one of them is the attempt."""
    assert isinstance(await store.commit(*(Put(key(f"{n:03}"), b"") for n in range(99))), Commit)
    with pytest.raises(InvalidChangeError, match="at most 99 changes"):
        await store.commit(*(Put(key(f"{n:03}"), b"") for n in range(100)))


async def test_a_commit_that_is_too_large_is_refused_and_spoils_nothing(store: GroupedStore, key: Any) -> None:
    """It is told so; those who asked at the same time are not its victims."""
    large = store.commit(*(Put(key("large", str(n)), bytes(350_000)) for n in range(12)))
    small = store.commit(Put(key("small"), b""))

    verdict, refused = await asyncio.gather(small, large, return_exceptions=True)

    assert isinstance(refused, InvalidChangeError)
    assert "4,000,000" in str(refused)
    assert isinstance(verdict, Commit)


async def test_a_missed_window_names_the_guards_that_failed_too(store: GroupedStore, key: Any) -> None:
    """The conflict is as complete as if the service had judged the window."""
    version = await created(store, key("a"))
    at = (await store.read(key("a"))).at

    alone = await store.commit(Put(key("a"), b"", version), before=at)
    both = await store.commit(Put(key("a"), b"", version - 1), before=at)

    assert isinstance(alone, Conflict)
    assert isinstance(both, Conflict)
    assert (alone.current, list(both.current)) == ({}, [key("a")])

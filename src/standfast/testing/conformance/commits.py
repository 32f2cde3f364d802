"""Commits: guards, all or nothing, and what a conflict says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.stores import Check, Commit, Conflict, Delete, Put
from standfast.testing.conformance.ground import Ground, committed, create, refused, value_of

if TYPE_CHECKING:
    from standfast.stores import Change, Store
    from standfast.testing.conformance.ground import MakeKey


class CommitCases(Ground):
    """What one commit does, with nobody else around."""

    async def test_what_was_created_is_read_back(self, store: Store, key: MakeKey) -> None:
        """A created record has the value that was put, the version that was answered, and no expiry."""
        version = await create(store, key("a"), b"value")

        record = (await store.read(key("a"))).get(key("a"))

        assert record is not None
        assert (record.key, record.value, record.version, record.expires_at) == (key("a"), b"value", version, None)

    async def test_a_key_that_was_never_written_is_absent(self, store: Store, key: MakeKey) -> None:
        """A read leaves out what is not there."""
        await create(store, key("a"))

        snapshot = await store.read(key("a"), key("b"))

        assert list(snapshot.records) == [key("a")]
        assert snapshot.version(key("b")) == 0

    async def test_creating_what_exists_conflicts(self, store: Store, key: MakeKey) -> None:
        """A create of a present record loses, changes nothing, and is told the present record."""
        version = await create(store, key("a"), b"first")

        conflict = await refused(store, Put(key("a"), b"second"))

        present = conflict.current[key("a")]
        assert present is not None
        assert (present.value, present.version) == (b"first", version)
        assert await value_of(store, key("a")) == b"first"

    async def test_a_put_at_the_present_version_replaces_the_value(self, store: Store, key: MakeKey) -> None:
        """A put whose guard holds writes the value under a new version."""
        version = await create(store, key("a"), b"old")

        commit = await committed(store, Put(key("a"), b"new", expected=version))

        assert commit.versions[key("a")] > version
        assert await value_of(store, key("a")) == b"new"

    @pytest.mark.parametrize("wrong", [-1, 1, 1_000_000], ids=["older", "newer", "far ahead"])
    async def test_a_put_at_another_version_conflicts(self, store: Store, key: MakeKey, wrong: int) -> None:
        """A guard holds at exactly one version: not at an older and not at a newer one."""
        first = await create(store, key("a"), b"one")
        second = (await committed(store, Put(key("a"), b"two", expected=first))).versions[key("a")]

        conflict = await refused(store, Put(key("a"), b"three", expected=first if wrong < 0 else second + wrong))

        assert conflict.key == key("a")
        assert await value_of(store, key("a")) == b"two"

    @pytest.mark.parametrize("change", [Put, Delete, Check])
    async def test_a_guard_on_an_absent_record_conflicts(self, store: Store, key: MakeKey, change: type) -> None:
        """Whatever expects a record where there is none loses, and is told that there is none."""
        guard = Put(key("a"), b"", expected=7) if change is Put else change(key("a"), expected=7)

        conflict = await refused(store, guard)

        assert conflict.current == {key("a"): None}

    async def test_a_delete_removes_the_record(self, store: Store, key: MakeKey) -> None:
        """A deleted record is absent, and its key can be created again."""
        version = await create(store, key("a"))

        commit = await committed(store, Delete(key("a"), expected=version))

        assert commit.versions == {}
        assert await value_of(store, key("a")) is None
        assert await create(store, key("a")) > version

    async def test_a_delete_at_another_version_conflicts(self, store: Store, key: MakeKey) -> None:
        """A delete is guarded like a put."""
        first = await create(store, key("a"), b"one")
        await committed(store, Put(key("a"), b"two", expected=first))

        conflict = await refused(store, Delete(key("a"), expected=first))

        assert conflict.current[key("a")] == (await store.read(key("a"))).get(key("a"))

    async def test_a_check_writes_nothing(self, store: Store, key: MakeKey) -> None:
        """A check that holds leaves value and version as they were, and answers no version."""
        version = await create(store, key("a"), b"value")

        commit = await committed(store, Check(key("a"), expected=version), Put(key("b"), b""))

        assert list(commit.versions) == [key("b")]
        assert (await store.read(key("a"))).version(key("a")) == version

    async def test_a_commit_may_only_check(self, store: Store, key: MakeKey) -> None:
        """A commit that writes nothing tells whether its guards held."""
        version = await create(store, key("a"))

        assert (await committed(store, Check(key("a"), expected=version))).versions == {}
        assert isinstance(await store.commit(Check(key("a"), expected=version + 1)), Conflict)

    async def test_a_check_that_fails_holds_the_other_changes_back(self, store: Store, key: MakeKey) -> None:
        """Fencing: a put happens only if the record that it relies on is unchanged."""
        stale = await create(store, key("grant"), b"mine")
        await committed(store, Put(key("grant"), b"yours", expected=stale))

        conflict = await refused(store, Check(key("grant"), expected=stale), Put(key("step"), b"result"))

        assert list(conflict.current) == [key("grant")]
        assert await value_of(store, key("step")) is None

    @pytest.mark.parametrize("place", [0, 1, 2])
    async def test_one_failing_guard_holds_everything_back(self, store: Store, key: MakeKey, place: int) -> None:
        """All or nothing: puts and deletes before and after the failing guard do not happen either."""
        gone = await create(store, key("gone"), b"still here")
        await create(store, key("taken"))
        changes: list[Change] = [Put(key("new"), b""), Delete(key("gone"), expected=gone)]

        await refused(store, *changes[:place], Put(key("taken"), b""), *changes[place:])

        assert await value_of(store, key("new")) is None
        assert await value_of(store, key("gone")) == b"still here"

    async def test_a_conflict_names_every_guard_that_failed_and_no_other(self, store: Store, key: MakeKey) -> None:
        """The present records come with the conflict, so that a retry needs no read."""
        held = await create(store, key("held"), b"1")
        await create(store, key("taken"), b"2")

        conflict = await refused(
            store,
            Put(key("held"), b"", expected=held),
            Put(key("taken"), b""),
            Put(key("missing"), b"", expected=9),
            Put(key("new"), b""),
        )

        present = await store.read(key("taken"))
        assert conflict.current == {key("taken"): present.get(key("taken")), key("missing"): None}

    async def test_all_changes_of_a_commit_are_seen_together(self, store: Store, key: MakeKey) -> None:
        """One commit may put, delete and check many keys."""
        versions = {n: await create(store, key(str(n)), b"old") for n in range(6)}

        await committed(
            store,
            *(Put(key(str(n)), b"new", expected=versions[n]) for n in (0, 1)),
            *(Delete(key(str(n)), expected=versions[n]) for n in (2, 3)),
            *(Check(key(str(n)), expected=versions[n]) for n in (4, 5)),
        )

        snapshot = await store.read(*(key(str(n)) for n in range(6)))
        assert [record.value for record in snapshot.records.values()] == [b"new", b"new", b"old", b"old"]

    async def test_a_put_of_the_same_value_counts_as_a_change(self, store: Store, key: MakeKey) -> None:
        """The version grows even if the bytes do not change: a version stands for a write."""
        version = await create(store, key("a"), b"same")

        commit = await committed(store, Put(key("a"), b"same", expected=version))

        assert commit.versions[key("a")] > version

    async def test_a_commit_leaves_other_keys_alone(self, store: Store, key: MakeKey) -> None:
        """Versions and values of keys that are not named do not change."""
        await create(store, key("a"), b"value")
        before = (await store.read(key("a"))).records

        await create(store, key("b"))
        await create(store, key("a", "below"))

        assert (await store.read(key("a"))).records == before

    @pytest.mark.parametrize(
        "value",
        [b"", b"\x00", b"a\x00b", bytes(range(256)), b"\xff\xfe", b"'; drop table records; --", b"\r\n", b"null"],
        ids=ascii,
    )
    async def test_values_come_back_byte_by_byte(self, store: Store, key: MakeKey, value: bytes) -> None:
        """A value is bytes, whatever they look like: nothing is decoded, trimmed or escaped."""
        version = await create(store, key("a"), value)
        assert await value_of(store, key("a")) == value

        await committed(store, Put(key("a"), value + value, expected=version))
        assert await value_of(store, key("a")) == value + value

    async def test_a_lost_race_is_an_answer_and_the_store_goes_on(self, store: Store, key: MakeKey) -> None:
        """After a conflict the same handle commits as before."""
        await create(store, key("a"))
        await refused(store, Put(key("a"), b""))

        assert isinstance(await store.commit(Put(key("b"), b"")), Commit)

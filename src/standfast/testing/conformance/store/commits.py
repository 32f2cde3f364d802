"""Commits of a store: all or nothing, within their limits, at a version and in a window of time."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import later
from standfast.errors import ArgumentTypeError, InvalidArgumentError, InvalidChangeError
from standfast.keys import MAX_KEY_BYTES, RecordKey
from standfast.stores import Check, Commit, Conflict, Decision, Delete, Put, Wake
from standfast.stores.protocol import MAX_VERSION
from standfast.testing.conformance.ground import (
    MOMENT,
    Ground,
    another,
    committed,
    create,
    increment,
    now,
    reach,
    refused,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from standfast.stores import Change, Store
    from standfast.testing.conformance.ground import MakeKey, OpenAnother
    from standfast.testing.simulation import VirtualClock


class CommitCases(Ground):
    """What one commit does, with no other around."""

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
        """A commit that writes nothing says if its guards held."""
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


async def assert_refused(call: Awaitable[Any], store: Store, *untouched: RecordKey) -> None:
    """Insist that a call is refused as invalid and that nothing was written."""
    with pytest.raises((InvalidChangeError, ArgumentTypeError)):
        await call
    for key in untouched:
        assert await value_of(store, key) is None


class LimitCases(Ground):
    """What a store takes, and what it refuses."""

    async def test_a_commit_takes_as_many_changes_as_declared(self, store: Store, key: MakeKey) -> None:
        """The declared number of changes is possible in one commit, and all of them happen."""
        keys = [key(f"{n:03}") for n in range(store.capabilities.max_changes)]

        commit = await committed(store, *(Put(each, each[-10:]) for each in keys))

        assert set(commit.versions) == set(keys)
        assert len((await store.read(*keys)).records) == len(keys)

    async def test_more_changes_than_declared_are_refused(self, store: Store, key: MakeKey) -> None:
        """One change too many, and none happens."""
        changes = [Put(key(f"{n:03}"), b"") for n in range(store.capabilities.max_changes + 1)]
        await assert_refused(store.commit(*changes), store, changes[0].key)

    async def test_a_commit_without_changes_is_refused(self, store: Store) -> None:
        """There is no empty commit."""
        await assert_refused(store.commit(), store)

    @pytest.mark.parametrize("second", [Put, Delete, Check])
    async def test_a_key_twice_in_a_commit_is_refused(self, store: Store, key: MakeKey, second: type) -> None:
        """Each key appears once: there is no order within a commit."""
        again = Put(key("a"), b"", expected=1) if second is Put else second(key("a"), expected=1)
        await assert_refused(store.commit(Put(key("b"), b""), Put(key("a"), b""), again), store, key("a"), key("b"))

    async def test_a_commit_across_namespaces_is_refused(self, store: Store, key: MakeKey) -> None:
        """All keys of a commit lie in one namespace, those to wake included."""
        elsewhere = RecordKey(key().parts[0] + "-other", "a")
        await assert_refused(store.commit(Put(key("a"), b""), Put(elsewhere, b"")), store, key("a"), elsewhere)
        await assert_refused(store.commit(Put(key("a"), b""), wake=[Wake(elsewhere)]), store, key("a"))

    async def test_the_largest_value_comes_back_whole(self, store: Store, key: MakeKey) -> None:
        """A value of the declared size is kept byte by byte."""
        value = bytes(range(256)) * (store.capabilities.max_value_bytes // 256)
        value += b"!" * (store.capabilities.max_value_bytes - len(value))

        await create(store, key("a"), value)

        assert await value_of(store, key("a")) == value

    async def test_a_larger_value_is_refused(self, store: Store, key: MakeKey) -> None:
        """One byte too many, and nothing is written."""
        large = Put(key("a"), b"!" * (store.capabilities.max_value_bytes + 1))
        await assert_refused(store.commit(Put(key("b"), b""), large), store, key("a"), key("b"))

    async def test_a_commit_has_as_many_bytes_as_the_store_says(self, store: Store, key: MakeKey) -> None:
        """All values together: as many bytes as declared are written whole, one more is refused."""
        limits = store.capabilities
        count, rest = divmod(limits.max_commit_bytes, limits.max_value_bytes)
        if count >= limits.max_changes:
            pytest.skip("as many of the largest values as a commit has changes fit into one")
        values = {key(f"{n:03}"): bytes([n]) * limits.max_value_bytes for n in range(count)}
        more = key("more")

        too_many = [Put(each, value) for each, value in {**values, more: b"!" * (rest + 1)}.items()]
        await assert_refused(store.commit(*too_many), store, more)
        await committed(store, *(Put(each, value) for each, value in {**values, more: b"!" * rest}.items()))

        for each, value in values.items():
            assert await value_of(store, each) == value

    async def test_the_longest_key_works(self, store: Store, key: MakeKey) -> None:
        """A key of the full length is written, found, scanned and told apart from its neighbour."""
        room = MAX_KEY_BYTES - len(key("")) - 1
        longest, neighbour = key("x" * room + "a"), key("x" * room + "b")
        assert len(longest) == MAX_KEY_BYTES

        await create(store, longest, b"1")
        await create(store, neighbour, b"2")

        assert await value_of(store, longest) == b"1"
        assert list((await store.scan(*key().within(), limit=10)).records) == [longest, neighbour]

    async def test_a_longer_key_is_refused(self, store: Store, key: MakeKey) -> None:
        """One byte too many cannot be made into a key, and is refused even if it was made by other means."""
        with pytest.raises(InvalidArgumentError):
            key("x" * MAX_KEY_BYTES)
        smuggled = RecordKey.from_encoded(key("x" * 900) + b"x" * 100 + b"\x00\x01")
        await assert_refused(store.commit(Put(smuggled, b"")), store)

    @pytest.mark.parametrize("value", ["text", bytearray(b"bytes"), None, 1], ids=["str", "bytearray", "None", "int"])
    async def test_a_value_that_is_not_bytes_is_refused(self, store: Store, key: MakeKey, value: Any) -> None:
        """Nothing is converted silently, and nothing that can still be changed is kept."""
        await assert_refused(store.commit(Put(key("a"), value)), store, key("a"))

    @pytest.mark.parametrize("raw", ["text", b"bytes", None, ("a", "b")], ids=["str", "bytes", "None", "tuple"])
    async def test_a_key_that_is_no_record_key_is_refused(self, store: Store, raw: Any) -> None:
        """Only record keys name records, in every call."""
        await assert_refused(store.commit(Put(raw, b"")), store)
        await assert_refused(store.read(raw), store)
        await assert_refused(store.scan(raw, raw, limit=1), store)

    @pytest.mark.parametrize("version", [-1, 2**53, True, 1.0, None, "1"], ids=repr)
    async def test_an_impossible_version_is_refused(self, store: Store, key: MakeKey, version: Any) -> None:
        """A guard names a version that could exist."""
        await assert_refused(store.commit(Put(key("a"), b"", expected=version)), store, key("a"))

    @pytest.mark.parametrize("change", [Delete, Check])
    async def test_absence_can_only_be_guarded_by_creating(
        self, store: Store, key: MakeKey, change: type[Delete | Check]
    ) -> None:
        """Two commits that only check an absence could pass each other, so there is no such check."""
        await assert_refused(store.commit(change(key("a"), expected=0), Put(key("b"), b"")), store, key("b"))

    @pytest.mark.parametrize("wake", ["text", Wake("text"), Wake(RecordKey("a"), 5), Wake(RecordKey())], ids=repr)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] -- it is wrong on purpose
    async def test_a_wake_that_is_none_is_refused(self, store: Store, key: MakeKey, wake: Any) -> None:
        """Nothing is committed whose hints could not be sent."""
        await assert_refused(store.commit(Put(key("a"), b""), wake=[wake]), store, key("a"))
        await assert_refused(store.update([key("a")], lambda _: Decision(None, wake=(wake,))), store)

    @pytest.mark.parametrize("instant", [-1, 1.5, True, "1", 2**53, 2**63], ids=repr)
    async def test_an_expiry_that_is_no_instant_is_refused(self, store: Store, key: MakeKey, instant: Any) -> None:
        """Instants are whole microseconds, below 2**53."""
        await assert_refused(store.commit(Put(key("a"), b"", expires_at=instant)), store, key("a"))

    async def test_a_window_that_no_instant_can_be_in_is_refused(self, store: Store, key: MakeKey) -> None:
        """A window ends after it begins, and is made of instants."""
        at = await now(store, key("a"))
        await assert_refused(store.commit(Put(key("a"), b""), after=at, before=at), store, key("a"))
        wrong: Any = 1.5
        await assert_refused(store.commit(Put(key("a"), b""), after=wrong), store, key("a"))

    async def test_a_read_names_one_to_the_declared_number_of_keys(self, store: Store, key: MakeKey) -> None:
        """Reading nothing, too much, or across namespaces is refused."""
        limit = store.capabilities.max_changes
        await store.read(*(key(str(n)) for n in range(limit)))

        await assert_refused(store.read(), store)
        await assert_refused(store.read(*(key(str(n)) for n in range(limit + 1))), store)
        await assert_refused(store.read(key("a"), RecordKey(key().parts[0] + "-other", "a")), store)

    @pytest.mark.parametrize("limit", [0, -1, 1_001, True, 1.0], ids=repr)
    async def test_a_scan_needs_a_sensible_limit(self, store: Store, key: MakeKey, limit: Any) -> None:
        """A page holds 1 to 1,000 records."""
        await assert_refused(store.scan(*key().within(), limit=limit), store)

    async def test_a_scan_across_namespaces_is_refused(self, store: Store, key: MakeKey) -> None:
        """A range stays inside one namespace."""
        await assert_refused(store.scan(key("a"), RecordKey("\U0010ffff", "a"), limit=10), store)

    async def test_a_refused_call_does_not_disturb_the_others(self, store: Store, key: MakeKey) -> None:
        """After a bad call the same handle works as before."""
        await assert_refused(store.commit(), store)
        await create(store, key("a"), b"fine")
        assert await value_of(store, key("a")) == b"fine"


class VersionCases(Ground):
    """The versions of one key, whatever happens to it."""

    async def test_versions_grow_with_every_put(self, store: Store, key: MakeKey) -> None:
        """Each version of a key is higher than every one before, and starts at 1 or more."""
        versions = [await create(store, key("a"))]
        for _ in range(10):
            versions.append((await committed(store, Put(key("a"), b"", versions[-1]))).versions[key("a")])

        assert versions[0] >= 1
        assert all(old < new for old, new in itertools.pairwise(versions))

    async def test_versions_stay_exact_everywhere(self, store: Store, key: MakeKey) -> None:
        """A version is a whole number that JSON, Lua and JavaScript keep exact."""
        version = await create(store, key("a"))

        assert type(version) is int
        assert version <= MAX_VERSION

    async def test_versions_grow_across_delete_and_create(self, store: Store, key: MakeKey) -> None:
        """A deleted key does not start again: what guarded the old record never matches the new one."""
        highest = 0
        for _ in range(5):
            version = await create(store, key("a"))
            assert version > highest
            highest = (await committed(store, Put(key("a"), b"", version))).versions[key("a")]
            await committed(store, Delete(key("a"), expected=highest))

    async def test_an_old_version_does_not_match_a_record_that_was_created_anew(
        self, store: Store, key: MakeKey
    ) -> None:
        """The same value under the same key after a delete is another record."""
        old = await create(store, key("a"), b"same")
        await committed(store, Delete(key("a"), expected=old))
        await create(store, key("a"), b"same")

        await refused(store, Put(key("a"), b"", expected=old))
        await refused(store, Delete(key("a"), expected=old))

    async def test_versions_grow_across_expiry(self, store: Store, key: MakeKey, clock: VirtualClock | None) -> None:
        """A record that is created where one has expired gets a higher version."""
        expires_at = later(await now(store, key("a")), MOMENT)
        old = await create(store, key("a"), expires_at=expires_at)
        await reach(store, expires_at, clock, key("a"))

        assert await create(store, key("a")) > old

    async def test_versions_grow_across_handles(self, store: Store, key: MakeKey, open_another: OpenAnother) -> None:
        """Two handles that delete and create in turn never repeat a version."""
        async with another(open_another) as other:
            versions: list[int] = []
            for turn in (store, other, store, other):
                versions.append(await create(turn, key("a")))
                await committed(turn, Delete(key("a"), expected=versions[-1]))

        assert versions == sorted(set(versions))

    async def test_versions_grow_after_a_handle_is_closed(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """What a closed handle wrote and deleted still counts for those that come after it."""
        async with another(open_another) as other:
            version = await create(store, key("a"))
            await committed(store, Delete(key("a"), expected=version))
            await store.aclose()

            assert await create(other, key("a")) > version

    async def test_updates_of_one_tick_have_versions_of_their_own(self, store: Store, key: MakeKey) -> None:
        """However updates are put together on their way, each is told a version, and they grow in order."""
        decided = await asyncio.gather(*(store.update([key("a")], increment(key("a"))) for _ in range(20)))

        versions = [each.versions[key("a")] for each in decided]
        assert versions == sorted(set(versions))
        assert (await store.read(key("a"))).version(key("a")) == versions[-1]


HOUR = 3600.0


class WindowCases(Ground):
    """The store's time, and commits that hold only at certain times."""

    async def test_every_answer_carries_the_time(self, store: Store, key: MakeKey) -> None:
        """Reads, scans, commits, conflicts and updates say when; no call says less than the one before."""
        times = [
            (await store.read(key("a"))).at,
            (await committed(store, Put(key("a"), b"1"))).at,
            (await refused(store, Put(key("a"), b"1"))).at,
            (await store.update([key("a")], increment(key("a")))).at,
            (await store.scan(*key().within(), limit=1)).at,
            (await store.read(key("a"))).at,
        ]

        assert all(type(at) is int for at in times)
        assert times == sorted(times)

    async def test_time_does_not_go_backwards_between_handles(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """Handles on the same data share one time."""
        async with another(open_another) as other:
            times = [await now(each, key("a")) for each in (store, other) * 5]
            times.append((await committed(store, Put(key("a"), b""))).at)
            times.append(await now(other, key("a")))

        assert times == sorted(times)

    async def test_time_passes(self, store: Store, key: MakeKey, clock: VirtualClock | None) -> None:
        """The store's time reaches any later instant by itself."""
        goal = later(await now(store, key("a")), MOMENT)
        await reach(store, goal, clock, key("a"))
        assert (await committed(store, Put(key("a"), b""))).at >= goal

    async def test_the_beginning_of_a_window_belongs_to_it(self, store: Store, key: MakeKey) -> None:
        """``after`` is inclusive: a time that has been reached is late enough."""
        at = await now(store, key("a"))
        commit = await committed(store, Put(key("a"), b""), after=at)
        assert commit.at >= at

    async def test_the_end_of_a_window_does_not_belong_to_it(self, store: Store, key: MakeKey) -> None:
        """``before`` is exclusive: a time that has been reached is too late."""
        at = await now(store, key("a"))
        conflict = await refused(store, Put(key("a"), b""), before=at)
        assert conflict.at >= at
        assert await value_of(store, key("a")) is None

    async def test_inside_its_window_a_commit_happens(self, store: Store, key: MakeKey) -> None:
        """A window that is open lets the commit pass, and its time lies in it."""
        at = await now(store, key("a"))
        commit = await committed(store, Put(key("a"), b""), after=at, before=later(at, HOUR))
        assert at <= commit.at < later(at, HOUR)

    async def test_too_early_is_a_conflict_without_records(self, store: Store, key: MakeKey) -> None:
        """If only the window missed, no record is to blame, and the time says why."""
        goal = later(await now(store, key("a")), HOUR)

        conflict = await refused(store, Put(key("a"), b""), after=goal)

        assert (conflict.current, conflict.key) == ({}, None)
        assert conflict.at < goal
        assert await value_of(store, key("a")) is None

    async def test_a_guard_that_fails_is_named_even_outside_of_the_window(self, store: Store, key: MakeKey) -> None:
        """Window and guard both missed: the conflict has the record."""
        await create(store, key("a"), b"present")
        at = await now(store, key("a"))

        conflict = await refused(store, Put(key("a"), b""), before=at)

        assert list(conflict.current) == [key("a")]

    async def test_a_window_opens_by_the_time_of_the_store(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """What was too early happens once the store's time has come."""
        goal = later(await now(store, key("a")), MOMENT)
        if (await store.commit(Put(key("a"), b"early"), after=goal)).at >= goal:
            pytest.skip("this machine was too slow to be early")

        await reach(store, goal, clock, key("a"))

        assert (await committed(store, Put(key("a"), b"in time"), after=goal)).at >= goal

    async def test_a_window_closes_by_the_time_of_the_store(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """A commit that was delayed on its way cannot act on a stale clock."""
        deadline = later(await now(store, key("a")), MOMENT)
        await reach(store, deadline, clock, key("a"))

        conflict = await refused(store, Put(key("a"), b"late"), before=deadline)

        assert conflict.at >= deadline
        assert await value_of(store, key("a")) is None

    @pytest.mark.parametrize("seconds", [-HOUR, HOUR], ids=["back", "forth"])
    async def test_a_stepped_wall_clock_moves_no_time(
        self, store: Store, key: MakeKey, clock: VirtualClock | None, seconds: float
    ) -> None:
        """Setting the time of day makes no lease longer or shorter."""
        if clock is None:
            pytest.skip("only a virtual clock can be stepped")
        before = await now(store, key("a"))

        clock.step_wall(seconds)

        assert before <= await now(store, key("a")) < later(before, 1)

"""Limits and bad calls: refused with a typed error, before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import ArgumentTypeError, InvalidArgumentError, InvalidChangeError
from standfast.keys import MAX_KEY_BYTES, RecordKey
from standfast.stores import Check, Decision, Delete, Put, Wake
from standfast.testing.conformance.ground import Ground, committed, create, now, value_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from standfast.stores import Store
    from standfast.testing.conformance.ground import MakeKey


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

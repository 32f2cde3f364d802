"""The caller's own work in the store's transaction, and what is recorded of its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from standfast.errors import InvalidChangeError, UnsuitableStoreError
from standfast.stores import Check, Conflict, Put, SharesTransactions, Worked
from standfast.testing.conformance.ground import Ground, create, value_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.stores import Change, Store
    from standfast.testing.conformance.ground import MakeKey


def sharing(store: Store) -> SharesTransactions:
    """Return the store as one that shares its transactions, or skip the test."""
    if not store.capabilities.commit_with or not isinstance(store, SharesTransactions):
        pytest.skip("this store shares no transaction with the caller's work")
    return store


def seven(_sql: object) -> int:
    """Do nothing in the transaction and answer seven."""
    return 7


class WorkCases(Ground):
    """Changes and work happen together, and so does what is made of the work's answer."""

    async def test_a_store_that_cannot_share_its_transactions_says_so(self, store: Store, key: MakeKey) -> None:
        """What it declares is what it does."""
        if store.capabilities.commit_with or not isinstance(store, SharesTransactions):
            pytest.skip("this store shares its transactions, or does not have the call")

        with pytest.raises(UnsuitableStoreError):
            await store.commit_with(seven, Put(key("k"), b""))

    async def test_an_answer_is_recorded_in_the_transaction_that_made_it(self, store: Store, key: MakeKey) -> None:
        """The record of the answer comes with the other changes, all at one version."""
        worked = await sharing(store).commit_with(
            seven, Put(key("a"), b"first"), extra_changes=lambda answer: [Put(key("b"), b"%d" % answer)]
        )

        assert isinstance(worked, Worked)
        assert worked.answer == 7
        assert set(worked.versions) == {key("a"), key("b")}
        assert len(set(worked.versions.values())) == 1
        assert (await store.read(key("b"))).version(key("b")) == worked.versions[key("b")]
        assert await value_of(store, key("b")) == b"7"

    async def test_an_answer_may_need_no_record(self, store: Store, key: MakeKey) -> None:
        """No further changes are as good as some, also behind a guard alone."""
        version = await create(store, key("a"))

        worked = await sharing(store).commit_with(seven, Check(key("a"), version), extra_changes=lambda _: ())

        assert isinstance(worked, Worked)
        assert worked.versions == {}

    async def test_a_guard_on_what_follows_undoes_all_of_it(self, store: Store, key: MakeKey) -> None:
        """A conflict over the record of the answer leaves nothing of the commit, and says with which record."""
        await create(store, key("b"), b"taken")

        conflict = await sharing(store).commit_with(
            seven, Put(key("a"), b"first"), extra_changes=lambda _: [Put(key("b"), b"mine")]
        )

        assert isinstance(conflict, Conflict)
        assert set(conflict.current) == {key("b")}
        assert await value_of(store, key("a")) is None
        assert await value_of(store, key("b")) == b"taken"

    async def test_what_follows_may_fail_and_undo_all_of_it(self, store: Store, key: MakeKey) -> None:
        """The error reaches the caller, and nothing is written."""

        def fail(answer: int) -> Sequence[Change]:
            raise LookupError(answer)

        with pytest.raises(LookupError, match="7"):
            await sharing(store).commit_with(seven, Put(key("a"), b""), extra_changes=fail)

        assert await value_of(store, key("a")) is None

    @pytest.mark.parametrize("wrong", ["the same key", "another namespace", "too many", "no change"])
    async def test_what_follows_obeys_the_rules_of_a_commit(self, store: Store, key: MakeKey, wrong: str) -> None:
        """Both parts are one commit: its limits, its keys and its namespace hold for them together."""
        more: dict[str, Sequence[Change]] = {
            "the same key": [Put(key("a"), b"again")],
            "another namespace": [Put(type(key("a"))("elsewhere", "a"), b"")],
            "too many": [Put(key("b", str(number)), b"") for number in range(store.capabilities.max_changes)],
            "no change": [cast("Change", "a")],
        }

        with pytest.raises(InvalidChangeError):
            await sharing(store).commit_with(seven, Put(key("a"), b""), extra_changes=lambda _: more[wrong])

        assert await value_of(store, key("a")) is None

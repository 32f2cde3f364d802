"""Decisions of a store: updates, work of the caller in its transaction, and commits that share one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from standfast.clock import later
from standfast.errors import ArgumentTypeError, InvalidChangeError, UnsuitableStoreError
from standfast.keys import RecordKey
from standfast.stores import (
    Check,
    Commit,
    Conflict,
    Decided,
    Decision,
    Delete,
    Put,
    Record,
    SharesTransactions,
    Snapshot,
    Worked,
)
from standfast.testing.conformance.ground import Ground, append, committed, create, increment, now, value_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.stores import Change, Store
    from standfast.testing.conformance.ground import MakeKey


class OwnError(Exception):
    """What a decision of the tests raises."""


class UpdateCases(Ground):
    """What an update sees, does and answers."""

    async def test_a_decision_sees_the_records_and_the_time(self, store: Store, key: MakeKey) -> None:
        """The snapshot has what is there at the given keys and nothing else."""
        await create(store, key("a"), b"value")
        await create(store, key("c"), b"not asked for")
        before = await store.read(key("a"))

        decided = await store.update([key("a"), key("b")], lambda seen: Decision((seen.at, seen.records)))

        at, records = decided.answer
        assert records == before.records
        assert at >= before.at

    async def test_a_decision_is_committed_and_answered(self, store: Store, key: MakeKey) -> None:
        """The answer comes back with the versions that were written."""
        await create(store, key("old"))

        def decide(seen: Snapshot) -> Decision[str]:
            return Decision("done", (Put(key("new"), b"value"), Delete(key("old"), seen.version(key("old")))))

        decided = await store.update([key("old"), key("new")], decide)

        snapshot = await store.read(key("old"), key("new"))
        assert decided.answer == "done"
        assert decided.versions == {key("new"): snapshot.version(key("new"))}
        assert list(snapshot.records) == [key("new")]

    async def test_a_decision_without_changes_writes_nothing(self, store: Store, key: MakeKey) -> None:
        """It is a read with an answer: the version stays."""
        version = await create(store, key("a"))

        decided = await store.update([key("a")], lambda _: Decision("looked"))

        assert (decided.answer, decided.versions) == ("looked", {})
        assert (await store.read(key("a"))).version(key("a")) == version

    async def test_a_decision_may_check(self, store: Store, key: MakeKey) -> None:
        """A check keeps a record as it was seen, and writes nothing to it."""
        version = await create(store, key("a"))

        decided = await store.update([key("a"), key("b")], lambda _: Decision(1, (Check(key("a"), version),)))

        assert decided.versions == {}
        assert (await store.read(key("a"))).version(key("a")) == version

    async def test_an_error_in_a_decision_is_raised_and_nothing_is_written(self, store: Store, key: MakeKey) -> None:
        """It is the very error of the decision, and the store goes on."""
        problem = OwnError("no")

        def decide(_: Snapshot) -> Decision[None]:
            raise problem

        with pytest.raises(OwnError) as caught:
            await store.update([key("a")], decide)

        assert caught.value.args == problem.args
        assert await value_of(store, key("a")) is None
        assert (await store.update([key("a")], increment(key("a")))).answer == 1

    async def test_a_decision_may_change_only_what_it_was_given(self, store: Store, key: MakeKey) -> None:
        """A change of another key is refused, and so is everything with it."""
        with pytest.raises(InvalidChangeError):
            await store.update([key("a")], lambda _: Decision(None, (Put(key("a"), b""), Put(key("b"), b""))))

        assert (await store.read(key("a"), key("b"))).records == {}

    @pytest.mark.parametrize("wrong", [1, 5])
    async def test_a_decision_must_expect_what_it_saw(self, store: Store, key: MakeKey, wrong: int) -> None:
        """A guard at another version than the one in the snapshot is a mistake, not a race."""
        version = await create(store, key("a"), b"value")

        with pytest.raises(InvalidChangeError):
            await store.update([key("a")], lambda _: Decision(None, (Put(key("a"), b"", version + wrong),)))
        with pytest.raises(InvalidChangeError):
            await store.update([key("a")], lambda _: Decision(None, (Put(key("a"), b"", 0),)))

        assert await value_of(store, key("a")) == b"value"

    async def test_a_decision_cannot_change_what_it_saw(self, store: Store, key: MakeKey) -> None:
        """A function that is not pure deceives only itself, and no other update suffers for it."""
        await create(store, key("a"), b"value")

        def forget(snapshot: Snapshot) -> Decision[None]:
            snapshot.records.clear()
            return Decision(None, (Put(key("a"), b"forgotten"),))

        def invent(snapshot: Snapshot) -> Decision[None]:
            snapshot.records[key("b")] = Record(key("b"), b"", 7)
            return Decision(None, (Delete(key("b"), 7),))

        updates = (store.update([key("a")], forget), store.update([key("b")], invent))
        *refused, other = await asyncio.gather(*updates, store.commit(Put(key("c"), b"")), return_exceptions=True)

        assert [type(each) for each in refused] == [InvalidChangeError, InvalidChangeError]
        assert isinstance(other, Commit)
        assert await value_of(store, key("a")) == b"value"

    async def test_a_decision_that_raises_no_exception_is_refused(self, store: Store, key: MakeKey) -> None:
        """What asyncio uses for its own purposes fails its own update, and no other waits for ever."""

        def decide(_: Snapshot) -> Decision[None]:
            raise asyncio.CancelledError

        update, other = await asyncio.gather(
            store.update([key("a")], decide), store.commit(Put(key("b"), b"")), return_exceptions=True
        )

        assert isinstance(update, InvalidChangeError)
        assert isinstance(other, Commit)

    async def test_a_decision_keeps_the_rules_of_a_commit(self, store: Store, key: MakeKey) -> None:
        """What a commit refuses, an update refuses, and nothing is written."""
        text: Any = "text"
        wrong: list[tuple[Change, ...]] = [
            (Put(key("a"), b""), Put(key("a"), b"")),
            (Put(key("a"), text),),
            (Put(key("a"), b"x" * (store.capabilities.max_value_bytes + 1)),),
            (Delete(key("a"), 0),),
        ]
        for changes in wrong:
            decision = Decision(None, changes)
            with pytest.raises(InvalidChangeError):
                await store.update([key("a")], lambda _: decision)  # noqa: B023 -- it is awaited right here
        assert await value_of(store, key("a")) is None

    @pytest.mark.parametrize("answer", [None, "answer", (), Put], ids=repr)
    async def test_a_decision_is_a_decision(self, store: Store, key: MakeKey, answer: Any) -> None:
        """A function that forgets to return one is told so."""
        with pytest.raises(InvalidChangeError):
            await store.update([key("a")], lambda _: answer)

    async def test_an_update_needs_keys_of_one_namespace(self, store: Store, key: MakeKey) -> None:
        """No keys, raw keys and keys of two namespaces are refused."""
        raw: Any = b"raw"
        for keys in ([], [raw], [key("a"), RecordKey(key().parts[0] + "-other", "a")]):
            with pytest.raises((InvalidChangeError, ArgumentTypeError)):
                await store.update(keys, lambda _: Decision(None))

    async def test_a_decision_may_name_the_window_in_which_it_holds(self, store: Store, key: MakeKey) -> None:
        """A window around the time that it saw lets it pass."""
        decided = await store.update(
            [key("a")],
            lambda seen: Decision(1, (Put(key("a"), b""),), after=seen.at, before=later(seen.at, 3600)),
        )
        assert decided.versions[key("a")] > 0

    async def test_a_window_that_misses_what_was_seen_is_a_mistake(self, store: Store, key: MakeKey) -> None:
        """A decision that cannot hold at the time of its own snapshot is refused."""
        at = await now(store, key("a"))
        with pytest.raises(InvalidChangeError):
            await store.update([key("a")], lambda _: Decision(None, (Put(key("a"), b""),), before=at))
        assert await value_of(store, key("a")) is None

    async def test_updates_happen_in_the_order_of_their_calls(self, store: Store, key: MakeKey) -> None:
        """First called, first in; each sees what those before it wrote."""
        letters = [bytes([letter]) for letter in b"abcdefghijklmnopqrstuvwxyz"]

        decided = await asyncio.gather(*(store.update([key("a")], append(key("a"), letter)) for letter in letters))

        assert await value_of(store, key("a")) == b"".join(letters)
        assert [each.answer for each in decided] == [b"".join(letters[: n + 1]) for n in range(len(letters))]

    async def test_commits_and_updates_of_one_tick_happen_in_order(self, store: Store, key: MakeKey) -> None:
        """An update sees the commit before it, and a commit sees the update before it."""
        created, updated, too_late, updated_again = await asyncio.gather(
            store.commit(Put(key("a"), b"0")),
            store.update([key("a")], append(key("a"), b"1")),
            store.commit(Put(key("a"), b"never: it exists by now")),
            store.update([key("a")], append(key("a"), b"2")),
        )

        assert isinstance(created, Commit)
        assert isinstance(too_late, Conflict)
        assert (updated.answer, updated_again.answer) == (b"01", b"012")
        present = too_late.current[key("a")]
        assert present is not None
        assert present.value == b"01"

    async def test_an_update_may_delete_what_the_one_before_created(self, store: Store, key: MakeKey) -> None:
        """Create, delete and create again at once leaves the last, under the highest version."""

        def delete(seen: Snapshot) -> Decision[bool]:
            return Decision(key("a") in seen.records, (Delete(key("a"), seen.version(key("a"))),))

        first, deleted, last = await asyncio.gather(
            store.update([key("a")], append(key("a"), b"1")),
            store.update([key("a")], delete),
            store.update([key("a")], append(key("a"), b"2")),
        )

        assert (first.answer, deleted.answer, last.answer) == (b"1", True, b"2")
        assert last.versions[key("a")] > first.versions[key("a")]
        assert await value_of(store, key("a")) == b"2"

    async def test_updates_of_different_keys_do_not_disturb_each_other(self, store: Store, key: MakeKey) -> None:
        """Each key counts for itself."""
        keys = [key(str(n % 5)) for n in range(50)]

        await asyncio.gather(*(store.update([each], increment(each)) for each in keys))

        assert {record.value for record in (await store.read(*set(keys))).records.values()} == {b"10"}

    async def test_an_update_sees_what_was_committed_before_it(self, store: Store, key: MakeKey) -> None:
        """Nothing that was answered is missed, also if the store remembers records."""
        version = await create(store, key("a"), b"1")
        for number in range(2, 10):
            version = (await committed(store, Put(key("a"), b"%d" % number, version))).versions[key("a")]
            decided = await store.update([key("a")], lambda seen: Decision(seen.records[key("a")].value))
            assert decided.answer == b"%d" % number


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


class GroupCases(Ground):
    """Commits that arrive in the same tick."""

    async def test_commits_of_one_tick_all_happen(self, store: Store, key: MakeKey) -> None:
        """Hundreds of commits at once, each answered with its own versions."""
        keys = [key(f"{n:03}") for n in range(300)]

        answers = await asyncio.gather(*(store.commit(Put(each, each[-9:])) for each in keys))

        assert [list(each.versions) for each in answers if isinstance(each, Commit)] == [[each] for each in keys]
        assert len((await store.scan(*key().within(), limit=1_000)).records) == len(keys)

    async def test_a_conflict_does_not_touch_its_neighbours(self, store: Store, key: MakeKey) -> None:
        """Those that lose and those that win may travel together."""
        await create(store, key("taken"))

        answers = await asyncio.gather(
            *(store.commit(Put(key("taken") if n % 2 else key(str(n)), b"")) for n in range(20))
        )

        assert [type(answer) for answer in answers] == [Commit, Conflict] * 10

    async def test_an_update_that_fails_does_not_touch_its_neighbours(self, store: Store, key: MakeKey) -> None:
        """An error in one decision is raised to its caller alone, and what it wanted is not written."""

        def fail(_: Snapshot) -> Decision[None]:
            raise KeyError

        first, failed, invalid, last = await asyncio.gather(
            store.update([key("a")], increment(key("a"))),
            store.update([key("a")], fail),
            store.update([key("a")], lambda _: Decision(None, (Put(key("b"), b""),))),
            store.update([key("a")], increment(key("a"))),
            return_exceptions=True,
        )

        assert isinstance(first, Decided)
        assert isinstance(last, Decided)
        assert (first.answer, last.answer) == (1, 2)
        assert (type(failed), type(invalid)) == (KeyError, InvalidChangeError)
        assert await value_of(store, key("b")) is None

    async def test_a_refused_commit_does_not_touch_its_neighbours(self, store: Store, key: MakeKey) -> None:
        """A commit that breaks a rule fails alone."""
        fine, refused, also_fine = await asyncio.gather(
            store.commit(Put(key("a"), b"")),
            store.commit(Put(key("b"), b""), Put(key("b"), b"")),
            store.commit(Put(key("c"), b"")),
            return_exceptions=True,
        )

        assert (type(fine), type(refused), type(also_fine)) == (Commit, InvalidChangeError, Commit)

    async def test_a_create_and_a_check_of_the_same_key_may_travel_together(self, store: Store, key: MakeKey) -> None:
        """A check that came with a create of its key is judged as if they had come one after the other."""
        version = await create(store, key("a"))
        await store.commit(Delete(key("a"), version))

        created, checked = await asyncio.gather(
            store.commit(Put(key("a"), b"new")),
            store.commit(Check(key("a"), version), Put(key("b"), b"")),
        )

        assert isinstance(created, Commit)
        assert isinstance(checked, Conflict)
        assert await value_of(store, key("b")) is None

    async def test_a_put_and_a_check_of_the_same_version_are_not_both_late(self, store: Store, key: MakeKey) -> None:
        """A check before a put of its key passes; one that comes after it loses."""
        version = await create(store, key("a"))

        answers = await asyncio.gather(
            store.commit(Check(key("a"), version), Put(key("b"), b"")),
            store.commit(Put(key("a"), b"", version)),
            store.commit(Check(key("a"), version), Put(key("c"), b"")),
        )

        assert [type(answer) for answer in answers] == [Commit, Commit, Conflict]
        assert await value_of(store, key("c")) is None

    async def test_commits_of_one_tick_build_on_each_other(self, store: Store, key: MakeKey) -> None:
        """A conflict within a group carries the record that the winner in it wrote."""
        won, lost = await asyncio.gather(store.commit(Put(key("a"), b"1")), store.commit(Put(key("a"), b"2")))

        assert isinstance(won, Commit)
        assert isinstance(lost, Conflict)
        present = lost.current[key("a")]
        assert present is not None
        assert (present.value, present.version) == (b"1", won.versions[key("a")])

    async def test_namespaces_of_one_tick_are_independent(self, store: Store, key: MakeKey) -> None:
        """Commits in different namespaces may come at once; each stays in its own."""
        name = key().parts[0]
        keys = [RecordKey(f"{name}-{n}", "a") for n in range(10)]

        answers = await asyncio.gather(*(store.commit(Put(each, b"%d" % n)) for n, each in enumerate(keys)))

        assert {type(answer) for answer in answers} == {Commit}
        assert [await value_of(store, each) for each in keys] == [b"%d" % n for n in range(10)]

    @pytest.mark.parametrize("rounds", [20])
    async def test_a_handle_serves_round_after_round(self, store: Store, key: MakeKey, rounds: int) -> None:
        """What comes while a group is under way is served by the next one."""

        async def go_on(n: int) -> None:
            for _ in range(rounds):
                await store.update([key(str(n % 3))], increment(key(str(n % 3))))

        await asyncio.gather(*(go_on(n) for n in range(9)))

        assert [await value_of(store, key(str(n))) for n in range(3)] == [b"60"] * 3

"""Updates: a pure function of the records, run and committed as one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import later
from standfast.errors import ArgumentTypeError, InvalidChangeError
from standfast.keys import RecordKey
from standfast.stores import Check, Commit, Conflict, Decision, Delete, Put, Record, Snapshot
from standfast.testing.conformance.ground import Ground, append, committed, create, increment, now, value_of

if TYPE_CHECKING:
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
        """A function that is not pure deceives nobody but itself, and nobody else suffers for it."""
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
        """What asyncio uses for its own purposes fails its own update, and nobody waits for ever."""

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

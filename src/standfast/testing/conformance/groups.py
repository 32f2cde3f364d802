"""Groups: commits that travel together, each with a verdict of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.errors import InvalidChangeError
from standfast.keys import RecordKey
from standfast.stores import Check, Commit, Conflict, Decided, Decision, Delete, Put
from standfast.testing.conformance.ground import Ground, create, increment, value_of

if TYPE_CHECKING:
    from standfast.stores import Snapshot, Store
    from standfast.testing.conformance.ground import MakeKey


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

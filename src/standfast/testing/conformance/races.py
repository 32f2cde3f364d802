"""Races: many at once, and each commit still as if it were alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.stores import Check, Commit, Conflict, Decision, Put
from standfast.testing.conformance.ground import TRIES, Ground, another, committed, create, increment, value_of

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.stores import Record, Snapshot, Store
    from standfast.testing.conformance.ground import MakeKey, OpenAnother


async def add_by_hand(store: Store, key: RecordKey, times: int) -> None:
    """Add one to a number by guarded puts, taking the present record from each conflict."""
    record = (await store.read(key)).get(key)
    for _ in range(TRIES * times):
        number, version = (0, 0) if record is None else (int(record.value), record.version)
        verdict = await store.commit(Put(key, b"%d" % (number + 1), expected=version))
        if isinstance(verdict, Conflict):
            record = verdict.current[key]
            continue
        times -= 1
        if times == 0:
            return
        record = (await store.read(key)).get(key)
    pytest.fail("no progress: the record from a conflict does not let the next try win")


class RaceCases(Ground):
    """Several commits and updates at once, on one handle and on two."""

    async def test_of_many_creates_one_wins(self, store: Store, key: MakeKey) -> None:
        """The winner's record is what all others are told."""
        answers = await asyncio.gather(*(store.commit(Put(key("a"), b"%d" % n)) for n in range(8)))

        [winner] = [n for n, answer in enumerate(answers) if isinstance(answer, Commit)]
        present = (await store.read(key("a"))).get(key("a"))
        assert await value_of(store, key("a")) == b"%d" % winner
        assert all(each.current == {key("a"): present} for each in answers if isinstance(each, Conflict))

    async def test_of_many_puts_at_one_version_one_wins(self, store: Store, key: MakeKey) -> None:
        """Of several commits from the same version, exactly one succeeds."""
        version = await create(store, key("a"))

        answers = await asyncio.gather(*(store.commit(Put(key("a"), b"%d" % n, version)) for n in range(8)))

        assert [type(answer) for answer in answers].count(Commit) == 1

    async def test_of_racers_on_two_handles_one_wins(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """It makes no difference through which handle a racer comes, round after round."""
        async with another(open_another) as other:
            version = await create(store, key("a"))
            for _ in range(10):
                answers = await asyncio.gather(
                    *(each.commit(Put(key("a"), b"%d" % n, version)) for n, each in enumerate((store, other) * 4))
                )
                [won] = [answer for answer in answers if isinstance(answer, Commit)]
                version = won.versions[key("a")]

    async def test_no_update_is_lost(self, store: Store, key: MakeKey) -> None:
        """A hundred updates at once all land, and each is told another number."""
        decided = await asyncio.gather(*(store.update([key("a")], increment(key("a"))) for _ in range(100)))

        assert sorted(each.answer for each in decided) == list(range(1, 101))
        assert await value_of(store, key("a")) == b"100"

    async def test_no_update_is_lost_between_handles(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """Two handles that update one record retry until both have all of theirs in."""
        async with another(open_another) as other:
            decided = await asyncio.gather(
                *(each.update([key("a")], increment(key("a"))) for each in (store, other) * 25)
            )

        assert sorted(each.answer for each in decided) == list(range(1, 51))

    async def test_no_guarded_put_is_lost(self, store: Store, key: MakeKey, open_another: OpenAnother) -> None:
        """Adding by hand, with a guard and the record from the conflict, loses nothing either."""
        async with another(open_another) as other:
            await asyncio.gather(*(add_by_hand(each, key("a"), 10) for each in (store, other, store, other)))

        assert await value_of(store, key("a")) == b"40"

    async def test_two_commits_that_check_each_other_cannot_both_win(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """No write skew: of "a if b is unchanged" and "b if a is unchanged" one loses."""
        async with another(open_another) as other:
            for n in range(10):
                a, b = key("a", str(n)), key("b", str(n))
                seen = await committed(store, Put(a, b"on call"), Put(b, b"on call"))
                va, vb = seen.versions[a], seen.versions[b]
                answers = await asyncio.gather(
                    store.commit(Check(a, va), Put(b, b"home", vb)), other.commit(Check(b, vb), Put(a, b"home", va))
                )
                assert [type(answer) for answer in answers].count(Commit) == 1

    async def test_a_sum_over_two_records_is_kept(self, store: Store, key: MakeKey, open_another: OpenAnother) -> None:
        """Updates that move something from one record to another make and lose nothing, whoever looks when."""
        accounts = [key(name) for name in "abcd"]
        await committed(store, *(Put(each, b"10") for each in accounts))

        def move(source: RecordKey, target: RecordKey, seen: Snapshot) -> Decision[None]:
            have = {each: int(seen.records[each].value) for each in (source, target)}
            if have[source] == 0:
                return Decision(None)
            new = {source: have[source] - 1, target: have[target] + 1}
            return Decision(None, tuple(Put(each, b"%d" % new[each], seen.version(each)) for each in new))

        async def moving(handle: Store, n: int) -> None:
            source, target = accounts[n % 4], accounts[(n * 7 + 1) % 4]
            if source != target:
                await handle.update([source, target], lambda seen: move(source, target, seen))

        async def looking() -> int:
            return sum(int(record.value) for record in (await store.read(*accounts)).records.values())

        async with another(open_another) as other:
            await asyncio.gather(*(moving((store, other)[n % 2], n) for n in range(40)))
            sums = await asyncio.gather(looking(), *(moving((store, other)[n % 2], n) for n in range(20)))

        assert (sums[0], await looking()) == (40, 40)

    async def test_a_reader_never_sees_half_a_commit(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """Two records that are always written together are always read alike."""
        pair = [key("left"), key("right")]

        def both(seen: Snapshot) -> Decision[None]:
            number = int(seen.records[pair[0]].value) + 1 if seen.records else 0
            return Decision(None, tuple(Put(each, b"%d" % number, seen.version(each)) for each in pair))

        async def write() -> None:
            for _ in range(30):
                await store.update(pair, both)

        async with another(open_another) as other:
            writing = asyncio.create_task(write())
            seen: list[dict[RecordKey, Record]] = []
            while not writing.done():
                seen.append((await other.read(*pair)).records)
                await asyncio.sleep(0)
            await writing

        assert all(len(records) in (0, 2) for records in seen)
        assert all(len({record.value for record in records.values()}) <= 1 for records in seen)

"""Callers of a store that race, are cancelled, or are checked by their history."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from standfast.stores import Check, Commit, Conflict, Decided, Decision, Delete, Put, verdict_of
from standfast.testing.conformance.ground import (
    SOON,
    TRIES,
    Ground,
    another,
    append,
    committed,
    create,
    increment,
    value_of,
)
from standfast.testing.histories import History, RecordingStore, check_store_history

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from standfast.keys import RecordKey
    from standfast.stores import Change, Record, Snapshot, Store
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
        """Updates that move something from one record to another make and lose nothing, whenever they are read."""
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


class Client:
    """A client that does random things to a few keys, guarding at versions that may be stale by now."""

    def __init__(self, store: Store, keys: list[RecordKey], seed: str) -> None:
        self._store, self._keys = store, keys
        self._random = random.Random(seed)
        self._seen: dict[RecordKey, Record | None] = {}
        self._writes = 0
        self._name = seed

    async def act(self, times: int) -> None:
        """Do a number of random things."""
        for _ in range(times):
            await self._random.choice((self._read, self._commit, self._commit, self._update))()
            await asyncio.sleep(0)

    async def _read(self) -> None:
        keys = self._random.sample(self._keys, 2)
        snapshot = await self._store.read(*keys)
        self._seen.update({key: snapshot.get(key) for key in keys})

    async def _commit(self) -> None:
        keys = self._random.sample(self._keys, self._random.choice((1, 1, 2)))
        verdict = await self._store.commit(*(self._change(key) for key in keys))
        if isinstance(verdict, Conflict):
            self._seen.update(verdict.current)

    def _change(self, key: RecordKey) -> Change:
        record = self._seen.get(key)
        kind = self._random.random()
        if record is None or kind < 0.6:
            return Put(key, self._value(), 0 if record is None else record.version)
        return Delete(key, record.version) if kind < 0.8 else Check(key, record.version)

    async def _update(self) -> None:
        key = self._random.choice(self._keys)
        await self._store.update([key], append(key, self._value()))

    def _value(self) -> bytes:
        self._writes += 1
        return f"{self._name}.{self._writes},".encode()


class HistoryCases(Ground):
    """Random clients, recorded and checked."""

    @pytest.fixture
    def history_seed(self) -> int:
        """Return the seed of the random clients; it is printed when a test fails."""
        seed = random.randrange(2**32)
        print(f"history_seed={seed}")
        return seed

    async def test_the_history_of_one_handle_is_linearizable(
        self, store: Store, key: MakeKey, history_seed: int
    ) -> None:
        """An order of all operations explains every answer that six clients got."""
        history, keys = History(), [key(name) for name in "abc"]
        recorders = [RecordingStore(store, history, f"client {n}") for n in range(6)]

        await asyncio.gather(*(Client(each, keys, f"{history_seed}/{n}").act(15) for n, each in enumerate(recorders)))

        check_store_history(history.operations)

    async def test_the_history_of_two_handles_is_linearizable(
        self, store: Store, key: MakeKey, open_another: OpenAnother, history_seed: int
    ) -> None:
        """Through whichever handle a client comes, its operations fit into one order with all others."""
        history, keys = History(), [key(name) for name in "abc"]
        async with another(open_another) as other:
            recorders = [RecordingStore((store, other)[n % 2], history, f"client {n}") for n in range(6)]
            await asyncio.gather(
                *(Client(each, keys, f"{history_seed}/{n}").act(15) for n, each in enumerate(recorders))
            )

        check_store_history(history.operations)


TICKS = range(12)


async def cancel_after(ticks: int, work: Coroutine[Any, Any, Any]) -> Any:
    """Start ``work``, let it run for some ticks, cancel it, and return its answer or what the cancellation carries."""
    task = asyncio.create_task(work)
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    return await truth_of(task)


async def truth_of(task: asyncio.Task[Any]) -> Any:
    """Return the answer of a task, or the verdict that its cancellation carries."""
    try:
        return await task  # not through gather, which makes a cancellation of its own without the verdict
    except asyncio.CancelledError as cancelled:
        return verdict_of(cancelled)


class CancellationCases(Ground):
    """A caller that is cancelled before, during and after its commit."""

    @pytest.mark.parametrize("ticks", TICKS)
    async def test_a_cancelled_commit_tells_the_truth(self, store: Store, key: MakeKey, ticks: int) -> None:
        """It carries its verdict if it was written; without one nothing was, and nothing will be."""
        verdict = await cancel_after(ticks, store.commit(Put(key("a"), b"value")))

        await create(store, key("after"))  # whatever was under way is over by now
        record = (await store.read(key("a"))).get(key("a"))
        if isinstance(verdict, Commit):
            assert record is not None
            assert record.version == verdict.versions[key("a")]
        else:
            assert (verdict, record) == (None, None)

    @pytest.mark.parametrize("ticks", TICKS)
    async def test_a_cancelled_update_tells_the_truth(self, store: Store, key: MakeKey, ticks: int) -> None:
        """Also if others on the same key travel with it."""
        others = [asyncio.create_task(store.update([key("a")], increment(key("a")))) for _ in range(3)]
        verdict = await cancel_after(ticks, store.update([key("a")], increment(key("a"))))
        await asyncio.gather(*others)

        expected = 4 if isinstance(verdict, Decided) else 3
        assert await value_of(store, key("a")) == b"%d" % expected

    async def test_a_commit_that_is_cancelled_at_once_is_withdrawn(self, store: Store, key: MakeKey) -> None:
        """Before it begins, nothing is written."""
        assert await cancel_after(0, store.commit(Put(key("a"), b""))) is None
        await create(store, key("after"))
        assert await value_of(store, key("a")) is None

    @pytest.mark.parametrize("ticks", range(6))
    async def test_a_cancellation_does_not_touch_the_neighbours(self, store: Store, key: MakeKey, ticks: int) -> None:
        """Of twenty commits every second is cancelled; the others happen, and each cancelled one tells the truth."""
        tasks = [asyncio.create_task(store.commit(Put(key(f"{n:02}"), b""))) for n in range(20)]
        for _ in range(ticks):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()

        verdicts = [await truth_of(task) for task in tasks]

        await create(store, key("after"))
        present = (await store.scan(*key().within(), limit=100)).records
        assert [isinstance(each, Commit) for each in verdicts] == [key(f"{n:02}") in present for n in range(20)]
        assert all(isinstance(each, Commit) for each in verdicts[1::2])

    @pytest.mark.parametrize("ticks", [1, 2, 3])
    async def test_a_second_cancellation_does_not_hide_the_verdict(
        self, store: Store, key: MakeKey, ticks: int
    ) -> None:
        """However often a caller is cancelled, it ends with the truth."""
        task = asyncio.create_task(store.commit(Put(key("a"), b"")))
        for _ in range(ticks):
            await asyncio.sleep(0)
            task.cancel()

        verdict = await truth_of(task)

        await create(store, key("after"))
        assert isinstance(verdict, Commit) == (await value_of(store, key("a")) is not None)

    async def test_a_timeout_is_a_cancellation(self, store: Store, key: MakeKey) -> None:
        """A commit under asyncio.timeout ends in time, and the handle goes on."""
        try:
            async with asyncio.timeout(0):
                await store.commit(Put(key("a"), b""))
        except TimeoutError:
            pass

        await create(store, key("after"))

    @pytest.mark.parametrize("ticks", range(4))
    async def test_a_cancelled_read_leaves_the_store_usable(self, store: Store, key: MakeKey, ticks: int) -> None:
        """Reading is harmless to stop."""
        await create(store, key("a"), b"value")
        await cancel_after(ticks, store.read(key("a")))
        await cancel_after(ticks, store.scan(*key().within(), limit=10))

        assert await value_of(store, key("a")) == b"value"

    async def test_a_cancelled_wait_loses_no_hint(self, store: Store, key: MakeKey) -> None:
        """A task that gives up waiting may wait again on the same watch."""
        if store.capabilities.wakes == "poll":
            pytest.skip("this store sends no hints")
        async with store.watch(key("a")) as watch:
            await cancel_after(3, watch.wait())
            await create(store, key("a"))
            assert await watch.wait(SOON) is not None

"""Alternatives of a store: the first that holds is done, records are appended and moved, no waiter is overlooked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import later
from standfast.errors import InvalidChangeError, UnsuitableStoreError
from standfast.keys import RecordKey
from standfast.stores import (
    Alternative,
    Append,
    Check,
    Choice,
    Conflict,
    Count,
    Delete,
    Empty,
    MoveFirst,
    Present,
    Put,
    Stamped,
    Wake,
    verdict_of,
)
from standfast.stores.protocol import NUMBER_BYTES, unstamped
from standfast.testing.conformance.ground import MOMENT, SOON, Ground, another, committed, create, now, reach, value_of

if TYPE_CHECKING:
    from standfast.stores import Record, Store, Watch
    from standfast.testing.conformance.ground import MakeKey, OpenAnother
    from standfast.testing.simulation import VirtualClock


def needs_alternatives(store: Store) -> None:
    """Skip a test where the store has no alternatives."""
    if not store.capabilities.alternatives:
        pytest.skip("this store has no alternatives")


async def chosen(store: Store, *alternatives: Alternative) -> Choice:
    """Choose, and insist that one held."""
    verdict = await store.choose(*alternatives)
    assert isinstance(verdict, Choice), verdict
    return verdict


async def none_held(store: Store, *alternatives: Alternative) -> Conflict:
    """Choose, and insist that none held."""
    verdict = await store.choose(*alternatives)
    assert isinstance(verdict, Conflict), verdict
    return verdict


async def append(store: Store, prefix: RecordKey, value: bytes = b"", *suffix: str) -> RecordKey:
    """Append a record and return its key."""
    verdict = await chosen(store, Alternative((Append(prefix, value, RecordKey(*suffix)),)))
    assert verdict.appended is not None
    return verdict.appended


class Turnstile:
    """A mutex in the fewest words: who finds it free takes it, who does not lines up, who leaves passes it on."""

    def __init__(self, key: MakeKey) -> None:
        self.grant, self.tickets, self.inboxes = key("grant", "0"), key("ticket"), key("inbox")

    async def enter(self, store: Store, name: str) -> Choice:
        """Take it, or line up."""
        entry = name.encode()
        return await chosen(
            store,
            Alternative((Stamped(self.grant, entry),)),
            Alternative((Present(self.grant), Append(self.tickets, entry, RecordKey(name)))),
        )

    async def leave(self, store: Store, fence: int) -> Choice:
        """Pass it on, or free it."""
        return await chosen(
            store,
            Alternative((MoveFirst(self.tickets, self.grant, fence, self.inboxes),)),
            Alternative((Empty(self.tickets), Delete(self.grant, fence))),
        )


class AlternativeCases(Ground):
    """What the store chooses between alternatives, appends and moves."""

    async def test_a_store_without_alternatives_refuses_them(self, store: Store, key: MakeKey) -> None:
        """What its capabilities say is so."""
        asked = Alternative((Put(key("a"), b""),))
        if store.capabilities.alternatives:
            assert (await chosen(store, asked)).index == 0
        else:
            with pytest.raises(UnsuitableStoreError):
                await store.choose(asked)

    async def test_the_first_alternative_that_holds_is_done(self, store: Store, key: MakeKey) -> None:
        """Those before it do not hold, and those after it are not done."""
        needs_alternatives(store)
        await create(store, key("a"))

        done = await chosen(
            store,
            Alternative((Put(key("a"), b"first"), Put(key("b"), b"first"))),
            Alternative((Present(key("a")), Put(key("b"), b"second"))),
            Alternative((Put(key("c"), b"third"),)),
        )

        assert (done.index, list(done.versions)) == (1, [key("b")])
        assert [await value_of(store, key(name)) for name in "abc"] == [b"", b"second", None]
        assert (await store.read(key("b"))).version(key("b")) == done.version

    async def test_present_returns_the_record(self, store: Store, key: MakeKey) -> None:
        """Whatever its version is."""
        needs_alternatives(store)
        version = await create(store, key("a"), b"value")

        done = await chosen(store, Alternative((Present(key("a")), Put(key("b"), b""))))

        found = done.present[key("a")]
        assert (found.value, found.version) == (b"value", version)

    async def test_an_alternative_may_only_look(self, store: Store, key: MakeKey) -> None:
        """Guards alone write nothing, and draw no version."""
        needs_alternatives(store)
        version = await create(store, key("a"), b"value")

        done = await chosen(
            store,
            Alternative((Put(key("a"), b""),)),
            Alternative((Check(key("a"), version), Present(key("b")), Empty(key("t")))),
            Alternative((Present(key("a")), Empty(key("t")))),
        )

        assert (done.index, done.version, done.present[key("a")].value) == (2, 0, b"value")

    async def test_if_none_holds_all_that_failed_is_shown(self, store: Store, key: MakeKey) -> None:
        """The present record of each key whose guard failed in any alternative; nothing is written."""
        needs_alternatives(store)
        version = await create(store, key("a"), b"value")

        lost = await none_held(
            store,
            Alternative((Put(key("a"), b"new", version + 1), Put(key("b"), b""))),
            Alternative((Present(key("c")), Delete(key("a"), version))),
        )

        assert set(lost.current) == {key("a"), key("c")}
        present = lost.current[key("a")]
        assert present is not None
        assert (present.value, present.version, lost.current[key("c")]) == (b"value", version, None)
        assert await value_of(store, key("b")) is None

    async def test_a_window_is_a_guard(self, store: Store, key: MakeKey) -> None:
        """An alternative whose time has not come, or is over, is passed over."""
        needs_alternatives(store)
        soon = later(await now(store, key("a")), 3600)

        done = await chosen(
            store,
            Alternative((Put(key("a"), b"late"),), after=soon),
            Alternative((Put(key("a"), b"in time"),), before=soon),
        )

        assert done.index == 1
        assert (await none_held(store, Alternative((Put(key("b"), b""),), after=soon))).current == {}

    async def test_a_stamp_is_the_time_of_the_commit(self, store: Store, key: MakeKey) -> None:
        """It stands before the value."""
        needs_alternatives(store)

        done = await chosen(store, Alternative((Stamped(key("a"), b"value"),)))

        assert unstamped(await value_of(store, key("a")) or b"") == (done.at, b"value")

    async def test_appended_records_are_in_the_order_of_their_commits(self, store: Store, key: MakeKey) -> None:
        """Each number is larger than the one before, and is the version of its record."""
        needs_alternatives(store)

        keys = [await append(store, key("t"), b"%d" % n, "suffix") for n in range(5)]

        page = await store.scan(*key("t").within(), limit=10)
        assert keys == sorted(keys) == list(page.records)
        assert [record.value for record in page.records.values()] == [b"0", b"1", b"2", b"3", b"4"]
        assert all(
            each == Append(key("t"), b"", RecordKey("suffix")).key_of(page.records[each].version) for each in keys
        )
        assert all(len(each) == len(key("t")) + NUMBER_BYTES + len(RecordKey("suffix")) for each in keys)

    async def test_a_number_is_not_used_again(self, store: Store, key: MakeKey) -> None:
        """Also if all that was appended is gone."""
        needs_alternatives(store)
        first = await append(store, key("t"))
        await committed(store, Delete(first, (await store.read(first)).version(first)))

        assert await append(store, key("t")) > first

    async def test_an_append_can_be_stamped(self, store: Store, key: MakeKey) -> None:
        """With the time of its commit."""
        needs_alternatives(store)

        done = await chosen(store, Alternative((Append(key("t"), b"value", stamped=True),)))

        assert done.appended is not None
        assert unstamped(await value_of(store, done.appended) or b"") == (done.at, b"value")

    async def test_empty_sees_what_continues_the_prefix_and_no_neighbour(self, store: Store, key: MakeKey) -> None:
        """Neither the record at the prefix itself nor one whose name only begins alike."""
        needs_alternatives(store)
        await committed(
            store, Put(key("t"), b""), Put(key("tt"), b""), Put(key("s", "x"), b""), Put(key("u", "x"), b"")
        )

        assert (await chosen(store, Alternative((Empty(key("t")), Put(key("a"), b""))))).index == 0
        ticket = await append(store, key("t"), b"there")
        lost = await none_held(store, Alternative((Empty(key("t")), Put(key("b"), b""))))

        found = lost.current[ticket]
        assert found is not None
        assert (list(lost.current), found.value) == ([ticket], b"there")

    async def test_records_below_a_prefix_are_counted(self, store: Store, key: MakeKey) -> None:
        """Neither too few nor too many; those at the prefix itself, and of neighbours, are not among them."""
        needs_alternatives(store)
        await committed(store, Put(key("t"), b""), Put(key("tt", "x"), b""), *[Put(key("t", n), b"") for n in "abc"])
        bounds: list[tuple[int, int | None]] = [(3, None), (0, 3), (3, 3), (1, 5), (4, None), (0, 2), (4, 5)]

        held = [
            isinstance(await store.choose(Alternative((Count(key("t"), *each), Put(key("n", str(n)), b"")))), Choice)
            for n, each in enumerate(bounds)
        ]

        assert held == [True] * 4 + [False] * 3

    async def test_a_count_that_fails_shows_what_is_there(self, store: Store, key: MakeKey) -> None:
        """All of them if they are too few, as many as are too many, and None at the prefix if there is none."""
        needs_alternatives(store)
        await committed(store, *[Put(key("t", n), n.encode()) for n in "abc"])

        few = await none_held(store, Alternative((Count(key("t"), 5), Put(key("x"), b""))))
        many = await none_held(store, Alternative((Count(key("t"), most=1), Put(key("x"), b""))))
        none = await none_held(store, Alternative((Count(key("u"), 1), Put(key("x"), b""))))

        assert {each: record and record.value for each, record in few.current.items()} == {
            key("t", n): n.encode() for n in "abc"
        }
        assert list(many.current) == [key("t", n) for n in "ab"]
        assert none.current == {key("u"): None}

    async def test_a_count_is_of_what_was_there_before(self, store: Store, key: MakeKey) -> None:
        """The last one may be deleted below the prefix, and another created; a batch sees what it has done so far."""
        needs_alternatives(store)
        first, second = await create(store, key("t", "a")), await create(store, key("t", "b"))

        done: Any = await asyncio.gather(
            store.choose(Alternative((Count(key("t"), most=1), Delete(key("t", "a"), first)))),
            store.choose(Alternative((Count(key("t"), 2), Delete(key("t", "a"), first)))),
            store.choose(Alternative((Count(key("t"), 2), Delete(key("t", "b"), second)))),
            store.choose(Alternative((Count(key("t"), 1, 1), Delete(key("t", "b"), second), Put(key("t", "c"), b"")))),
            store.choose(Alternative((Count(key("t"), 1, 1), Put(key("t", "d"), b"")))),
            store.choose(Alternative((Count(key("t"), 2, 2), Put(key("x"), b"")))),
        )

        assert [type(each) for each in done] == [Conflict, Choice, Conflict, Choice, Choice, Choice]

    async def test_the_last_two_to_leave_do_not_pass_each_other(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """Each leaves another one behind, or is the last one and takes what they share along."""
        needs_alternatives(store)

        async def leave(handle: Store, name: str, fence: int, shared: int) -> None:
            await chosen(
                handle,
                Alternative((Count(key("t"), most=1), Delete(key("s"), shared), Delete(key("t", name), fence))),
                Alternative((Count(key("t"), 2), Delete(key("t", name), fence), Check(key("s"), shared))),
            )

        async with another(open_another) as other:
            for _ in range(20):
                shared = await create(store, key("s"))
                fences = {n: await create(store, key("t", n)) for n in "abcd"}
                await asyncio.gather(*(leave((store, other)[n in "ab"], n, fences[n], shared) for n in "dbca"))
                assert (await store.read(key("s"))).records == {}

    async def test_one_that_counts_and_one_that_deletes_do_not_pass_each_other(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """If all are there, one may line up, and is seen; or one has gone, and it may not."""
        needs_alternatives(store)
        async with another(open_another) as other:
            for _ in range(20):
                fences = {n: await create(store, key("t", n)) for n in "abc"}
                answers: Any = await asyncio.gather(
                    other.choose(Alternative((Count(key("t"), 3), Append(key("q"), b"")))),
                    store.choose(Alternative((Empty(key("q")), Delete(key("t", "b"), fences["b"])))),
                )
                assert sorted(type(each).__name__ for each in answers) == ["Choice", "Conflict"]
                found = [*(await store.scan(*key("t").within(), limit=5)).records.values()]
                found += (await store.scan(*key("q").within(), limit=5)).records.values()
                await committed(store, *[Delete(each.key, each.version) for each in found])

    async def test_the_first_record_is_moved(self, store: Store, key: MakeKey) -> None:
        """It goes to the key that was at that version, with the time, and is gone from where it was."""
        needs_alternatives(store)
        fence = await create(store, key("grant"), b"me")
        first, second = [await append(store, key("t"), name.encode(), name) for name in ("anna", "bert")]

        done = await chosen(store, Alternative((MoveFirst(key("t"), key("grant"), fence, key("inbox")),)))

        assert done.moved is not None
        assert (done.moved_from, done.moved.key, done.moved.version) == (first, key("grant"), done.version)
        assert unstamped(done.moved.value) == (done.at, b"anna")
        assert (await store.read(key("grant"))).get(key("grant")) == done.moved
        assert list((await store.scan(*key("t").within(), limit=10)).records) == [second]
        assert done.version > fence

    async def test_nothing_is_moved_without_a_record(self, store: Store, key: MakeKey) -> None:
        """None at the prefix says that there is none below it."""
        needs_alternatives(store)
        fence = await create(store, key("grant"), b"me")

        lost = await none_held(store, Alternative((MoveFirst(key("t"), key("grant"), fence, key("inbox")),)))

        assert lost.current == {key("t"): None}

    async def test_nothing_is_moved_over_another_version(self, store: Store, key: MakeKey) -> None:
        """The record there is shown."""
        needs_alternatives(store)
        fence = await create(store, key("grant"), b"me")
        await append(store, key("t"), b"anna", "anna")

        lost = await none_held(store, Alternative((MoveFirst(key("t"), key("grant"), fence - 1, key("inbox")),)))

        assert [record and record.version for record in lost.current.values()] == [fence]

    async def test_a_record_without_a_suffix_is_not_moved(self, store: Store, key: MakeKey) -> None:
        """Nor is one behind it: the order is kept. The first one is shown."""
        needs_alternatives(store)
        fence = await create(store, key("grant"), b"me")
        first = await append(store, key("t"), b"anna")
        await append(store, key("t"), b"bert", "bert")

        lost = await none_held(store, Alternative((MoveFirst(key("t"), key("grant"), fence, key("inbox")),)))

        found = lost.current[first]
        assert found is not None
        assert (list(lost.current), found.value) == ([first], b"anna")

    async def test_a_moved_record_can_create(self, store: Store, key: MakeKey) -> None:
        """The key that it goes to may be absent, if that was expected."""
        needs_alternatives(store)
        await append(store, key("t"), b"anna", "anna")

        done = await chosen(store, Alternative((MoveFirst(key("t"), key("grant"), 0, key("inbox")),)))

        assert done.moved is not None
        assert unstamped(await value_of(store, key("grant")) or b"")[1] == b"anna"

    async def test_an_expired_record_is_neither_first_nor_present(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """By the store's time it is absent to ranges and guards."""
        needs_alternatives(store)
        end = later(await now(store, key("a")), MOMENT)
        old = Append(key("t"), b"", RecordKey("old")).key_of(1)
        await committed(store, Put(old, b"old", expires_at=end), Put(key("a"), b"", expires_at=end))
        await reach(store, end, clock, key("a"))

        assert (await none_held(store, Alternative((Present(key("a")), Put(key("b"), b""))))).current == {
            key("a"): None
        }
        assert (await chosen(store, Alternative((Empty(key("t")), Put(key("c"), b""))))).index == 0
        assert (await chosen(store, Alternative((Count(key("t"), most=0), Put(key("d"), b""))))).index == 0
        assert (await none_held(store, Alternative((Count(key("t"), 1), Put(key("e"), b""))))).current == {
            key("t"): None
        }
        ticket = await append(store, key("t"), b"new", "new")
        done = await chosen(store, Alternative((MoveFirst(key("t"), key("a"), 0, key("inbox")),)))
        assert done.moved_from == ticket

    async def test_alternatives_on_one_handle_see_each_other(self, store: Store, key: MakeKey) -> None:
        """Of many who enter at once one gets in, and the others line up."""
        needs_alternatives(store)
        line = Turnstile(key)

        entered = await asyncio.gather(*(line.enter(store, f"{n:02}") for n in range(20)))

        assert sorted(each.index for each in entered) == [0] + [1] * 19
        tickets = [each.appended for each in entered if each.appended]
        assert sorted(tickets) == list((await store.scan(*line.tickets.within(), limit=50)).records)

    async def test_commits_and_alternatives_at_once(self, store: Store, key: MakeKey) -> None:
        """They keep the order in which they were asked for, on one handle."""
        needs_alternatives(store)
        fence = await create(store, key("grant"))

        answers: Any = await asyncio.gather(
            store.choose(Alternative((Append(key("t"), b"anna", RecordKey("anna")),))),
            store.commit(Put(key("a"), b"")),
            store.choose(Alternative((MoveFirst(key("t"), key("grant"), fence, key("inbox")),))),
            store.choose(Alternative((Empty(key("t")), Put(key("b"), b"")))),
            store.commit(Put(key("b"), b"")),
        )

        assert [type(each).__name__ for each in answers] == ["Choice", "Commit", "Choice", "Choice", "Conflict"]
        assert answers[2].moved_from == answers[0].appended

    async def test_no_one_that_lines_up_is_overlooked(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """One that joins while the last one leaves is passed the grant, or finds it free: none waits for nothing."""
        needs_alternatives(store)
        line = Turnstile(key)
        async with another(open_another) as other:
            handles = (store, other)
            for n in range(20):
                held = await line.enter(handles[n % 2], "holder")
                assert held.index == 0
                left, *entered = await asyncio.gather(
                    line.leave(handles[n % 2], held.version),
                    line.enter(handles[(n + 1) % 2], "one"),
                    line.enter(handles[n % 2], "two"),
                )
                waiting = sum(each.index == 1 for each in entered)
                taken = (left.index == 0) + sum(each.index == 0 for each in entered)
                assert taken == 1, (left, entered)
                await self._drain(store, line, waiting + (left.index == 1))

    async def _drain(self, store: Store, line: Turnstile, holders: int) -> None:
        """Let all who hold and wait leave, and see that they were as many as that."""
        fences = [0]
        for _ in range(holders):
            fence = (await store.read(line.grant)).version(line.grant)
            assert fence > fences[-1]
            fences.append(fence)
            await line.leave(store, fence)
        assert (await store.read(line.grant)).get(line.grant) is None
        assert not (await store.scan(*line.tickets.within(), limit=5)).records

    async def test_a_line_between_handles_is_passed_on_in_order(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """Each is granted once, in the order of the tickets, with a growing fence; the notification is the proof."""
        needs_alternatives(store)
        line = Turnstile(key)
        async with another(open_another) as other:
            held = await line.enter(store, "first")
            joined = [await line.enter((store, other)[n % 2], f"{n}") for n in range(6)]
            fence = held.version
            granted: list[Record] = []
            for _ in joined:
                done = await line.leave((store, other)[len(granted) % 2], fence)
                assert done.moved is not None
                assert done.version > fence
                fence = done.version
                granted.append(done.moved)

        assert [unstamped(record.value)[1] for record in granted] == [b"%d" % n for n in range(6)]

    async def test_the_inbox_of_a_moved_record_is_notified_with_it(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """What is heard is the record as it was written, on the same handle and on another one."""
        needs_alternatives(store)
        line = Turnstile(key)
        async with another(open_another) as other:
            for n, (leaver, waiter) in enumerate(((other, store), (store, store), (store, other))):
                name = f"waiter {n}"
                async with waiter.watch(line.inboxes.child(name)) as watch:
                    held = await line.enter(leaver, "holder")
                    await line.enter(waiter, name)
                    done = await line.leave(leaver, held.version)

                    moved = await self._moved(watch)
                    if store.capabilities.wakes == "push":
                        assert moved == done.moved
                await line.leave(store, done.version)

    async def _moved(self, watch: Watch) -> Record | None:
        for _ in range(10):
            notification = await watch.wait(SOON)
            if notification is None:
                return None
            if notification.moved:
                return notification.moved[0]
        return None

    async def test_wakes_of_the_alternative_that_is_done_are_sent(self, store: Store, key: MakeKey) -> None:
        """And only those."""
        needs_alternatives(store)
        if store.capabilities.wakes == "poll":
            pytest.skip("this store sends no hints")
        await create(store, key("a"))
        async with store.watch(key("inbox")) as watch:
            await chosen(
                store,
                Alternative((Put(key("a"), b""),), wake=(Wake(key("inbox", "1"), key("x")),)),
                Alternative((Put(key("b"), b""),), wake=(Wake(key("inbox", "2"), key("y")),)),
            )
            notification = await watch.wait(SOON)

        assert notification is not None
        assert key("x") not in notification.about

    async def test_a_change_by_an_alternative_is_heard_of(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """A watch of a prefix hears of what was put and appended there."""
        needs_alternatives(store)
        async with another(open_another) as other, other.watch(key("a"), key("t")) as watch:
            await chosen(store, Alternative((Put(key("a", "1"), b""),)))
            assert await watch.wait(SOON) is not None
            await append(store, key("t"))
            assert await watch.wait(SOON) is not None

    @pytest.mark.parametrize("ticks", range(8))
    async def test_a_cancelled_choice_tells_the_truth(self, store: Store, key: MakeKey, ticks: int) -> None:
        """It carries its verdict if it was written; without one nothing was, and nothing will be."""
        needs_alternatives(store)
        task = asyncio.create_task(store.choose(Alternative((Put(key("a"), b"value"),))))
        for _ in range(ticks):
            await asyncio.sleep(0)
        task.cancel()
        verdict: Any
        try:
            verdict = await task
        except asyncio.CancelledError as cancelled:
            verdict = verdict_of(cancelled)

        await create(store, key("after"))
        record = (await store.read(key("a"))).get(key("a"))
        if isinstance(verdict, Choice):
            assert record is not None
            assert record.version == verdict.version
        else:
            assert (verdict, record) == (None, None)

    async def test_alternatives_that_break_a_rule_are_refused(self, store: Store, key: MakeKey) -> None:
        """Before anything is written."""
        needs_alternatives(store)
        elsewhere = RecordKey("elsewhere", "a")
        wrong: list[tuple[Alternative, ...]] = [
            (),
            (Alternative(()),),
            (Alternative((Put(key("a"), b""),)),) * 25,
            (Alternative((Put(key("a"), b""), Present(key("a")))),),
            (Alternative((Append(key("t"), b""), Empty(key("t")))),),
            (Alternative((Append(key("t"), b""), Put(key("t", "x"), b""))),),
            (Alternative((Append(key("t"), b"", b"not encoded"),)),),
            (Alternative((Append(key("t" * 940), b""),)),),
            (Alternative((Append(key("t"), bytes(store.capabilities.max_value_bytes)),)),),
            (Alternative((Stamped(key("a"), bytes(store.capabilities.max_value_bytes)),)),),
            (Alternative((Check(key("a"), 0),)),),
            (Alternative((Count(key("t"), 2, 1), Put(key("a"), b""))),),
            (Alternative((Count(key("t"), -1), Put(key("a"), b""))),),
            (Alternative((Count(key("t"), 1), Empty(key("t")), Put(key("a"), b""))),),
            (Alternative((Count(key("t"), store.capabilities.max_changes + 1), Put(key("a"), b""))),),
            (Alternative((MoveFirst(key("t"), key("a"), -1, key("i")),)),),
            (Alternative((Put(key("a"), b""),)), Alternative((Put(elsewhere, b""),))),
            (Alternative((MoveFirst(key("t"), key("a"), 0, elsewhere),)),),
        ]
        for each in wrong:
            with pytest.raises(InvalidChangeError):
                await store.choose(*each)
        assert not (await store.scan(*key().within(), limit=5)).records

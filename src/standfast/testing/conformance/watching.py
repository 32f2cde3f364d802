"""Hints: sent after the commit is durable, to those who watch, about what changed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.errors import ArgumentTypeError, InvalidChangeError
from standfast.stores import Check, Decision, Delete, Notification, Put, Wake
from standfast.testing.conformance.ground import SOON, Ground, another, committed, create, increment, refused

if TYPE_CHECKING:
    from typing import Any

    from standfast.keys import RecordKey
    from standfast.stores import Store, Watch
    from standfast.testing.conformance.ground import MakeKey, OpenAnother


def skip_without_hints(store: Store) -> None:
    """Skip where no hint is ever promised to arrive."""
    if store.capabilities.wakes == "poll":
        pytest.skip("this store sends no hints")


async def heard(watch: Watch, about: RecordKey) -> None:
    """Insist that a hint about a key arrives soon; others may come before it."""
    async with asyncio.timeout(SOON):
        while True:
            hint = await watch.wait()
            if hint is not None and (about in hint.about or not hint.complete):
                return


async def heard_before(watch: Watch, last: RecordKey) -> set[RecordKey]:
    """Return everything that is heard until the hint about ``last`` arrives."""
    about: set[RecordKey] = set()
    async with asyncio.timeout(SOON):
        while last not in about:
            hint = await watch.wait()
            assert hint is not None
            if not hint.complete:
                pytest.skip("hints were lost on the way, which is allowed")
            about |= hint.about
    return about - {last}


class WatchCases(Ground):
    """What a watch hears, and what it does not."""

    async def test_a_commit_is_heard(self, store: Store, key: MakeKey) -> None:
        """Creating, replacing and deleting a record each give a hint about its key."""
        skip_without_hints(store)
        async with store.watch(key("a")) as watch:
            version = await create(store, key("a"))
            await heard(watch, key("a"))
            version = (await committed(store, Put(key("a"), b"", version))).versions[key("a")]
            await heard(watch, key("a"))
            await committed(store, Delete(key("a"), expected=version))
            await heard(watch, key("a"))

    async def test_an_update_is_heard(self, store: Store, key: MakeKey) -> None:
        """An update hints at what it changed."""
        skip_without_hints(store)
        async with store.watch(key("a")) as watch:
            await store.update([key("a")], increment(key("a")))
            await heard(watch, key("a"))

    async def test_a_commit_of_another_handle_is_heard(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """Hints reach every handle, in both directions."""
        skip_without_hints(store)
        async with another(open_another) as other, store.watch(key("a")) as here, other.watch(key("b")) as there:
            await create(other, key("a"))
            await heard(here, key("a"))
            await create(store, key("b"))
            await heard(there, key("b"))

    async def test_who_hears_a_hint_can_see_the_change(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """No hint is sent before the commit is durable: a read after it finds the change."""
        skip_without_hints(store)
        async with another(open_another) as other, other.watch(key("a")) as watch:
            for n in range(10):
                writing = asyncio.create_task(create(store, key("a", str(n))))
                hint = await watch.wait(SOON)
                assert hint is not None
                seen = await other.read(*hint.about) if hint.about else None
                await writing
                assert seen is None or set(seen.records) == hint.about

    async def test_a_prefix_is_made_of_whole_parts(self, store: Store, key: MakeKey) -> None:
        """Watching (a, b) hears (a, b) and what continues it, not (a, bc)."""
        skip_without_hints(store)
        async with store.watch(key("a", "b")) as watch:
            for outside in (key("a"), key("a", "bc"), key("a", ""), key("b"), key("a", "a"), key("ab")):
                await create(store, outside)
            await create(store, key("a", "b", "c", "d"))
            assert await heard_before(watch, key("a", "b", "c", "d")) == set()
            await create(store, key("a", "b"))
            assert await heard_before(watch, key("a", "b")) == set()

    async def test_a_watch_may_have_several_prefixes(self, store: Store, key: MakeKey) -> None:
        """It hears what any of them would."""
        skip_without_hints(store)
        async with store.watch(key("a"), key("b", "c")) as watch:
            await create(store, key("b"))
            for name in (("a", "x"), ("b", "c")):
                await create(store, key(*name))
                assert await heard_before(watch, key(*name)) == set()

    async def test_a_namespace_can_be_watched(self, store: Store, key: MakeKey) -> None:
        """A prefix of one part hears everything in it."""
        skip_without_hints(store)
        async with store.watch(key()) as watch:
            await create(store, key("any", "where"))
            await heard(watch, key("any", "where"))

    async def test_difficult_keys_are_heard_alone(self, store: Store, key: MakeKey) -> None:
        """No character of a prefix means "anything"."""
        skip_without_hints(store)
        for name in ("*", "%", "\x00", "a\x00b", "?", "[a]", "\U0001f512"):
            async with store.watch(key("names", name)) as watch:
                await create(store, key("names", "plain" + name))
                await create(store, key("names", name, "x"))
                assert await heard_before(watch, key("names", name, "x")) == set()

    async def test_what_writes_nothing_is_not_heard(self, store: Store, key: MakeKey) -> None:
        """A check, a conflict and a decision without changes give no hint."""
        skip_without_hints(store)
        version = await create(store, key("a"))
        async with store.watch(key()) as watch:
            await committed(store, Check(key("a"), expected=version))
            await refused(store, Put(key("a"), b""))
            await store.update([key("a")], lambda _: Decision(None))
            await create(store, key("last"))
            assert await heard_before(watch, key("last")) == set()

    async def test_a_wake_is_heard_by_whom_it_is_sent_to(self, store: Store, key: MakeKey) -> None:
        """A commit names keys to wake; their watchers hear what it is about, others do not."""
        skip_without_hints(store)
        async with store.watch(key("ann")) as ann, store.watch(key("bob")) as bob:
            await committed(store, Put(key("lock"), b""), wake=[Wake(key("ann"), about=key("lock"))])
            await heard(ann, key("lock"))
            await create(store, key("bob"))
            assert await heard_before(bob, key("bob")) == set()

    async def test_a_wake_is_about_its_key_unless_it_says_otherwise(self, store: Store, key: MakeKey) -> None:
        """Without ``about`` the hint is about the key that is woken."""
        skip_without_hints(store)
        async with store.watch(key("ann")) as watch:
            await committed(store, Put(key("lock"), b""), wake=[Wake(key("ann"))])
            await heard(watch, key("ann"))

    async def test_an_update_may_wake(self, store: Store, key: MakeKey, open_another: OpenAnother) -> None:
        """A decision names whom to wake, on whichever handle they watch."""
        skip_without_hints(store)
        wake = (Wake(key("ann"), about=key("lock")),)
        async with another(open_another) as other, other.watch(key("ann")) as watch:
            await store.update([key("lock")], lambda _: Decision(None, (Put(key("lock"), b""),), wake=wake))
            await heard(watch, key("lock"))

    async def test_a_commit_that_loses_wakes_nobody(self, store: Store, key: MakeKey) -> None:
        """A conflict sends nothing."""
        skip_without_hints(store)
        await create(store, key("lock"))
        async with store.watch(key("ann")) as watch:
            await refused(store, Put(key("lock"), b""), wake=[Wake(key("ann"), about=key("lock"))])
            await create(store, key("ann"))
            assert await heard_before(watch, key("ann")) == set()

    async def test_a_hint_waits_for_its_watch(self, store: Store, key: MakeKey) -> None:
        """What happened between two waits is heard by the second."""
        skip_without_hints(store)
        async with store.watch(key("a"), key("b")) as watch:
            await create(store, key("a"))
            await create(store, key("b"))
            assert await heard_before(watch, key("b")) <= {key("a")}

    async def test_a_watch_hears_only_while_it_is_open(self, store: Store, key: MakeKey) -> None:
        """What was committed before it was entered is not heard."""
        await create(store, key("a"))
        watch = store.watch(key("a"))
        async with watch:
            assert await watch.wait(0) in (None, Notification(frozenset(), complete=False))

    async def test_waiting_ends_in_time(self, store: Store, key: MakeKey) -> None:
        """Without a hint, a wait with a time limit answers None."""
        async with store.watch(key("a")) as watch:
            assert await watch.wait(0.001) is None

    async def test_watches_do_not_take_hints_from_each_other(self, store: Store, key: MakeKey) -> None:
        """Everyone who watches hears."""
        skip_without_hints(store)
        async with store.watch(key("a")) as one, store.watch(key("a")) as two, store.watch(key()) as three:
            await create(store, key("a"))
            for watch in (one, two, three):
                await heard(watch, key("a"))

    async def test_leaving_a_watch_leaves_the_others(self, store: Store, key: MakeKey) -> None:
        """Each watch ends alone."""
        skip_without_hints(store)
        async with store.watch(key("a")) as stays:
            async with store.watch(key("a")):
                pass
            await create(store, key("a"))
            await heard(stays, key("a"))

    async def test_a_watch_needs_a_key(self, store: Store) -> None:
        """Watching nothing, or something that is no key, is refused."""
        raw: Any = "text"
        for prefixes in ((), (raw,)):
            with pytest.raises((InvalidChangeError, ArgumentTypeError)):
                store.watch(*prefixes)

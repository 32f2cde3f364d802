"""Handles of a store: several on the same data, their subscriptions, and how they are closed and settled."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING

import pytest

from standfast.errors import ArgumentTypeError, InvalidChangeError, StoreClosedError, StoreError
from standfast.stores import Check, Commit, Conflict, Decided, Decision, Delete, GroupedStore, Notification, Put, Wake
from standfast.stores.backend import CommitRider, Deferred, RiderBatch, UpdateRider
from standfast.testing.conformance.ground import SOON, Ground, another, committed, create, increment, refused, value_of
from standfast.testing.faults import FaultyBackend
from standfast.threads import run_beside

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from typing import Any

    from standfast.keys import RecordKey
    from standfast.stores import Record, Store, Watch
    from standfast.stores.backend import Backend
    from standfast.testing.conformance.ground import MakeKey, OpenAnother


NONSENSE = (
    "",
    "x",
    "1",
    ":::::",
    "1:2:3:4:5:6",
    "1:boot:-1:-1:-1:-1",
    "1:b:1:1:99999999999999999999:1",
    "\0",
    "é",
    "9" * 5_000,
)


"""Texts that are the liveness token of no process."""


@contextlib.asynccontextmanager
async def opened_again(store: Store) -> AsyncGenerator[Store]:
    """Open another handle, and close it in the end."""
    other = await store.another()
    try:
        yield other
    finally:
        await other.aclose()


class HandleCases(Ground):
    """Several handles on one store, and the life of the process that has them."""

    async def test_what_one_handle_commits_another_reads(self, store: Store, key: MakeKey) -> None:
        """Both are handles on the same records, whichever of them wrote."""
        async with opened_again(store) as other:
            await create(store, key("a"), b"from the first")
            await create(other, key("b"), b"from the second")

            assert await value_of(other, key("a")) == b"from the first"
            assert await value_of(store, key("b")) == b"from the second"

    async def test_another_handle_outlives_the_first(self, store: Store, key: MakeKey) -> None:
        """Closing the handle that it came from leaves it usable, and able to open others."""
        async with opened_again(store) as other:
            await store.aclose()
            await create(other, key("a"), b"value")

            async with opened_again(other) as third:
                assert await value_of(third, key("a")) == b"value"

    async def test_closing_another_handle_leaves_the_first(self, store: Store, key: MakeKey) -> None:
        """It takes nothing with it that the first one needs."""
        async with opened_again(store) as other:
            version = await create(other, key("a"))

        assert isinstance(await store.commit(Put(key("a"), b"new", version)), Commit)

    async def test_another_handle_works_on_a_loop_and_a_thread_of_its_own(self, store: Store, key: MakeKey) -> None:
        """It belongs to the loop that it is opened on, not to that of the first one."""

        async def beside() -> bytes | None:
            async with opened_again(store) as other:
                await create(other, key("b"), b"beside")
                return await value_of(other, key("a"))

        await create(store, key("a"), b"before")

        assert await run_beside(beside, "conformance") == b"before"
        assert await value_of(store, key("b")) == b"beside"

    async def test_another_handle_is_heard(self, store: Store, key: MakeKey) -> None:
        """A watch on one handle hears what is committed through another."""
        if store.capabilities.wakes != "push":
            pytest.skip("this store sends no hints")
        async with opened_again(store) as other, store.watch(key()) as watch:
            await create(other, key("a"))

            hint = await watch.wait(SOON)
            assert hint is not None
            assert key("a") in hint.about

    async def test_another_handle_can_do_the_same(self, store: Store) -> None:
        """It is opened with the same options, so it says the same of itself."""
        async with opened_again(store) as other:
            assert other.capabilities == store.capabilities

    async def test_a_living_process_is_not_severed(self, store: Store) -> None:
        """Neither in its own eyes nor through another handle, however often it asks; and it has one liveness token."""
        async with opened_again(store) as other:
            tokens = {store.liveness_token(), other.liveness_token(), store.liveness_token()}

            assert len(tokens) == 1
            assert not any(each.is_dead(line) for line in tokens for each in (store, other))

    async def test_a_store_that_sees_no_deaths_gives_no_liveness_token(self, store: Store) -> None:
        """What it says of itself and what it hands out agree."""
        assert bool(store.liveness_token()) == store.capabilities.sees_process_death

    async def test_what_is_no_liveness_token_is_not_severed(self, store: Store) -> None:
        """Only what is certain counts as a death: nonsense is not, and it raises nothing."""
        line = store.liveness_token()
        for text in (*NONSENSE, line[:-1], line[1:], line + " ", line.replace("1", "٣")):
            assert not store.is_dead(text), text

    async def test_a_closed_handle_sees_no_deaths(self, store: Store) -> None:
        """It can tell nothing any more, and says so without raising."""
        line = store.liveness_token()
        await store.aclose()

        assert store.liveness_token() == ""
        assert not store.is_dead(line)


def skip_without_hints(store: Store) -> None:
    """Skip where no hint is ever promised to arrive."""
    if store.capabilities.wakes == "poll":
        pytest.skip("this store sends no hints")


async def notified(watch: Watch, about: RecordKey) -> None:
    """Insist that a hint about a key arrives soon; others may come before it."""
    async with asyncio.timeout(SOON):
        while True:
            hint = await watch.wait()
            if hint is not None and (about in hint.about or not hint.complete):
                return


async def notified_moved(watch: Watch, about: RecordKey) -> tuple[Record, ...]:
    """Return the records that come with the hint about a key, each once: a hint may come twice."""
    moved: dict[Record, None] = {}
    async with asyncio.timeout(SOON):
        while True:
            hint = await watch.wait()
            assert hint is not None
            moved |= dict.fromkeys(hint.moved)
            if moved or about in hint.about or not hint.complete:
                return tuple(moved)


async def notified_before(watch: Watch, last: RecordKey) -> set[RecordKey]:
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
            await notified(watch, key("a"))
            version = (await committed(store, Put(key("a"), b"", version))).versions[key("a")]
            await notified(watch, key("a"))
            await committed(store, Delete(key("a"), expected=version))
            await notified(watch, key("a"))

    async def test_an_update_is_heard(self, store: Store, key: MakeKey) -> None:
        """An update hints at what it changed."""
        skip_without_hints(store)
        async with store.watch(key("a")) as watch:
            await store.update([key("a")], increment(key("a")))
            await notified(watch, key("a"))

    async def test_a_commit_of_another_handle_is_heard(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """Hints reach every handle, in both directions."""
        skip_without_hints(store)
        async with another(open_another) as other, store.watch(key("a")) as here, other.watch(key("b")) as there:
            await create(other, key("a"))
            await notified(here, key("a"))
            await create(store, key("b"))
            await notified(there, key("b"))

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
            assert await notified_before(watch, key("a", "b", "c", "d")) == set()
            await create(store, key("a", "b"))
            assert await notified_before(watch, key("a", "b")) == set()

    async def test_a_watch_may_have_several_prefixes(self, store: Store, key: MakeKey) -> None:
        """It hears what any of them would."""
        skip_without_hints(store)
        async with store.watch(key("a"), key("b", "c")) as watch:
            await create(store, key("b"))
            for name in (("a", "x"), ("b", "c")):
                await create(store, key(*name))
                assert await notified_before(watch, key(*name)) == set()

    async def test_a_namespace_can_be_watched(self, store: Store, key: MakeKey) -> None:
        """A prefix of one part hears everything in it."""
        skip_without_hints(store)
        async with store.watch(key()) as watch:
            await create(store, key("any", "where"))
            await notified(watch, key("any", "where"))

    async def test_difficult_keys_are_heard_alone(self, store: Store, key: MakeKey) -> None:
        """No character of a prefix means "anything"."""
        skip_without_hints(store)
        for name in ("*", "%", "\x00", "a\x00b", "?", "[a]", "\U0001f512"):
            async with store.watch(key("names", name)) as watch:
                await create(store, key("names", "plain" + name))
                await create(store, key("names", name, "x"))
                assert await notified_before(watch, key("names", name, "x")) == set()

    async def test_what_writes_nothing_is_not_heard(self, store: Store, key: MakeKey) -> None:
        """A check, a conflict and a decision without changes give no hint."""
        skip_without_hints(store)
        version = await create(store, key("a"))
        async with store.watch(key()) as watch:
            await committed(store, Check(key("a"), expected=version))
            await refused(store, Put(key("a"), b""))
            await store.update([key("a")], lambda _: Decision(None))
            await create(store, key("last"))
            assert await notified_before(watch, key("last")) == set()

    async def test_a_wake_is_heard_by_whom_it_is_sent_to(self, store: Store, key: MakeKey) -> None:
        """A commit names keys to wake; their watchers hear what it is about, others do not."""
        skip_without_hints(store)
        async with store.watch(key("ann")) as ann, store.watch(key("bob")) as bob:
            await committed(store, Put(key("lock"), b""), wake=[Wake(key("ann"), about=key("lock"))])
            await notified(ann, key("lock"))
            await create(store, key("bob"))
            assert await notified_before(bob, key("bob")) == set()

    async def test_a_wake_is_about_its_key_unless_it_says_otherwise(self, store: Store, key: MakeKey) -> None:
        """Without ``about`` the hint is about the key that is woken."""
        skip_without_hints(store)
        async with store.watch(key("ann")) as watch:
            await committed(store, Put(key("lock"), b""), wake=[Wake(key("ann"))])
            await notified(watch, key("ann"))

    async def test_a_wake_may_show_what_its_commit_writes(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """A store that can shows the records as they are, in this order; others say what it is about."""
        skip_without_hints(store)
        gone = await create(store, key("ticket"))
        wake = Wake(key("ann"), about=key("lock"), shows=(key("grant"), key("ticket")))
        changes = (Put(key("lock"), b"1"), Put(key("grant"), b"2"), Delete(key("ticket"), gone))
        async with another(open_another) as other, other.watch(key("ann")) as watch:
            done = await committed(store, *changes, wake=[wake])
            shown = await notified_moved(watch, key("lock"))
            records = (await other.read(key("lock"), key("grant"))).records
            assert [*shown] in ([], [records[key("lock")], records[key("grant")]])
            assert all(record.version == done.versions[record.key] for record in shown)
            await committed(other, *[Check(record.key, record.version) for record in records.values()])

    async def test_a_wake_that_shows_what_is_not_written_is_about_its_key(self, store: Store, key: MakeKey) -> None:
        """What it names is shown all together, or not at all."""
        skip_without_hints(store)
        async with store.watch(key("ann")) as watch:
            await committed(store, Put(key("lock"), b""), wake=[Wake(key("ann"), key("lock"), shows=(key("grant"),))])
            assert await notified_moved(watch, key("lock")) == ()

    async def test_an_update_may_wake(self, store: Store, key: MakeKey, open_another: OpenAnother) -> None:
        """A decision names whom to wake, on whichever handle they watch."""
        skip_without_hints(store)
        wake = (Wake(key("ann"), about=key("lock")),)
        async with another(open_another) as other, other.watch(key("ann")) as watch:
            await store.update([key("lock")], lambda _: Decision(None, (Put(key("lock"), b""),), wake=wake))
            await notified(watch, key("lock"))

    async def test_a_commit_that_loses_wakes_nobody(self, store: Store, key: MakeKey) -> None:
        """A conflict sends nothing."""
        skip_without_hints(store)
        await create(store, key("lock"))
        async with store.watch(key("ann")) as watch:
            await refused(store, Put(key("lock"), b""), wake=[Wake(key("ann"), about=key("lock"))])
            await create(store, key("ann"))
            assert await notified_before(watch, key("ann")) == set()

    async def test_a_hint_waits_for_its_watch(self, store: Store, key: MakeKey) -> None:
        """What happened between two waits is heard by the second."""
        skip_without_hints(store)
        async with store.watch(key("a"), key("b")) as watch:
            await create(store, key("a"))
            await create(store, key("b"))
            assert await notified_before(watch, key("b")) <= {key("a")}

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
                await notified(watch, key("a"))

    async def test_leaving_a_watch_leaves_the_others(self, store: Store, key: MakeKey) -> None:
        """Each watch ends alone."""
        skip_without_hints(store)
        async with store.watch(key("a")) as stays:
            async with store.watch(key("a")):
                pass
            await create(store, key("a"))
            await notified(stays, key("a"))

    async def test_a_watch_needs_a_key(self, store: Store) -> None:
        """Watching nothing, or something that is no key, is refused."""
        raw: Any = "text"
        for prefixes in ((), (raw,)):
            with pytest.raises((InvalidChangeError, ArgumentTypeError)):
                store.watch(*prefixes)


class ClosingCases(Ground):
    """The end of a handle."""

    async def test_a_closed_store_refuses_everything(self, store: Store, key: MakeKey) -> None:
        """Every call says that the store was closed."""
        await store.aclose()

        for call in (
            store.read(key("a")),
            store.scan(*key().within(), limit=1),
            store.commit(Put(key("a"), b"")),
            store.update([key("a")], increment(key("a"))),
            store.settle("some.1/0"),
            store.another(),
        ):
            with pytest.raises(StoreClosedError):
                await call
        with pytest.raises(StoreClosedError):
            store.watch(key("a"))

    async def test_a_watch_of_a_closed_store_cannot_be_entered(self, store: Store, key: MakeKey) -> None:
        """It was made in time, but nothing is left that it could hear."""
        watch = store.watch(key("a"))
        await store.aclose()

        with pytest.raises(StoreClosedError):
            await watch.__aenter__()

    async def test_closing_again_does_nothing(self, store: Store) -> None:
        """Twice in turn, and twice at once."""
        await asyncio.gather(store.aclose(), store.aclose())
        await store.aclose()

    async def test_closing_waits_for_what_is_under_way(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """What was asked for before the close gets its answer, and what was answered is there."""
        async with another(open_another) as other:
            tasks = [asyncio.create_task(store.commit(Put(key(f"{n:02}"), b""))) for n in range(20)]
            await asyncio.sleep(0)

            await store.aclose()

            answers = [task.result() for task in tasks if task.done()]
            assert [type(answer) for answer in answers] == [Commit] * 20
            assert len((await other.scan(*key().within(), limit=100)).records) == 20

    async def test_closing_one_handle_leaves_the_others(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """The data and the other handles stay as they are."""
        async with another(open_another) as other:
            version = await create(store, key("a"), b"value")
            await store.aclose()

            assert (await other.read(key("a"))).version(key("a")) == version
            assert isinstance(await other.commit(Put(key("a"), b"new", version)), Commit)

    async def test_what_is_durable_outlives_every_handle(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """A store that says it is durable has everything when it is opened again."""
        if not store.capabilities.durable:
            pytest.skip("this store does not say that it is durable")
        await create(store, key("a"), b"value")
        await store.aclose()

        async with another(open_another) as other:
            assert await value_of(other, key("a")) == b"value"


def backend_of(store: Store) -> Backend:
    """Return the backend of a store, or skip the test."""
    if not isinstance(store, GroupedStore):
        pytest.skip("this store is not made of a backend; its attempts cannot be played through")
    backend = store.backend
    return backend.inner if isinstance(backend, FaultyBackend) else backend


class SettlingCases(Ground):
    """Attempts whose outcome is unknown: closed for good."""

    @pytest.fixture
    def attempt(self, key: MakeKey) -> str:
        """Return the name of an attempt that was never made, as a handle would name it, with its namespace."""
        return f"{uuid.uuid4().hex}.1@{key().namespace.hex()}"

    async def test_an_attempt_that_was_closed_can_never_land(self, store: Store, key: MakeKey, attempt: str) -> None:
        """Settling what never arrived answers None, and then it is refused if it arrives after all."""
        backend = backend_of(store)
        assert await backend.settle(attempt) is None

        with pytest.raises(StoreError):
            await backend.apply(RiderBatch(attempt, (CommitRider((Put(key("a"), b"late"),)),)))

        assert await value_of(store, key("a")) is None
        assert await backend.settle(attempt) is None

    async def test_an_attempt_that_landed_keeps_its_verdicts(self, store: Store, key: MakeKey, attempt: str) -> None:
        """Settling what was written answers each rider as the lost reply would have."""
        backend = backend_of(store)
        await create(store, key("taken"))
        riders = (
            CommitRider((Put(key("a"), b"1"),)),
            CommitRider((Put(key("taken"), b""),)),
            UpdateRider((key("a"),), lambda seen: Decision(7, (Put(key("a"), b"2", seen.version(key("a"))),))),
        )
        applied = await backend.apply(RiderBatch(attempt, riders))

        settled = await backend.settle(attempt)

        assert settled is not None
        assert settled.outcomes == applied.outcomes
        kinds = [type(outcome) for outcome in settled.outcomes]
        # An update of what its neighbour writes may be put off to the next transaction, if others draw versions.
        assert kinds in ([Commit, Conflict, Decided], [Commit, Conflict, Deferred])

    async def test_an_attempt_lands_once(self, store: Store, key: MakeKey, attempt: str) -> None:
        """The same attempt a second time is refused and writes nothing."""
        backend = backend_of(store)
        await backend.apply(RiderBatch(attempt, (CommitRider((Put(key("a"), b""),)),)))

        with pytest.raises(StoreError):
            await backend.apply(RiderBatch(attempt, (CommitRider((Put(key("b"), b""),)),)))

        assert await value_of(store, key("b")) is None

    async def test_an_attempt_can_be_closed_from_another_handle(
        self, store: Store, key: MakeKey, open_another: OpenAnother, attempt: str
    ) -> None:
        """Whichever side settles it first, it can land no more."""
        async with another(open_another) as other:
            assert await backend_of(other).settle(attempt) is None

            with pytest.raises(StoreError):
                await backend_of(store).apply(RiderBatch(attempt, (CommitRider((Put(key("a"), b""),)),)))
            assert await value_of(other, key("a")) is None

    async def test_another_handle_never_says_that_a_landed_attempt_was_lost(
        self, store: Store, key: MakeKey, open_another: OpenAnother, attempt: str
    ) -> None:
        """It has the verdicts, or says that it cannot tell."""
        async with another(open_another) as other:
            applied = await backend_of(store).apply(RiderBatch(attempt, (CommitRider((Put(key("a"), b""),)),)))

            try:
                settled = await backend_of(other).settle(attempt)
            except StoreError:
                return
            assert settled is not None
            assert settled.outcomes == applied.outcomes

    async def test_what_is_no_attempt_is_refused(self, store: Store) -> None:
        """Settling takes what an OutcomeUnknownError carries, not any text."""
        backend_of(store)
        for text in ("", "nonsense", "no-index/x", "no-number/0", ".99999999999999999/0", "a.1/0"):
            with pytest.raises(InvalidChangeError):
                await store.settle(text)


class CapabilityCases(Ground):
    """What a store says of itself."""

    async def test_a_store_says_what_it_can_do(self, store: Store) -> None:
        """The declaration is complete and within the limits of the contract."""
        capabilities = store.capabilities
        assert capabilities.backend
        assert capabilities.atomic, "a store that is not atomic keeps no part of this contract"
        assert 1 <= capabilities.max_changes <= 100
        assert 1 <= capabilities.max_value_bytes <= 350_000
        assert capabilities.max_commit_bytes >= 3 * capabilities.max_value_bytes
        assert 0 < capabilities.clock_resolution <= 1
        assert 0 < capabilities.shortest_lease <= 60

    async def test_handles_on_the_same_data_say_the_same(self, store: Store, open_another: OpenAnother) -> None:
        """What a store can do does not depend on the handle."""
        async with another(open_another) as other:
            assert other.capabilities == store.capabilities

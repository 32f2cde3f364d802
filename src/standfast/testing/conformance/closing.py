"""Closing, settling, and what a store says of itself."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from standfast.errors import InvalidChangeError, StoreClosedError, StoreError
from standfast.stores import Commit, Conflict, Decided, Decision, GroupedStore, Put
from standfast.stores.backend import CommitRider, Deferred, RiderBatch, UpdateRider
from standfast.testing.conformance.ground import Ground, another, create, increment, value_of
from standfast.testing.faults import FaultyBackend

if TYPE_CHECKING:
    from standfast.stores import Store
    from standfast.stores.backend import Backend
    from standfast.testing.conformance.ground import MakeKey, OpenAnother


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
    def attempt(self) -> str:
        """Return the name of an attempt that was never made, as a handle would name it."""
        return f"{uuid.uuid4().hex}.1"

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
        """Whoever settles it first, it can land no more."""
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
        assert 0 < capabilities.clock_resolution <= 1
        assert 0 < capabilities.shortest_lease <= 60

    async def test_handles_on_the_same_data_say_the_same(self, store: Store, open_another: OpenAnother) -> None:
        """What a store can do does not depend on the handle."""
        async with another(open_another) as other:
            assert other.capabilities == store.capabilities

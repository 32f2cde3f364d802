"""Expiring records: absent from their instant on, to everyone and everything at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.clock import Instant, later
from standfast.stores import Check, Decision, Delete, Put
from standfast.testing.conformance.ground import (
    MOMENT,
    Ground,
    another,
    committed,
    create,
    increment,
    now,
    reach,
    refused,
    value_of,
)

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.stores import Snapshot, Store
    from standfast.testing.conformance.ground import MakeKey, OpenAnother
    from standfast.testing.simulation import VirtualClock

HOUR = 3600.0


async def expired(store: Store, key: RecordKey, clock: VirtualClock | None, value: bytes = b"") -> int:
    """Create a record, let it expire, and return its version."""
    expires_at = later(await now(store, key), MOMENT)
    version = await create(store, key, value, expires_at=expires_at)
    await reach(store, expires_at, clock, key)
    return version


class ExpiryCases(Ground):
    """Records with an end."""

    async def test_a_record_says_when_it_expires(self, store: Store, key: MakeKey) -> None:
        """Until then it is there, with its instant."""
        expires_at = later(await now(store, key("a")), HOUR)
        await create(store, key("a"), b"value", expires_at=expires_at)

        record = (await store.read(key("a"))).get(key("a"))

        assert record is not None
        assert (record.value, record.expires_at) == (b"value", expires_at)

    async def test_a_record_is_there_until_its_instant_and_not_a_moment_longer(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """Every read sees it if its time is before the instant, and does not if it is the instant or later."""
        expires_at = later(await now(store, key("a")), MOMENT)
        await create(store, key("a"), expires_at=expires_at)
        seen: list[tuple[Instant, bool]] = []

        for step in (Instant(expires_at - 1), expires_at, Instant(expires_at + 1)):
            await reach(store, step, clock, key("a"))
            snapshot = await store.read(key("a"))
            seen.append((snapshot.at, key("a") in snapshot.records))

        assert [there for _, there in seen] == [at < expires_at for at, _ in seen]

    async def test_an_expired_record_is_absent_to_scans(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """A scan leaves it out in both directions, and it takes up no room on the page."""
        for name in ("a", "c"):
            await create(store, key(name))
        await expired(store, key("b"), clock)

        for reverse in (False, True):
            page = await store.scan(*key().within(), limit=2, reverse=reverse)
            assert sorted(page.records) == [key("a"), key("c")]
            assert page.more is None

    async def test_an_expired_record_is_absent_to_guards(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """Its version guards nothing any more, and conflicts say that there is no record."""
        version = await expired(store, key("a"), clock)

        for guard in (
            Put(key("a"), b"", version),
            Delete(key("a"), expected=version),
            Check(key("a"), expected=version),
        ):
            conflict = await refused(store, guard, Put(key("b"), b""))
            assert conflict.current == {key("a"): None}
        assert await value_of(store, key("b")) is None

    async def test_an_expired_record_is_absent_to_updates(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """A decision does not see it and may create it anew."""
        await expired(store, key("a"), clock, b"41")

        decided = await store.update([key("a")], increment(key("a")))

        assert decided.answer == 1

    async def test_an_expired_record_can_be_created_anew(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """A create over it succeeds, and the new record does not inherit its end."""
        await expired(store, key("a"), clock, b"old")

        await create(store, key("a"), b"new")

        record = (await store.read(key("a"))).get(key("a"))
        assert record is not None
        assert (record.value, record.expires_at) == (b"new", None)

    async def test_of_many_creates_over_an_expired_record_one_wins(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """Taking over what has lapsed is a race with one winner."""
        await expired(store, key("a"), clock)

        answers = await asyncio.gather(*(store.commit(Put(key("a"), b"%d" % n)) for n in range(8)))

        assert sum(hasattr(answer, "versions") for answer in answers) == 1

    async def test_a_put_moves_the_expiry(self, store: Store, key: MakeKey, clock: VirtualClock | None) -> None:
        """A later put decides when the record ends: later, or never."""
        soon = later(await now(store, key("a")), MOMENT)
        version = await create(store, key("a"), b"", expires_at=soon)
        verdict = await store.commit(Put(key("a"), b"renewed", version, later(soon, HOUR)), before=soon)
        if not hasattr(verdict, "versions"):
            pytest.skip("this machine was too slow to renew in time")

        await reach(store, soon, clock, key("a"))

        assert await value_of(store, key("a")) == b"renewed"

    async def test_a_put_without_expiry_makes_the_record_stay(self, store: Store, key: MakeKey) -> None:
        """Leaving the expiry out takes it away."""
        version = await create(store, key("a"), expires_at=later(await now(store, key("a")), HOUR))

        await committed(store, Put(key("a"), b"", expected=version))

        record = (await store.read(key("a"))).get(key("a"))
        assert record is not None
        assert record.expires_at is None

    @pytest.mark.parametrize("expires_at", [0, 1])
    async def test_a_record_may_be_expired_from_the_start(self, store: Store, key: MakeKey, expires_at: int) -> None:
        """A put whose instant has passed is a commit like any other, and leaves nothing to be seen."""
        version = await create(store, key("a"), b"never seen", expires_at=Instant(expires_at))

        assert await value_of(store, key("a")) is None
        assert await create(store, key("a"), b"seen") > version

    async def test_a_put_that_is_already_expired_hides_the_record(self, store: Store, key: MakeKey) -> None:
        """Replacing a record by an expired one is a way to delete it."""
        version = await create(store, key("a"), b"present")

        await committed(store, Put(key("a"), b"", version, Instant(1)))

        assert (await store.read(key("a"))).records == {}

    async def test_updates_of_one_tick_agree_on_what_has_expired(self, store: Store, key: MakeKey) -> None:
        """An update after one that wrote an expired record does not see it."""

        def write_expired(seen: Snapshot) -> Decision[None]:
            return Decision(None, (Put(key("a"), b"7", seen.version(key("a")), Instant(1)),))

        await create(store, key("a"), b"41")
        _, decided = await asyncio.gather(
            store.update([key("a")], write_expired), store.update([key("a")], increment(key("a")))
        )

        assert decided.answer == 1

    async def test_handles_agree_on_what_has_expired(
        self, store: Store, key: MakeKey, clock: VirtualClock | None, open_another: OpenAnother
    ) -> None:
        """What is gone for one handle is gone for the others, and can be taken over there."""
        async with another(open_another) as other:
            version = await expired(store, key("a"), clock)

            assert await value_of(other, key("a")) is None
            assert await create(other, key("a")) > version

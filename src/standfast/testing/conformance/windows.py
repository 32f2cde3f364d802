"""Time: it belongs to the store, and a commit may demand a window of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.clock import later
from standfast.stores import Put
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
    from standfast.stores import Store
    from standfast.testing.conformance.ground import MakeKey, OpenAnother
    from standfast.testing.simulation import VirtualClock

HOUR = 3600.0


class WindowCases(Ground):
    """The store's time, and commits that hold only at certain times."""

    async def test_every_answer_carries_the_time(self, store: Store, key: MakeKey) -> None:
        """Reads, scans, commits, conflicts and updates say when; no call says less than the one before."""
        times = [
            (await store.read(key("a"))).at,
            (await committed(store, Put(key("a"), b"1"))).at,
            (await refused(store, Put(key("a"), b"1"))).at,
            (await store.update([key("a")], increment(key("a")))).at,
            (await store.scan(*key().within(), limit=1)).at,
            (await store.read(key("a"))).at,
        ]

        assert all(type(at) is int for at in times)
        assert times == sorted(times)

    async def test_time_does_not_go_backwards_between_handles(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """Handles on the same data share one time."""
        async with another(open_another) as other:
            times = [await now(each, key("a")) for each in (store, other) * 5]
            times.append((await committed(store, Put(key("a"), b""))).at)
            times.append(await now(other, key("a")))

        assert times == sorted(times)

    async def test_time_passes(self, store: Store, key: MakeKey, clock: VirtualClock | None) -> None:
        """The store's time reaches any later instant by itself."""
        goal = later(await now(store, key("a")), MOMENT)
        await reach(store, goal, clock, key("a"))
        assert (await committed(store, Put(key("a"), b""))).at >= goal

    async def test_the_beginning_of_a_window_belongs_to_it(self, store: Store, key: MakeKey) -> None:
        """``after`` is inclusive: a time that has been reached is late enough."""
        at = await now(store, key("a"))
        commit = await committed(store, Put(key("a"), b""), after=at)
        assert commit.at >= at

    async def test_the_end_of_a_window_does_not_belong_to_it(self, store: Store, key: MakeKey) -> None:
        """``before`` is exclusive: a time that has been reached is too late."""
        at = await now(store, key("a"))
        conflict = await refused(store, Put(key("a"), b""), before=at)
        assert conflict.at >= at
        assert await value_of(store, key("a")) is None

    async def test_inside_its_window_a_commit_happens(self, store: Store, key: MakeKey) -> None:
        """A window that is open lets the commit pass, and its time lies in it."""
        at = await now(store, key("a"))
        commit = await committed(store, Put(key("a"), b""), after=at, before=later(at, HOUR))
        assert at <= commit.at < later(at, HOUR)

    async def test_too_early_is_a_conflict_without_records(self, store: Store, key: MakeKey) -> None:
        """If only the window missed, no record is to blame, and the time says why."""
        goal = later(await now(store, key("a")), HOUR)

        conflict = await refused(store, Put(key("a"), b""), after=goal)

        assert (conflict.current, conflict.key) == ({}, None)
        assert conflict.at < goal
        assert await value_of(store, key("a")) is None

    async def test_a_guard_that_fails_is_named_even_outside_of_the_window(self, store: Store, key: MakeKey) -> None:
        """Window and guard both missed: the conflict has the record."""
        await create(store, key("a"), b"present")
        at = await now(store, key("a"))

        conflict = await refused(store, Put(key("a"), b""), before=at)

        assert list(conflict.current) == [key("a")]

    async def test_a_window_opens_by_the_time_of_the_store(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """What was too early happens once the store's time has come."""
        goal = later(await now(store, key("a")), MOMENT)
        if (await store.commit(Put(key("a"), b"early"), after=goal)).at >= goal:
            pytest.skip("this machine was too slow to be early")

        await reach(store, goal, clock, key("a"))

        assert (await committed(store, Put(key("a"), b"in time"), after=goal)).at >= goal

    async def test_a_window_closes_by_the_time_of_the_store(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """A commit that was delayed on its way cannot act on a stale clock."""
        deadline = later(await now(store, key("a")), MOMENT)
        await reach(store, deadline, clock, key("a"))

        conflict = await refused(store, Put(key("a"), b"late"), before=deadline)

        assert conflict.at >= deadline
        assert await value_of(store, key("a")) is None

    @pytest.mark.parametrize("seconds", [-HOUR, HOUR], ids=["back", "forth"])
    async def test_a_stepped_wall_clock_moves_no_time(
        self, store: Store, key: MakeKey, clock: VirtualClock | None, seconds: float
    ) -> None:
        """Setting the time of day makes no lease longer or shorter."""
        if clock is None:
            pytest.skip("only a virtual clock can be stepped")
        before = await now(store, key("a"))

        clock.step_wall(seconds)

        assert before <= await now(store, key("a")) < later(before, 1)

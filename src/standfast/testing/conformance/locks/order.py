"""Order: first come, first served, in all processes together, and nobody in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.errors import WouldWaitError
from standfast.testing.conformance.locks.ground import (
    KEY,
    SOON,
    LockGround,
    all_of,
    at_rest,
    entered,
    passes,
    queued,
    waiting,
)
from standfast.testing.conformance.locks.wire import Wire
from standfast.testing.faults import Faults, FaultyStore

if TYPE_CHECKING:
    from standfast.space import Space
    from standfast.stores import Store
    from standfast.testing.conformance.locks.ground import Kind, OpenSpace

LOOK = "standfast.locks.registry.POLL_EVERY"
"""How often a process looks by itself. Tests make it never happen, or soon."""


def deaf(store: Store) -> Store:
    """Return the store with every hint lost."""
    return FaultyStore(store, seed=1, faults=Faults(drop_hint=1.0))


def stuttering(store: Store) -> Store:
    """Return the store with every hint heard twice."""
    return FaultyStore(store, seed=1, faults=Faults(double_hint=1.0))


class OrderCases(LockGround):
    """In which order those who wait get in, and how they hear of it."""

    async def test_the_first_to_come_is_the_first_to_be_served(self, space: Space, kind: Kind) -> None:
        """Many tasks of one process that ask one after the other get in one after the other."""
        served: list[int] = []

        async def work(n: int) -> None:
            async with kind.alone(space):
                served.append(n)

        async with kind.alone(space):
            tasks = [asyncio.create_task(work(n)) for n in range(20)]
            await queued(space, 20)
        await asyncio.gather(*tasks)
        assert served == list(range(20))

    async def test_processes_are_served_in_the_order_of_their_commits(
        self, space: Space, other: Space, kind: Kind
    ) -> None:
        """Whoever joined the line first gets in first, whichever process it is of."""
        served: list[int] = []

        async def work(n: int) -> None:
            async with kind.alone((space, other)[n % 2]):
                served.append(n)

        holder = await entered(kind.alone(other))
        tasks: list[asyncio.Task[None]] = []
        for n in range(6):
            tasks.append(asyncio.create_task(work(n)))
            await queued(space, n + 1)
        await holder.leave()
        await asyncio.gather(*tasks)
        assert served == list(range(6))

    async def test_nobody_overtakes_one_who_was_granted(self, space: Space, other: Space, kind: Kind) -> None:
        """One who asks right after a release comes behind who waited, though that one does not know of it yet."""
        holder = await entered(kind.alone(space))
        waiter = await waiting(other, kind.alone(other))

        await holder.leave()
        with pytest.raises(WouldWaitError):
            await passes(kind.try_one(space))
        late = await waiting(space, kind.one(space))

        await waiter.hold()
        assert not late.is_inside
        await all_of([waiter, late])

    async def test_what_is_free_is_not_taken_past_a_waiter(self, space: Space, other: Space) -> None:
        """Two permits are free, and the first in line needs three: one who needs one does not get in."""
        semaphore = space.semaphore(KEY, permits=3)
        holder = await entered(semaphore.hold(1))
        heavy = await waiting(other, other.semaphore(KEY, permits=3).hold(3))

        with pytest.raises(WouldWaitError):
            await passes(semaphore.try_hold(1))
        await holder.leave()
        await all_of([heavy])

    @pytest.mark.parametrize("position", [0, 1, 2])
    async def test_one_who_gives_up_is_passed_over(self, space: Space, other: Space, kind: Kind, position: int) -> None:
        """Wherever it stood, the others keep their order."""
        holder = await entered(kind.alone(space))
        clients = [await waiting(other, kind.alone(other)) for _ in range(3)]

        await clients.pop(position).end()
        await queued(space, 2)
        await holder.leave()

        await clients[0].hold()
        assert not clients[1].is_inside
        await all_of(clients)

    async def test_a_thousand_waiters_are_served_in_order(self, space: Space) -> None:
        """A long line is served like a short one."""
        served: list[int] = []

        async def work(n: int) -> None:
            async with space.mutex(KEY).hold():
                served.append(n)

        async with space.mutex(KEY).hold():
            tasks = [asyncio.create_task(work(n)) for n in range(1_000)]
            await queued(space, 1_000)
        await asyncio.gather(*tasks)
        assert served == list(range(1_000))
        await at_rest(space)

    async def test_everyone_of_a_crowd_gets_in(self, open_space: OpenSpace, kind: Kind) -> None:
        """Many tasks of several processes ask all at once, again and again: each gets its turns."""
        spaces = [await open_space() for _ in range(4)]
        turns = [0] * 40

        async def work(n: int) -> None:
            for _ in range(3):
                async with kind.alone(spaces[n % 4]):
                    turns[n] += 1

        async with asyncio.timeout(4 * SOON):
            await asyncio.gather(*(work(n) for n in range(40)))
        assert turns == [3] * 40
        await at_rest(spaces[0])

    async def test_one_wake_is_sent_for_a_hand_over(self, open_space: OpenSpace) -> None:
        """With a hundred waiters elsewhere, a release wakes the one that gets in."""
        wire = Wire()
        space, other = await open_space(through=wire.around), await open_space()
        holder = await entered(space.mutex(KEY).hold())
        tasks = [asyncio.create_task(passes(other.mutex(KEY).hold(), 4 * SOON)) for _ in range(100)]
        await queued(space, 100)

        await holder.leave()

        assert len(wire.wakes) == 1
        await asyncio.gather(*tasks)

    async def test_a_hand_over_in_one_process_needs_no_wake(
        self, open_space: OpenSpace, kind: Kind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who waits in the same process is told directly, though no hint arrives and nobody looks."""
        monkeypatch.setattr(LOOK, 3_600.0)
        wire = Wire()
        space = await open_space(through=lambda store: wire.around(deaf(store)))
        holder = await entered(kind.alone(space))
        waiter = await waiting(space, kind.alone(space))

        await holder.leave()

        await all_of([waiter])
        assert wire.wakes == []

    async def test_a_wake_brings_in_one_who_waits_elsewhere(
        self, space: Space, other: Space, kind: Kind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It does not depend on anybody looking now and then, where the store sends hints."""
        if space.store.capabilities.wakes == "poll":
            pytest.skip("this store sends no hints")
        monkeypatch.setattr(LOOK, 3_600.0)
        holder = await entered(kind.alone(space))
        waiter = await waiting(other, kind.one(other))

        await holder.leave()

        await all_of([waiter])

    async def test_a_lost_wake_is_made_up_for(
        self, space: Space, open_space: OpenSpace, kind: Kind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One who hears nothing finds by itself that it holds."""
        monkeypatch.setattr(LOOK, 0.02)
        other = await open_space(through=deaf)
        holder = await entered(kind.alone(space))
        waiter = await waiting(other, kind.one(other))

        await holder.leave()

        await all_of([waiter])

    async def test_a_wake_that_is_heard_twice_lets_nobody_in_twice(
        self, space: Space, open_space: OpenSpace, kind: Kind
    ) -> None:
        """Hints only make a process look: what it sees decides."""
        other = await open_space(through=stuttering)
        holder = await entered(kind.alone(space))
        first, second = [await waiting(other, kind.alone(other)) for _ in range(2)]

        await holder.leave()

        await first.hold()
        assert not second.is_inside
        await all_of([first, second])

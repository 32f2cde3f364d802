"""Leases that lapse, and locks that are lost or taken away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import MICROSECONDS, monotonic
from standfast.errors import LeaseLostError, WouldWaitError
from standfast.events import EntriesFell, LeaseLost, PresenceLost, PresenceNotRenewed, Requeued
from standfast.keys import RecordKey
from standfast.locks.line import OfPresence
from standfast.locks.line_records import LineKeys
from standfast.scope import address_of
from standfast.stores import Decision, Delete
from standfast.testing.conformance.locks.ground import (
    KEY,
    SHORT,
    SOON,
    LockGround,
    a_while,
    all_of,
    at_rest,
    entered,
    eventually,
    head_of,
    holders_of,
    leftovers,
    look_after,
    passes,
    queued,
    waiters_of,
    waiting,
)
from standfast.testing.conformance.locks.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from standfast.events import Event
    from standfast.locks.line import Waiter
    from standfast.locks.locks import Holding
    from standfast.space import Space
    from standfast.testing.conformance.locks.ground import Kind, OpenSpace
    from standfast.testing.simulation import VirtualClock


KEPT = 0.6
"""A lease that must not be lost though it is short: long enough for a busy machine to renew it in."""


class LockExpiryCases(LockGround):
    """Processes that are not heard of any more, and others that are."""

    @pytest.fixture
    def wire(self) -> Wire:
        """What the process that is lost is connected by."""
        return Wire()

    async def test_a_lost_process_is_taken_over_from(
        self, open_space: OpenSpace, other: Space, kind: Kind, wire: Wire
    ) -> None:
        """One lease later the next one holds, with a higher fence."""
        space = await open_space(through=wire.around, lease=SHORT)
        holder = await entered(kind.alone(space, on_lost="tell"))
        wire.cut()

        fence = await passes(kind.alone(other))

        assert fence > (await holder.hold()).fence
        wire.mend()
        await holder.leave()

    async def test_a_holder_knows_before_others_take_over(
        self, open_space: OpenSpace, other: Space, wire: Wire
    ) -> None:
        """By its own clock it stops in time: when its body is told, it still holds in the eyes of the store."""
        told: list[Event] = []
        space = await open_space(through=wire.around, lease=KEPT, told=told)
        holder = await entered(space.mutex(KEY).hold(on_lost="tell"))
        hold = await holder.hold()
        wire.cut()
        record = (await other.read(hold.presence.key)).records[hold.presence.key]
        ahead = [await _store_time_ahead(other) for _ in range(5)]

        async with asyncio.timeout(SOON):
            await hold.lost.wait()

        assert record.expires_at is not None
        assert monotonic() * MICROSECONDS + min(ahead) < record.expires_at
        assert hold.is_lost
        assert any(isinstance(event, PresenceLost) for event in told)
        wire.mend()
        await holder.leave()

    async def test_one_who_waits_takes_over(self, open_space: OpenSpace, other: Space, kind: Kind, wire: Wire) -> None:
        """It notices by itself that the holder is gone, and says so."""
        told: list[Event] = []
        lost = await open_space(through=wire.around, lease=SHORT)
        watching = await open_space(told=told)
        holder = await entered(kind.alone(lost, on_lost="tell"))
        waiter = await waiting(other, kind.one(watching))
        wire.cut()

        await all_of([waiter])

        assert any(isinstance(event, EntriesFell) for event in told)
        wire.mend()
        await holder.leave()

    async def test_a_lease_is_not_over_early(self, open_space: OpenSpace, other: Space, kind: Kind, wire: Wire) -> None:
        """Right after a process was cut off, no other gets what it holds."""
        space = await open_space(through=wire.around, lease=10)
        holder = await entered(kind.alone(space))
        wire.cut()

        with pytest.raises(WouldWaitError):
            await passes(kind.try_one(other))

        wire.mend()
        await holder.leave()

    async def test_lost_waiters_fall_together(self, open_space: OpenSpace, other: Space) -> None:
        """Five processes die at the head of a line: the one behind them waits for one lease, not for five."""
        holder = await entered(other.mutex("k").hold())
        wires = [Wire() for _ in range(5)]
        lost = [await open_space(through=wire.around, lease=SHORT) for wire in wires]
        dead = [await waiting(other, space.mutex("k").hold(), "k") for space in lost]
        last = await waiting(other, other.mutex("k").hold(), "k")
        for wire in wires:
            wire.cut()

        await holder.leave()
        started = monotonic()
        await last.hold()

        assert monotonic() - started < 3 * lost[0].lease
        await last.leave()
        for wire in wires:
            wire.mend()  # or closing each of them waits for its store
        for client in dead:
            await client.end()

    async def test_a_crowd_of_one_lost_process_falls_together(
        self, open_space: OpenSpace, other: Space, wire: Wire
    ) -> None:
        """It had more waiters in the line than are looked at together: the one behind them waits no longer for that."""
        lost = await open_space(through=wire.around, lease=SHORT)
        holder = await entered(other.mutex(KEY).hold())
        crowd = [asyncio.create_task(passes(lost.mutex(KEY).hold())) for _ in range(60)]
        await queued(other, 60)
        last = await waiting(other, other.mutex(KEY).hold())
        wire.cut()

        await holder.leave()
        started = monotonic()
        await last.hold()

        assert monotonic() - started < 8 * lost.lease  # with a look for each few of them it would take twice as long
        await last.leave()
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)

    async def test_a_living_waiter_that_was_dropped_joins_anew(
        self, open_space: OpenSpace, space: Space, kind: Kind
    ) -> None:
        """It was taken for dead and lost its place; it is told so, and gets in all the same."""
        told: list[Event] = []
        holder = await entered(kind.alone(space))
        waiter = await waiting(space, kind.one(await open_space(told=told, lease=SHORT)))
        [seen] = await waiters_of(space)
        behind = await waiting(space, kind.alone(space))
        assert isinstance(seen.entry.anchor, OfPresence)
        presence = LineKeys(space, address_of(KEY)).presence(seen.entry.anchor.presence)
        await space.store.update([presence], lambda found: Decision(None, (Delete(presence, found.version(presence)),)))
        await look_after(space)
        await eventually(lambda: _comes_after(space, seen))

        await holder.leave()

        await all_of([behind, waiter])
        assert any(isinstance(event, Requeued) for event in told)

    async def test_a_renewal_that_fails_is_tried_again(self, open_space: OpenSpace, other: Space, wire: Wire) -> None:
        """The store is out of reach for less than the lease: nothing is lost."""
        told: list[Event] = []
        space = await open_space(through=wire.around, lease=2 * KEPT, told=told)
        holder = await entered(space.mutex(KEY).hold())
        hold = await holder.hold()
        wire.cut()
        await eventually(lambda: _is_told(told, PresenceNotRenewed))
        renewed_at = hold.presence.renewed_at
        wire.mend()
        await eventually(lambda: _is_renewed(hold.presence.renewed_at > renewed_at))

        with pytest.raises(WouldWaitError):
            await passes(other.mutex(KEY).try_hold())
        hold.check()
        await holder.leave()

    async def test_a_lease_is_kept_while_the_loop_is_busy(self, open_space: OpenSpace, other: Space) -> None:
        """A body that does not let go of the event loop for longer than its lease holds on."""
        space = await open_space(lease=KEPT)
        async with space.mutex(KEY).hold() as hold:
            await eventually(lambda: _is_renewed(hold.presence.is_kept))
            time.sleep(2.5 * space.lease)  # noqa: ASYNC251 -- what is tested is a loop that does nothing else

            hold.check()
            with pytest.raises(WouldWaitError):
                await passes(other.mutex(KEY).try_hold(owner="another owner"))

    async def test_a_stopped_process_knows_when_it_wakes(self, open_space: OpenSpace, other: Space, wire: Wire) -> None:
        """Neither its loop nor its heartbeat went on for a lease: the first check after it fails."""
        space = await open_space(through=wire.around, lease=SHORT)

        async def work() -> None:
            async with space.mutex(KEY).hold() as hold:
                wire.cut()
                time.sleep(space.lease)  # noqa: ASYNC251 -- a process that is stopped
                wire.mend()
                hold.check()

        with pytest.raises(LeaseLostError):
            await work()
        await passes(other.mutex(KEY).hold())

    async def test_a_suspended_machine_knows_when_it_wakes(self, space: Space, clock: VirtualClock | None) -> None:
        """Time that passed unseen counts."""
        if clock is None:
            pytest.skip("this store goes by a real clock: no clock fixture")

        async def work(clock: VirtualClock) -> None:
            async with space.mutex(KEY).hold() as hold:
                clock.advance(31)
                hold.check()

        with pytest.raises(LeaseLostError):
            await work(clock)

    async def test_what_a_suspended_machine_held_is_free(
        self, space: Space, other: Space, clock: VirtualClock | None, kind: Kind
    ) -> None:
        """The lease is over at the very instant that was agreed."""
        if clock is None:
            pytest.skip("this store goes by a real clock: no clock fixture")
        holder = await entered(kind.alone(space, on_lost="tell"))
        clock.advance(30)

        assert await passes(kind.try_one(other)) > (await holder.hold()).fence
        await holder.leave()

    @pytest.mark.parametrize("step", [-3_600, 3_600])
    async def test_a_stepped_time_of_day_ends_no_lease_and_prolongs_none(
        self, open_space: OpenSpace, other: Space, clock: VirtualClock | None, wire: Wire, step: int
    ) -> None:
        """An administrator sets the clock: the holder keeps what it has, and is taken over from when it is lost."""
        if clock is None:
            pytest.skip("this store goes by a real clock: no clock fixture")
        space = await open_space(through=wire.around, lease=KEPT)
        holder = await entered(space.mutex("k").hold(on_lost="tell"))
        clock.step_wall(step)
        with pytest.raises(WouldWaitError):
            await passes(other.mutex("k").try_hold())
        wire.cut()

        await passes(other.mutex("k").hold())

        wire.mend()
        await holder.leave()

    async def test_an_idle_space_takes_locks_again(self, open_space: OpenSpace) -> None:
        """While it held nothing it was not heard of; then it is present anew."""
        space = await open_space(lease=0.1)
        first = await entered(space.mutex(KEY).hold())
        presence = (await first.hold()).presence
        await first.leave()
        await eventually(lambda: _is_renewed(presence.left() <= 0))

        await passes(space.mutex(KEY).hold())

    async def test_leases_of_one_space_may_differ(self, open_space: OpenSpace, other: Space, wire: Wire) -> None:
        """A hold with a shorter lease is taken over sooner than the others."""
        space = await open_space(through=wire.around)
        lease = max(SHORT, space.store.capabilities.shortest_lease)
        short = await entered(space.mutex("short").hold(lease=lease, on_lost="tell"))
        usual = await entered(space.mutex("usual").hold())
        wire.cut()

        await passes(other.mutex("short").hold())
        with pytest.raises(WouldWaitError):
            await passes(other.mutex("usual").try_hold())
        wire.mend()
        await short.leave()
        await usual.leave()

    async def test_one_who_is_closed_keeps_nobody_waiting(self, space: Space, other: Space, kind: Kind) -> None:
        """What a closed space held is free at once, before its lease is over."""
        holder = await entered(kind.alone(space))
        waiter = await waiting(other, kind.one(other))

        await space.aclose()

        with pytest.raises(LeaseLostError, match="closed"):
            await holder.leave()
        await all_of([waiter])
        await at_rest(other)

    async def test_a_hold_is_taken_away_after_its_longest_time(self, space: Space, other: Space, kind: Kind) -> None:
        """However alive the holder is, the next gets in then; the body is cancelled."""
        holder = await entered(kind.alone(space, max_hold=await a_while(other, 0.1)))

        await passes(kind.one(other))  # on a slow machine that time is over before it stands in line

        with pytest.raises(LeaseLostError, match="max_hold"):
            await holder.leave()
        assert "expired" in [past.end for past in await other.history(KEY)]
        await at_rest(other)

    async def test_a_hold_within_its_longest_time_is_left_alone(self, space: Space, kind: Kind) -> None:
        """A body that is quick enough does not notice."""
        async with kind.alone(space, max_hold=60) as hold:
            hold.check()
        assert await head_of(space) is None


async def _store_time_ahead(space: Space) -> float:
    """Return by how many microseconds the store's time is ahead of this process's own, at the most."""
    before = monotonic() * MICROSECONDS
    return (await space.read(RecordKey(space.namespace, space.tenant, "time"))).at - before


async def _comes_after(space: Space, seen: Waiter) -> bool:
    """Return True if a waiter has another ticket than it had, and is anchored to a presence that is there.

    With the old presence it may have joined just before it noticed that that is gone; then it joins once more.
    """
    return any(
        each.entry.id == seen.entry.id and each.ticket > seen.ticket and each.entry.anchor != seen.entry.anchor
        for each in await waiters_of(space)
    )


async def _is_told(told: list[Event], kind: type[Event]) -> bool:
    return any(isinstance(event, kind) for event in told)


async def _is_renewed(renewed: bool) -> bool:  # noqa: FBT001 -- a condition for eventually
    return renewed


async def evict(space: Space, kind: Kind, key: str = KEY) -> None:
    """Evict the holder."""
    holders = await holders_of(space, key)
    assert holders
    for holder in holders:
        assert await kind.make(space, key).force_release(holder.entry.id)


async def for_ever() -> None:
    """Wait for what never comes."""
    await asyncio.get_running_loop().create_future()


async def losing(
    holding: Holding, loss: Coroutine[Any, Any, None], body: Callable[[], Awaitable[None]] = for_ever
) -> None:
    """Hold, while another task sees to it that it is lost."""
    operator: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(SOON), holding:
            operator = asyncio.create_task(loss)
            await body()
    finally:
        if operator is not None:
            await operator


class LosingCases(LockGround):
    """The block of a hold that was lost."""

    async def test_the_block_is_cancelled(self, space: Space, other: Space, kind: Kind) -> None:
        """It can clean up; then it raises what happened."""
        cleaned_up = False

        async def body() -> None:
            nonlocal cleaned_up
            try:
                await for_ever()
            finally:
                cleaned_up = True

        with pytest.raises(LeaseLostError):
            await losing(kind.alone(space), evict(other, kind), body)
        assert cleaned_up

    async def test_the_task_goes_on_as_if_nobody_had_cancelled_it(self, space: Space, other: Space, kind: Kind) -> None:
        """The cancellation of the loss is taken back, whether or not the block waited for anything."""
        task = asyncio.current_task()
        assert task is not None
        for loss, body in ((evict(other, kind), for_ever), (_nothing(), lambda: evict(other, kind))):
            with pytest.raises(LeaseLostError):
                await losing(kind.alone(space), loss, body)
            assert task.cancelling() == 0
            await asyncio.sleep(0)

    async def test_the_block_is_told_if_it_wants_to(self, space: Space, other: Space, kind: Kind) -> None:
        """With "tell" the block is not cancelled: it hears of the loss, and leaves in peace."""
        async with asyncio.timeout(SOON), kind.alone(space, on_lost="tell") as hold:
            assert not hold.lost.is_set()
            await evict(other, kind)
            await hold.lost.wait()
            with pytest.raises(LeaseLostError):
                hold.check()

    async def test_a_hook_is_told(self, open_space: OpenSpace, other: Space, kind: Kind) -> None:
        """Once for each hold that is lost."""
        told: list[Event] = []
        space = await open_space(told=told)
        async with kind.alone(space, on_lost="tell") as hold:
            await evict(other, kind)
            async with asyncio.timeout(SOON):
                await hold.lost.wait()

        [event] = [event for event in told if isinstance(event, LeaseLost)]
        assert (event.key, event.fence) == (KEY, hold.fence)

    async def test_a_block_that_ends_before_it_is_told_learns_it_in_the_end(
        self, space: Space, other: Space, kind: Kind
    ) -> None:
        """It finds out when it gives back what it does not have any more."""

        async def work() -> None:
            async with kind.alone(space):
                await evict(other, kind)

        with pytest.raises(LeaseLostError):
            await work()

    async def test_a_block_that_swallows_the_cancellation_learns_it_in_the_end(
        self, space: Space, other: Space, kind: Kind
    ) -> None:
        """The error is raised whatever the block does with its cancellation."""

        async def body() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await for_ever()
            await asyncio.sleep(0)

        with pytest.raises(LeaseLostError):
            await losing(kind.alone(space), evict(other, kind), body)

    async def test_the_blocks_own_error_wins(self, space: Space, other: Space, kind: Kind) -> None:
        """What the block raises is not replaced."""

        async def body() -> None:
            try:
                await for_ever()
            finally:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await losing(kind.alone(space), evict(other, kind), body)

    async def test_a_cancellation_by_others_wins(self, space: Space, other: Space, kind: Kind) -> None:
        """A task that is cancelled from outside while it loses its lock ends as cancelled."""

        async def body() -> None:
            task = asyncio.current_task()
            assert task is not None
            try:
                await for_ever()
            finally:
                task.cancel()

        task = asyncio.create_task(losing(kind.alone(space), evict(other, kind), body))
        await asyncio.wait({task}, timeout=SOON)
        assert task.cancelled()
        await at_rest(other)

    async def test_a_cancellation_while_the_block_cleans_up_wins(self, space: Space, other: Space, kind: Kind) -> None:
        """It comes after the loss, and before the block has ended."""
        cleaning = asyncio.Event()

        async def body() -> None:
            try:
                await for_ever()
            finally:
                cleaning.set()
                await for_ever()

        task = asyncio.create_task(losing(kind.alone(space), evict(other, kind), body))
        async with asyncio.timeout(SOON):
            await cleaning.wait()
            task.cancel()
            await asyncio.wait({task})
        assert task.cancelled()
        await at_rest(other)

    async def test_a_task_group_inside_the_block_is_cancelled(self, space: Space, other: Space, kind: Kind) -> None:
        """Its tasks end before the lock is given back."""
        ended: list[str] = []

        async def child() -> None:
            try:
                await for_ever()
            finally:
                ended.append("child")

        async def body() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(child())

        with pytest.raises(LeaseLostError):
            await losing(kind.alone(space), evict(other, kind), body)
        assert ended == ["child"]

    async def test_both_locks_of_a_nested_block_are_given_back(self, space: Space, other: Space, kind: Kind) -> None:
        """The outer one is lost: the inner one is released, and so is whatever is left of the outer."""

        async def body() -> None:
            async with kind.alone(space, "inner"):
                await for_ever()

        with pytest.raises(LeaseLostError, match="outer"):
            await losing(kind.alone(space, "outer"), evict(other, kind, "outer"), body)
        await at_rest(other)
        await passes(kind.alone(other, "inner"))

    async def test_losing_the_inner_lock_leaves_the_outer(self, space: Space, other: Space, kind: Kind) -> None:
        """The outer block can go on after the inner one failed."""
        async with kind.alone(space, "outer") as outer:
            with pytest.raises(LeaseLostError, match="inner"):
                await losing(kind.alone(space, "inner"), evict(other, kind, "inner"))
            outer.check()
        assert await leftovers(other) == []

    async def test_one_who_lost_it_does_not_release_the_next(self, space: Space, other: Space, kind: Kind) -> None:
        """Leaving late gives back nothing that another one has by now."""
        late = await entered(kind.alone(space, on_lost="tell"))
        await evict(other, kind)
        successor = await entered(kind.alone(other))

        await late.leave()

        (await successor.hold()).check()
        assert await head_of(space) is not None
        await successor.leave()

    async def test_a_forced_release_lets_the_next_in(self, space: Space, other: Space, kind: Kind) -> None:
        """The next waiter moves up at once; evicting the same holder again does nothing."""
        late = await entered(kind.alone(space, on_lost="tell"))
        waiter = await waiting(other, kind.one(other))
        lock, [held, *_] = kind.make(other, KEY), await holders_of(space)

        assert await lock.force_release(held.entry.id)
        assert not await lock.force_release(held.entry.id)

        await waiter.hold()
        await waiter.leave()
        await late.leave()


async def _nothing() -> None:
    """Do nothing: the block does it itself."""

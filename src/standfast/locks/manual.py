"""A mutex and a semaphore without a state of their own, driven by hand on any slot.

They keep a whole lock (:class:`LockRecord`) in a slot that you give: a state of a space, or a state handle inside a
workflow. Each call is one change of the slot. The time is the slot's own, read inside the change, so none can take a
lock by lying about it.

    lock = DurableMutex(lease="30s")
    slot = space.state.shared("account-42:lock", initial=initial_lock_record())
    place = await lock.acquire(slot, "order-7", timeout="10s")
    try:
        await balance.update(debit, guard=lock.guard(slot, "order-7", place.fence))
    finally:
        await lock.release(slot, "order-7", fence=place.fence)

``space.mutex`` and ``space.semaphore`` renew themselves, wake the next waiter, and hold any number of waiters. Take
those unless you need the lock to lie in a slot.
"""

from __future__ import annotations

import asyncio
import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from msgspec import Struct

from standfast.clock import Instant, later, seconds_between
from standfast.durations import optional_seconds, seconds
from standfast.errors import ArgumentTypeError, HoldTimeoutError, LockMismatchError, StandfastError
from standfast.keys import RecordKey
from standfast.locks import lock_record as algebra
from standfast.locks.lock_record import WAITER_TTL, LockPosition, check_lease, check_permits, read_lock_record
from standfast.locks.state import KEEP, HoldGuard, transact

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.codec import JsonValue
    from standfast.durations import Duration
    from standfast.locks.lock_record import LockRecord, Renewal
    from standfast.locks.state import AtomicState, Slot


LEASE: Final = "30s"
POLL: Final = 0.25
"""Seconds between two tries of ``acquire``."""


class PollWarning(UserWarning):
    """A lock by hand is polled so rarely that its leases lapse in between."""


class LockByHand:
    """What a mutex and a semaphore by hand do alike; make a :class:`DurableMutex` or a :class:`DurableSemaphore`."""

    __slots__ = ("lease", "permits", "waiter_ttl")

    def __init__(self, permits: int, lease: Duration, waiter_ttl: Duration | None) -> None:
        self.permits: Final = check_permits(permits)
        self.lease: Final = check_lease(lease)
        self.waiter_ttl: Final = None if waiter_ttl is None else check_lease(waiter_ttl, "waiter_ttl")

    async def try_acquire(self, slot: Slot, holder_id: str, *, lease: Duration | None = None) -> LockPosition:
        """Take a permit if one is free and none is in front; else stand in line, or keep the place there.

        A holder that asks again renews its lease. A waiter must ask again within ``waiter_ttl`` or loses its place;
        then the answer is ``requeued``, and it should ask more often. One that does not want to wait calls
        :meth:`withdraw`.

        Args:
            slot: Where the lock lies.
            holder_id: Who asks. Unique to this acquisition, or a later one inherits the hold.
            lease: How long the permit lasts if it is not renewed; by default that of the lock.

        Raises:
            LockMismatchError: The lock is in use with another number of permits.
            LineFullError: 1,000 wait already.
        """
        length = self._length(lease)
        return await transact(slot, lambda value, version, at: self._enter(holder_id, length, value, version, at))

    async def acquire(
        self,
        slot: Slot,
        holder_id: str,
        *,
        timeout: Duration | None = None,
        lease: Duration | None = None,
        poll: Duration = POLL,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> LockPosition:
        """Wait for a permit: stand in line and ask again and again, until it is there.

        A caller that is not let in leaves nothing behind: no place in the line after a time-out, and neither that nor a
        permit after a cancellation.

        Args:
            slot: Where the lock lies.
            holder_id: Who asks. Unique to this acquisition, or a later one inherits the hold.
            timeout: How long to wait, by the slot's clock; None for as long as it takes.
            lease: How long the permit lasts if it is not renewed; by default that of the lock.
            poll: How long to wait between two tries; at most half as long as a waiter that does not ask lives.
            sleep: Waits that many seconds.

        Raises:
            HoldTimeoutError: No permit was free in time.
        """
        length, limit = self._length(lease), optional_seconds(timeout, what="timeout")
        pause = seconds(poll, what="poll", minimum=0.001, maximum=self._waiter_life(length) / 2)
        if length < 2 * pause:
            message = (
                f"a lease of {length:g} s is shorter than two polls of {pause:g} s: permits lapse before waiters"
                " ask again; take a longer lease or a shorter poll"
            )
            warnings.warn(message, PollWarning, stacklevel=2)
        waiting = _ManualWait(holder_id, limit, partial(self._enter, holder_id, length))
        try:
            while not (step := await transact(slot, waiting.ask)).is_over:
                waiting.ends_at = step.ends_at
                await sleep(min(pause, step.left))
        except BaseException:
            # Not if it held before it asked: then the hold is another's, and was only renewed.
            if waiting.may_have_entered:
                with suppress(StandfastError):  # what does not get through here ends with its lease
                    await self.release(slot, holder_id)
            raise
        if not step.place.acquired:
            raise HoldTimeoutError(str(getattr(slot, "key", "the slot")), limit or 0.0, step.holders)
        return step.place

    async def renew(
        self, slot: Slot, holder_id: str, *, lease: Duration | None = None, fence: int | None = None
    ) -> Renewal:
        """Extend a lease to ``lease`` from now; true if it was. A lease that is over stays over.

        If it was not, ``free`` and ``taken_by`` say what became of the permit: stop what it protected, or acquire
        again. With ``fence``, only that very hold is renewed.
        """
        length = self._length(lease)

        def decide(value: JsonValue, version: int, at: Instant) -> tuple[LockRecord, Renewal]:
            permits = read_lock_record(value).permits or self.permits
            return algebra.renew(value, holder_id, now=at, lease=length, permits=permits, fence=fence, version=version)

        return await transact(slot, decide)

    async def release(self, slot: Slot, holder_id: str, *, fence: int | None = None) -> bool:
        """Give the permit back, and the place in the line. Returns True if the caller held until now.

        Doing it twice is harmless. With ``fence``, only that very hold is released.
        """
        return await transact(
            slot,
            lambda value, version, at: algebra.release(value, holder_id, now=at, fence=fence, version=version),
        )

    async def withdraw(self, slot: Slot, holder_id: str) -> bool:
        """Leave the line without touching a hold. Returns True if the caller waited until now."""
        return await transact(
            slot, lambda value, version, at: algebra.withdraw(value, holder_id, now=at, version=version)
        )

    async def force_release(self, slot: Slot, holder_id: str) -> bool:
        """Evict a holder or a waiter, for an operator. Returns True if there was one.

        The fence moves on, so that what a holder still writes under its guard is refused.
        """
        return await transact(
            slot, lambda value, version, at: algebra.force_release(value, holder_id, now=at, version=version)
        )

    async def inspect(self, slot: Slot) -> LockRecord | None:
        """Return the lock exactly as it lies there, None if nothing does. Changes nothing, sweeps nothing."""
        return await transact(slot, lambda value, _version, _at: (KEEP, algebra.inspect(value)))

    def guard(self, slot: AtomicState[Any], holder_id: str, fence: int) -> HoldGuard:
        """Return a guard for writes to states of the same space that only this hold may do.

        A write under it is refused, in the very commit, once the lease is over or the lock is in other hands:
        ``await state.set(value, guard=lock.guard(slot, "order-7", place.fence))``.
        """
        if not isinstance(getattr(slot, "key", None), RecordKey):
            raise ArgumentTypeError(
                "a slot with an awaitable transact(decide)", f"a {type(slot).__name__}, which is in no space"
            )
        return HoldGuard(slot.key, holder_id, fence)

    def _length(self, lease: Duration | None) -> float:
        return self.lease if lease is None else check_lease(lease)

    def _waiter_life(self, lease: float) -> float:
        return max(WAITER_TTL, lease) if self.waiter_ttl is None else self.waiter_ttl

    def _enter(
        self, holder_id: str, lease: float, value: JsonValue, version: int, at: Instant
    ) -> tuple[LockRecord, LockPosition]:
        used = read_lock_record(value)
        if used.permits not in (None, self.permits) and used.is_in_use(at):
            raise LockMismatchError("this semaphore", f"permits={used.permits or 0}", f"permits={self.permits}")
        ttl = self._waiter_life(lease)
        found, place = algebra.try_acquire(
            value, holder_id, now=at, lease=lease, permits=self.permits, waiter_ttl=ttl, version=version
        )
        return msgspec.structs.replace(found, permits=self.permits), place


@final
class DurableMutex(LockByHand):
    """A lock for one at a time, kept in any slot.

    Args:
        lease: How long a hold lasts if it is not renewed. Longer than the longest hold, or renewed well within it.
        waiter_ttl: How long a waiter that does not ask again keeps its place; by default the lease, at least 30 s.
    """

    __slots__ = ()

    def __init__(self, *, lease: Duration = LEASE, waiter_ttl: Duration | None = None) -> None:
        super().__init__(1, lease, waiter_ttl)

    def __repr__(self) -> str:
        return f"DurableMutex(lease={self.lease:g})"


@final
class DurableSemaphore(LockByHand):
    """A lock for a few at a time, kept in any slot.

    The number of permits is kept with the lock. While it is in use, one who comes with another number is refused.

    Args:
        permits: How many may hold at once.
        lease: How long a hold lasts if it is not renewed. Longer than the longest hold, or renewed well within it.
        waiter_ttl: How long a waiter that does not ask again keeps its place; by default the lease, at least 30 s.
    """

    __slots__ = ()

    def __init__(self, permits: int = 1, *, lease: Duration = LEASE, waiter_ttl: Duration | None = None) -> None:
        super().__init__(permits, lease, waiter_ttl)

    def __repr__(self) -> str:
        return f"DurableSemaphore({self.permits}, lease={self.lease:g})"

    async def resize(self, slot: Slot) -> int | None:
        """Make this semaphore's permits the stored number, for an operator; returns what it was.

        No holder is evicted: with fewer permits none gets in until enough have left.
        """

        def decide(value: JsonValue, _version: int, _at: Instant) -> tuple[LockRecord, int | None]:
            found = read_lock_record(value)
            return msgspec.structs.replace(found, permits=self.permits), found.permits

        return await transact(slot, decide)


class _ManualStep(Struct, frozen=True):
    """What one try of ``acquire`` came to."""

    place: LockPosition
    is_over: bool
    holders: tuple[str, ...]
    ends_at: Instant | None
    left: float


class _ManualWait:
    """One call of ``acquire``: when it ends, and whether there is anything to undo."""

    __slots__ = ("_enter", "_holder_id", "_limit", "ends_at", "may_have_entered")

    def __init__(
        self,
        holder_id: str,
        limit: float | None,
        enter: Callable[[JsonValue, int, Instant], tuple[LockRecord, LockPosition]],
    ) -> None:
        self._holder_id, self._limit, self._enter = holder_id, limit, enter
        self.ends_at: Instant | None = None
        self.may_have_entered = False

    def ask(self, value: JsonValue, version: int, at: Instant) -> tuple[LockRecord, _ManualStep]:
        """Try; at the end of the time, leave the line in the same change."""
        held = read_lock_record(value).holds(self._holder_id, at)
        found, place = self._enter(value, version, at)
        self.may_have_entered = self.may_have_entered or not held
        fresh = None if self._limit is None else later(at, self._limit)
        ends_at = self.ends_at or fresh
        left = float("inf") if ends_at is None else seconds_between(at, ends_at)
        is_over = place.acquired or left <= 0
        if is_over and not place.acquired:
            found, _ = algebra.withdraw(found, self._holder_id, now=at, version=version)
        holders = tuple(each.holder_id for each in found.holders)
        return found, _ManualStep(place, is_over, holders, ends_at, left)

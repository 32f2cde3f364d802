"""A mutex and a semaphore without a state of their own, driven by hand by blocking code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from standfast.locks import DurableMutex as AsyncDurableMutex
from standfast.locks import DurableSemaphore as AsyncDurableSemaphore
from standfast.locks.manual import LEASE, POLL

if TYPE_CHECKING:
    from standfast.blocking.states import AtomicState
    from standfast.durations import Duration
    from standfast.locks import HoldGuard, LockPosition, LockRecord, Renewal


class _ByHand:
    """What a mutex and a semaphore by hand do alike."""

    __slots__ = ("_lock", "lease", "permits", "waiter_ttl")

    def __init__(self, lock: AsyncDurableMutex | AsyncDurableSemaphore) -> None:
        self._lock: Final = lock
        self.permits: Final[int] = lock.permits
        self.lease: Final[float] = lock.lease
        self.waiter_ttl: Final[float | None] = lock.waiter_ttl

    def __repr__(self) -> str:
        return repr(self._lock)

    def try_acquire(self, slot: AtomicState[Any], holder_id: str, *, lease: Duration | None = None) -> LockPosition:
        """Take a permit if one is free and nobody is in front; else stand in line, or keep the place there.

        Raises:
            LockMismatchError: The lock is in use with another number of permits.
            LineFullError: 1,000 wait already.
        """
        return slot.bound.call(lambda state: self._lock.try_acquire(state, holder_id, lease=lease))

    def acquire(
        self,
        slot: AtomicState[Any],
        holder_id: str,
        *,
        timeout: Duration | None = None,
        lease: Duration | None = None,
        poll: Duration = POLL,
    ) -> LockPosition:
        """Wait for a permit: stand in line and ask again and again, until it is there.

        Raises:
            HoldTimeoutError: No permit was free in time.
        """
        return slot.bound.call(
            lambda state: self._lock.acquire(state, holder_id, timeout=timeout, lease=lease, poll=poll)
        )

    def renew(
        self, slot: AtomicState[Any], holder_id: str, *, lease: Duration | None = None, fence: int | None = None
    ) -> Renewal:
        """Extend a lease to ``lease`` from now; true if it was. A lease that is over stays over."""
        return slot.bound.call(lambda state: self._lock.renew(state, holder_id, lease=lease, fence=fence))

    def release(self, slot: AtomicState[Any], holder_id: str, *, fence: int | None = None) -> bool:
        """Give the permit back, and the place in the line. Tells whether the caller held until now."""
        return slot.bound.call(lambda state: self._lock.release(state, holder_id, fence=fence))

    def withdraw(self, slot: AtomicState[Any], holder_id: str) -> bool:
        """Leave the line without touching a hold. Tells whether the caller waited until now."""
        return slot.bound.call(lambda state: self._lock.withdraw(state, holder_id))

    def force_release(self, slot: AtomicState[Any], holder_id: str) -> bool:
        """Turn out a holder or a waiter, for an operator. Tells whether there was one."""
        return slot.bound.call(lambda state: self._lock.force_release(state, holder_id))

    def inspect(self, slot: AtomicState[Any]) -> LockRecord | None:
        """Return the lock exactly as it lies there, None if nothing does. Changes nothing, sweeps nothing."""
        return slot.bound.call(self._lock.inspect)

    def guard(self, slot: AtomicState[Any], holder_id: str, fence: int) -> HoldGuard:
        """Return a guard for writes to states of the same space that only this hold may do."""
        return self._lock.guard(slot.bound.now()[1], holder_id, fence)


@final
class DurableMutex(_ByHand):
    """A lock for one at a time, kept in any state of a space; see :class:`standfast.locks.DurableMutex`.

    >>> lock = sf.blocking.DurableMutex(lease="30s")
    >>> with sf.blocking.open("memory://") as space:
    ...     slot = space.state.shared("account-42:lock")
    ...     place = lock.acquire(slot, "order-7", timeout="10s")
    ...     print(lock.release(slot, "order-7", fence=place.fence))
    True
    """

    __slots__ = ()

    def __init__(self, *, lease: Duration = LEASE, waiter_ttl: Duration | None = None) -> None:
        super().__init__(AsyncDurableMutex(lease=lease, waiter_ttl=waiter_ttl))


@final
class DurableSemaphore(_ByHand):
    """A lock for a few at a time, kept in any state of a space; see :class:`standfast.locks.DurableSemaphore`."""

    __slots__ = ("_semaphore",)

    def __init__(self, permits: int = 1, *, lease: Duration = LEASE, waiter_ttl: Duration | None = None) -> None:
        self._semaphore: Final = AsyncDurableSemaphore(permits, lease=lease, waiter_ttl=waiter_ttl)
        super().__init__(self._semaphore)

    def resize(self, slot: AtomicState[Any]) -> int | None:
        """Make this semaphore's permits the stored number, for an operator; returns what it was."""
        return slot.bound.call(self._semaphore.resize)

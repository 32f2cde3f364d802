"""Durable locks for blocking code: the same lines as those of an async space, and the same names."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar, Unpack, final

from standfast.blocking.hold import Holding
from standfast.blocking.options import as_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.blocking._background import Background
    from standfast.blocking._link import Bound
    from standfast.blocking.hold import AsyncHolding
    from standfast.blocking.options import HoldOptions
    from standfast.keys import Key
    from standfast.locks import Explanation
    from standfast.locks import ModeLock as AsyncModeLock
    from standfast.locks import Mutex as AsyncMutex
    from standfast.locks import Semaphore as AsyncSemaphore

L = TypeVar("L", "AsyncMutex", "AsyncSemaphore", "AsyncModeLock")


class _Lock(Generic[L]):
    """What all kinds of locks can do."""

    __slots__ = ("_lock", "key")

    def __init__(self, lock: Bound[L]) -> None:
        self._lock: Final[Bound[L]] = lock
        self.key: Final[Key | str] = lock.now()[1].key

    def _holding(self, options: HoldOptions, make: Callable[[L], Callable[..., AsyncHolding]]) -> Holding:
        def made() -> tuple[Background, AsyncHolding]:
            background, lock = self._lock.now()
            return background, make(lock)(**as_async(options))

        return Holding(made)

    def force_release(self, entry_id: str) -> bool:
        """Turn out a holder or a waiter by its entry's id, for an operator; tell whether it was there.

        Its fence is void from then on: what it still writes with it is refused. A waiter is told with
        :class:`~standfast.errors.WithdrawnError`. Get the id from :meth:`explain`.
        """
        return self._lock.call(lambda lock: lock.force_release(entry_id))

    def withdraw(self, entry_id: str) -> bool:
        """Turn out a waiter by its entry's id, for an operator; tell whether it waited. One that holds by now stays."""
        return self._lock.call(lambda lock: lock.withdraw(entry_id))

    def explain(self, *, limit: int = 100) -> Explanation:
        """Say who holds it and who waits, since when, and how long it may take. Nothing is changed by looking.

        Args:
            limit: How many waiters to list; the others are counted.
        """
        return self._lock.call(lambda lock: lock.explain(limit=limit))

    def __repr__(self) -> str:
        return f"<blocking {self._lock.now()[1]!r}>"


@final
class Mutex(_Lock["AsyncMutex"]):
    """One holder at a time, first come, first served, in all processes on the store. Get it from ``space.mutex``.

    >>> with sf.blocking.open("memory://") as space, space.mutex("account-42").hold(timeout="10s") as hold:
    ...     print(hold.fence > 0)
    True
    """

    __slots__ = ()

    def hold(self, **options: Unpack[HoldOptions]) -> Holding:
        """Hold it for the length of a ``with`` block, or of each call of a function that this decorates.

        Takes the options of :class:`~standfast.blocking.HoldOptions`: ``timeout``, ``lease``, ``max_hold``,
        ``on_lost``, ``owner``, ``note``.

        Raises:
            HoldTimeoutError: On entering: it did not become free in time. Nothing is held and nobody waits.
            ReentryError: On entering: this thread holds it already, and would wait for itself.
            WaitCycleError: On entering: its holder waits, perhaps through others, for this thread.
            LeaseLostError: On leaving: it was lost while the block ran.
            StoreError: On entering: the store does not answer. Nothing is held.
        """
        return self._holding(options, lambda lock: lock.hold)

    def try_hold(self, **options: Unpack[HoldOptions]) -> Holding:
        """Hold it like :meth:`hold` if that can be had at once; never wait, and never stand in line.

        Raises:
            WouldWaitError: On entering: it is taken, or somebody waits for it.
        """
        return self._holding(options, lambda lock: lock.try_hold)


@final
class Semaphore(_Lock["AsyncSemaphore"]):
    """A number of permits, handed out in order, in all processes on the store. Get it from ``space.semaphore``.

    >>> with sf.blocking.open("memory://") as space, space.semaphore("vendor-api", permits=3).hold(weight=2):
    ...     pass
    """

    __slots__ = ()

    def hold(self, weight: int = 1, **options: Unpack[HoldOptions]) -> Holding:
        """Hold ``weight`` permits for the length of a ``with`` block. They are granted together.

        Args:
            weight: How many permits.
            options: As for :meth:`Mutex.hold`.

        Raises:
            TooHeavyError: On entering: there are not that many permits, so waiting would never end.
        """
        return self._holding(options, lambda lock: partial(lock.hold, weight))

    def try_hold(self, weight: int = 1, **options: Unpack[HoldOptions]) -> Holding:
        """Hold permits like :meth:`hold` if they can be had at once; never wait."""
        return self._holding(options, lambda lock: partial(lock.try_hold, weight))

    def resize(self, permits: int) -> None:
        """Set the number of permits for everybody, whatever call sites say, until :meth:`forget_size`.

        Nobody who holds is turned out: with fewer permits there are no new grants until enough have left.
        """
        self._lock.call(lambda lock: lock.resize(permits))

    def forget_size(self) -> None:
        """Let call sites say the number of permits again, beginning with this one."""
        self._lock.call(lambda lock: lock.forget_size())


@final
class ModeLock(_Lock["AsyncModeLock"]):
    """A lock with modes, in all processes on the store. Get it from ``space.mode_lock``.

    >>> with sf.blocking.open("memory://") as space:
    ...     graph = space.mode_lock("graph", modes=("read",), alone=("write",))
    ...     with graph.hold("read"):
    ...         pass
    """

    __slots__ = ()

    def hold(self, mode: str, **options: Unpack[HoldOptions]) -> Holding:
        """Hold it in ``mode`` for the length of a ``with`` block; options as for a mutex.

        Raises:
            InvalidArgumentError: The mode was not declared.
        """
        return self._holding(options, lambda lock: partial(lock.hold, mode))

    def try_hold(self, mode: str, **options: Unpack[HoldOptions]) -> Holding:
        """Hold it like :meth:`hold` if it can be had at once; never wait."""
        return self._holding(options, lambda lock: partial(lock.try_hold, mode))

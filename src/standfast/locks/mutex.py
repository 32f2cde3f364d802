"""A mutex: one holder at a time, across all processes on the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Unpack, final

from standfast.locks.algebra.line import Rules
from standfast.locks.driving.records import Site
from standfast.locks.locking import DurableLock

if TYPE_CHECKING:
    from standfast.keys import Key
    from standfast.locks.driving.hold import Holding
    from standfast.locks.driving.lines import Lines
    from standfast.locks.options import HoldOptions

MUTEX: Final = Site("mutex", Rules(1))


@final
class Mutex(DurableLock):
    """One holder at a time, first come, first served, in all processes on the store. Get it from ``space.mutex``.

    >>> async with sf.open("memory://") as space:
    ...     async with space.mutex("account-42").hold(timeout="10s") as hold:
    ...         print(hold.fence > 0)
    True
    """

    __slots__ = ()

    def __init__(self, lines: Lines, key: Key | str, lease: float) -> None:
        super().__init__(lines, key, MUTEX, lease)

    def hold(self, **options: Unpack[HoldOptions]) -> Holding:
        """Hold it for the length of an ``async with`` block, or of each call of a function that this decorates.

        Takes the options of :class:`~standfast.locks.HoldOptions`: ``timeout``, ``lease``, ``max_hold``, ``on_lost``,
        ``owner``, ``note``.

        Raises:
            HoldTimeoutError: On entering: it did not become free in time. Nothing is held and nobody waits.
            ReentryError: On entering: its owner holds it already, and would wait for itself.
            WaitCycleError: On entering: its holder waits, perhaps through others, for this owner.
            LeaseLostError: On leaving: it was lost while the block ran; the block has been cancelled.
            StoreError: On entering: the store does not answer. Nothing is held.
        """
        return self._holding(options)

    def try_hold(self, **options: Unpack[HoldOptions]) -> Holding:
        """Hold it like :meth:`hold` if that can be had at once; never wait, and never stand in line.

        Raises:
            WouldWaitError: On entering: it is taken, or somebody waits for it.
        """
        return self._holding(options, waits=False)

"""A semaphore: at most so many permits in use at a time, across all processes on the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack, final

from standfast.errors import LockKindError
from standfast.locks.algebra.line import Rules
from standfast.locks.algebra.record import check_permits
from standfast.locks.driving.records import Site
from standfast.locks.driving.requests import Resize, WrongKind
from standfast.locks.locking import DurableLock

if TYPE_CHECKING:
    from standfast.keys import Key
    from standfast.locks.driving.hold import Holding
    from standfast.locks.driving.lines import Lines
    from standfast.locks.options import HoldOptions


@final
class Semaphore(DurableLock):
    """A number of permits, handed out in order, in all processes on the store. Get it from ``space.semaphore``.

    The number is kept with the line. While the line is in use its number counts, and a call site that says another
    one is told so; :meth:`resize` changes it for everybody.

    >>> async with sf.open("memory://") as space:
    ...     async with space.semaphore("vendor-api", permits=3).hold():
    ...         pass
    """

    __slots__ = ()

    def __init__(self, lines: Lines, key: Key | str, permits: int, lease: float) -> None:
        super().__init__(lines, key, Site("semaphore", Rules(check_permits(permits))), lease)

    def hold(self, weight: int = 1, **options: Unpack[HoldOptions]) -> Holding:
        """Hold ``weight`` permits for the length of an ``async with`` block.

        They are granted together. One that needs many is not passed by those behind it that need fewer.

        Fences of a semaphore grow in each slot, not across slots: compare them only where one slot is meant.

        Args:
            weight: How many permits.
            options: As for :meth:`Mutex.hold <standfast.locks.Mutex.hold>`.

        Raises:
            TooHeavyError: On entering: there are not that many permits, so waiting would never end.
        """
        return self._holding(options, weight=check_permits(weight))

    def try_hold(self, weight: int = 1, **options: Unpack[HoldOptions]) -> Holding:
        """Hold permits like :meth:`hold` if they can be had at once; never wait."""
        return self._holding(options, weight=check_permits(weight), waits=False)

    async def resize(self, permits: int) -> None:
        """Set the number of permits for everybody, whatever call sites say, until :meth:`forget_size`.

        Nobody who holds is turned out: with fewer permits there are no new grants until enough have left. With more,
        those who fit are granted at once.

        Raises:
            LockKindError: The key is in use as another kind of lock.
        """
        await self._resize(Resize(check_permits(permits)))

    async def forget_size(self) -> None:
        """Let call sites say the number of permits again, beginning with this one."""
        await self._resize(Resize(self._site.rules.permits, pinned=False))

    async def _resize(self, request: Resize) -> None:
        answer = (await self._lines.line(self._address).driver.ask(request, self._site)).answer
        if isinstance(answer, WrongKind):
            raise LockKindError(str(self.key), answer.kind, self._site.kind)

"""Tasks that wait in order of arrival: the one place where raw futures are touched.

A wait ends in exactly one way, and its future says which: let in (True), out of time (False), or cancelled. The
future is settled once, at the moment that decides; the waiting task learns of it a tick later. In between, a
member that will not come any more still stands in the queue and is passed over.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

T = TypeVar("T")


class WaitQueue(Generic[T]):
    """A first-in, first-out queue whose members can leave from anywhere in constant time."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        # A plain dict would do, but finding its first key gets slower with every one removed before it.
        self._futures: OrderedDict[T, asyncio.Future[bool]] = OrderedDict()

    def __iter__(self) -> Iterator[T]:
        """Go through those that still wait, in order."""
        return (member for member, future in self._futures.items() if not future.done())

    def __contains__(self, member: T) -> bool:
        """Tell whether ``member`` still waits."""
        future = self._futures.get(member)
        return future is not None and not future.done()

    def first(self) -> T | None:
        """Return the first that still waits, and forget those before it."""
        while self._futures:
            member, future = next(iter(self._futures.items()))
            if not future.done():
                return member
            del self._futures[member]
        return None

    def let_in(self, member: T) -> None:
        """End the wait of ``member``: from now on it has what it waited for."""
        settle(self._futures.pop(member), let_in=True)

    async def wait(self, member: T, loop: asyncio.AbstractEventLoop, timeout: float | None) -> bool:
        """Join the queue; return True when let in, False when ``timeout`` seconds have passed first."""
        future: asyncio.Future[bool] = loop.create_future()
        self._futures[member] = future
        timer = None if timeout is None else loop.call_later(timeout, expire, future)
        try:
            return await future
        finally:
            if timer is not None:
                timer.cancel()
            self._futures.pop(member, None)


def expire(future: asyncio.Future[bool]) -> None:
    """Settle a wait as out of time, unless it has ended already."""
    if not future.done():
        settle(future, let_in=False)


def settle(future: asyncio.Future[bool], *, let_in: bool) -> None:
    """Settle a wait; on a loop that was closed underneath nobody is left to be told."""
    try:
        future.set_result(let_in)
    except RuntimeError:
        if not future.get_loop().is_closed():
            raise

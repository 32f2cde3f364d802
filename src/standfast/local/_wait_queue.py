"""Tasks that wait in order of arrival: the one place where raw futures are touched.

A wait ends in exactly one way, and its future says which: let in (True), out of time (False), or cancelled. The
future is settled once, at the moment that decides; the waiting task learns of it a tick later. In between, a
member that will not come any more still stands in the queue and is passed over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator


class Waiting(Protocol):
    """What can stand in a queue. The future is the queue's own."""

    future: asyncio.Future[bool]


T = TypeVar("T", bound=Waiting)


class WaitQueue(Generic[T]):
    """A first-in, first-out queue whose members can leave from anywhere in constant time."""

    __slots__ = ("_gone", "_members")

    def __init__(self) -> None:
        self._members: deque[T] = deque()
        self._gone = 0

    def __iter__(self) -> Iterator[T]:
        """Go through those that still wait, in order."""
        return (member for member in self._members if not member.future.done())

    def __len__(self) -> int:
        """Return the length of the queue, with some that have gone."""
        return len(self._members)

    def first(self) -> T | None:
        """Return the first that still waits, and forget those before it."""
        members = self._members
        while members:
            if not members[0].future.done():
                return members[0]
            members.popleft()
            self._gone -= 1
        return None

    def let_in(self) -> T | None:
        """End the wait of the first that still waits, and return it: it has what it waited for."""
        members = self._members
        while members:
            member = members.popleft()
            try:
                member.future.set_result(True)
            except asyncio.InvalidStateError:  # its wait has ended another way
                self._gone -= 1
                continue
            except RuntimeError:
                if not member.future.get_loop().is_closed():  # on a closed loop nobody is left to be told
                    raise
            return member
        return None

    def join(self, member: T, loop: asyncio.AbstractEventLoop, timeout: float | None) -> Awaitable[bool]:
        """Stand at the end; the answer is True when let in, False when ``timeout`` seconds have passed first."""
        member.future = future = loop.create_future()
        self._members.append(member)
        if timeout is not None:
            timer = loop.call_later(timeout, expire, future)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    def leave(self) -> None:
        """Note that a member is gone. They are swept out when they outnumber those who stay."""
        self._gone += 1
        if self._gone * 2 > len(self._members):
            self._members = deque(self)
            self._gone = 0


def expire(future: asyncio.Future[bool]) -> None:
    """Settle a wait as out of time, unless it has ended already."""
    if not future.done():
        future.set_result(False)

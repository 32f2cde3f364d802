"""Tasks that wait in order of arrival: the one place where raw futures are touched.

A wait ends in exactly one way, and its future says which: let in (True), out of time (False), or cancelled. The
future is settled once, at the moment that decides; the waiting task learns of it a tick later. In between, a
member that will not come any more still stands in the queue and is passed over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from standfast.errors import UnknownModeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from standfast.exclusion import Entry, Task
    from standfast.keys import Key, KeyFamily


# --- which holders may share a key: the whole algebra of modes, as functions of values -----------------------------
#
# A family declares its modes. Holders share a key only in one and the same mode, and only if that mode is not one
# of those that stand ``alone``. A family without modes knows the one mode ``None``, which nobody shares.


def require_mode(family: KeyFamily, mode: str | None) -> None:
    """Refuse a mode that the family does not declare, and the lack of one where it declares some."""
    if mode in family.modes or mode in family.alone:
        return
    if mode is not None or family.modes or family.alone:
        raise UnknownModeError(family.name, mode, (*family.modes, *family.alone))


def share(family: KeyFamily, held: str | None, wanted: str | None) -> bool:
    """Tell whether a key held in mode ``held`` may at the same time be held in mode ``wanted``."""
    return held == wanted and wanted in family.modes


# --- tasks that wait in order of arrival: the one place where raw futures are touched ------------------------------


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


# --- A key that more than one entry is concerned with --------------------------------------------------------------


class Line:
    """Those who hold a key, all in one mode, and those who wait for it, in order of arrival.

    Nearly always one holds it, so that one has a place of its own; those who share the key with it are in ``others``.
    """

    __slots__ = ("can_be_shared", "holder", "key", "others", "waiters")

    def __init__(self, holder: Entry) -> None:
        self.key: Key = holder.key
        self.can_be_shared = bool(holder.key.family.modes)
        self.holder: Entry | None = holder
        self.others: dict[Task, Entry] = {}
        self.waiters: WaitQueue[Entry] = WaitQueue()

    def holders(self) -> list[Entry]:
        """Return those who hold the key."""
        return [] if self.holder is None else [self.holder, *self.others.values()]

    def held_by(self, task: Task) -> Entry | None:
        """Return what ``task`` holds the key with, if it does."""
        if self.holder is not None and self.holder.task is task:
            return self.holder
        return self.others.get(task)

    def admits(self, entry: Entry) -> bool:
        """Tell whether a newcomer may enter at once: nobody waits, and there is room for it."""
        return self.waiters.first() is None and self.has_room_for(entry)

    def has_room_for(self, entry: Entry) -> bool:
        """Tell whether nobody holds the key, or all who do share it with ``entry``."""
        return self.holder is None or share(self.key.family, self.holder.mode, entry.mode)

    def add(self, entry: Entry) -> None:
        """Put a newcomer among the holders."""
        entry.line = self
        if self.holder is None:
            self.holder = entry
        else:
            self.others[entry.task] = entry

    def remove(self, entry: Entry) -> None:
        """Take one of several holders out."""
        if self.holder is not entry:
            del self.others[entry.task]
        else:
            self.holder = self.others.pop(next(iter(self.others)))

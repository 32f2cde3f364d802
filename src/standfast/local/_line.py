"""A key that more than one entry is concerned with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.local._modes import share
from standfast.local._wait_queue import WaitQueue

if TYPE_CHECKING:
    from standfast.keys import Key
    from standfast.local._caller import Task
    from standfast.local._entry import Entry


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

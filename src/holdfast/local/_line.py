"""A key that more than one entry is concerned with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.local._modes import share
from holdfast.local._wait_queue import WaitQueue

if TYPE_CHECKING:
    from holdfast.local._caller import Task
    from holdfast.local._entry import Entry


class Line:
    """Those who hold a key, all in one mode, and those who wait for it, in order of arrival."""

    __slots__ = ("holders", "key", "waiters")

    def __init__(self, holder: Entry) -> None:
        self.key = holder.key
        self.holders: dict[Task, Entry] = {holder.task: holder}
        self.waiters: WaitQueue[Entry] = WaitQueue()

    def admits(self, entry: Entry) -> bool:
        """Tell whether a newcomer may enter at once: nobody waits, and the holders share the key with it."""
        return self.waiters.first() is None and self._has_room_for(entry)

    def next(self) -> Entry | None:
        """Return the first waiter, if it may enter now."""
        first = self.waiters.first()
        return first if first is not None and self._has_room_for(first) else None

    def _has_room_for(self, entry: Entry) -> bool:
        for holder in self.holders.values():
            return share(self.key.family, holder.mode, entry.mode)  # all holders are in one mode
        return True

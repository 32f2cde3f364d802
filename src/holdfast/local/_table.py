"""The state of one exclusion: who holds what, and who waits for what.

A key that nobody wants has no entry. One that a single task holds maps to that task's entry itself, and only a
second task that asks for it makes a :class:`Line` of it. All changes happen on one event loop, between two awaits,
so they need no lock; what another thread or loop does here is refused.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from holdfast.errors import (
    HoldMisuseError,
    HoldTimeoutError,
    ReentryError,
    WaitCycleError,
    WouldWaitError,
    WrongLoopError,
)
from holdfast.local._caller import current_task, here, running_loop
from holdfast.local._entry import NEVER_WAITS
from holdfast.local._line import Line

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from holdfast.keys import Key
    from holdfast.local._caller import Task
    from holdfast.local._entry import Entry
    from holdfast.local.lock_order import LockOrder

_binding = threading.Lock()


class Table:
    """Entries by key and by task. The fast path of :class:`Hold` reads and writes it directly."""

    __slots__ = ("entries", "held", "home", "loop", "now", "order", "stuck")

    def __init__(self, order: LockOrder, now: Callable[[], float]) -> None:
        self.entries: dict[bytes, Entry | Line] = {}
        self.held: dict[Task, Entry | list[Entry]] = {}
        self.stuck: dict[Task, Entry] = {}
        self.home: object = object()  # equal to no place until the table is bound to one
        self.loop: asyncio.AbstractEventLoop | None = None
        self.order = order
        self.now = now

    # --- taking -------------------------------------------------------------------------------------------------

    async def take(self, entry: Entry) -> None:
        """Take the key for the current task, after waiting for it if need be; for all but the simplest case."""
        task = self._caller()
        place = self.entries.get(entry.key.encoded)
        _refuse_reentry(entry, place, task)
        if task in self.held:
            self.order.check(self.holds_of(task), entry)
        entry.task, entry.at = task, self.now()
        if place is None:
            self.entries[entry.key.encoded] = entry
            self._note(entry)
            entry.alone = self.held[task] is entry
        elif (line := self._line(place)).admits(entry):
            line.holders[task] = entry
            self._note(entry)
        else:
            await self._wait(line, entry)

    async def _wait(self, line: Line, entry: Entry) -> None:
        if entry.timeout == NEVER_WAITS:
            raise WouldWaitError(str(entry.key), _described(line.holders.values()))
        if entry.timeout is None and entry.task in self.held:
            self._refuse_cycle(entry)
            self.stuck[entry.task] = entry
        entry.alone = False
        try:
            let_in = await line.waiters.wait(entry, entry.task.get_loop(), entry.timeout)
        except BaseException:
            self._withdraw(line, entry)
            raise
        finally:
            self.stuck.pop(entry.task, None)
        if not let_in:
            holders = _described(line.holders.values())
            self._withdraw(line, entry)
            raise HoldTimeoutError(str(entry.key), entry.timeout or 0.0, holders)

    def _line(self, place: Entry | Line) -> Line:
        """Return the line of a key that is taken; make one if a single entry has held it so far."""
        if isinstance(place, Line):
            return place
        place.alone = False
        line = self.entries[place.key.encoded] = Line(place)
        return line

    # --- letting go ---------------------------------------------------------------------------------------------

    def leave(self, entry: Entry) -> None:
        """Let go of a key, for all but the simplest case."""
        if not self._is_held(entry):
            raise HoldMisuseError(str(entry.key), "was left without being held")
        if here() != self.home and self.loop is not None and self.loop.is_running():
            self.loop.call_soon_threadsafe(self.release, entry)
            raise WrongLoopError("hold", f"of {entry.key} was left outside the event loop that it was taken on")
        self.release(entry)

    def release(self, entry: Entry) -> None:
        """Let go of a key and hand it over to whoever comes next."""
        entry.alone = None
        self._forget(entry)
        place = self.entries[entry.key.encoded]
        if isinstance(place, Line):
            del place.holders[entry.task]
            self._hand_over(place)
        else:
            del self.entries[entry.key.encoded]

    def _withdraw(self, line: Line, entry: Entry) -> None:
        """Leave the line without the key; if it was handed over in this very tick, pass it on."""
        if self._is_held(entry):
            self.release(entry)
        else:
            entry.alone = None
            self._hand_over(line)

    def _hand_over(self, line: Line) -> None:
        """Let in the waiters whose turn has come, and forget a key that nobody wants any more."""
        while (waiter := line.next()) is not None:
            line.holders[waiter.task] = waiter
            waiter.at = self.now()
            self._note(waiter)
            line.waiters.let_in(waiter)
        if not line.holders and self.entries.get(line.key.encoded) is line:
            del self.entries[line.key.encoded]

    def _is_held(self, entry: Entry) -> bool:
        if entry.alone is None:
            return False
        place = self.entries.get(entry.key.encoded)
        return place.holders.get(entry.task) is entry if isinstance(place, Line) else place is entry

    # --- who holds and waits ------------------------------------------------------------------------------------

    def holders_of(self, key: Key) -> list[Entry]:
        """Return the entries that hold ``key``."""
        place = self.entries.get(key.encoded)
        if isinstance(place, Line):
            return list(place.holders.values())
        return [] if place is None else [place]

    def holds_of(self, task: Task) -> list[Entry]:
        """Return what ``task`` holds, first taken first."""
        held = self.held.get(task, [])
        return held if isinstance(held, list) else [held]

    def _note(self, entry: Entry) -> None:
        """Note that its task holds ``entry``, together with what it holds already."""
        entry.alone = False
        held = self.held.get(entry.task)
        if held is None:
            self.held[entry.task] = entry
        elif isinstance(held, list):
            held.append(entry)
        else:
            held.alone = False
            self.held[entry.task] = [held, entry]

    def _forget(self, entry: Entry) -> None:
        held = self.held[entry.task]
        if isinstance(held, list):
            held.remove(entry)
        if held is entry or not held:
            del self.held[entry.task]

    def _refuse_cycle(self, entry: Entry) -> None:
        """Refuse a wait that could never end, because those who hold the key wait for the one who asks."""
        trail: list[list[Entry]] = [[holder] for holder in self.holders_of(entry.key)]
        seen: set[Task] = set()
        while trail:
            path = trail.pop()
            holder = path[-1]
            if holder.task is entry.task:
                raise WaitCycleError(str(entry.key), entry.site, _described(path))
            waiting = None if holder.task in seen else self._waiting(holder.task)
            seen.add(holder.task)
            if waiting is not None:
                trail.extend([*path, further] for further in self.holders_of(waiting.key))

    def _waiting(self, task: Task) -> Entry | None:
        """Return what ``task`` waits for without end, if it still does."""
        entry = self.stuck.get(task)
        if entry is None:
            return None
        line = self.entries.get(entry.key.encoded)
        return entry if isinstance(line, Line) and entry in line.waiters else None

    # --- the loop that it belongs to ----------------------------------------------------------------------------

    def _caller(self) -> Task:
        """Return the running task; bind the table to its loop, or refuse the wrong one."""
        if here() != self.home or (task := current_task(self.loop)) is None:
            self._bind()
            task = current_task(self.loop)
        if task is None:
            raise WrongLoopError("exclusion", "was used outside a task")
        return task

    def _bind(self) -> None:
        loop = running_loop()
        if loop is None:
            raise WrongLoopError("exclusion", "was used where no event loop runs")
        with _binding:  # of two threads that are the first, one wins
            if self.loop is loop:
                return
            if self.loop is not None and not self.loop.is_closed():
                raise WrongLoopError("exclusion", "belongs to another event loop")
            if self.entries:
                raise WrongLoopError("exclusion", f"was left with {len(self.entries)} keys held by a closed event loop")
            self.loop, self.home = loop, here()


def _refuse_reentry(entry: Entry, place: Entry | Line | None, task: Task) -> None:
    if entry.alone is not None and entry.task is not task:
        raise HoldMisuseError(str(entry.key), "was entered by a second task while the first was using it")
    holder = place.holders.get(task) if isinstance(place, Line) else place
    if holder is not None and holder.task is task:
        raise ReentryError(str(entry.key), holder.site, entry.site)


def _described(entries: Iterable[Entry]) -> tuple[str, ...]:
    return tuple(entry.described() for entry in entries)

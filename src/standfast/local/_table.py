"""The state of one exclusion: who holds what, and who waits for what.

A key that nobody wants has no entry. One that a single task holds maps to that task's entry itself, and only a
second task that asks for it makes a :class:`Line` of it. All changes happen on one event loop, between two awaits,
so they need no lock; what another thread or loop does here is refused.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from standfast.errors import (
    HoldMisuseError,
    HoldTimeoutError,
    ReentryError,
    WaitCycleError,
    WouldWaitError,
    WrongLoopError,
)
from standfast.local._caller import current_task, here, running_loop
from standfast.local._done import DONE
from standfast.local._entry import NEVER_WAITS
from standfast.local._line import Line

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Iterable

    from standfast.keys import Key
    from standfast.local._caller import Task
    from standfast.local._entry import Entry
    from standfast.local.lock_order import LockOrder

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

    def take(self, entry: Entry) -> Coroutine[Any, Any, None]:
        """Take the key for the current task, after waiting for it if need be; for all but the simplest case."""
        task = self._caller()
        place = self.entries.get(entry.key.encoded)
        _refuse_reentry(entry, place, task)
        if task in self.held:
            self.order.check(self.holds_of(task), entry)
        entry.task = task
        entry.at = self.now()
        if place is None:
            self.entries[entry.key.encoded] = entry
            self._note(entry)
            entry.alone = self.held[task] is entry
        elif (line := self._line(place)).admits(entry):
            line.add(entry)
            self._note(entry)
        else:
            return self._wait(line, entry)
        return DONE

    async def _wait(self, line: Line, entry: Entry) -> None:
        if self.entries.get(entry.key.encoded) is not line:
            return await self.take(entry)  # this was not awaited at once, and the line is gone
        if entry.timeout == NEVER_WAITS:
            raise WouldWaitError(str(entry.key), _described(line.holders()))
        if entry.timeout is None and entry.task in self.held:
            self._refuse_cycle(entry)
            self.stuck[entry.task] = entry
        entry.alone, entry.line = False, line
        try:
            let_in = await line.waiters.join(entry, entry.task.get_loop(), entry.timeout)
        except BaseException:
            self._withdraw(line, entry)
            raise
        finally:
            if self.stuck:
                self.stuck.pop(entry.task, None)
        if not let_in:
            holders = _described(line.holders())
            self._withdraw(line, entry)
            raise HoldTimeoutError(str(entry.key), entry.timeout or 0.0, holders)
        return None

    def _line(self, place: Entry | Line) -> Line:
        """Return the line of a key that is taken; make one if a single entry has held it so far."""
        if isinstance(place, Line):
            return place
        place.alone = False
        place.line = line = Line(place)
        self.entries[place.key.encoded] = line
        return line

    # --- letting go ---------------------------------------------------------------------------------------------

    def leave(self, entry: Entry) -> None:
        """Let go of a key, for all but the simplest case, and hand it over to whoever comes next.

        Written in one piece, because each call of a function would cost two hundredths of a hand-over.
        """
        line = entry.line
        if (line is None or line.holder is not entry) and not self._is_held(entry):
            raise HoldMisuseError(str(entry.key), "was left without being held")
        if here() != self.home and self.loop is not None and self.loop.is_running():
            self.loop.call_soon_threadsafe(self.leave, entry)
            raise WrongLoopError("hold", f"of {entry.key} was left outside the event loop that it was taken on")
        entry.alone = entry.line = None
        held = self.held.pop(entry.task)
        if held is not entry:
            self._forget(entry, held)
        if line is None:
            del self.entries[entry.key.encoded]
            return
        if line.others:
            line.remove(entry)
            return
        line.holder = waiter = line.waiters.let_in()  # here the key changes hands, with no moment in between
        if waiter is None:
            del self.entries[line.key.encoded]
            return
        now = self.now
        waiter.at = now()
        if self.held.setdefault(waiter.task, waiter) is not waiter:
            self._note(waiter)
        if line.can_be_shared:
            self._let_in_sharers(line)

    def _is_held(self, entry: Entry) -> bool:
        if entry.alone is None:
            return False
        if entry.line is not None:
            return entry.line.held_by(entry.task) is entry
        return self.entries.get(entry.key.encoded) is entry

    def _let_in_sharers(self, line: Line) -> None:
        """Let in the waiters at the head that share the key with those who hold it."""
        while (waiter := line.waiters.first()) is not None and line.has_room_for(waiter):
            line.waiters.let_in()
            line.others[waiter.task] = waiter
            waiter.at = self.now()
            self._note(waiter)

    def _withdraw(self, line: Line, entry: Entry) -> None:
        """Leave the line without the key; if it was handed over in this very tick, pass it on."""
        if self._is_held(entry):
            self.leave(entry)
        else:
            entry.alone = entry.line = None
            line.waiters.leave()
            self._let_in_sharers(line)

    # --- who holds and waits ------------------------------------------------------------------------------------

    def holders_of(self, key: Key) -> list[Entry]:
        """Return the entries that hold ``key``."""
        place = self.entries.get(key.encoded)
        if isinstance(place, Line):
            return place.holders()
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

    def _forget(self, entry: Entry, held: Entry | list[Entry]) -> None:
        """Put back what its task holds beside ``entry``."""
        others = [other for other in held if other is not entry] if isinstance(held, list) else []
        if others:
            self.held[entry.task] = others

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
        return None if entry.future.done() else entry

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
    holder = place.held_by(task) if isinstance(place, Line) else place
    if holder is not None and holder.task is task:
        raise ReentryError(str(entry.key), holder.site, entry.site)


def _described(entries: Iterable[Entry]) -> tuple[str, ...]:
    return tuple(entry.described() for entry in entries)

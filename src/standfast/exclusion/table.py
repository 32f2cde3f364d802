"""The state of one exclusion: who holds which key, and who waits for it, in order of arrival."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypeVar, cast

from standfast.errors import (
    HoldTimeoutError,
    ReentryError,
    UsageError,
    WaitCycleError,
    WouldWaitError,
)
from standfast.keys import unknown_mode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
    from types import CodeType

    from standfast.keys import Key, KeyFamily

    here: Callable[[], object]
    current_task: Callable[[asyncio.AbstractEventLoop | None], asyncio.Task[Any] | None]
    CheckOrder: TypeAlias = Callable[[Iterable["TaskEntry"], "TaskEntry"], None]


# --- who calls, and from where, told as cheaply as the interpreter can ---------------------------------------------
#
# ``here()`` names the place that an exclusion is bound to, ``current_task(loop)`` the task that runs there now. They
# sit on the path of every hold, where a nanosecond is worth a comment.

Task: TypeAlias = "asyncio.Task[Any]"

running_loop = asyncio._get_running_loop  # noqa: SLF001 -- in asyncio's __all__; tells None instead of raising

if sys.version_info >= (3, 12):
    here = running_loop
    current_task = asyncio.current_task
else:
    # In 3.11 finding the running loop makes a system call, and current_task is Python around this dictionary. A
    # thread that is not the loop's own is told apart by its id; another loop of the same thread has no task here.
    here = threading.get_ident
    current_task = vars(asyncio.tasks)["_current_tasks"].get


def site(code: CodeType, offset: int) -> str:
    """Return ``file:line`` of the instruction at ``offset``."""
    lines = (line for start, end, line in code.co_lines() if start <= offset < end and line is not None)
    return f"{code.co_filename}:{next(lines, code.co_firstlineno)}"


# --- what a hold of a free key returns: an awaitable that is already done ------------------------------------------
#
# It is awaited twice for every hold. A coroutine would cost more than all the locking, so there is none.

_nothing = iter(())


class _Done:
    __slots__ = ()

    __await__ = _nothing.__iter__  # an exhausted iterator is its own iterator, and stays exhausted


class _NoLoop:
    """All that a future asks of its loop when it is never awaited."""

    def get_debug(self) -> bool:
        return False


def _done() -> object:
    if sys.version_info >= (3, 12):
        return _Done()
    future: asyncio.Future[None] = asyncio.Future(loop=cast("Any", _NoLoop()))  # the cheapest to await in 3.11
    future.set_result(None)
    return future


# Type checkers want an async context manager to return coroutines; ``async with`` takes whatever can be awaited.
DONE: Final = cast("Coroutine[Any, Any, None]", _done())


# --- one acquisition of a key, from asking to letting go -----------------------------------------------------------

NEVER_WAITS: Final = -1.0
"""The timeout of an entry that is refused rather than left to wait."""


class TaskEntry:
    """What is known about one acquisition. Made without ``__init__``: that alone would cost a tenth of a hold."""

    __slots__ = ("alone", "at", "code", "future", "key", "line", "mode", "offset", "table", "task", "timeout")

    table: Table
    key: Key
    mode: str | None
    timeout: float | None
    """Seconds that it may wait; None is for ever, ``NEVER_WAITS`` is not at all."""
    code: CodeType
    offset: int
    """Where it was asked for: kept raw, made readable only when it is read."""
    task: Task
    at: float
    """When the task took the key or, while it waits, when it asked."""
    line: KeyLine | None
    """The line that it waits in or holds from; None as long as no other task is concerned with its key."""
    future: asyncio.Future[bool]
    """How its wait ended; unset if it has never waited."""
    alone: bool | None
    """True: held, and neither the key nor the task has anything to do with another entry. False: it has, or it
    waits. None: not in use."""

    @property
    def site(self) -> str:
        """Where it was asked for: ``file:line``."""
        return site(self.code, self.offset)

    def described(self) -> str:
        """Name the task and the place, for an error."""
        return f"{self.task.get_name()} at {self.site}"


# --- which holders may share a key: the whole algebra of modes, as functions of values -----------------------------
#
# A family declares its modes. Holders share a key only in one and the same mode, and only if that mode is not one
# of those that stand ``alone``. A family without modes knows the one mode ``None``, which is never shared.


def require_mode(family: KeyFamily, mode: str | None) -> None:
    """Refuse a mode that the family does not declare, and the lack of one where it declares some."""
    if mode in family.modes or mode in family.alone:
        return
    if mode is not None or family.modes or family.alone:
        raise unknown_mode(family.name, mode, (*family.modes, *family.alone))


def share(family: KeyFamily, held: str | None, wanted: str | None) -> bool:
    """Return True if a key held in mode ``held`` may at the same time be held in mode ``wanted``."""
    return held == wanted and wanted in family.modes


# --- tasks that wait in order of arrival: the one place where raw futures are touched ------------------------------


class QueueMember(Protocol):
    """What can stand in a queue. The future is the queue's own."""

    future: asyncio.Future[bool]


QueuedT = TypeVar("QueuedT", bound=QueueMember)


class WaitQueue(Generic[QueuedT]):
    """A first-in, first-out queue whose members can leave from anywhere in constant time."""

    __slots__ = ("_gone", "_members")

    def __init__(self) -> None:
        self._members: deque[QueuedT] = deque()
        self._gone = 0

    def __iter__(self) -> Iterator[QueuedT]:
        """Go through those that still wait, in order."""
        return (member for member in self._members if not member.future.done())

    def __len__(self) -> int:
        """Return the length of the queue, with some that have gone."""
        return len(self._members)

    def first(self) -> QueuedT | None:
        """Return the first that still waits, and forget those before it."""
        members = self._members
        while members:
            if not members[0].future.done():
                return members[0]
            members.popleft()
            self._gone -= 1
        return None

    def let_in(self) -> QueuedT | None:
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
                if not member.future.get_loop().is_closed():  # on a closed loop no task is left to be told
                    raise
            return member
        return None

    def join(self, member: QueuedT, loop: asyncio.AbstractEventLoop, timeout: float | None) -> Awaitable[bool]:
        """Stand at the end; the answer is True when let in, False when ``timeout`` seconds have passed first."""
        member.future = future = loop.create_future()
        self._members.append(member)
        if timeout is not None:
            timer = loop.call_later(timeout, expire, future)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    def leave(self) -> None:
        """Note that a member is gone. They are swept out when they outnumber those that stay."""
        self._gone += 1
        if self._gone * 2 > len(self._members):
            self._members = deque(self)
            self._gone = 0


def expire(future: asyncio.Future[bool]) -> None:
    """Settle a wait as out of time, unless it has ended already."""
    if not future.done():
        future.set_result(False)


# --- A key that more than one entry is concerned with --------------------------------------------------------------


class KeyLine:
    """The holders of a key, all in one mode, and its waiters, in order of arrival.

    Nearly always one holds it, so that one has a place of its own; those that share the key with it are in ``others``.
    """

    __slots__ = ("can_be_shared", "holder", "key", "others", "waiters")

    def __init__(self, holder: TaskEntry) -> None:
        self.key: Key = holder.key
        self.can_be_shared = bool(holder.key.family.modes)
        self.holder: TaskEntry | None = holder
        self.others: dict[Task, TaskEntry] = {}
        self.waiters: WaitQueue[TaskEntry] = WaitQueue()

    def holders(self) -> list[TaskEntry]:
        """Return the holders of the key."""
        return [] if self.holder is None else [self.holder, *self.others.values()]

    def held_by(self, task: Task) -> TaskEntry | None:
        """Return what ``task`` holds the key with, if it does."""
        if self.holder is not None and self.holder.task is task:
            return self.holder
        return self.others.get(task)

    def admits(self, entry: TaskEntry) -> bool:
        """Return True if a newcomer may enter at once: none waits, and there is room for it."""
        return self.waiters.first() is None and self.has_room_for(entry)

    def has_room_for(self, entry: TaskEntry) -> bool:
        """Return True if the key has no holder, or all holders share it with ``entry``."""
        return self.holder is None or share(self.key.family, self.holder.mode, entry.mode)

    def add(self, entry: TaskEntry) -> None:
        """Put a newcomer among the holders."""
        entry.line = self
        if self.holder is None:
            self.holder = entry
        else:
            self.others[entry.task] = entry

    def remove(self, entry: TaskEntry) -> None:
        """Take one of several holders out."""
        if self.holder is not entry:
            del self.others[entry.task]
        else:
            self.holder = self.others.pop(next(iter(self.others)))


# --- the state of one exclusion: who holds what, and who waits for what --------------------------------------------
#
# A key that is not wanted has no entry. One that a single task holds maps to that task's entry itself, and only a
# second task that asks for it makes a :class:`KeyLine` of it. All changes happen on one event loop, between two awaits,
# so they need no lock; what another thread or loop does here is refused.

_binding = threading.Lock()


class Table:
    """Entries by key and by task. The fast path of :class:`Hold` reads and writes it directly."""

    __slots__ = ("check_order", "entries", "held", "home", "loop", "now", "stuck")

    def __init__(self, check_order: CheckOrder, now: Callable[[], float]) -> None:
        self.entries: dict[bytes, TaskEntry | KeyLine] = {}
        self.held: dict[Task, TaskEntry | list[TaskEntry]] = {}
        self.stuck: dict[Task, TaskEntry] = {}
        self.home: object = object()  # equal to no place until the table is bound to one
        self.loop: asyncio.AbstractEventLoop | None = None
        self.check_order = check_order
        self.now = now

    # --- taking -------------------------------------------------------------------------------------------------

    def take(self, entry: TaskEntry) -> Coroutine[Any, Any, None]:
        """Take the key for the current task, after waiting for it if need be; for all but the simplest case."""
        task = self._caller()
        place = self.entries.get(entry.key.encoded)
        _refuse_reentry(entry, place, task)
        if task in self.held:
            self.check_order(self.holds_of(task), entry)
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

    async def _wait(self, line: KeyLine, entry: TaskEntry) -> None:
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

    def _line(self, place: TaskEntry | KeyLine) -> KeyLine:
        """Return the line of a key that is taken; make one if a single entry has held it so far."""
        if isinstance(place, KeyLine):
            return place
        place.alone = False
        place.line = line = KeyLine(place)
        self.entries[place.key.encoded] = line
        return line

    # --- letting go ---------------------------------------------------------------------------------------------

    def leave(self, entry: TaskEntry) -> None:
        """Let go of a key, for all but the simplest case, and hand it over to the next waiter.

        Written in one piece, because each call of a function would cost two hundredths of a hand-over.
        """
        line = entry.line
        if (line is None or line.holder is not entry) and not self._is_held(entry):
            raise UsageError(
                f"the hold of {entry.key!s}", "was left without being held", "make a new hold for each block"
            )
        if here() != self.home and self.loop is not None and self.loop.is_running():
            self.loop.call_soon_threadsafe(self.leave, entry)
            raise UsageError(
                "hold",
                f"of {entry.key} was left outside the event loop in which it was entered",
                "make one for each event loop, or use a store to share between threads",
            )
        entry.alone = entry.line = None
        held = self.held.pop(entry.task)
        if held is not entry and isinstance(held, list) and (rest := [each for each in held if each is not entry]):
            self.held[entry.task] = rest
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

    def _is_held(self, entry: TaskEntry) -> bool:
        if entry.alone is None:
            return False
        if entry.line is not None:
            return entry.line.held_by(entry.task) is entry
        return self.entries.get(entry.key.encoded) is entry

    def _let_in_sharers(self, line: KeyLine) -> None:
        """Let in the waiters at the head that share the key with its holders."""
        while (waiter := line.waiters.first()) is not None and line.has_room_for(waiter):
            line.waiters.let_in()
            line.others[waiter.task] = waiter
            waiter.at = self.now()
            self._note(waiter)

    def _withdraw(self, line: KeyLine, entry: TaskEntry) -> None:
        """Leave the line without the key; if it was handed over in this very tick, pass it on."""
        if self._is_held(entry):
            self.leave(entry)
        else:
            entry.alone = entry.line = None
            line.waiters.leave()
            self._let_in_sharers(line)

    # --- who holds and waits ------------------------------------------------------------------------------------

    def holders_of(self, key: Key) -> list[TaskEntry]:
        """Return the entries that hold ``key``."""
        place = self.entries.get(key.encoded)
        if isinstance(place, KeyLine):
            return place.holders()
        return [] if place is None else [place]

    def holds_of(self, task: Task) -> list[TaskEntry]:
        """Return what ``task`` holds, first taken first."""
        held = self.held.get(task, [])
        return held if isinstance(held, list) else [held]

    def _note(self, entry: TaskEntry) -> None:
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

    def _refuse_cycle(self, entry: TaskEntry) -> None:
        """Refuse a wait that could never end, because the holders of the key wait for the task that asks."""
        trail: list[list[TaskEntry]] = [[holder] for holder in self.holders_of(entry.key)]
        seen: set[Task] = set()
        while trail:
            path = trail.pop()
            holder = path[-1]
            if holder.task is entry.task:
                raise WaitCycleError(str(entry.key), entry.site, _described(path))
            waiting = None if holder.task in seen else self.stuck.get(holder.task)
            seen.add(holder.task)
            if waiting is not None and not waiting.future.done():
                trail.extend([*path, further] for further in self.holders_of(waiting.key))

    # --- the loop that it belongs to ----------------------------------------------------------------------------

    def _caller(self) -> Task:
        """Return the running task; bind the table to its loop, or refuse the wrong one."""
        if here() != self.home or (task := current_task(self.loop)) is None:
            self._bind()
            task = current_task(self.loop)
        if task is None:
            raise UsageError(
                "exclusion",
                "was used outside a task",
                "make one for each event loop, or use a store to share between threads",
            )
        return task

    def _bind(self) -> None:
        loop = running_loop()
        if loop is None:
            raise UsageError(
                "exclusion",
                "was used where no event loop runs",
                "make one for each event loop, or use a store to share between threads",
            )
        with _binding:  # of two threads that are the first, one wins
            if self.loop is loop:
                return
            if self.loop is not None and not self.loop.is_closed():
                raise UsageError(
                    "exclusion",
                    "belongs to another event loop",
                    "make one for each event loop, or use a store to share between threads",
                )
            if self.entries:
                raise UsageError(
                    "exclusion",
                    f"was left with {len(self.entries)} keys held by a closed event loop",
                    "make one for each event loop, or use a store to share between threads",
                )
            self.loop, self.home = loop, here()


def _refuse_reentry(entry: TaskEntry, place: TaskEntry | KeyLine | None, task: Task) -> None:
    if entry.alone is not None and entry.task is not task:
        raise UsageError(
            f"the hold of {entry.key!s}",
            "was entered by a second task while the first was using it",
            "make a new hold for each block",
        )
    holder = place.held_by(task) if isinstance(place, KeyLine) else place
    if holder is not None and holder.task is task:
        raise ReentryError(str(entry.key), holder.site, entry.site)


def _described(entries: Iterable[TaskEntry]) -> tuple[str, ...]:
    return tuple(entry.described() for entry in entries)

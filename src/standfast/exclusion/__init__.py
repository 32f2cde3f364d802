"""Exclusion between the tasks of one process: keyed locks, modes, lock order, and attempts under a key."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import warnings
from collections import OrderedDict
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, ParamSpec, TypeAlias, TypeVar, cast, final, overload

from msgspec import Struct

from standfast.clock import MICROSECONDS, SYSTEM_CLOCK, Instant, later, monotonic
from standfast.durations import seconds
from standfast.errors import (
    HoldMisuseError,
    HoldTimeoutError,
    LockOrderError,
    NotAsyncError,
    ReentryError,
    WaitCycleError,
    WouldWaitError,
    WrongLoopError,
)
from standfast.events import NO_HOOKS, Hooks, LockOrderInverted
from standfast.exclusion._table import Line, require_mode
from standfast.exclusion.retry import Attempt, Backoff, attempt_under
from standfast.keys import Key, require_key

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from types import CodeType, TracebackType

    from standfast.clock import Clock
    from standfast.durations import Duration
    from standfast.events import Hook
    from standfast.keys import KeyFamily

    here: Callable[[], object]
    current_task: Callable[[asyncio.AbstractEventLoop | None], asyncio.Task[Any] | None]
    Mark: TypeAlias = tuple[KeyFamily, KeyFamily, int, int, int, int]


__all__ = [
    "Attempt",
    "Backoff",
    "Exclusion",
    "Hold",
    "Holder",
    "KeyState",
    "LockOrderWarning",
    "Waiter",
    "attempt_under",
]


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
    """All that a future asks of its loop when nobody ever waits for it."""

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


class Entry:
    """What is known about one acquisition. Made without ``__init__``: that alone would cost a tenth of a hold."""

    __slots__ = ("alone", "at", "code", "future", "key", "line", "mode", "offset", "table", "task", "timeout")

    table: Table
    key: Key
    mode: str | None
    timeout: float | None
    """Seconds that it may wait; None is for ever, ``NEVER_WAITS`` is not at all."""
    code: CodeType
    offset: int
    """Where it was asked for: kept raw, made readable only when somebody reads it."""
    task: Task
    at: float
    """When the task took the key or, while it waits, when it asked."""
    line: Line | None
    """The line that it waits in or holds from; None as long as nobody else is concerned with its key."""
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


# --- what ``hold`` returns: the path that every acquisition takes --------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")


@final
class Hold(Entry):
    """A key to be held: for the length of an ``async with`` block, or of each call of a function that it decorates.

        async with exclusion.hold(REPO(path)):
            ...

        @exclusion.hold(MIGRATION())
        async def migrate() -> None: ...

    The key is asked for when the block is entered, not before, and it is free again when the block is left, however
    that happens: an exception, a cancellation, or a task that is thrown away. It belongs to the task that entered
    the block. Another task of the same event loop may leave it (an async generator is sometimes closed by another
    task than the one that ran it); the key is freed all the same.

    One hold serves one block at a time; ask for another with ``exclusion.hold`` rather than sharing it.
    """

    __slots__ = ()

    def __aenter__(self) -> Coroutine[Any, Any, None]:
        table = self.table
        encoded = self.key.encoded
        if (
            here() != table.home
            or (task := current_task(table.loop)) is None
            or task in table.held
            or encoded in table.entries
        ):
            return table.take(self)
        table.entries[encoded] = table.held[task] = self
        self.task = task
        self.alone = True
        now = table.now
        self.at = now()
        return DONE

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Coroutine[Any, Any, None]:
        table = self.table
        if not self.alone:
            table.leave(self)
            return DONE
        self.alone = None
        del table.entries[self.key.encoded]
        del table.held[self.task]
        return DONE

    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Decorate a coroutine function: each call takes the key anew and holds it until the call ends."""
        if not inspect.iscoroutinefunction(function):
            raise NotAsyncError(getattr(function, "__qualname__", repr(function)))

        @wraps(function)
        async def holding(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self._another():
                return await function(*args, **kwargs)

        return holding

    def _another(self) -> Hold:
        another = Hold()
        another.table, another.key, another.mode, another.timeout = self.table, self.key, self.mode, self.timeout
        another.code, another.offset = self.code, self.offset
        another.alone = another.line = None
        return another

    def __reduce__(self) -> NoReturn:
        raise HoldMisuseError(str(self.key), "cannot be copied or pickled")

    def __repr__(self) -> str:
        mode = "" if self.mode is None else f" in mode {self.mode!r}"
        return f"<Hold {self.key}{mode} from {self.site}>"


# --- what an exclusion looks like at one moment, as frozen values --------------------------------------------------


class Holder(Struct, frozen=True):
    """A task that holds a key."""

    task: str
    """The name of the task; give yours names with ``asyncio.create_task(..., name=...)``."""
    mode: str | None
    taken_at: Instant
    site: str
    """Where the key was asked for: ``file:line``."""


class Waiter(Struct, frozen=True):
    """A task that waits for a key."""

    task: str
    mode: str | None
    asked_at: Instant
    place: int
    """Its place in the line; 1 comes next."""
    site: str
    """Where the key was asked for: ``file:line``."""


class KeyState(Struct, frozen=True):
    """Who holds a key and who waits for it, in order. A key that nobody wants has neither."""

    key: Key
    holders: tuple[Holder, ...]
    waiters: tuple[Waiter, ...]


def key_state(key: Key, place: Entry | Line | None, when: Callable[[float], Instant]) -> KeyState:
    """Picture what the table says about a key."""
    if place is None:
        return KeyState(key, (), ())
    if isinstance(place, Line):
        holders = tuple(_holder(entry, when) for entry in place.holders())
        waiters = tuple(_waiter(entry, number, when) for number, entry in enumerate(place.waiters, 1))
        return KeyState(key, holders, waiters)
    return KeyState(key, (_holder(place, when),), ())


def wall_time(now: float, wall: Instant) -> Callable[[float], Instant]:
    """Return what turns a moment of a steady clock that now shows ``now`` into the time of day."""
    return lambda moment: later(wall, moment - now)


def _holder(entry: Entry, when: Callable[[float], Instant]) -> Holder:
    return Holder(entry.task.get_name(), entry.mode, when(entry.at), entry.site)


def _waiter(entry: Entry, place: int, when: Callable[[float], Instant]) -> Waiter:
    return Waiter(entry.task.get_name(), entry.mode, when(entry.at), place, entry.site)


# --- the state of one exclusion: who holds what, and who waits for what --------------------------------------------
#
# A key that nobody wants has no entry. One that a single task holds maps to that task's entry itself, and only a
# second task that asks for it makes a :class:`Line` of it. All changes happen on one event loop, between two awaits,
# so they need no lock; what another thread or loop does here is refused.

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


# --- in which order keys are taken while others are held -----------------------------------------------------------
#
# A declared order (``KeyFamily(..., after=...)``) is a rule: a task that breaks it is stopped. Where none is declared,
# the orders that tasks do use are noted, and two that contradict each other are reported once for each pair of places,
# before the day on which they meet and both tasks wait for ever.
#
# Orders are noted between families, and within one family between keys. Both memories are bounded.

K = TypeVar("K")
V = TypeVar("V")

MAX_NOTED: Final = 1_024
"""How many nestings of keys of one family, and how many pairs of places, are remembered; the oldest go first."""


class LockOrderWarning(RuntimeWarning):
    """Two keys are taken in both orders: one day two tasks will wait for each other for ever.

    Decide which comes first and declare it, ``KeyFamily(..., after=(FIRST,))``; for keys of one family, sort them.
    Given by an :class:`~standfast.exclusion.Exclusion` without hooks. Run tests with ``-W error`` to make it an error.
    """


class Nesting(NamedTuple):
    """One key asked for on top of another: where the one was taken, and where the other was asked for."""

    held: CodeType
    held_offset: int
    wanted: CodeType
    wanted_offset: int

    @classmethod
    def of(cls, held: Entry, wanted: Entry) -> Nesting:
        """Note the places of two entries, raw: nearly all of them are never shown to anybody."""
        return cls(held.code, held.offset, wanted.code, wanted.offset)

    def then(self, further: Nesting) -> Nesting:
        """Join two nestings to one that begins like this one and ends like ``further``."""
        return Nesting(self.held, self.held_offset, further.wanted, further.wanted_offset)


class LockOrder:
    """Knows the declared order and learns the one that is used."""

    __slots__ = ("_clock", "_families", "_has_contradictions", "_hooks", "_keys", "_seen")

    def __init__(self, hooks: Hooks = NO_HOOKS, clock: Clock = SYSTEM_CLOCK) -> None:
        self._hooks = hooks
        self._clock = clock
        self._families: dict[KeyFamily, dict[KeyFamily, Nesting]] = {}
        self._has_contradictions = False
        self._keys: OrderedDict[tuple[bytes, bytes], Nesting] = OrderedDict()
        # The nestings keep the code alive, so that no other code gets its identity.
        self._seen: OrderedDict[Mark, Nesting] = OrderedDict()

    def check(self, held: Iterable[Entry], wanted: Entry) -> None:
        """Refuse ``wanted`` if a key that is held must come after it; report it if the opposite has been seen.

        Called before anything is taken. What is refused rather than waited for can be part of no deadlock, so
        it is not noted.
        """
        for entry in held:
            mark = _mark(entry, wanted)
            if mark in self._seen:
                continue  # these two places are known: in order, or reported
            if wanted.key.family in families_before(entry.key.family):
                raise LockOrderError(str(entry.key), entry.site, str(wanted.key), wanted.site)
            if wanted.timeout != NEVER_WAITS:
                self._note(mark, entry, wanted)

    def _note(self, mark: Mark, held: Entry, wanted: Entry) -> None:
        first, then, nesting = held.key.family, wanted.key.family, Nesting.of(held, wanted)
        if first is then:
            self._note_keys(mark, nesting, held, wanted)
        else:
            remember(self._seen, mark, nesting)
            self._note_families(nesting, held, wanted)

    def _note_families(self, nesting: Nesting, held: Entry, wanted: Entry) -> None:
        first, then = held.key.family, wanted.key.family
        later = self._families.setdefault(first, {})
        if then in later and not self._has_contradictions:
            return  # searched when it was new, and every order noted since was searched as well
        later.setdefault(then, nesting)
        opposite = self._path(then, first)
        self._has_contradictions |= opposite is not None
        self._report(held, wanted, opposite)

    def _note_keys(self, mark: Mark, nesting: Nesting, held: Entry, wanted: Entry) -> None:
        pair = held.key.encoded, wanted.key.encoded
        if pair not in self._keys:
            remember(self._keys, pair, nesting)
        opposite = self._keys.get((pair[1], pair[0]))
        if opposite is not None and mark not in self._seen:
            remember(self._seen, mark, nesting)
            self._report(held, wanted, opposite)

    def _path(self, start: KeyFamily, end: KeyFamily) -> Nesting | None:
        """Find nestings that lead from ``start`` to ``end``, and join them to one."""
        reached: set[KeyFamily] = set()
        to_follow = list(self._families.get(start, {}).items())
        while to_follow:
            family, so_far = to_follow.pop()
            if family is end:
                return so_far
            if family not in reached:
                reached.add(family)
                to_follow += [(then, so_far.then(more)) for then, more in self._families.get(family, {}).items()]
        return None

    def _report(self, held: Entry, wanted: Entry, opposite: Nesting | None) -> None:
        if opposite is None:
            return
        event = LockOrderInverted(
            at=self._clock.wall(),
            held=held.key,
            wanted=wanted.key,
            held_from=held.site,
            wanted_from=wanted.site,
            opposite_held_from=site(opposite.held, opposite.held_offset),
            opposite_wanted_from=site(opposite.wanted, opposite.wanted_offset),
        )
        if self._hooks:
            self._hooks.emit(event)
        else:
            warn(event)


def _mark(held: Entry, wanted: Entry) -> Mark:
    """Return what tells one pair of places from another. Code is compared by identity: by value would be slow."""
    return held.key.family, wanted.key.family, id(held.code), held.offset, id(wanted.code), wanted.offset


@cache
def families_before(family: KeyFamily) -> frozenset[KeyFamily]:
    """Return the families whose keys must be taken before those of ``family``, however far back."""
    return frozenset(family.after).union(*map(families_before, family.after))


def warn(event: LockOrderInverted) -> None:
    """Give an inversion as a warning, at the place that asked for the second key."""
    message = (
        f"{event.wanted} was asked for at {event.wanted_from} while {event.held} was held since {event.held_from}; "
        f"the opposite order was used at {event.opposite_held_from}, then {event.opposite_wanted_from}"
    )
    file, _, line = event.wanted_from.rpartition(":")
    warnings.warn_explicit(LockOrderWarning(message), None, file, int(line))


def remember(memory: OrderedDict[K, V], key: K, value: V) -> None:
    """Put something into a bounded memory; the oldest gives way."""
    memory[key] = value
    if len(memory) > MAX_NOTED:
        memory.popitem(last=False)


# --- exclusion between the tasks of one event loop, by key ---------------------------------------------------------

# The documented way to learn where we are called from, and cheap.
_frame = sys._getframe  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


@final
class Exclusion:
    """Keyed locks for the tasks of one event loop: first come, first served, and an idle key costs nothing.

        REPO = KeyFamily("repo")
        exclusion = Exclusion()

        async with exclusion.hold(REPO("/srv/site")):
            ...  # one task at a time for this repository; others go on with theirs

    A key is handed directly to the task that has waited longest, so nobody can slip in between. A holder that fails
    or is cancelled frees the key; a waiter that is cancelled or runs out of time leaves the line, and what was handed
    to it in that very moment goes to the next one. Not re-entrant: a task that asks for a key it holds is refused at
    once, and so is a wait that could never end.

    An exclusion belongs to the event loop that first uses it, and its locks are its own: two exclusions know nothing of
    each other. Make one for the application and hand it around. When its loop is closed and nothing is held, the next
    loop may use it. It protects against the tasks of this loop only, not against other threads, processes or hosts.

    Args:
        hooks: Told when keys are taken in contradictory orders (:class:`~standfast.events.LockOrderInverted`). Without
            hooks this is a :class:`LockOrderWarning`.
        clock: Dates what :meth:`inspect` shows.
    """

    __slots__ = ("_clock", "_table")

    def __init__(self, *, hooks: Iterable[Hook] = (), clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._table = Table(LockOrder(Hooks(hooks), clock), _steady(clock))

    def hold(self, key: Key, mode: str | None = None, timeout: Duration | None = None) -> Hold:
        """Hold ``key`` for the length of an ``async with`` block, or of each call of a function that this decorates.

        Nothing happens until the block is entered. Then the task waits for its turn, unless the key is free.

        Args:
            key: What is to be held, made by a :class:`~standfast.KeyFamily`.
            mode: In which of the family's modes; for a family that declares modes it must be given. Tasks share a key
                in the same mode, and exclude each other in different ones and in those that the family lists as
                ``alone``. Nobody passes a task that asked earlier, not even one of the same mode as the holders.
            timeout: How long to wait at most: ``"5 seconds"``, a ``timedelta`` or a number of seconds. The time for
                which the key is then held is not limited.

        Raises:
            NotAKeyError: ``key`` was not made by a family.
            UnknownModeError: The family does not declare ``mode``, or needs one.
            HoldTimeoutError: On entering: the key did not become free in time. Nothing is held.
            ReentryError: On entering: this task holds the key already.
            LockOrderError: On entering: this task holds a key that is declared to come after this one.
            WaitCycleError: On entering: waiting would never end, as the holder waits for this task.
            WrongLoopError: On entering: the exclusion belongs to another event loop.
        """
        if type(key) is not Key:
            require_key(key)
        if mode is not None or key.family.has_modes:
            require_mode(key.family, mode)
        frame = _frame(1)
        hold = Hold()
        hold.table = self._table
        hold.key = key
        hold.mode = mode
        hold.alone = None
        hold.line = None
        hold.code = frame.f_code
        hold.offset = frame.f_lasti
        hold.timeout = None if timeout is None else seconds(timeout, what="timeout")
        return hold

    def try_hold(self, key: Key, mode: str | None = None) -> Hold:
        """Hold ``key`` like :meth:`hold` if that can be had at once; never wait.

            try:
                async with exclusion.try_hold(REPO(path)):
                    ...
            except WouldWaitError as busy:
                print(busy.holders)

        A key is not to be had if it is held in a way that excludes ``mode``, or if anybody waits for it.

        Raises:
            WouldWaitError: On entering: the key is taken. Nothing is held and nobody waits.
        """
        hold = self.hold(key, mode=mode)
        frame = _frame(1)
        hold.code, hold.offset, hold.timeout = frame.f_code, frame.f_lasti, NEVER_WAITS
        return hold

    @overload
    def inspect(self) -> tuple[KeyState, ...]: ...
    @overload
    def inspect(self, key: Key) -> KeyState: ...
    def inspect(self, key: Key | None = None) -> KeyState | tuple[KeyState, ...]:
        """Return who holds and who waits, in order: for one key, or for all that are in use, sorted.

        The picture is frozen: it does not change when the exclusion does. Taking it costs those who hold and wait
        nothing.
        """
        table = self._table
        if table.loop is not None and table.loop.is_running() and here() != table.home:
            raise WrongLoopError("exclusion", "was inspected outside its event loop")
        when = wall_time(table.now(), self._clock.wall())
        if key is not None:
            return key_state(key, table.entries.get(require_key(key).encoded), when)
        return tuple(key_state(place.key, place, when) for _, place in sorted(table.entries.items()))

    def __reduce__(self) -> NoReturn:
        raise WrongLoopError("exclusion", "cannot be copied or pickled")

    def __repr__(self) -> str:
        return f"<Exclusion with {len(self._table.entries)} keys in use>"


def _steady(clock: Clock) -> Callable[[], float]:
    """Return a clock in seconds that never goes backwards; the system's is called directly, on every hold."""
    return monotonic if clock is SYSTEM_CLOCK else lambda: clock.elapsed() / MICROSECONDS

"""Exclusion between the tasks of one process: keyed locks, modes, lock order, and attempts under a key."""

from __future__ import annotations

import inspect
import sys
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, final, overload

from msgspec import Struct

from standfast.clock import MICROSECONDS, SYSTEM_CLOCK, Instant, later, monotonic
from standfast.durations import seconds
from standfast.errors import ArgumentTypeError, UsageError
from standfast.events import Hooks
from standfast.exclusion.order import LockOrder, LockOrderWarning
from standfast.exclusion.retry import Attempt, Backoff, attempt_under
from standfast.exclusion.table import DONE, NEVER_WAITS, KeyLine, Table, TaskEntry, current_task, here, require_mode
from standfast.keys import Key, require_key

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from types import TracebackType

    from standfast.clock import Clock
    from standfast.durations import Duration
    from standfast.events import Hook

__all__ = [
    "Attempt",
    "Backoff",
    "Exclusion",
    "Hold",
    "KeyHolder",
    "KeyState",
    "KeyWaiter",
    "LockOrderWarning",
    "attempt_under",
]

# The documented way to learn where we are called from, and cheap.
_frame = sys._getframe  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


@final
class Exclusion:
    """Keyed locks for the tasks of one event loop: first come, first served, and an idle key costs nothing.

        REPO = KeyFamily("repo")
        exclusion = Exclusion()

        async with exclusion.hold(REPO("/srv/site")):
            ...  # one task at a time for this repository; others go on with theirs

    A key is handed directly to the task that has waited longest, so no other can slip in between. A holder that fails
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
        # In seconds, never backwards; the system's is called directly, on every hold.
        steady = monotonic if clock is SYSTEM_CLOCK else lambda: clock.elapsed() / MICROSECONDS
        self._table = Table(LockOrder(Hooks(hooks), clock).check, steady)

    def hold(self, key: Key, mode: str | None = None, timeout: Duration | None = None) -> Hold:
        """Hold ``key`` for the length of an ``async with`` block, or of each call of a function that this decorates.

        Nothing happens until the block is entered. Then the task waits for its turn, unless the key is free.

        Args:
            key: What is to be held, made by a :class:`~standfast.KeyFamily`.
            mode: In which of the family's modes; for a family that declares modes it must be given. Tasks share a key
                in the same mode, and exclude each other in different ones and in those that the family lists as
                ``alone``. No task passes one that asked earlier, not even in the same mode as the holders.
            timeout: How long to wait at most: ``"5 seconds"``, a ``timedelta`` or a number of seconds. The time for
                which the key is then held is not limited.

        Raises:
            ArgumentTypeError: ``key`` was not made by a family.
            InvalidArgumentError: The family does not declare ``mode``, or needs one.
            HoldTimeoutError: On entering: the key did not become free in time. Nothing is held.
            ReentryError: On entering: this task holds the key already.
            LockOrderError: On entering: this task holds a key that is declared to come after this one.
            WaitCycleError: On entering: waiting would never end, as the holder waits for this task.
            UsageError: On entering: the exclusion belongs to another event loop.
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
        """Hold ``key`` like :meth:`hold` if it is available at once; never wait.

            try:
                async with exclusion.try_hold(REPO(path)):
                    ...
            except WouldWaitError as busy:
                print(busy.holders)

        A key is not available if it is held in a way that excludes ``mode``, or if a task waits for it.

        Raises:
            WouldWaitError: On entering: the key is taken. Nothing is held and nothing waits.
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

        The picture is frozen: it does not change when the exclusion does. Taking it costs holders and waiters
        nothing.
        """
        table = self._table
        if table.loop is not None and table.loop.is_running() and here() != table.home:
            raise UsageError(
                "exclusion",
                "was inspected outside its event loop",
                "make one for each event loop, or use a store to share between threads",
            )
        when = wall_time(table.now(), self._clock.wall())
        if key is not None:
            return key_state(key, table.entries.get(require_key(key).encoded), when)
        return tuple(key_state(place.key, place, when) for _, place in sorted(table.entries.items()))

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "exclusion",
            "cannot be copied or pickled",
            "make one for each event loop, or use a store to share between threads",
        )

    def __repr__(self) -> str:
        return f"<Exclusion with {len(self._table.entries)} keys in use>"


# --- what ``hold`` returns: the path that every acquisition takes --------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")


@final
class Hold(TaskEntry):
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
            raise ArgumentTypeError(
                "a coroutine function, below any @classmethod or @staticmethod",
                getattr(function, "__qualname__", repr(function)),
                "make it an async def without yield, or hold the key in a block",
            )

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
        raise UsageError(f"the hold of {self.key!s}", "cannot be copied or pickled", "make a new hold for each block")

    def __repr__(self) -> str:
        mode = "" if self.mode is None else f" in mode {self.mode!r}"
        return f"<Hold {self.key}{mode} from {self.site}>"


# --- what an exclusion looks like at one moment, as frozen values --------------------------------------------------


class KeyHolder(Struct, frozen=True):
    """A task that holds a key."""

    task: str
    """The name of the task; give yours names with ``asyncio.create_task(..., name=...)``."""
    mode: str | None
    taken_at: Instant
    site: str
    """Where the key was asked for: ``file:line``."""


class KeyWaiter(Struct, frozen=True):
    """A task that waits for a key."""

    task: str
    mode: str | None
    asked_at: Instant
    place: int
    """Its place in the line; 1 comes next."""
    site: str
    """Where the key was asked for: ``file:line``."""


class KeyState(Struct, frozen=True):
    """Who holds a key and who waits for it, in order. A key that is not wanted has neither."""

    key: Key
    holders: tuple[KeyHolder, ...]
    waiters: tuple[KeyWaiter, ...]


def key_state(key: Key, place: TaskEntry | KeyLine | None, when: Callable[[float], Instant]) -> KeyState:
    """Picture what the table says about a key."""
    if place is None:
        return KeyState(key, (), ())
    if isinstance(place, KeyLine):
        holders = tuple(_holder(entry, when) for entry in place.holders())
        waiters = tuple(
            KeyWaiter(entry.task.get_name(), entry.mode, when(entry.at), number, entry.site)
            for number, entry in enumerate(place.waiters, 1)
        )
        return KeyState(key, holders, waiters)
    return KeyState(key, (_holder(place, when),), ())


def wall_time(now: float, wall: Instant) -> Callable[[float], Instant]:
    """Return what turns a moment of a steady clock that now shows ``now`` into the time of day."""
    return lambda moment: later(wall, moment - now)


def _holder(entry: TaskEntry, when: Callable[[float], Instant]) -> KeyHolder:
    return KeyHolder(entry.task.get_name(), entry.mode, when(entry.at), entry.site)

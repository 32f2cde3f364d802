"""Exclusion between the tasks of one event loop, by key."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn, final, overload

from standfast.clock import MICROSECONDS, SYSTEM_CLOCK, monotonic
from standfast.durations import seconds
from standfast.errors import WrongLoopError
from standfast.events import Hooks
from standfast.keys import Key, require_key
from standfast.local._caller import here
from standfast.local._entry import NEVER_WAITS
from standfast.local._hold import Hold
from standfast.local._modes import require_mode
from standfast.local._table import Table
from standfast.local.inspection import KeyState, key_state, wall_time
from standfast.local.lock_order import LockOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from standfast.clock import Clock
    from standfast.durations import Duration
    from standfast.events import Hook

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

"""Durable locks: mutex, semaphore and mode lock, and what it means to hold one for the length of a block."""

from __future__ import annotations

import asyncio
import inspect
import sys
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NoReturn,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    final,
)

from msgspec import structs

from standfast.audit import Audit
from standfast.clock import MICROSECONDS, Instant, seconds_between
from standfast.durations import DAY, optional_seconds, seconds
from standfast.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    LeaseLostError,
    LeaseTooShortError,
    LockMismatchError,
    ReentryError,
    UsageError,
    WaitCycleError,
)
from standfast.events import DeadlockRefused, LeaseLost, LockAcquired, LockRefused, LockReleased
from standfast.keys import Key, unknown_mode
from standfast.locks.acquire import (
    AcquireRequest,
    acquire,
    names_of,
    note_given_back,
    note_taken,
    release,
    undo_cancellation,
)
from standfast.locks.heartbeat import NOT_RENEWED
from standfast.locks.inspect import LISTED, explain
from standfast.locks.line import UNLIMITED, Rules
from standfast.locks.line_driver import TAKEN_AWAY
from standfast.locks.line_records import LockSpec, Resize, WrongKind
from standfast.locks.lock_record import check_permits
from standfast.scope import address_of
from standfast.stores.protocol import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from types import TracebackType

    from standfast.audit import AuditedAction
    from standfast.durations import Duration
    from standfast.events import LockEnd
    from standfast.keys import RecordKey
    from standfast.locks.acquire import HeldEntry
    from standfast.locks.heartbeat import Presence
    from standfast.locks.inspect import Explanation
    from standfast.locks.line_records import Answer, ExtraChanges, Left
    from standfast.locks.registry import Lines
    from standfast.stores.protocol import Capabilities


# --- A hold: a durable lock in the hands of one task, for the length of an ``async with`` block --------------------

P = ParamSpec("P")
T = TypeVar("T")

OnLost: TypeAlias = Literal["cancel", "tell"]
"""What happens to the body of a hold that is lost: it is cancelled, or only told by ``hold.lost``."""

HELD_TOO_LONG: Final = "it was held for longer than max_hold"
GIVEN_BACK: Final = "its block was left"
LAPSED: Final = "its lease lapsed: it was not renewed in time"

_ENDS: Final[dict[str, LockEnd]] = {
    "": "released",
    HELD_TOO_LONG: "expired",
    LAPSED: "expired",
    TAKEN_AWAY: "evicted",
}


def lock_end(reason: str) -> LockEnd:
    """Return how a hold has ended that was lost for a reason; without one it was given back."""
    return "expired" if reason.startswith(NOT_RENEWED) else _ENDS.get(reason, "lost")


@final
class Hold:
    """What is held, as the body of ``async with lock.hold() as hold`` sees it.

    Attributes:
        key: The key, as text.
        fence: A number that is larger than that of every earlier hold of this key (of this slot, if there are several
            permits). Pass it with every write to what the lock protects, and refuse smaller ones there.
        mode: In which mode it is held; empty for locks without modes.
        since: Since when, by the store's time.
    """

    __slots__ = (
        "_ends_at",
        "_kind",
        "_lines",
        "_lost",
        "_on_lost",
        "_place",
        "_timer",
        "called_from",
        "fence",
        "key",
        "known_at",
        "mode",
        "reason",
        "since",
    )

    def __init__(self, lines: Lines, request: AcquireRequest, place: HeldEntry, lost: Callable[[], None]) -> None:
        holder = place.turn.holder
        self.key: Final = request.name
        self.called_from: Final = request.called_from
        self._kind: Final = request.spec.kind
        self.fence: Final = place.turn.fence
        self.mode: Final = holder.entry.mode
        self.since: Final = holder.granted_at
        self.known_at: Final = place.known_at
        self._lost: asyncio.Event | None = None
        self.reason = ""
        self._lines, self._place, self._on_lost = lines, place, lost
        self._timer: asyncio.TimerHandle | None = None
        self._ends_at: Instant | None = None  # by this process's clock: perhaps too early, never too late
        if holder.ends_at is not None:
            self._ends_at = Instant(place.turn.asked_at + holder.ends_at - place.turn.at)
            left = max(0.0, (self._ends_at - lines.clock.elapsed()) / MICROSECONDS)
            self._timer = asyncio.get_running_loop().call_later(left, self.lose, HELD_TOO_LONG)

    @property
    def lost(self) -> asyncio.Event:
        """Set when the lock is no longer held. Wait for it, or ask :attr:`is_lost`."""
        if self._lost is None:
            self._lost = asyncio.Event()
            if self.reason not in ("", GIVEN_BACK):
                self._lost.set()
        return self._lost

    @property
    def grant(self) -> RecordKey:
        """The record that says who holds it; its version is the fence."""
        return self._place.line.driver.keys.grant_of(self._place.turn.holder)

    @property
    def guard(self) -> Check:
        """A change that lets a commit of the same space happen only while this is held: fencing in one step."""
        return Check(self.grant, self.fence)

    @property
    def is_lost(self) -> bool:
        """Whether the lock is no longer held, as far as this process can tell; also when its time is over by now."""
        if not self.reason and self.presence.left() <= 0:
            self.lose(self.presence.lapse)
        if not self.reason and self._ends_at is not None and self._ends_at <= self._lines.clock.elapsed():
            self.lose(HELD_TOO_LONG)
        return bool(self.reason)

    def check(self) -> None:
        """Raise if the lock is no longer held. Call it before what must not be done without it.

        Raises:
            LeaseLostError: The lock is no longer held, or its lease may have lapsed meanwhile.
            StoreClosedError: This is a forked child: the parent holds the lock.
        """
        self._lines.guard.check()
        if self.is_lost:
            raise LeaseLostError(self.key, self.fence, self.reason)

    @property
    def presence(self) -> Presence:
        """What it is anchored to."""
        return self._place.presence

    @property
    def granted_at(self) -> Instant:
        """Since when it is held, by the store's time."""
        return self.since

    def lose(self, reason: str) -> None:
        """Hear that it is no longer held."""
        if self.reason:
            return
        self.reason = reason
        if self._lost is not None:
            self._lost.set()
        # A program that ends with a lock in hand is not warned.
        if self._lines.is_watched or not self._lines.is_closing:
            at, family = self._lines.clock.wall(), self._place.line.driver.keys.address[1]
            self._lines.hooks.emit(
                LeaseLost(at=at, key=self.key, family=family, kind=self._kind, fence=self.fence, reason=reason)
            )
        self._on_lost()

    def close(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()

    def __repr__(self) -> str:
        state = {"": "held", GIVEN_BACK: "given back"}.get(self.reason, "lost")
        return f"<Hold {self.key} fence={self.fence} {state}>"


@final
class Holding:
    """A durable lock to be held for the length of an ``async with`` block, or of each call of a function.

    Nothing happens until the block is entered. One of these serves one block at a time.
    """

    __slots__ = (
        "_cancelling",
        "_held_from",
        "_hold",
        "_leaving",
        "_lines",
        "_on_lost",
        "_place",
        "_request",
        "_task",
    )

    def __init__(self, lines: Lines, request: AcquireRequest, on_lost: OnLost) -> None:
        self._lines, self._request = lines, request
        self._on_lost: Final[OnLost] = on_lost
        self._place: HeldEntry | None = None
        self._hold: Hold | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._leaving = False
        self._held_from = Instant(0)

    async def __aenter__(self) -> Hold:
        if self._place is not None or self._leaving:
            raise UsageError(f"the hold of {self._request.name}", "is in use already", "make a new hold for each block")
        self._leaving = True  # until it is held: no other task may enter meanwhile
        lines = self._lines
        asked_at = lines.clock.elapsed() if lines.is_watched else Instant(0)
        try:
            place = await acquire(lines, self._request)
        except BaseException as problem:
            if lines.is_watched:
                self._tell_refused(problem, asked_at)
            raise
        finally:
            self._leaving = False
        task = self._task = place.task
        self._cancelling = task.cancelling() if task is not None else 0
        self._place = place
        hold = self._hold = Hold(lines, self._request, place, self._lost)
        place.line.keep_hold(place.turn.holder, hold)
        note_taken(place.entry.owner)
        lines.held += 1
        if lines.is_watched:
            self._tell_acquired(hold, asked_at)
        return hold

    # --- telling -------------------------------------------------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        return {"at": self._lines.clock.wall(), **names_of(self._request)}

    def _tell_acquired(self, hold: Hold, asked_at: Instant) -> None:
        hooks, self._held_from = self._lines.hooks, self._lines.clock.elapsed()
        if hooks.want(LockAcquired):
            waited, presence = seconds_between(asked_at, self._held_from), hold.presence.name
            hooks.emit(
                LockAcquired(mode=hold.mode, fence=hold.fence, waited=waited, presence=presence, **self._facts())
            )

    def _tell_released(self, hold: Hold, reason: str, left: Left | None) -> None:
        hooks, lines = self._lines.hooks, self._lines
        if hooks.want(LockReleased):
            held = seconds_between(self._held_from, lines.clock.elapsed())
            outcome = lock_end(reason or (TAKEN_AWAY if left is not None and not left.was_holding else ""))
            hooks.emit(LockReleased(mode=hold.mode, fence=hold.fence, held=held, outcome=outcome, **self._facts()))

    def _tell_refused(self, problem: BaseException, asked_at: Instant) -> None:
        hooks, reason = self._lines.hooks, type(problem).__name__
        if isinstance(problem, WaitCycleError | ReentryError):
            hooks.emit(DeadlockRefused(reason=reason, **self._facts()))
        elif hooks.want(LockRefused):
            waited = seconds_between(asked_at, self._lines.clock.elapsed())
            hooks.emit(LockRefused(mode=self._request.mode, waited=waited, reason=reason, **self._facts()))

    # --- leaving -------------------------------------------------------------------------------------------------

    def _lost(self) -> None:
        if self._on_lost == "cancel" and self._task is not None and not self._leaving:
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        place, hold = self._place, self._hold
        if place is None or hold is None:
            raise UsageError(
                f"the hold of {self._request.name}", "was left without being entered", "make a new hold for each block"
            )
        self._leaving = True  # from here on losing it cancels nothing
        by_us = bool(hold.reason) and self._on_lost == "cancel"
        try:
            others = None
            if by_us and self._task is not None:  # losing the lock has cancelled it; others may have, too
                others = await undo_cancellation(self._task, self._cancelling, error)
            if place.turn.holder.ends_at is not None:
                hold.close()
            place.line.forget_hold(place.turn.holder)
            note_given_back(place.entry.owner)
            try:
                left = await release(self._lines, place, self._request, overran=hold.reason == HELD_TOO_LONG)
            finally:
                self._lines.note_given_back()
        finally:
            reason, hold.reason = hold.reason, hold.reason or GIVEN_BACK  # what becomes of it now is no loss
            self._place = self._hold = self._task = None
            self._leaving = False
        if self._lines.is_watched:
            self._tell_released(hold, reason, left)
        if others is not None:
            raise others
        if self._on_lost != "cancel" or not (kind is None or (by_us and kind is asyncio.CancelledError)):
            return
        if reason or (left is not None and not left.was_holding):
            raise LeaseLostError(hold.key, hold.fence, reason or TAKEN_AWAY) from error

    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Decorate a coroutine function: each call takes the lock anew and holds it until the call ends."""
        if not inspect.iscoroutinefunction(function):
            raise ArgumentTypeError(
                "a coroutine function, below any @classmethod or @staticmethod",
                getattr(function, "__qualname__", repr(function)),
                "make it an async def without yield, or hold the key in a block",
            )

        @wraps(function)
        async def holding(*args: P.args, **kwargs: P.kwargs) -> T:
            async with Holding(self._lines, self._request, self._on_lost):
                return await function(*args, **kwargs)

        return holding

    def __repr__(self) -> str:
        return f"<Holding {self._request.name}>"


# --- how a lock is taken and held: the options that every kind of lock has, and their limits -----------------------

DEFAULT_LEASE: Final = 30.0
"""Seconds after which others take over from a process that is not heard of any more."""

LONGEST_NOTE: Final = 200
LONGEST_OWNER: Final = 200
LONGEST_MODE: Final = 50
"""In bytes. With these, the record that all holders of a key share never gets too large to be written."""


class HoldOptions(TypedDict, total=False):
    """How a lock is taken and held; the same for every kind of lock.

    Attributes:
        timeout: How long to wait at most; by default for as long as it takes.
        lease: How long others wait for this process if it is not heard of any more; by default the space's. It is
            renewed by itself: it limits neither the wait nor the hold.
        max_hold: After how long the lock is taken away, however alive the holder is.
        on_lost: What happens to the body if the lock is lost: ``"cancel"`` (the default) cancels it and raises
            :class:`~standfast.errors.LeaseLostError`; ``"tell"`` only sets ``hold.lost``.
        owner: For whom, in the eyes of deadlock detection; by default the current task.
        note: A few words for people who look at the line.
    """

    timeout: Duration | None
    lease: Duration | None
    max_hold: Duration | None
    on_lost: OnLost
    owner: str | None
    note: str


KNOWN: Final = frozenset(HoldOptions.__annotations__)


def check_lease(lease: Duration, limits: Capabilities) -> float:
    """Return a lease in seconds; refuse what cannot be kept on this store, or cannot be meant."""
    length = seconds(lease, what="lease", maximum_bare=DAY)
    if length < limits.shortest_lease:
        raise LeaseTooShortError(length, f"on {limits.backend} the shortest is {limits.shortest_lease:g} s")
    return length


def check_heartbeat(heartbeat: Duration | None, lease: float) -> float | None:
    """Return how often a presence is renewed, in seconds; None: three times in a lease."""
    every = optional_seconds(heartbeat, what="heartbeat")
    if every is not None and (every <= 0 or every > lease / 2):
        problem = f"it must be at most half of the lease of {lease:g} s, so that one that is lost can be made up for"
        raise InvalidArgumentError("the heartbeat of a lock", problem, f"{every:g} s")
    return every


def check_text(value: str | None, what: str, longest: int) -> str:
    """Return a short text; refuse anything else."""
    if value is None:
        return ""
    if not isinstance(value, str) or not value.isprintable() or len(value.encode()) > longest:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        shown = ascii(value)[:60]
        raise InvalidArgumentError(
            f"the {what} of a lock", f"it must be printable, and at most {longest} bytes in UTF-8", shown
        )
    return value


# --- what every durable lock can do: take its options, hold, and be looked at and operated on ----------------------

# The documented way to learn where we are called from, and cheap.
_frame = sys._getframe  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
_BLOCKING: Final = "standfast.blocking."


MUTEX: Final = LockSpec("mutex", Rules(1))


class DurableLock:
    """A lock on one key of a space. Use :class:`Mutex`, :class:`Semaphore` or :class:`ModeLock`."""

    __slots__ = ("_address", "_audit", "_lease", "_lines", "_name", "_spec", "key")

    def __init__(
        self, lines: Lines, key: Key | str, lease: float, audit: Audit | None = None, spec: LockSpec = MUTEX
    ) -> None:
        self.key: Final = key
        if isinstance(key, Key) and key.family.history:
            spec = structs.replace(spec, history=key.family.history)
        self._lines, self._spec, self._lease, self._audit = lines, spec, lease, audit
        self._address: Final = address_of(key)
        self._name: Final = str(key)

    if not TYPE_CHECKING:  # a type checker says that a lock is no context manager

        def __enter__(self) -> NoReturn:
            raise not_entered(self, self.key, "async with")

        __aenter__ = __enter__

        def __exit__(self, *exc: object) -> None:
            """Be there, so that Python calls what says how to hold it."""

        __aexit__ = __exit__

    def _holding(
        self,
        options: HoldOptions,
        *,
        mode: str = "",
        weight: int = 1,
        waits: bool = True,
        depth: int = 2,
        extra_changes: ExtraChanges[Answer] | None = None,
        on_leave: ExtraChanges[Answer] | None = None,
    ) -> Holding:
        """Check the options, before anything is written, and return what to enter. The user is ``depth`` calls up."""
        frame = _frame(depth)
        while frame.f_globals.get("__name__", "").startswith(_BLOCKING) and frame.f_back is not None:
            frame = frame.f_back  # the blocking face of a lock is no user code
        called_from = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if not options:  # nothing to check
            plain = AcquireRequest(
                self._name,
                self._address,
                self._spec,
                self._lease,
                called_from,
                None,
                mode,
                weight,
                waits,
                extra_changes=extra_changes,
                on_leave=on_leave,
            )
            return Holding(self._lines, plain, "cancel")
        unknown = options.keys() - KNOWN
        if unknown:
            raise InvalidArgumentError(
                "the option of a lock", f"there are {', '.join(sorted(KNOWN))}", ascii(min(unknown))
            )
        given = cast("dict[str, Any]", options)
        lease = given.get("lease")
        request = AcquireRequest(
            self._name,
            self._address,
            self._spec,
            self._lease if lease is None else check_lease(lease, self._lines.scope.store.capabilities),
            called_from,
            check_text(given.get("owner"), "owner", LONGEST_OWNER) or None,
            mode,
            weight,
            waits,
            optional_seconds(given.get("timeout"), what="timeout"),
            optional_seconds(given.get("max_hold"), what="max_hold", minimum=0.001),
            check_text(given.get("note"), "note", LONGEST_NOTE),
            extra_changes,
            on_leave=on_leave,
        )
        return Holding(self._lines, request, _on_lost(given.get("on_lost", "cancel")))

    async def force_release(self, entry_id: str) -> bool:
        """Evict a holder or a waiter by its entry's id, for an operator; return True if it was there.

        Its fence is void from then on: what it still writes with it is refused. If its process lives, its body is
        cancelled with :class:`~standfast.errors.LeaseLostError`; a waiter is told with
        :class:`~standfast.errors.WithdrawnError`. Get the id from :meth:`explain`.
        """
        async with self._acts("lock.release", entry_id) as told:
            if told.is_recorded:
                holders = (await self.explain(limit=0)).holders
                holder = next((each for each in holders if each.entry == entry_id), None)
                told.fence = None if holder is None else holder.fence
                told.details |= {} if holder is None else {"owner": holder.owner}
            was_there = await self._lines.evict(self._address, self._spec, entry_id)
            told.outcome = "done" if was_there else "nothing"
            return was_there

    async def withdraw(self, entry_id: str) -> bool:
        """Cancel a waiter by its entry's id, for an operator; return True if it waited. One that holds by now stays.

        If its process lives, it is told with :class:`~standfast.errors.WithdrawnError`.
        """
        async with self._acts("lock.withdraw", entry_id) as told:
            waited = await self._lines.cancel(self._address, self._spec, entry_id)
            told.outcome = "done" if waited else "nothing"
            return waited

    def _acts(self, action: str, entry: str = "", **details: object) -> AuditedAction:
        audit = self._audit or Audit(self._lines.scope)
        return audit.action(action, str(self.key), entry=entry, details=details)

    async def explain(self, *, limit: int = LISTED) -> Explanation:
        """Say who holds it and who waits, since when, and how long it may take. Nothing is changed by looking.

        Args:
            limit: How many waiters to list; the others are counted.
        """
        return await explain(self._lines.scope, self._address, limit=limit)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key} in {self._lines.scope!r}>"


def spec_of(lock: DurableLock) -> LockSpec:
    """Return what kind of line a lock's is, for others who stand in it."""
    return lock._spec  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- of this module


def _on_lost(value: object) -> OnLost:
    if value not in ("cancel", "tell"):
        raise InvalidArgumentError("the on_lost of a lock", "choose 'cancel' or 'tell'", ascii(value)[:40])
    return value


# --- A mode lock: holders of one mode share, those of different modes exclude each other ---------------------------


@final
class ModeLock(DurableLock):
    """A lock with modes, in all processes on the store. Get it from ``space.mode_lock``.

    Holders in the same mode share it, unless the mode is listed as ``alone``. A read/write lock is
    ``space.mode_lock(key, modes=("read",), alone=("write",))``. None passes one that asked earlier, not even in the
    mode of the present holders, so no mode is starved.

    >>> async with sf.open("memory://") as space:
    ...     graph = space.mode_lock("graph", modes=("read",), alone=("write",))
    ...     async with graph.hold("read"):
    ...         pass
    """

    __slots__ = ("_modes",)

    def __init__(
        self,
        lines: Lines,
        key: Key | str,
        modes: Iterable[str],
        alone: Iterable[str],
        lease: float,
        audit: Audit | None = None,
    ) -> None:
        shared, single = _checked(modes), _checked(alone)
        if isinstance(key, Key) and not shared and not single:
            shared, single = key.family.modes, key.family.alone
        if not shared and not single:
            problem = "declare some: modes=('read',), alone=('write',), or on the key's family"
            raise InvalidArgumentError("the modes of a lock", problem, "nothing")
        self._modes = tuple(check_text(mode, "mode", LONGEST_MODE) for mode in (*shared, *single))
        super().__init__(lines, key, lease, audit, LockSpec("mode lock", Rules(UNLIMITED, tuple(sorted(single)))))

    def hold(self, mode: str, **options: Unpack[HoldOptions]) -> Holding:
        """Hold it in ``mode`` for the length of an ``async with`` block; options as for a mutex.

        Raises:
            InvalidArgumentError: The mode was not declared.
        """
        return self._holding(options, mode=self._known(mode))

    def try_hold(self, mode: str, **options: Unpack[HoldOptions]) -> Holding:
        """Hold it like :meth:`hold` if it is free at once; never wait."""
        return self._holding(options, mode=self._known(mode), waits=False)

    def _known(self, mode: str) -> str:
        if mode not in self._modes:
            raise unknown_mode(str(self.key), mode, self._modes)
        return mode


def not_entered(lock: object, key: Key | str, statement: str) -> UsageError:
    """Return what is raised where a lock is entered itself, and not what its ``hold`` returns."""
    name = "".join(f"_{each.lower()}" if each.isupper() else each for each in type(lock).__name__).lstrip("_")
    how = "hold(mode)" if name == "mode_lock" else "hold()"
    what = f"the {name.replace('_', ' ')} {key}"
    return UsageError(what, "is not held by entering it", f"write {statement} {name}.{how} as hold")


def checked_mode(lock: ModeLock, mode: str) -> str:
    """Return a mode that a lock has; refuse any other."""
    return lock._known(mode)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- of this module


def _checked(modes: Iterable[str]) -> tuple[str, ...]:
    found = tuple(modes) if not isinstance(modes, str) else ()
    if isinstance(modes, str) or not all(isinstance(each, str) and each for each in found):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidArgumentError(
            "the modes of a lock", "they are a tuple of texts that are not empty", ascii(modes)[:60]
        )
    return found


# --- A mutex: one holder at a time, across all processes on the store ----------------------------------------------


@final
class Mutex(DurableLock):
    """One holder at a time, first come, first served, in all processes on the store. Get it from ``space.mutex``.

    >>> async with sf.open("memory://") as space:
    ...     async with space.mutex("account-42").hold(timeout="10s") as hold:
    ...         print(hold.fence > 0)
    True
    """

    __slots__ = ()

    def hold(self, **options: Unpack[HoldOptions]) -> Holding:
        """Hold it for the length of an ``async with`` block, or of each call of a function that this decorates.

        Takes the options of :class:`~standfast.locks.HoldOptions`: ``timeout``, ``lease``, ``max_hold``, ``on_lost``,
        ``owner``, ``note``.

        Raises:
            HoldTimeoutError: On entering: it did not become free in time. Nothing is held.
            ReentryError: On entering: its owner holds it already, and would wait for itself.
            WaitCycleError: On entering: its holder waits, perhaps through others, for this owner.
            LeaseLostError: On leaving: it was lost while the block ran; the block has been cancelled.
            StoreError: On entering: the store does not answer. Nothing is held.
        """
        return self._holding(options)

    def try_hold(self, **options: Unpack[HoldOptions]) -> Holding:
        """Hold it like :meth:`hold` if it is free at once; never wait, and never stand in line.

        Raises:
            WouldWaitError: On entering: it is taken, or another waits for it.
        """
        return self._holding(options, waits=False)


# --- a semaphore: a number of permits, across all processes on the store -------------------------------------------


@final
class Semaphore(DurableLock):
    """A number of permits, handed out in order, in all processes on the store. Get it from ``space.semaphore``.

    The number is kept with the line. While the line is in use its number counts, and a call site that says another
    one is told so; :meth:`resize` changes it for all.

    >>> async with sf.open("memory://") as space:
    ...     async with space.semaphore("vendor-api", permits=3).hold():
    ...         pass
    """

    __slots__ = ()

    def __init__(self, lines: Lines, key: Key | str, permits: int, lease: float, audit: Audit | None = None) -> None:
        super().__init__(lines, key, lease, audit, LockSpec("semaphore", Rules(check_permits(permits))))

    def hold(self, weight: int = 1, **options: Unpack[HoldOptions]) -> Holding:
        """Hold ``weight`` permits for the length of an ``async with`` block.

        They are granted together. One that needs many is not passed by those behind it that need fewer.

        Fences of a semaphore grow in each slot, not across slots: compare them only where one slot is meant.

        Args:
            weight: How many permits.
            options: As for :meth:`Mutex.hold <standfast.locks.Mutex.hold>`.

        Raises:
            TooHeavyError: On entering: there are not that many permits, so waiting would never end.
        """
        return self._holding(options, weight=check_permits(weight))

    def try_hold(self, weight: int = 1, **options: Unpack[HoldOptions]) -> Holding:
        """Hold permits like :meth:`hold` if they are free at once; never wait."""
        return self._holding(options, weight=check_permits(weight), waits=False)

    async def resize(self, permits: int) -> None:
        """Set the number of permits for all, whatever call sites say, until :meth:`forget_size`.

        No holder is evicted: with fewer permits there are no new grants until enough have left. With more, the waiters
        that fit are granted at once.

        Raises:
            LockMismatchError: The key is in use as another kind of lock.
        """
        async with self._acts("lock.resize", permits=permits):
            await self._resize(Resize(check_permits(permits)))

    async def forget_size(self) -> None:
        """Let call sites say the number of permits again, beginning with this one."""
        async with self._acts("lock.forget_size", permits=self._spec.rules.permits):
            await self._resize(Resize(self._spec.rules.permits, pinned=False))

    async def _resize(self, request: Resize) -> None:
        answer = (await self._lines.line(self._address).driver.ask(request, self._spec)).answer
        if isinstance(answer, WrongKind):
            raise LockMismatchError(str(self.key), f"a {answer.kind}", f"a {self._spec.kind}")

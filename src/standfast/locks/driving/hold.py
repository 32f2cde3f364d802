"""A hold: a durable lock in the hands of one task, for the length of an ``async with`` block."""

from __future__ import annotations

import asyncio
import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeAlias, TypeVar, final

from standfast.clock import MICROSECONDS, Instant
from standfast.errors import HoldMisuseError, LeaseLostError, NotAsyncError
from standfast.events import LeaseLost
from standfast.locks.driving.acquiring import Wish, acquire, give_back
from standfast.locks.driving.local_line import TAKEN_AWAY
from standfast.locks.driving.owners import note_given_back, note_taken
from standfast.locks.driving.taking_back import take_back
from standfast.stores.protocol import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from standfast.keys import RecordKey
    from standfast.locks.driving.acquiring import Place
    from standfast.locks.driving.lines import Lines
    from standfast.locks.driving.presence import Presence
    from standfast.locks.driving.requests import Left

P = ParamSpec("P")
T = TypeVar("T")

OnLost: TypeAlias = Literal["cancel", "tell"]
"""What happens to the body of a hold that is lost: it is cancelled, or only told by ``hold.lost``."""

HELD_TOO_LONG: Final = "it was held for longer than max_hold"
GIVEN_BACK: Final = "its block was left"


@final
class Hold:
    """What is held, as the body of ``async with lock.hold() as hold`` sees it.

    Attributes:
        key: The key, as text.
        fence: A number that is larger than that of every earlier hold of this key (of this slot, if there are several
            permits). Pass it with every write to what the lock protects, and refuse smaller ones there.
        mode: In which mode it is held; empty for locks without modes.
        since: Since when, by the store's time.
        lost: Set when the lock is no longer held. Wait for it, or ask :attr:`is_lost`.
    """

    __slots__ = (
        "_ends_at",
        "_lines",
        "_on_lost",
        "_place",
        "_timer",
        "called_from",
        "fence",
        "grant",
        "key",
        "known_at",
        "lost",
        "mode",
        "reason",
        "since",
    )

    def __init__(self, lines: Lines, wish: Wish, place: Place, lost: Callable[[], None]) -> None:
        holder = place.turn.holder
        self.key: Final = wish.name
        self.called_from: Final = wish.called_from
        self.fence: Final = place.turn.fence
        self.mode: Final = holder.entry.mode
        self.since: Final = holder.granted_at
        self.known_at: Final = lines.clock.elapsed()
        self.grant: Final[RecordKey] = place.line.driver.keys.grant(holder.slot)
        self.lost: Final = asyncio.Event()
        self.reason = ""
        self._lines, self._place, self._on_lost = lines, place, lost
        self._timer: asyncio.TimerHandle | None = None
        self._ends_at: Instant | None = None  # by this process's clock: perhaps too early, never too late
        if holder.ends_at is not None:
            self._ends_at = Instant(place.turn.asked_at + holder.ends_at - place.turn.at)
            left = max(0.0, (self._ends_at - lines.clock.elapsed()) / MICROSECONDS)
            self._timer = asyncio.get_running_loop().call_later(left, self.lose, HELD_TOO_LONG)

    @property
    def guard(self) -> Check:
        """A change that lets a commit of the same space happen only while this is held: fencing in one step."""
        return Check(self.grant, self.fence)

    @property
    def is_lost(self) -> bool:
        """Whether the lock is no longer held, as far as this process can tell; also when its time is over by now."""
        if not self.reason and self.presence.left() <= 0:
            self.lose("its lease lapsed: this process could not renew it in time")
        if not self.reason and self._ends_at is not None and self._ends_at <= self._lines.clock.elapsed():
            self.lose(HELD_TOO_LONG)
        return bool(self.reason)

    def check(self) -> None:
        """Raise if the lock is no longer held. Call it before what must not be done without it.

        Raises:
            LeaseLostError: The lock is no longer held, or its lease may have lapsed meanwhile.
            ForkedError: This is a forked child: the parent holds the lock.
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
        self.lost.set()
        if self._lines.hooks:
            at = self._lines.clock.wall()
            self._lines.hooks.emit(LeaseLost(at=at, key=self.key, fence=self.fence, reason=reason))
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

    __slots__ = ("_cancelling", "_hold", "_leaving", "_lines", "_on_lost", "_place", "_task", "_wish")

    def __init__(self, lines: Lines, wish: Wish, on_lost: OnLost) -> None:
        self._lines, self._wish = lines, wish
        self._on_lost: Final[OnLost] = on_lost
        self._place: Place | None = None
        self._hold: Hold | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._leaving = False

    async def __aenter__(self) -> Hold:
        if self._place is not None or self._leaving:
            raise HoldMisuseError(self._wish.name, "is in use already")
        self._leaving = True  # until it is held: nobody else may enter meanwhile
        try:
            place = await acquire(self._lines, self._wish)
        finally:
            self._leaving = False
        task = asyncio.current_task()
        self._task, self._cancelling = task, task.cancelling() if task is not None else 0
        self._place = place
        hold = self._hold = Hold(self._lines, self._wish, place, self._lost)
        place.line.holds[place.entry.id] = hold
        note_taken(place.entry.owner)
        self._lines.note_taken()
        return hold

    def _lost(self) -> None:
        if self._on_lost == "cancel" and self._task is not None and not self._leaving:
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        place, hold = self._place, self._hold
        if place is None or hold is None:
            raise HoldMisuseError(self._wish.name, "was left without being entered")
        self._leaving = True  # from here on losing it cancels nobody
        by_us = bool(hold.reason) and self._on_lost == "cancel"
        try:
            others = await self._take_back_cancellation(error) if by_us else None
            left = await self._give_back(place, hold)
        finally:
            reason, hold.reason = hold.reason, hold.reason or GIVEN_BACK  # what becomes of it now concerns nobody
            self._place = self._hold = self._task = None
            self._leaving = False
        if others is not None:
            raise others
        if self._on_lost != "cancel" or not (kind is None or (by_us and kind is asyncio.CancelledError)):
            return
        if reason or (left is not None and not left.was_holding):
            raise LeaseLostError(hold.key, hold.fence, reason or TAKEN_AWAY) from error

    async def _take_back_cancellation(self, error: BaseException | None) -> asyncio.CancelledError | None:
        """Undo the cancellation that losing the lock began; return it if somebody else has cancelled the task, too."""
        return None if self._task is None else await take_back(self._task, self._cancelling, error)

    async def _give_back(self, place: Place, hold: Hold) -> Left | None:
        hold.close()
        place.line.holds.pop(place.entry.id, None)
        note_given_back(place.entry.owner)
        try:
            return await give_back(self._lines, place, self._wish)
        finally:
            self._lines.note_given_back()

    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Decorate a coroutine function: each call takes the lock anew and holds it until the call ends."""
        if not inspect.iscoroutinefunction(function):
            raise NotAsyncError(getattr(function, "__qualname__", repr(function)))

        @wraps(function)
        async def holding(*args: P.args, **kwargs: P.kwargs) -> T:
            async with Holding(self._lines, self._wish, self._on_lost):
                return await function(*args, **kwargs)

        return holding

    def __repr__(self) -> str:
        return f"<Holding {self._wish.name}>"

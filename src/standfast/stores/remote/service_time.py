"""The time of a server that tells it only in the ``Date`` of its answers: known within bounds that each narrows.

An answer says the second in which it was made, and it was made between sending and receiving. So the offset of the
service's time to this machine's steady clock lies in an interval a second and a round trip wide; the next answer has
another such interval, and the truth lies in both. Time is read at the early end: never ahead of the service, and at
most a second, a round trip and :data:`SLACK` behind it.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, NamedTuple, final

from standfast.clock import MICROSECONDS, SYSTEM_CLOCK, Instant, monotonic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.clock import Clock

SLACK: Final = 50_000
"""How many microseconds the clocks of the machines that answer may lie apart."""

DRIFT: Final = 200
"""How many microseconds this machine's steady clock may go wrong in a second."""

FRESH: Final = 30 * MICROSECONDS
"""After this long without an answer the service is asked before anything is decided by its time."""

FORGOTTEN: Final = 5 * MICROSECONDS
"""If time was read further ahead than this, it goes back; for less it stands still."""


class Bounds(NamedTuple):
    """What the offset of the service's time to the steady clock is at least and at most, in microseconds."""

    low: int
    high: int
    at: int
    """When this was known, by the steady clock."""

    def drifted(self, at: int) -> Bounds:
        """Return the bounds as they are at a later moment."""
        drift = max(0, at - self.at) * DRIFT // MICROSECONDS
        return Bounds(self.low - drift, self.high + drift, at)

    def and_also(self, other: Bounds) -> Bounds | None:
        """Return the bounds in which both hold; None if they contradict each other."""
        both = Bounds(max(self.low, other.low), min(self.high, other.high), other.at)
        return both if both.low <= both.high else None


@final
class ServiceTime:
    """The time of one service, for all handles of this process."""

    __slots__ = ("_bounds", "_clock", "_doubt", "_last", "_lock")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._bounds: Bounds | None = None
        self._doubt: Bounds | None = None
        self._last = 0

    def elapsed(self) -> Instant:
        """Return the steady clock, to be told when a request was sent."""
        return self._clock.elapsed()

    def learn(self, date: str, sent: Instant) -> None:
        """Take the ``Date`` of an answer to what was sent at ``sent``; what is no date is ignored."""
        second = instant_of(date)
        if second is None:
            return
        received = self._clock.elapsed()
        latest = Bounds(second - received - SLACK, second + MICROSECONDS - sent + SLACK, received)
        with self._lock:
            self._take(latest)

    def _take(self, latest: Bounds) -> None:
        known = latest if self._bounds is None else self._bounds.drifted(latest.at).and_also(latest)
        if known is not None:
            self._bounds, self._doubt = known, None
            return
        # One answer that contradicts all before it may come from a machine that is wrong; two that agree do not.
        agreed = None if self._doubt is None else self._doubt.drifted(latest.at).and_also(latest)
        self._doubt = latest
        if agreed is not None:
            self._bounds, self._doubt = agreed, None
            if self._last > latest.at + agreed.high + FORGOTTEN:
                self._last = 0

    def now(self) -> Instant | None:
        """Return the service's time; None if the service must be asked first."""
        with self._lock:
            at = self._clock.elapsed()
            if self._bounds is None or self._doubt is not None or at - self._bounds.at > FRESH:
                return None
            self._last = max(self._last, at + self._bounds.drifted(at).low)
            return Instant(self._last)

    @property
    def error(self) -> float:
        """By how many seconds the time may be behind; the time of the service is never earlier."""
        with self._lock:
            bounds = self._bounds
        return float("inf") if bounds is None else (bounds.high - bounds.low) / MICROSECONDS


@functools.lru_cache(maxsize=4)
def instant_of(date: str) -> Instant | None:
    """Return the instant that a ``Date`` header names; None if it is none."""
    try:
        return Instant(int(parsedate_to_datetime(date).timestamp()) * MICROSECONDS)
    except (ValueError, OverflowError):
        return None


ASK_EVERY: Final = 0.01
SHARPENED_WITHIN: Final = 2.0
SHARP: Final = 4 * SLACK / MICROSECONDS
"""How well the time can be known, in seconds, where round trips are short."""


async def sharpen(time: ServiceTime, shortest_lease: float, probe: Callable[[], Awaitable[object]]) -> None:
    """Where leases may be short, ask for the time around the turn of a second, until it is known well enough."""
    goal = max(shortest_lease / 4, SHARP)
    deadline = monotonic() + SHARPENED_WITHIN
    while time.error > goal and monotonic() < deadline:
        await asyncio.sleep(ASK_EVERY)
        await probe()


_times: Final[dict[str, ServiceTime]] = {}


def shared_time(service: str) -> ServiceTime:
    """Return the time of a service, one for all handles of this process: they agree on what has expired."""
    return _times.setdefault(service, ServiceTime())

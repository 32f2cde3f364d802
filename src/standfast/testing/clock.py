"""A clock that moves only when it is told to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from standfast.clock import MICROSECONDS, Instant
from standfast.errors import InvalidDurationError

if TYPE_CHECKING:
    import asyncio

START: Final = Instant(1_750_000_000 * MICROSECONDS)
"""Where the wall clock of a :class:`VirtualClock` starts: 15 June 2025, 15:06:40 UTC."""


@final
class VirtualClock:
    """A :class:`~standfast.clock.Clock` for tests: time passes when the test says so.

    Without a loop it stands still until :meth:`advance` moves it. With one it follows ``loop.time()``, so that it
    passes with the virtual time of a :class:`SimulatedLoop`; ``advance`` then is time that the loop did not see,
    as when the machine was suspended.

    >>> clock = VirtualClock()
    >>> before = clock.elapsed()
    >>> clock.advance(2.5)
    >>> clock.elapsed() - before
    2500000
    """

    __slots__ = ("_booted", "_boots", "_loop", "_passed", "_stepped")

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop: Final = loop
        self._passed = 0
        self._stepped = 0
        self._booted = 0
        self._boots = 1

    def wall(self) -> Instant:
        """Return the time of day, as far as it was stepped."""
        return Instant(START + self._stepped + self._since_start())

    def elapsed(self) -> Instant:
        """Return the microseconds since the last :meth:`reboot`, or since the clock was made."""
        return Instant(self._since_start() - self._booted)

    def boot(self) -> str:
        """Return what tells this boot from those before and after it."""
        return f"virtual-boot-{self._boots}"

    def _since_start(self) -> int:
        followed = 0 if self._loop is None else round(self._loop.time() * MICROSECONDS)
        return self._passed + followed

    def advance(self, seconds: float) -> None:
        """Let time pass, by both clocks."""
        if not seconds >= 0:  # also refuses NaN
            raise InvalidDurationError(repr(seconds), "time only passes forwards (step_wall steps the time of day)")
        self._passed += round(seconds * MICROSECONDS)

    def step_wall(self, seconds: float) -> None:
        """Step the time of day forwards, or backwards if negative, as an administrator may; no time passes."""
        self._stepped += round(seconds * MICROSECONDS)

    def reboot(self) -> None:
        """Start :meth:`elapsed` anew from zero, as a restart of the machine does; the time of day goes on."""
        self._booted = self._since_start()
        self._boots += 1

"""The only reader of time.

Instants are whole microseconds since the Unix epoch, so that they are exact in JSON, SQL and Lua alike;
durations are seconds. A store stamps its answers with its own clock; nothing above it compares clocks.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Final, NewType, Protocol, final

if TYPE_CHECKING:
    from collections.abc import Callable

Instant = NewType("Instant", int)
"""A point in time: microseconds since the Unix epoch, by one named clock (usually the store's)."""

MICROSECONDS: Final = 1_000_000


def later(instant: Instant, seconds: float) -> Instant:
    """Return the instant that lies ``seconds`` after ``instant``."""
    return Instant(instant + round(seconds * MICROSECONDS))


def seconds_between(start: Instant, end: Instant) -> float:
    """Return the seconds from ``start`` to ``end``; negative if ``end`` comes first."""
    return (end - start) / MICROSECONDS


class Clock(Protocol):
    """What Standfast asks of a clock. :class:`SystemClock` is the real one."""

    def wall(self) -> Instant:
        """Return the time of day. May be stepped forwards or backwards by an administrator."""
        ...

    def elapsed(self) -> Instant:
        """Return microseconds since an arbitrary start that all processes on this machine share until it reboots.

        Never goes backwards and counts time spent suspended, where the platform can tell.
        """
        ...

    def boot(self) -> str:
        """Return what tells this boot of the machine from every other; ``elapsed`` starts anew with it."""
        ...


@final
class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def wall(self) -> Instant:
        """Return the time of day."""
        return Instant(time.time_ns() // 1000)

    def elapsed(self) -> Instant:
        """Return microseconds since boot, suspended time included (Linux), or of the monotonic clock."""
        return _elapsed_ns() // 1000  # type: ignore[return-value]  # pyright: ignore[reportReturnType] -- an Instant; calling it takes as long

    def boot(self) -> str:
        """Return the kernel's boot id, or where there is none the minute of the boot."""
        return _boot_id()


# macOS and Windows have no CLOCK_BOOTTIME; their monotonic clock is shared by all processes as well.
_elapsed_ns: Callable[[], int] = (
    functools.partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic_ns
)


@functools.cache
def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as text:  # noqa: PTH123 -- pathlib would be imported for this alone
            return text.read().strip()
    except OSError:
        return f"minute-{(time.time_ns() - _elapsed_ns()) // 60_000_000_000}"


SYSTEM_CLOCK: Final[Clock] = SystemClock()
"""The clock that is used where none is handed in."""


def cpu_of(clock: Clock) -> float:
    """Return the seconds that this process has computed for; by the clock of a test it has for none."""
    return time.process_time() if isinstance(clock, SystemClock) else 0.0


wall_nanoseconds = time.time_ns
"""The time of day in nanoseconds, for what is only ever shown: spans of requests, of which there are many."""

monotonic = time.monotonic
"""Seconds by a clock of this process alone, for measuring how long something took."""

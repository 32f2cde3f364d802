"""The clock: exact instants, and elapsed time that never goes back."""

from __future__ import annotations

import subprocess
import sys
import time

from hypothesis import given
from hypothesis import strategies as st

from standfast.clock import SYSTEM_CLOCK, Instant, SystemClock, later, monotonic, seconds_between
from standfast.durations import MAX_SECONDS

instants = st.integers(0, 2**52).map(Instant)


def test_the_wall_clock_is_the_time_of_day_in_microseconds() -> None:
    """An instant counts microseconds since the Unix epoch."""
    before = time.time_ns() // 1000
    assert before <= SYSTEM_CLOCK.wall() <= time.time_ns() // 1000


def test_elapsed_time_never_goes_back() -> None:
    """Many readings in a row are in order."""
    readings = [SystemClock().elapsed() for _ in range(1_000)]
    assert readings == sorted(readings)


def test_elapsed_time_is_shared_by_the_processes_of_the_machine() -> None:
    """A child's reading lies between two of its parent's."""
    command = [sys.executable, "-c", "from standfast.clock import SYSTEM_CLOCK; print(SYSTEM_CLOCK.elapsed())"]
    before = SYSTEM_CLOCK.elapsed()
    reading = int(subprocess.check_output(command, text=True))
    assert before < reading < SYSTEM_CLOCK.elapsed()


def test_the_monotonic_clock_counts_seconds() -> None:
    """It measures how long something took in this process."""
    first = monotonic()
    assert first <= monotonic() < first + 60


@given(instants, st.integers(0, 10**12))
def test_adding_seconds_and_measuring_them_agree(start: Instant, microseconds: int) -> None:
    """An instant later by some seconds is that many seconds away, to the microsecond."""
    end = later(start, microseconds / 1_000_000)
    assert end - start == microseconds
    assert seconds_between(start, end) == microseconds / 1_000_000
    assert seconds_between(end, start) <= 0


def test_a_tenth_of_a_second_is_exact() -> None:
    """Decimal fractions do not drift, however often they are added."""
    instant = Instant(0)
    for _ in range(10_000):
        instant = later(instant, 0.1)
    assert instant == 1_000_000_000


def test_the_longest_duration_from_now_stays_exact_in_a_double() -> None:
    """Instants stay below 2^53, so JSON, Lua and JavaScript keep them exact."""
    assert later(SYSTEM_CLOCK.wall(), MAX_SECONDS) < 2**53

"""How often a store without hints looks: often after a write, and then more and more seldom."""

from __future__ import annotations

import itertools

import pytest

from standfast.stores.dynamodb import server as pacing
from standfast.stores.dynamodb.server import FIRST, LONGEST, Pace


class Time:
    """Seconds that pass when a test says so."""

    now = 100.0

    def __call__(self) -> float:
        """Return the seconds so far."""
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The time that the pace goes by."""
    time = Time()
    monkeypatch.setattr(pacing, "monotonic", time)
    return time


def looks(pace: Pace, time: Time, seconds: float) -> list[float]:
    """Return when it was time to look, asking every ten milliseconds."""
    found, mark, start = [], pace.mark(), time.now
    while time.now < start + seconds:
        time.now += 0.01
        if pace.mark() != mark:
            mark = pace.mark()
            found.append(time.now - start)
    return found


def test_looks_become_rare(time: Time) -> None:
    """The pauses grow from a tenth of a second to two seconds, and no further."""
    pauses = [later - earlier for earlier, later in itertools.pairwise(looks(Pace(), time, 60))]

    assert pauses == sorted(pauses, key=lambda pause: round(pause, 1))
    assert pauses[-1] == pytest.approx(LONGEST, abs=0.02)
    assert len(pauses) < 40


def test_a_write_makes_it_look_soon(time: Time) -> None:
    """Whoever has written something may be answered."""
    pace = Pace()
    looks(pace, time, 60)
    pace.hasten()

    assert looks(pace, time, 1)[0] <= FIRST + 0.02

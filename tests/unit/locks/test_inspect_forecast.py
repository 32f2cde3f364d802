"""Guessing when those who wait will hold, from how long holds take."""

from __future__ import annotations

from math import inf

import pytest

from standfast.clock import Instant
from standfast.locks.inspect import forecast, newcomer, remaining
from standfast.locks.line import Entry, Holder, Rules, Until

NOW = Instant(0)


def entry(name: str, weight: int = 1, mode: str = "", max_hold: float | None = None) -> Entry:
    """Return somebody in a line."""
    return Entry(name, name, Until(NOW), NOW, mode=mode, weight=weight, max_hold=max_hold)


def held(end: float, slot: int = 0, mode: str = "") -> tuple[float, Holder]:
    """Return a holder that goes on for a while."""
    return end, Holder(entry(f"h{slot}", mode=mode), slot, NOW)


def test_one_after_the_other() -> None:
    """With holds of 10 s, the present one 6 s before its end, each waits 10 s longer than the one in front."""
    assert list(forecast(Rules(1), [held(6)], [entry("a"), entry("b"), entry("c")], 10)) == [6, 16, 26]


def test_a_heavy_one_holds_up_those_behind_it() -> None:
    """Nobody passes: one that needs both permits waits for both, and the next for it."""
    assert list(forecast(Rules(2), [held(1, 0), held(5, 1)], [entry("a", 2), entry("b")], 10)) == [5, 15]


def test_one_that_is_too_heavy_is_turned_away() -> None:
    """It never holds, and is in nobody's way."""
    assert list(forecast(Rules(2), [held(1)], [entry("a", 3), entry("b")], 10)) == [None, 0]


def test_those_of_one_mode_hold_together() -> None:
    """Readers come together, the writer after them all, and a newcomer that shares with nobody last."""
    rules = Rules(None, ("w",))
    line = [entry("a", mode="r"), entry("b", mode="r"), entry("c", mode="w"), newcomer(rules, "mode lock")]
    assert list(forecast(rules, [held(3, mode="w")], line, 10)) == [3, 3, 13, 23]


def test_without_a_pace_only_what_is_limited_is_known() -> None:
    """Nobody knows when a hold ends, unless it has a limit."""
    assert list(forecast(Rules(1), [held(inf)], [entry("a")], 0)) == [None]
    assert list(forecast(Rules(1), [held(4)], [entry("a", max_hold=2), entry("b"), entry("c")], 0)) == [4, 6, None]


@pytest.mark.parametrize(
    ("pace", "held_for", "left", "expected"),
    [(10, 4, None, 6), (10, 40, None, 0), (0, 4, None, inf), (0, 4, 3, 3), (10, 4, 3, 3), (10, 4, -1, 0)],
)
def test_a_holder_goes_on_for_the_rest_of_the_pace(
    pace: float, held_for: float, left: float | None, expected: float
) -> None:
    """One that took longer than others is expected to end at any moment; a limit ends it in any case."""
    assert remaining(pace, held_for, left) == expected

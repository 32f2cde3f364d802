"""The tests that repeat themselves stop in time, and say how far they came."""

from __future__ import annotations

import itertools
import time

import pytest

from tests import sizes


@pytest.fixture(autouse=True)
def ten_seconds_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every look at the clock be ten seconds later, and keep the tally out of the summary."""
    monkeypatch.setattr(time, "monotonic", itertools.count(0, 10).__next__)
    monkeypatch.setattr(sizes, "tallies", [])
    monkeypatch.setattr(sizes, "PROVE", False)
    monkeypatch.setattr(sizes, "SHARE", 1.0)


def test_rounds_stop_when_the_box_closes() -> None:
    """No round begins after the time box has closed."""
    assert list(sizes.rounds("kills", full=200, seconds=30)) == [0, 1, 2]


def test_a_few_rounds_are_done_even_in_a_closed_box() -> None:
    """On a slow machine at least ``quick`` rounds are done."""
    assert len(list(sizes.rounds("kills", full=200, quick=7, seconds=0))) == 7


def test_a_proof_does_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ``make prove`` there is no time box."""
    monkeypatch.setattr(sizes, "PROVE", True)
    assert len(list(sizes.rounds("kills", full=200, seconds=0))) == 200
    assert sizes.size(full=10, quick=1) == 10


def test_the_summary_says_what_was_done_and_what_a_proof_does() -> None:
    """The tally has the rounds that were finished, not the one that failed."""
    kills = sizes.rounds("kills", full=200, seconds=30)
    next(kills), next(kills)
    assert [str(tally) for tally in sizes.tallies] == ["kills: 1 in 10 s (make prove: 200)"]

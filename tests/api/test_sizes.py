"""The tests that repeat themselves do a fixed number of rounds, and the summary says how many."""

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


def test_the_quick_number_of_rounds_is_done_however_long_they_take() -> None:
    """A slow machine does the same rounds as a fast one."""
    assert list(sizes.rounds("kills", full=200, quick=3)) == [0, 1, 2]


def test_a_size_is_the_quick_one() -> None:
    """Outside of ``make prove``."""
    assert sizes.size(full=10, quick=1) == 1


def test_a_proof_does_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ``make prove`` everything has its full size."""
    monkeypatch.setattr(sizes, "PROVE", True)
    assert len(list(sizes.rounds("kills", full=200, quick=3))) == 200
    assert sizes.size(full=10, quick=1) == 10


def test_the_summary_says_what_was_done_and_what_a_proof_does() -> None:
    """The tally has the rounds that were finished, not the one that failed."""
    kills = sizes.rounds("kills", full=200, quick=3)
    next(kills), next(kills)
    assert [str(tally) for tally in sizes.tallies] == ["kills: 1 in 10 s (make prove: 200)"]

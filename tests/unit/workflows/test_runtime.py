"""Runs with which workers died: which of them a worker takes up, and when."""

from __future__ import annotations

from standfast.workflows.runtime import Suspects


def test_a_worker_drives_one_suspect_at_a_time() -> None:
    """The others are named when it is gone; runs that are no suspects are taken up all the while."""
    suspects = Suspects(5)
    assert suspects.may_take("a", 2)
    assert not suspects.may_take("b", 3)
    assert suspects.may_take("c", 1)
    assert suspects.may_take("a", 2)
    assert suspects.gone("c") == []

    assert suspects.gone("a") == ["b"]
    assert suspects.may_take("b", 3)
    assert suspects.gone("b") == []


def test_a_low_limit_makes_suspects_earlier() -> None:
    """There is a death left to find out which one it is."""
    suspects = Suspects(2)
    assert suspects.may_take("a", 1)
    assert not suspects.may_take("b", 1)
    assert suspects.may_take("c", 0)

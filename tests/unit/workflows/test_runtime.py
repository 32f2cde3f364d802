"""Runs with which workers died: which of them a worker takes up, and when."""

from __future__ import annotations

from standfast.testing.workflows import WorkflowEnvironment
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


async def test_a_run_that_does_not_fit_is_tried_less_and_less_often() -> None:
    """The code of a worker does not change while it runs: each attempt costs a replay, and an error in the log."""
    async with WorkflowEnvironment() as env:
        runtime = env.client.runtime

        def minutes() -> int:
            runtime.leave_mismatched("a")
            passed = 0
            while runtime.is_mismatched("a"):
                env.clock.advance(60)
                passed += 1
            return passed - 1

        assert [minutes() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
        runtime.try_again("a")
        assert minutes() == 1

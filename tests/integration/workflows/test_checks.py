"""The checks themselves: each finds what it is for, and nothing in a history that is as it should be."""

from __future__ import annotations

import pytest

from tests.integration.workflows.checks import check, check_lanes, check_locks
from tests.integration.workflows.ledger import Entry

STEP = "run:step"
SOUND = [
    Entry("begin", 1.0, 11, STEP, 1, 5, "one"),
    Entry("kill", 2.0, 11),
    Entry("begin", 3.0, 12, STEP, 1, 6, "two"),
    Entry("end", 4.0, 12, STEP, 1, 6, "two"),
]
ONCE = Entry("begin", 1.0, 11, "run:once", 1, 5, "one", "once")
INTERRUPTED = {("run:once", 1): "standfast.errors.StepInterruptedError the step was interrupted"}


def test_a_step_that_is_done_again_after_a_kill_is_no_problem() -> None:
    """It is counted as a duplicate."""
    found = check(SOUND, {(STEP, 1): "two"})
    assert (found.attempts, found.duplicates, found.problems) == (1, 1, ())


@pytest.mark.parametrize(
    ("ledger", "record", "problem"),
    [
        (SOUND, "one", "executed again after it was recorded"),
        (SOUND, None, "executed and is not recorded"),
        ([each for each in SOUND if each.what != "kill"], "two", "was alive"),
        ([SOUND[0], SOUND[2], SOUND[3], Entry("kill", 5.0, 11)], "two", "was alive"),
        ([*SOUND[:2], Entry("begin", 3.0, 12, STEP, 1, 5, "two")], "two", "with fence 5, after 5"),
        ([], "two", "recorded and was never executed"),
    ],
)
def test_what_must_not_be_is_found(ledger: list[Entry], record: str | None, problem: str) -> None:
    """A repeated record, a lost one, a duplicate without a kill or before it, a stale fence, a made-up record."""
    found = check(ledger, {} if record is None else {(STEP, 1): record})
    assert any(problem in each for each in found.problems), found


def test_an_at_most_once_step_is_executed_once_and_interrupted_only_by_a_kill() -> None:
    """Neither a second execution nor an interruption out of nowhere passes."""
    kill = Entry("kill", 2.0, 11)
    again = Entry("begin", 3.0, 12, "run:once", 1, 6, "two", "once")
    assert check([ONCE, kill], INTERRUPTED).problems == ()
    assert "was not killed" in check([ONCE], INTERRUPTED).problems[0]
    assert "at most once" in check([ONCE, kill, again], {("run:once", 1): "two"}).problems[0]


def test_runs_that_are_inside_a_lock_together_are_found() -> None:
    """From the first step of one to its last there must be no other, but for the next time that it is inside."""
    one = [Entry(what, at, 11, "a:locked_work") for what, at in (("begin", 1.0), ("end", 2.0))]
    last = [Entry(what, at, 11, "a:locked_work#2") for what, at in (("begin", 3.0), ("end", 4.0))]
    assert check_locks([*one, *last, Entry("begin", 5.0, 12, "b:locked_work")]) == []
    assert len(check_locks([*one, Entry("begin", 2.5, 12, "b:locked_work"), *last])) == 1


def test_a_worker_that_was_stopped_may_have_been_replaced_and_what_it_does_late_is_counted_apart() -> None:
    """Its record is refused; but what it did in time counts, and without the stop it would be a problem."""
    first, _, second, end = SOUND
    late = Entry("begin", 5.0, 11, STEP, 1, 5, "three")
    stop = Entry("stop", 2.0, 11)
    found = check([first, stop, second, end, late], {(STEP, 1): "two"})
    assert (found.duplicates, found.late, found.problems) == (1, 1, ())
    assert check([first, second, end, late, Entry("stop", 6.0, 11)], {(STEP, 1): "two"}).problems != ()
    assert check([first, second, end, Entry("fault", 6.0, 1)], {(STEP, 1): "two"}).problems != ()


def test_a_run_that_has_its_turn_before_an_earlier_one_or_beside_it_is_found() -> None:
    """In each lane numbers only go up, one by one."""
    one, two, three = (Entry("begin", at, 11, f"{number}:first", 1, 5, "x", f"north {number}") for at, number in
                       ((1.0, 1), (2.0, 2), (3.0, 3)))  # fmt: skip
    assert check_lanes([one, one, two, three]) == []
    assert len(check_lanes([one, three])) == 1
    assert len(check_lanes([one, two, one])) == 1

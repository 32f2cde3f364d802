"""What strangers do fills no log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from standfast.log_budget import LogBudget

if TYPE_CHECKING:
    import pytest


def test_a_few_lines_of_a_kind_are_written_and_then_how_many_more_there_were(caplog: pytest.LogCaptureFixture) -> None:
    """Each kind has a budget of its own, which fills up again."""
    now = [0.0]
    budget = LogBudget(logging.getLogger("standfast.test"), burst=3, per_minute=60, now=lambda: now[0])
    for _ in range(1_000):
        budget.warning("refused", address="203.0.113.9")
    budget.warning("other")
    now[0] = 1.0
    budget.warning("refused", address="203.0.113.9")
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:3] == ["event=refused address=203.0.113.9"] * 3
    assert lines[3:] == ["event=other", "event=refused address=203.0.113.9 suppressed=997"]


def test_what_is_not_wanted_costs_no_budget(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a line nor a count."""
    logger = logging.getLogger("standfast.test.quiet")
    logger.setLevel(logging.ERROR)
    budget = LogBudget(logger, burst=1)
    budget.info("refused")
    logger.setLevel(logging.INFO)
    budget.info("refused")
    assert [record.getMessage() for record in caplog.records] == ["event=refused"]

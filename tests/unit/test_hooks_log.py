"""The log that stands in where no hook writes one: it hears of trouble, whatever other hooks want to hear."""

from __future__ import annotations

from standfast.clock import Instant
from standfast.events import Event, RunMoved, Swept, WorkerFails
from standfast.hooks import Hooks


def test_a_log_that_stands_in_hears_only_warnings_and_errors() -> None:
    """Metrics want every run; nobody asked for a line in the log for each."""
    counted, logged = list[Event](), list[Event]()
    hooks = Hooks([counted.append], log=logged.append)
    moved = RunMoved(at=Instant(1), run="r", workflow="w", status="running")
    fails = WorkerFails(at=Instant(1), problem="the store is gone")
    hooks.emit(moved)
    hooks.emit(Swept(at=Instant(1), store="memory://", seconds=0.1, removed=1))
    hooks.emit(fails)
    assert logged == [fails]
    assert len(counted) == 3

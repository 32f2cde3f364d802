"""Events: frozen facts, each of them on the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from standfast import events
from standfast.clock import Instant
from standfast.events import Committed, Event, RunMoved, Swept

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "events.md"
SWEPT = Swept(at=Instant(1), store="memory://", seconds=0.5, removed=3)
KINDS = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]


def test_an_event_cannot_be_changed() -> None:
    """A hook cannot alter what the next hook sees."""
    with pytest.raises(AttributeError):
        SWEPT.removed = 4  # type: ignore[misc]  # what is tested


def test_every_event_says_when_and_how_serious() -> None:
    """All events share a root, carry ``at``, and have a level that logging knows."""
    assert len(KINDS) > 8
    for kind in KINDS:
        assert "at" in kind.__struct_fields__
        assert kind.level in {"debug", "info", "warning", "error"}
        assert kind.__doc__


def test_the_page_lists_every_event_with_its_level() -> None:
    """Whoever reads the page finds each event, whether it is frequent, and how serious it is; and nothing else."""
    rows = re.findall(r"^\| `(\w+)`(, frequent)? \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    roots = {base for kind in KINDS for base in kind.__mro__[1:]}
    told = {(kind.__name__, kind.frequent, kind.level) for kind in KINDS if kind not in roots}
    assert {(name, bool(frequent), level) for name, frequent, level in rows} == told


def test_a_store_event_knows_its_kind_of_store() -> None:
    """Labels of metrics have the backend, never the address."""
    committed = Committed(at=Instant(1), store="postgresql://db/jobs", seconds=0.1, riders=1, conflicts=0)
    assert (committed.backend, SWEPT.backend) == ("postgresql", "memory")


def test_what_happened_to_a_run_is_read_from_one_event() -> None:
    """New, claimed and ended are told apart without knowing the words of statuses."""
    moved = RunMoved(at=Instant(1), run="r", workflow="w", status="running", fence=3, before="pending")
    assert (moved.is_new, moved.is_claimed, moved.has_ended) == (False, True, False)
    ended = RunMoved(at=Instant(1), run="r", workflow="w", status="timed_out", fence=3, before="running")
    assert (ended.is_claimed, ended.has_ended) == (False, True)

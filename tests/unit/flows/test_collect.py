"""The order of the events of a burst: that of their own times, as far as those are known."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.flows.collect import in_order, time_of
from standfast.flows.records import StoredCall


def call(name: str, at: float | None) -> StoredCall:
    """Return an event."""
    return StoredCall(flow="chat", action="respond", tenant="acme", inputs={"name": name}, at=at)


@pytest.mark.parametrize(
    ("events", "order"),
    [
        ([("a", None), ("b", None), ("c", None)], "abc"),
        ([("a", 3.0), ("b", 1.0), ("c", 2.0)], "bca"),
        ([("a", 3.0), ("b", None), ("c", 2.0)], "cab"),
        ([("a", 1.0), ("b", 1.0)], "ab"),
    ],
)
def test_events_are_in_the_order_of_their_own_times(events: list[tuple[str, float | None]], order: str) -> None:
    """One that came late is as old as it is; one without a time is as new as the newest before it."""
    ordered = in_order([call(name, at) for name, at in events])

    assert "".join(each.inputs["name"] for each in ordered) == order


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (12, 12.0),
        (1.5, 1.5),
        ("1970-01-01T00:00:10Z", 10.0),
        ("1970-01-01T01:00:10+01:00", 10.0),
        ("1970-01-01T00:00:10", None),
        (float("inf"), None),
        (float("nan"), None),
        ("soon", None),
        (True, None),
        (None, None),
        ([], None),
        (10**400, None),
    ],
)
def test_the_time_of_an_event_is_a_number_of_seconds_or_a_text(given: Any, seconds: float | None) -> None:
    """Anything else counts as not known."""
    assert time_of({"event_time": given}) == seconds

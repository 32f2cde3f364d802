"""When a line is polled by those who wait in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.events import NO_HOOKS
from standfast.locks import registry
from standfast.locks.line_driver import LocalLine
from standfast.locks.line_records import LineKeys
from standfast.locks.registry import FIRST_POLL, LATEST_POLL, PATIENCE, _first_poll
from standfast.scope import Scope, address_of

if TYPE_CHECKING:
    from standfast.testing import VirtualClock


@pytest.fixture
def line(scope: Scope, clock: VirtualClock) -> LocalLine:
    """A line in which this process takes part."""
    return LocalLine(scope, LineKeys(scope, address_of("k")), clock)


@pytest.mark.parametrize(
    ("waited", "polled_after"), [(0.0, FIRST_POLL), (0.02, FIRST_POLL), (0.1, PATIENCE * 0.1), (3.0, LATEST_POLL)]
)
def test_the_first_poll_comes_when_turns_here_would_have_come(
    line: LocalLine, waited: float, polled_after: float
) -> None:
    """Several times as late as turns came lately, never sooner than usual, and after a second at the latest."""
    line.waited = waited
    assert _first_poll(line, PATIENCE) == pytest.approx(polled_after)


def test_where_a_poll_costs_no_round_trip_it_is_not_put_off(line: LocalLine) -> None:
    """On one machine the death of a holder is to be seen at once, and a poll is cheap."""
    line.waited = 3.0
    assert _first_poll(line, 0) == FIRST_POLL


async def test_lines_in_use_do_not_keep_others_from_being_forgotten(
    scope: Scope, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many locks a process holds, those that it has left are forgotten, at the same cost for each new one."""
    monkeypatch.setattr(registry, "REMEMBERED", 20)
    looked: list[str] = []

    def is_idle(line: LocalLine) -> bool:
        looked.append(name := line.driver.keys.head.parts[-1])
        return not name.startswith("held")

    monkeypatch.setattr(LocalLine, "is_idle", property(is_idle))
    lines = registry.Lines(scope, clock, NO_HOOKS, None)
    for number in range(50):
        lines.line(address_of(f"held {number}"))
    for number in range(200):
        lines.line(address_of(f"left {number}"))
    kept = [address[-1] for address in lines._lines]
    assert sum(name.startswith("held") for name in kept) == 50
    assert sum(name.startswith("left") for name in kept) <= 20
    assert len(looked) <= 250 * registry.FORGOTTEN
    assert len(lines._by_head) == len(lines._by_grant) == len(kept)
    await lines.aclose()

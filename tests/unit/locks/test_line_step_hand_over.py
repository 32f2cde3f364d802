"""A run that hands its turn to the next one: the short way comes to exactly what the long way comes to."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from standfast.clock import Instant
from standfast.locks.line import Entry, Holder, OfPresence, OfRun, Rules, Waiter
from standfast.locks.line_records import (
    WINDOW,
    Head,
    Leave,
    LineFacts,
    LineKeys,
    LineView,
    LockSpec,
    is_alive,
    ready_changes,
    step,
)
from standfast.locks.line_step import quick_step, runs_to_notify
from tests.unit.locks.test_line_step_quick import keys, snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from standfast.keys import RecordKey

__all__ = ["keys"]

NOW, EARLIER = Instant(1_000_000), Instant(500_000)
SITE, FACTS = LockSpec("limit", Rules(1)), LineFacts(new_life="new")


def run(name: str) -> Entry:
    """Return the entry of a run."""
    return Entry(name, name, OfRun(name), EARLIER)


def lines() -> Iterator[tuple[Head, tuple[Waiter, ...]]]:
    """Yield lines with one holder and any number of waiters, with and without gaps, near and far."""
    holder = Holder(run("a"), 0, EARLIER)
    for tickets, pinned, pace in itertools.product(
        [(3,), (3, 4), (5, 9), (3, 4, 5, 6, 7, 8, 9, 10, 11, 12), (10,), (11,)], (False, True), (0.0, 2.5)
    ):
        head = Head("life", "limit", Rules(1), (holder,), 3, tickets[-1] + 1, pinned, pace)
        yield head, tuple(Waiter(run(f"w{ticket}"), ticket) for ticket in tickets)


def given_for(keys: LineKeys) -> frozenset[RecordKey]:
    """Return the keys that a step may need."""
    tickets, grants = map(keys.ticket, range(20)), map(keys.grant, range(3))
    return frozenset((keys.head, *tickets, *grants, *(keys.ready(f"w{number}") for number in range(20))))


def test_the_next_run_has_its_turn_the_short_way_as_the_long_way(keys: LineKeys) -> None:
    """The same line, answer and changes, and the same run is told; whoever is out of sight is left to the long way."""
    given, taken = given_for(keys), 0
    for head, waiters in lines():
        seen = snapshot(keys, head, waiters)
        quick = quick_step(keys, seen, given, SITE, FACTS, request := Leave("a"))
        assert (quick is None) == (waiters[0].ticket >= 3 + WINDOW)
        if quick is None:
            continue
        view = LineView(keys, seen, given, SITE, FACTS)
        line, answers = step(view.line, [request], NOW, partial(is_alive, FACTS, NOW))
        assert (quick.line, (quick.answer,), quick.granted) == (line, answers, line.holders)
        assert {each.key: each for each in quick.changes} == {each.key: each for each in view.changes(line)}
        assert quick.ready == ready_changes(view, runs_to_notify(view.line, line, [request], answers))
        taken += 1
    assert taken == 20


@pytest.mark.parametrize(
    "other",
    [
        structs.replace(run("w3"), anchor=OfPresence("p.1")),
        structs.replace(run("w3"), woken=False),
        structs.replace(run("w3"), weight=2),
        structs.replace(run("w3"), max_hold=5.0),
        structs.replace(run("w3"), owner="somebody else"),
    ],
)
def test_whoever_is_no_plain_run_goes_the_long_way(keys: LineKeys, other: Entry) -> None:
    """It may be dead, ask for itself, not fit, or have an end."""
    head = Head("life", "limit", Rules(1), (Holder(run("a"), 0, EARLIER),), 3, 4)
    seen = snapshot(keys, head, (Waiter(other, 3),))

    assert quick_step(keys, seen, given_for(keys), SITE, FACTS, Leave("a")) is None


def test_keys_that_were_not_read_are_left_to_the_long_way(keys: LineKeys) -> None:
    """It says what is missing."""
    head = Head("life", "limit", Rules(1), (Holder(run("a"), 0, EARLIER),), 3, 4)
    seen = snapshot(keys, head, (Waiter(run("w3"), 3),))
    for lacking in (keys.ticket(3), keys.grant(0), keys.ready("w3")):
        assert quick_step(keys, seen, given_for(keys) - {lacking}, SITE, FACTS, Leave("a")) is None

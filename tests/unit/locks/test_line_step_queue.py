"""Where processes queue up, the short way looks at one ticket only and comes to what the long way comes to."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from standfast.clock import Instant
from standfast.locks.line import Entry, Holder, OfPresence, OfRun, Rules, Until, Waiter
from standfast.locks.line_records import (
    Enter,
    Head,
    Leave,
    LineFacts,
    LineKeys,
    LineView,
    LockSpec,
    Request,
    is_alive,
    step,
    wakes_after,
)
from standfast.locks.line_step import quick_step
from tests.unit.locks.test_line_step_quick import keys, snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from standfast.keys import RecordKey
    from standfast.stores import Record

__all__ = ["keys"]

NOW, EARLIER = Instant(1_000_000), Instant(500_000)
SITE, FACTS = LockSpec("mutex", Rules(1)), LineFacts(new_life="new")
JOIN, LEAVE = Enter(Entry("n", "n", OfPresence("p.9"), Instant(0))), Leave("a", 0)


def entry(name: str) -> Entry:
    """Return an entry that lives as long as a process."""
    return Entry(name, name, OfPresence(f"p.{name}"), EARLIER)


def held(waiting: int = 0, first: Entry | None = None) -> tuple[Head, tuple[Waiter, ...]]:
    """Return a mutex that "a" holds, with so many who wait, from ticket 3 on."""
    head = Head("life", "mutex", Rules(1), (Holder(entry("a"), 0, EARLIER),), 3, 3 + waiting)
    waiters = [Waiter(entry(f"w{ticket}"), ticket) for ticket in range(3, 3 + waiting)]
    return head, tuple([Waiter(first, 3), *waiters[1:]] if first else waiters)


def lines() -> Iterator[tuple[Head, tuple[Waiter, ...]]]:
    """Yield lines of any length, kept by an operator or not, with and without an end."""
    for waiting, pinned, pace in itertools.product((0, 1, 2, 20), (False, True), (0.0, 2.5)):
        head, waiters = held(waiting)
        yield structs.replace(head, pinned=pinned, pace=pace), waiters
    yield held(2, structs.replace(entry("w3"), max_hold=5.0))


def every_key(keys: LineKeys) -> frozenset[RecordKey]:
    """Return the keys that the long way may need."""
    return frozenset((keys.head, keys.grant(0), *map(keys.ticket, range(40))))


@pytest.mark.parametrize("request_", [JOIN, LEAVE], ids=["joining", "handing over"])
def test_one_ticket_is_enough_to_join_a_queue_and_to_hand_over(keys: LineKeys, request_: Request) -> None:
    """The same answer, holders and changes as with all of the line in sight, and the same one is woken."""
    for head, waiters in lines():
        if request_ is LEAVE and not waiters:
            continue
        ticket = head.next_ticket if request_ is JOIN else head.front
        few = frozenset((keys.head, keys.grant(0), keys.ticket(ticket)))
        seen = snapshot(keys, head, waiters)
        quick = quick_step(keys, structs.replace(seen, records=_only(seen.records, few)), few, SITE, FACTS, request_)
        view = LineView(keys, seen, every_key(keys), SITE, FACTS)
        line, answers = step(view.line, [request_], NOW, partial(is_alive, FACTS, NOW))
        assert quick is not None
        assert ((quick.answer,), quick.line.holders, quick.line.front) == (answers, line.holders, line.front)
        assert {each.key: each for each in quick.changes} == {each.key: each for each in view.changes(line)}
        assert request_ is JOIN or list(quick.wakes) == list(wakes_after(view, line, ["a"]))


def _only(records: dict[RecordKey, Record], few: frozenset[RecordKey]) -> dict[RecordKey, Record]:
    return {key: record for key, record in records.items() if key in few}


@pytest.mark.parametrize(
    "first",
    [
        structs.replace(entry("w3"), anchor=OfRun("r")),
        structs.replace(entry("w3"), anchor=Until(NOW)),
        structs.replace(entry("w3"), woken=False),
        structs.replace(entry("w3"), weight=2),
    ],
)
def test_a_first_one_that_is_not_plain_is_handed_to_the_long_way(keys: LineKeys, first: Entry) -> None:
    """It may be a run that has to be told, be over, ask for itself, or not fit."""
    seen = snapshot(keys, *held(2, first))
    assert quick_step(keys, seen, every_key(keys), SITE, FACTS, LEAVE) is None


def test_a_gap_at_the_front_goes_the_long_way(keys: LineKeys) -> None:
    """The first was turned out: who comes next is not known from one ticket."""
    head, (_, *others) = held(3)
    assert quick_step(keys, snapshot(keys, head, tuple(others)), every_key(keys), SITE, FACTS, LEAVE) is None


@pytest.mark.parametrize(
    "request_",
    [
        structs.replace(JOIN, waits=False),
        structs.replace(JOIN, ticket=3),
        structs.replace(JOIN, lease=5.0),
        structs.replace(JOIN, permits=2),
        structs.replace(JOIN, since=EARLIER),
        Enter(structs.replace(JOIN.entry, owner="a")),
        Enter(structs.replace(JOIN.entry, weight=2)),
        Enter(structs.replace(JOIN.entry, anchor=OfRun("r"))),
    ],
)
def test_whoever_does_not_just_join_goes_the_long_way(keys: LineKeys, request_: Enter) -> None:
    """It does not want to wait, was there before, changes the permits, waits for itself, or can never fit."""
    assert quick_step(keys, snapshot(keys, *held(2)), every_key(keys), SITE, FACTS, request_) is None


@pytest.mark.parametrize(
    "holder",
    [
        Holder(entry("a"), 0, EARLIER, NOW),
        Holder(structs.replace(entry("a"), anchor=Until(NOW)), 0, EARLIER),
    ],
)
def test_a_holder_whose_time_is_over_is_left_to_the_long_way(keys: LineKeys, holder: Holder) -> None:
    """It has to fall first, and then the front moves up."""
    head, waiters = held(2)
    seen = snapshot(keys, structs.replace(head, holders=(holder,)), waiters)
    assert quick_step(keys, seen, every_key(keys), SITE, FACTS, JOIN) is None
    assert quick_step(keys, seen, every_key(keys), SITE, FACTS, LEAVE) is None

"""A line that only counts some of its holders, against one that lists them all: the same answers, step by step."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec import structs

from standfast.clock import Instant
from standfast.locks.line import (
    MOST_HOLDERS,
    OUT_OF_SIGHT,
    Entry,
    Granted,
    Holder,
    Line,
    OfPresence,
    OfRun,
    Rules,
    bring_into_sight,
    put_out_of_sight,
    sweep,
)
from standfast.locks.line_records import Enter, Leave, Reap, Request, Resize, step

NAMES = st.sampled_from("abcdefgh")


def run(name: str) -> Entry:
    """Return the entry of a run."""
    return Entry(name, name, OfRun(name), Instant(0))


def take(line: Line, *requests: Request) -> tuple[Line, tuple[object, ...]]:
    """Take a step of a line."""
    return step(line, requests, Instant(1), lambda _: True)


class CountedLine(RuleBasedStateMachine):
    """Runs come and go, and some processes among them, in two lines of which one counts."""

    @initialize(listed=st.integers(0, 2), permits=st.integers(1, 5))
    def begin(self, listed: int, permits: int) -> None:
        """Begin with two lines that are empty."""
        self.whole, self.kept = Line(Rules(permits)), Line(Rules(permits), listed=listed)
        self.hidden: dict[str, Holder] = {}

    def both(self, *requests: Request, about: str = "") -> None:
        """Take the same step in both."""
        self.whole, wanted = take(self.whole, *requests)
        brought = (self.hidden.pop(about),) if about in self.hidden else ()
        after, found = take(bring_into_sight(self.kept, brought), *requests)
        self.hidden |= {each.entry.id: each for each in after.holders if each.slot == OUT_OF_SIGHT}
        self.kept = put_out_of_sight(after)
        assert [_shown(each) for each in found] == [_shown(each) for each in wanted]

    @rule(name=NAMES, waits=st.booleans())
    def a_run_enters(self, name: str, *, waits: bool) -> None:
        """One enters, for the first time or again."""
        self.both(Enter(run(name), waits), about=name)

    @rule(name=st.sampled_from("xy"), weight=st.integers(1, 2))
    def a_process_enters(self, name: str, weight: int) -> None:
        """One that is listed in any case enters among them."""
        self.both(Enter(Entry(name, name, OfPresence(name), Instant(0), weight=weight)))

    @rule(name=st.sampled_from("abcdefghxy"))
    def one_leaves(self, name: str) -> None:
        """One leaves, whether it holds, waits, or is not there."""
        self.both(Leave(name), about=name)

    @rule(permits=st.integers(1, 9))
    def it_is_resized(self, permits: int) -> None:
        """More permits, or fewer than are held."""
        self.both(Resize(permits))

    @rule()
    def it_is_looked_at(self) -> None:
        """Nothing moves by a look."""
        self.both(Reap())

    @invariant()
    def both_are_alike(self) -> None:
        """The same hold and wait, and the count is that of those out of sight."""
        holding = {each.entry.id for each in self.kept.holders} | self.hidden.keys()
        assert holding == {each.entry.id for each in self.whole.holders}
        assert self.kept.unseen == len(self.hidden)
        assert self.kept.held == self.whole.held
        assert self.kept.waiters == self.whole.waiters
        assert (self.kept.is_full, self.kept.is_empty) == (self.whole.is_full, self.whole.is_empty)


TestCountedLine = CountedLine.TestCase


def _shown(answer: object) -> object:
    """Return an answer without the slots and lines that differ."""
    if isinstance(answer, Granted):
        return "granted", answer.holder.entry
    return type(answer) if hasattr(answer, "line") else answer


def test_more_hold_than_a_line_lists() -> None:
    """The limit of one record does not bound those that are only counted."""
    line = Line(Rules(MOST_HOLDERS + 5), listed=2)
    for number in range(MOST_HOLDERS + 6):
        line = put_out_of_sight(take(line, Enter(run(f"r{number}")))[0])
    assert (len(line.holders), line.unseen, len(line.waiters)) == (2, MOST_HOLDERS + 3, 1)
    assert line.is_full


def test_holders_that_were_listed_do_not_keep_out_those_that_are_counted() -> None:
    """A line of an older version lists as many as it could: they stay there, and more come in beside them."""
    holders = tuple(Holder(run(f"r{number}"), number, Instant(0)) for number in range(MOST_HOLDERS))
    line, [answer] = take(Line(Rules(1_000), holders, listed=8), Enter(run("new")))
    assert isinstance(answer, Granted)
    assert answer.holder.slot == OUT_OF_SIGHT
    assert put_out_of_sight(line).held == MOST_HOLDERS + 1


def test_an_entry_that_ends_by_time_is_always_listed() -> None:
    """One with an end, a mode, several permits or a process of its own has to be seen by every step."""
    line = Line(Rules(9), listed=0)
    for entry in (
        structs.replace(run("a"), max_hold=1.0),
        structs.replace(run("b"), weight=2),
        Entry("c", "c", OfPresence("p"), Instant(0)),
    ):
        line, [answer] = take(line, Enter(entry))
        assert isinstance(answer, Granted)
        assert answer.holder.slot != OUT_OF_SIGHT
    assert put_out_of_sight(line) is line


def test_what_is_out_of_sight_has_no_mode() -> None:
    """An entry with a mode does not share with those that have none."""
    line = Line(Rules(9), unseen=1, listed=0)
    assert not line.admits(structs.replace(run("a"), mode="read"))
    assert line.admits(run("a"))
    assert sweep(line, Instant(2), lambda _: False).unseen == 1

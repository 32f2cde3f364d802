"""A line that only counts some of its holders, against one that lists them all: the same answers, step by step."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

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
    Until,
    bring_into_sight,
    has_fallen,
    presence_of,
    put_out_of_sight,
    sweep,
)
from standfast.locks.line_records import Enter, Leave, Reap, Request, Resize, step

if TYPE_CHECKING:
    from collections.abc import Collection

NAMES = st.sampled_from("abcdefgh")
ENTRIES = st.integers(0, 4)
HEAVY = "heavy"


def run(name: str) -> Entry:
    """Return the entry of a run."""
    return Entry(name, name, OfRun(name), Instant(0))


def of_process(name: str, presence: str) -> Entry:
    """Return the entry of a request that runs in a process."""
    return Entry(name, name, OfPresence(presence), Instant(0))


def take(line: Line, *requests: Request, dead: Collection[str] = ()) -> tuple[Line, tuple[object, ...]]:
    """Take a step of a line, in which some presences are known to be dead."""
    return step(line, requests, Instant(1), lambda entry: presence_of(entry) not in dead)


class CountedLine(RuleBasedStateMachine):
    """Runs and requests come and go, and processes die, in two lines of which one counts."""

    @initialize(listed=st.integers(0, 2), permits=st.integers(1, 5))
    def begin(self, listed: int, permits: int) -> None:
        """Begin with two lines that are empty."""
        self.whole, self.kept = Line(Rules(permits)), Line(Rules(permits), listed=listed)
        self.records: dict[str, Holder] = {}
        self.presences = {"p": "p.1", "q": "q.1"}
        self.over: dict[str, list[str]] = {"p": [], "q": []}
        self.next_number = 2

    def both(self, *requests: Request, about: str = "", dead: str | None = None) -> None:
        """Take the same step in both; a record that is named and holds nothing is deleted."""
        dead_now = () if dead is None else (dead,)
        self.whole, wanted = take(self.whole, *requests, dead=dead_now)
        named = (self.records.pop(about),) if about in self.records else ()
        after, found = take(bring_into_sight(self.kept, named), *requests, dead=dead_now)
        self.records |= {each.entry.id: each for each in after.holders if each.slot == OUT_OF_SIGHT}
        self.kept = put_out_of_sight(after)
        assert [_shown(each) for each in found] == [_shown(each) for each in wanted]

    def dies(self, process: str | None) -> str | None:
        """Return a presence of a process that is over."""
        if process is None:
            return None
        if not self.over[process]:
            self.one_presence_follows_another(process)
        return self.over[process].pop()

    @rule(process=st.sampled_from("pq"))
    def one_presence_follows_another(self, process: str) -> None:
        """A process goes on under another presence, and no step knows yet that the last one is over."""
        self.over[process].append(self.presences[process])
        self.presences[process] = f"{process}.{self.next_number}"
        self.next_number += 1

    DYING = st.sampled_from(["p", "q", None, None, None])

    @rule(name=NAMES, waits=st.booleans(), process=DYING)
    def a_run_enters(self, name: str, process: str | None, *, waits: bool) -> None:
        """One enters, for the first time or again, as a process is found dead."""
        self.both(Enter(run(name), waits), about=name, dead=self.dies(process))

    @rule(process=st.sampled_from("pq"), number=ENTRIES, waits=st.booleans())
    def a_request_enters(self, process: str, number: int, *, waits: bool) -> None:
        """One enters; if it holds by an earlier presence, it asks again by the new one."""
        entry = of_process(f"{process}{number}", self.presences[process])
        self.both(Enter(entry, waits), about=entry.id)

    @rule(process=st.sampled_from("pq"), weight=st.integers(1, 2))
    def a_heavy_one_enters(self, process: str, weight: int) -> None:
        """One that is listed in any case enters among them."""
        entry = structs.replace(of_process(HEAVY, self.presences[process]), weight=weight, max_hold=9.0)
        self.both(Enter(entry))

    @rule(name=NAMES, process=DYING)
    def a_run_leaves(self, name: str, process: str | None) -> None:
        """One leaves, whether it holds, waits, or is not there."""
        self.both(Leave(name), about=name, dead=self.dies(process))

    @rule(process=st.sampled_from("pq"), number=ENTRIES)
    def a_request_leaves(self, process: str, number: int) -> None:
        """One leaves, whether it holds, waits, has fallen, or is not there."""
        self.both(Leave(f"{process}{number}"), about=f"{process}{number}")

    @rule(process=DYING)
    def a_heavy_one_leaves(self, process: str | None) -> None:
        """One leaves that is listed."""
        self.both(Leave(HEAVY), dead=self.dies(process))

    @rule(permits=st.integers(1, 9))
    def it_is_resized(self, permits: int) -> None:
        """More permits, or fewer than are held."""
        self.both(Resize(permits))

    @rule(process=DYING)
    def it_is_looked_at(self, process: str | None) -> None:
        """Nothing moves by a look, unless a process has died."""
        self.both(Reap(), dead=self.dies(process))

    @rule()
    def what_has_fallen_is_cleared(self) -> None:
        """The records of those that fell are deleted, and then the line forgets them."""
        for name in [name for name, each in self.records.items() if has_fallen(each, dict(self.kept.unseen_of))]:
            del self.records[name]
        self.both(Reap(cleared=frozenset(self.kept.fallen)))
        assert not self.kept.fallen

    @invariant()
    def both_are_alike(self) -> None:
        """The same hold and wait, and the counts are those of the records that hold."""
        counted = [each for each in self.records.values() if not has_fallen(each, dict(self.kept.unseen_of))]
        holding = {each.entry.id for each in self.kept.holders} | {each.entry.id for each in counted}
        assert holding == {each.entry.id for each in self.whole.holders}
        assert self.kept.unseen == len(counted)
        assert dict(self.kept.unseen_of) == Counter(filter(None, (presence_of(each.entry) for each in counted)))
        assert self.kept.held == self.whole.held
        assert self.kept.waiters == self.whole.waiters
        assert self.kept.is_full == self.whole.is_full
        assert self.kept.is_empty == (self.whole.is_empty and not self.kept.fallen)
        fallen = {presence_of(each.entry) for each in self.records.values() if each not in counted}
        assert fallen <= {*self.kept.fallen}


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
    """One with an end, a mode or several permits has to be seen by every step."""
    line = Line(Rules(9), listed=0)
    for entry in (
        structs.replace(run("a"), max_hold=1.0),
        structs.replace(run("b"), weight=2),
        structs.replace(run("c"), anchor=Until(Instant(9))),
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


def test_one_that_asks_again_by_another_presence_is_counted_there() -> None:
    """It keeps its place, and gets a new grant, since its record says by what it lives."""
    line = put_out_of_sight(take(Line(Rules(1), listed=0), Enter(of_process("a", "p.1")))[0])
    held = Holder(of_process("a", "p.1"), OUT_OF_SIGHT, Instant(1))
    line, [answer] = step(bring_into_sight(line, (held,)), [Enter(of_process("a", "p.2"))], Instant(2), lambda _: True)
    assert isinstance(answer, Granted)
    assert answer.holder.granted_at == Instant(2)
    assert put_out_of_sight(line).unseen_of == (("p.2", 1),)


def test_a_record_without_a_count_brings_none_into_sight() -> None:
    """Whatever is left of a presence that has fallen, nobody else's place is taken back for it."""
    line = Line(Rules(3), listed=0, unseen=2, unseen_of=(("q.1", 2),), fallen=("p.1",))
    left = Holder(of_process("a", "p.1"), OUT_OF_SIGHT, Instant(0))
    assert bring_into_sight(line, (left,)) is line


def test_what_a_dead_process_adds_late_takes_no_place_of_others() -> None:
    """It enters by a presence that fell: it is counted there alone, and falls again."""
    line = Line(Rules(3), listed=0, unseen=2, unseen_of=(("q.1", 2),), fallen=("p.1",))
    line = put_out_of_sight(take(line, Enter(of_process("late", "p.1")))[0])
    left = Holder(of_process("a", "p.1"), OUT_OF_SIGHT, Instant(0))
    line, _ = take(bring_into_sight(line, (left,)), Leave("a"))
    assert put_out_of_sight(line).unseen_of == (("q.1", 2),)
    late = Holder(of_process("late", "p.1"), OUT_OF_SIGHT, Instant(1))
    line, _ = take(bring_into_sight(put_out_of_sight(line), (late,)), Leave("late"))
    assert (line.held, line.unseen_of) == (2, (("q.1", 2),))

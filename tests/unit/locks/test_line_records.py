"""A line lies in its records as it is, and a step writes what has changed and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from standfast.clock import Instant
from standfast.keys import KeyFamily
from standfast.locks.line import MOST_HOLDERS, Entry, Holder, Line, OfPresence, Rules, Until, advance, enter, leave
from standfast.locks.line_records import (
    HEADS,
    WINDOW,
    Head,
    LineFacts,
    LineKeys,
    LineView,
    LockSpec,
    Resize,
    is_alive,
    name_of,
    presences_of,
)
from standfast.locks.locks import LONGEST_MODE, LONGEST_NOTE, LONGEST_OWNER
from standfast.scope import Scope, address_of
from standfast.stores import Capabilities, Delete, Put, Record, Snapshot
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from standfast.keys import RecordKey
    from standfast.stores import Change

NOW = Instant(5_000_000)
MUTEX = LockSpec("mutex", Rules(1))
REPO = KeyFamily("records-test-repo")


@pytest.fixture
async def scope() -> AsyncIterator[Scope]:
    """Where keys are named; nothing is stored."""
    async with Scope(await open_store("memory://")) as opened:
        yield opened


@pytest.fixture
def keys(scope: Scope) -> LineKeys:
    """Where the line lies."""
    return LineKeys(scope, address_of("k"))


class Shelf:
    """Records as a store would keep them."""

    def __init__(self, keys: LineKeys) -> None:
        self.keys = keys
        self.records: dict[RecordKey, Record] = {}
        self._version = 0

    def view(self, facts: LineFacts | None = None) -> LineView:
        """Return the line, seen with every key that there is."""
        all_keys = frozenset((self.keys.head, *map(self.keys.ticket, range(100)), *map(self.keys.grant, range(10))))
        return LineView(self.keys, Snapshot(NOW, dict(self.records)), all_keys, MUTEX, facts or LineFacts(new_life="1"))

    def put(self, changes: Sequence[Change]) -> None:
        """Do what a commit does."""
        self._version += 1
        for change in changes:
            if isinstance(change, Put):
                self.records[change.key] = Record(change.key, change.value, self._version, change.expires_at)
            elif isinstance(change, Delete):
                del self.records[change.key]

    def become(self, line: Line) -> tuple[Change, ...]:
        """Write a line, and return what was written."""
        changes = self.view().changes(line)
        self.put(changes)
        return changes


def entry(name: str, presence: str = "p.1") -> Entry:
    """Return an entry."""
    return Entry(name, name, OfPresence(presence), NOW)


def line_of(*names: str) -> Line:
    """Return a line in which the first holds and the others wait."""
    line = Line(Rules(1))
    for name in names:
        line, _ = enter(line, entry(name), NOW)
    return line


def test_a_line_is_read_as_it_was_written(keys: LineKeys) -> None:
    """Holders, waiters, tickets and rules."""
    shelf = Shelf(keys)
    shelf.become(line_of("a", "b", "c"))
    assert shelf.view().line == line_of("a", "b", "c")


def test_an_empty_line_has_no_records(keys: LineKeys) -> None:
    """When the last one leaves, head, tickets and grants are gone."""
    shelf = Shelf(keys)
    shelf.become(line_of("a", "b"))
    for name in ("a", "b"):
        shelf.become(advance(leave(shelf.view().line, name), NOW))
    assert shelf.records == {}


def test_a_hand_over_writes_three_records_however_long_the_line_is(keys: LineKeys) -> None:
    """The head, the grant that changes hands, and the ticket that is no longer needed."""
    for length in (2, 15):
        shelf = Shelf(keys)
        shelf.become(line_of(*map(str, range(length))))
        changes = shelf.become(advance(leave(shelf.view().line, "0"), NOW))
        assert {change.key for change in changes} == {keys.head, keys.grant(0), keys.ticket(0)}


def test_what_did_not_change_is_not_written(keys: LineKeys) -> None:
    """A step that comes to nothing commits nothing."""
    shelf = Shelf(keys)
    shelf.become(line_of("a", "b"))
    assert shelf.become(shelf.view().line) == ()


def test_a_grant_is_written_only_when_it_changes_hands(keys: LineKeys) -> None:
    """One who joins, and one who is anchored anew, leave its version alone: that is the fence."""
    shelf = Shelf(keys)
    shelf.become(line_of("a"))
    fence = shelf.records[keys.grant(0)].version
    shelf.become(enter(shelf.view().line, entry("b"), NOW)[0])
    shelf.become(enter(shelf.view().line, entry("a", "p.2"), NOW)[0])
    assert shelf.records[keys.grant(0)].version == fence


def test_every_change_is_guarded_by_what_was_seen(keys: LineKeys) -> None:
    """Nothing is overwritten that somebody else wrote meanwhile."""
    shelf = Shelf(keys)
    shelf.become(line_of("a", "b"))
    seen = dict(shelf.records)
    for change in shelf.view().changes(advance(leave(shelf.view().line, "a"), NOW)):
        assert isinstance(change, Put | Delete)
        assert change.expected == seen[change.key].version


def test_keys_that_were_not_asked_for_are_named(keys: LineKeys) -> None:
    """A view from too few keys says which are missing, instead of taking them for absent."""
    shelf = Shelf(keys)
    shelf.become(line_of("a", "b", "c"))
    view = LineView(keys, Snapshot(NOW, dict(shelf.records)), frozenset((keys.head,)), MUTEX, LineFacts())
    assert view.missing == {keys.ticket(0), keys.ticket(1)}


def test_only_the_front_is_in_sight(keys: LineKeys) -> None:
    """Behind it is the horizon; one's own ticket is shown though it lies beyond."""
    shelf = Shelf(keys)
    shelf.become(line_of(*map(str, range(40))))
    line = shelf.view(LineFacts(tickets=(35,))).line
    assert (len(line.waiters), line.horizon) == (WINDOW + 1, WINDOW)
    assert line.waiters[-1].ticket == 35


def test_a_known_front_moves_the_window_in_the_same_life_only(keys: LineKeys) -> None:
    """That nobody waits in front of a ticket was found out about one life of the line, not about the next."""
    shelf = Shelf(keys)
    shelf.become(line_of(*map(str, range(40))))
    life = shelf.view().head.life
    assert shelf.view(LineFacts(life=life, front=20)).line.waiters[0].ticket == 20
    assert shelf.view(LineFacts(life="another", front=20)).line.waiters[0].ticket == 0


def test_the_dead_are_told_by_their_presence() -> None:
    """And those with a lease of their own by the time of the snapshot, at which it is over."""
    facts = LineFacts(dead=frozenset({"p.2"}))
    assert is_alive(facts, NOW, entry("a"))
    assert not is_alive(facts, NOW, entry("a", "p.2"))
    assert not is_alive(facts, NOW, structs.replace(entry("a"), anchor=Until(NOW)))
    assert is_alive(facts, NOW, structs.replace(entry("a"), anchor=Until(Instant(NOW + 1))))


def test_a_size_that_was_set_outlives_the_line(keys: LineKeys) -> None:
    """A pinned head stays when everyone has left."""
    shelf = Shelf(keys)
    shelf.put(shelf.view().changes(Line(Rules(5)), resized=Resize(5)))
    assert shelf.view().line == Line(Rules(5))
    shelf.put(shelf.view().changes(Line(Rules(5)), resized=Resize(5, pinned=False)))
    assert shelf.records == {}


def test_the_pace_is_a_moving_average(keys: LineKeys) -> None:
    """How long a hold took lately, for those who want to know how long it may take."""
    shelf = Shelf(keys)
    line = line_of("a", "b")
    held = structs.replace(line.holders[0], granted_at=Instant(NOW - 2_000_000))
    shelf.become(structs.replace(line, holders=(held,)))
    shelf.become(advance(leave(shelf.view().line, "a"), NOW))
    assert shelf.view().head.pace == 2.0


def test_lines_of_different_keys_share_no_record(scope: Scope) -> None:
    """Whatever the keys look like."""
    names = ("a", "b", REPO("a"), REPO("a", "b"), "a:b", "1")
    lines = [LineKeys(scope, address_of(name)) for name in names]
    records = [key for each in lines for key in (each.head, each.ticket(0), each.ticket(1), each.grant(0))]
    assert len(set(records)) == len(records)


def test_a_line_is_found_by_its_head(scope: Scope) -> None:
    """All lines can be listed, and each has its name again."""
    for name in ("a", REPO("a", "b")):
        keys = LineKeys(scope, address_of(name))
        assert LineKeys.of_head(scope, keys.head).address == keys.address
        assert LineKeys.of_head(scope, keys.head).name == str(name)


def test_tickets_sort_by_number(keys: LineKeys) -> None:
    """As text they would not."""
    numbers = [0, 1, 2, 9, 10, 11, 99, 100, 10**9]
    assert sorted(map(keys.ticket, reversed(numbers))) == [keys.ticket(number) for number in numbers]


def test_presences_are_those_of_attended_entries() -> None:
    """An entry with a lease of its own has none."""
    assert presences_of([entry("a"), entry("b", "p.2"), Entry("c", "c", Until(NOW), NOW)]) == {"p.1", "p.2"}


def test_as_many_holders_as_there_may_be_fit_into_one_record() -> None:
    """However long their names are: else one who lets go could not hand over."""
    longest = "\N{CROSS MARK}"
    entry = Entry(
        "i" * 50,
        longest * 60 + "h" * 90,  # a task's name and its host
        OfPresence("p" * 45),
        Instant(2**52),
        mode="m" * LONGEST_MODE,
        weight=2**31,
        max_hold=1e9,
        note="n" * LONGEST_NOTE,
    )
    assert len(entry.owner.encode()) >= LONGEST_OWNER
    holders = tuple(Holder(entry, slot, Instant(2**52), Instant(2**52)) for slot in range(MOST_HOLDERS))
    rules, limits = Rules(2**31, ("m" * LONGEST_MODE,) * 10), Capabilities("any", True, True, "process", "push")
    head = Head("l" * 60, "mode lock", rules, holders, 2**52, 2**52, pinned=True, pace=1e9)

    assert len(HEADS.encode_own(head)) <= limits.max_value_bytes


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (("limit", "fulfil", "type"), "limit of fulfil"),
        (("limit", "fulfil", "key", "eu"), "limit of fulfil for eu"),
        (("limit", "chat.respond", "action"), "limit of chat.respond"),
    ],
)
def test_the_line_of_a_limit_is_named_by_what_it_limits(address: tuple[str, ...], shown: str) -> None:
    """Of a workflow, of each of its keys, and of an action."""
    assert name_of(address) == shown

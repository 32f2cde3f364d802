"""Any program of calls, against a lock that is as simple as a list."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from standfast.clock import MICROSECONDS, Instant
from standfast.locks.line import Entry, Granted, Line, OfPresence, Rules, advance, enter, leave, resize, sweep
from standfast.locks.lock_record import force_release, initial_lock_record, release, renew, try_acquire, withdraw
from tests.model.line_world import ids, merged, shown

NAMES = st.sampled_from("abcdef")


class Ask(NamedTuple):
    """What the simple line knows of an entry."""

    name: str
    weight: int
    mode: str
    woken: bool


class LineMachine(RuleBasedStateMachine):
    """A line of which a step sees only the front, against lists that are seen whole."""

    def __init__(self) -> None:
        super().__init__()
        self.line = Line(Rules(2, alone=("w",)))
        self.permits = 2
        self.dead: set[str] = set()
        self.lives = dict.fromkeys("abcdef", 0)
        self.holders: list[Ask] = []
        self.waiters: list[Ask] = []

    def fits(self, ask: Ask) -> bool:
        """Tell whether one more may hold."""
        if any(each.mode != ask.mode or each.mode == "w" for each in self.holders):
            return False
        return sum(each.weight for each in self.holders) + ask.weight <= self.permits

    def settle(self) -> None:
        """Let the dead fall and the front move up, in the lists."""
        self.holders = [each for each in self.holders if each.name not in self.dead]
        self.waiters = [each for each in self.waiters if each.name not in self.dead]
        while self.waiters:
            front = self.waiters[0]
            if front.weight <= self.permits:
                if not front.woken or not self.fits(front):
                    break
                self.holders.append(front)
            self.waiters.pop(0)

    def look(self, line: Line) -> Line:
        """Let the dead fall and the front move up, in the line."""
        return advance(sweep(line, Instant(0), lambda entry: entry.id not in self.dead), Instant(0))

    def step(self, about: str, new_line: Line | None = None) -> None:
        """Finish a step: as often as the front is out of sight, look again."""
        line = self.line if new_line is None else new_line
        while True:
            seen = shown(line, 2, about)
            after = self.look(seen)
            line = merged(line, seen, after)
            if not after.is_cut_off:
                break
        self.line = line
        self.settle()

    def present(self, name: str) -> str:
        """Return the id of somebody's present life."""
        return f"{name}{self.lives[name]}"

    @rule(name=NAMES, weight=st.integers(1, 3), mode=st.sampled_from(["", "r", "w"]), woken=st.booleans())
    def asks(self, name: str, weight: int, mode: str, *, woken: bool) -> None:
        """Somebody asks, for the first time or again."""
        name = self.present(name)
        self.step(name)
        seen = shown(self.line, 2, name)
        after, answer = enter(seen, Entry(name, name, OfPresence(name), Instant(0), mode, weight, woken), Instant(0))
        self.ask_the_lists(Ask(name, weight, mode, woken))
        self.step(name, merged(self.line, seen, after))
        assert isinstance(answer, Granted) <= (name in [each.name for each in self.holders])

    def ask_the_lists(self, ask: Ask) -> None:
        """Do the same with the lists."""
        if any(each.name == ask.name for each in self.holders):
            return
        place = next((n for n, each in enumerate(self.waiters) if each.name == ask.name), None)
        if ask.weight > self.permits:
            self.waiters = [each for each in self.waiters if each.name != ask.name]
            return
        kept = ask if place is None else self.waiters[place]._replace(woken=ask.woken)
        if (place == 0 or (place is None and not self.waiters)) and self.fits(kept):
            self.waiters = self.waiters[1:]
            self.holders.append(kept)
        elif place is None:
            self.waiters.append(ask)
        else:
            self.waiters[place] = kept

    @rule(name=NAMES)
    def leaves(self, name: str) -> None:
        """Somebody leaves, whether there or not."""
        name = self.present(name)
        self.step(name)
        seen = shown(self.line, 2, name)
        self.holders = [each for each in self.holders if each.name != name]
        self.waiters = [each for each in self.waiters if each.name != name]
        self.step(name, merged(self.line, seen, leave(seen, name)))

    @rule(names=st.sets(NAMES))
    def some_die(self, names: set[str]) -> None:
        """Several die at once, to come back as others."""
        for name in names:
            self.dead.add(self.present(name))
            self.lives[name] += 1
        self.step("")

    @rule(permits=st.integers(1, 4))
    def permits_change(self, permits: int) -> None:
        """The number of permits is changed."""
        self.permits = permits
        self.step("", resize(self.line, permits))

    @invariant()
    def the_line_is_as_the_lists(self) -> None:
        """Who holds and who waits, in which order, is the same; the dead may lie there while they are out of sight."""
        alive = [entry_id for entry_id in ids(self.line) if entry_id not in self.dead]
        assert alive == [each.name for each in (*self.holders, *self.waiters)]
        tickets = [waiter.ticket for waiter in self.line.waiters]
        assert tickets == sorted(set(tickets))


class Has(NamedTuple):
    """What the simple lock knows of a holder or a waiter."""

    name: str
    ends: int


class RecordMachine(RuleBasedStateMachine):
    """A lock record that is stored as JSON between calls, against lists of names with their ends."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = msgspec.json.encode(initial_lock_record())
        self.version = self.now = 0
        self.fences: list[int] = [0]
        self.holders: list[Has] = []
        self.waiters: list[Has] = []

    @property
    def call(self) -> dict[str, int]:
        """What every call is given."""
        return {"now": Instant(self.now * MICROSECONDS), "version": self.version}

    @property
    def record(self) -> object:
        """What the slot holds."""
        return msgspec.json.decode(self.stored)

    def write(self, record: object) -> None:
        """Store a record, and let the dead fall in the lists."""
        self.stored = msgspec.json.encode(record)
        self.version += 1

    def sweep(self) -> None:
        """Let the dead fall in the lists."""
        self.holders = [each for each in self.holders if each.ends > self.now]
        self.waiters = [each for each in self.waiters if each.ends > self.now]

    @rule(name=NAMES, lease=st.integers(1, 4), ttl=st.integers(1, 4), permits=st.integers(1, 3))
    def tries(self, name: str, lease: int, ttl: int, permits: int) -> None:
        """Somebody tries, for the first time or again."""
        record, answer = try_acquire(self.record, name, lease=lease, waiter_ttl=ttl, permits=permits, **self.call)  # type: ignore[arg-type]  # an instant is an int
        self.write(record)
        self.sweep()
        held = [each.name for each in self.holders]
        queue = [each.name for each in self.waiters]
        if name in held:
            self.holders[held.index(name)] = Has(name, self.now + lease)
        elif queue[:1] in ([], [name]) and len(held) < permits:
            self.waiters = self.waiters[1:]
            self.holders.append(Has(name, self.now + lease))
            assert answer.fence > max(self.fences)
            self.fences.append(answer.fence)
        elif name in queue:
            self.waiters[queue.index(name)] = Has(name, self.now + ttl)
        else:
            self.waiters.append(Has(name, self.now + ttl))
        assert answer.acquired == (name in [each.name for each in self.holders])
        assert answer.position == (-1 if answer.acquired else [each.name for each in self.waiters].index(name))

    @rule(name=NAMES, lease=st.integers(1, 4))
    def renews(self, name: str, lease: int) -> None:
        """Somebody renews, holder or not."""
        record, renewal = renew(self.record, name, lease=lease, **self.call)  # type: ignore[arg-type]  # an instant is an int
        self.write(record)
        self.sweep()
        assert renewal.renewed == (name in [each.name for each in self.holders])
        self.holders = [Has(name, self.now + lease) if each.name == name else each for each in self.holders]

    @rule(name=NAMES, how=st.sampled_from([release, force_release, withdraw]))
    def leaves(self, name: str, how: object) -> None:
        """Somebody leaves, or is turned out."""
        record, _ = how(self.record, name, **self.call)  # type: ignore[operator]  # one of three functions
        self.write(record)
        self.sweep()
        self.waiters = [each for each in self.waiters if each.name != name]
        if how is not withdraw:
            self.holders = [each for each in self.holders if each.name != name]

    @rule(damage=st.sampled_from([b"null", b"7", b"{}", b'{"holders":[1],"waiters":7,"fence":"x"}']))
    def is_damaged(self, damage: bytes) -> None:
        """The record is lost; its version grows as with every write."""
        self.stored = damage
        self.version += 1
        self.holders, self.waiters = [], []

    @rule(ticks=st.integers(1, 3))
    def time_passes(self, ticks: int) -> None:
        """Time passes, and nobody does anything about it."""
        self.now += ticks

    @invariant()
    def the_record_is_as_the_lists(self) -> None:
        """Who holds and who waits, until when, is the same; what is over may lie there until somebody comes by."""
        shown_now, _ = withdraw(self.record, "nobody", **self.call)  # type: ignore[arg-type]  # an instant is an int
        held = [Has(each.holder_id, each.lease_expires_at // MICROSECONDS) for each in shown_now.holders]
        waiting = [Has(each.holder_id, (each.expires_at or 0) // MICROSECONDS) for each in shown_now.waiters]
        assert held == [each for each in self.holders if each.ends > self.now]
        assert waiting == [each for each in self.waiters if each.ends > self.now]


TestAnyProgramOnALine = LineMachine.TestCase
TestAnyProgramOnARecord = RecordMachine.TestCase

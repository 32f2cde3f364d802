"""What must be true of durable locks, looked at after every commit: the invariants of the simulation.

It sees the records themselves, and what each contender believes; it knows nothing of how a line is driven.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final, final

from msgspec import structs

from standfast.keys import RecordKey
from standfast.locks.line import OUT_OF_SIGHT, Entry, Holder, OfPresence, Waiter
from standfast.locks.line_records import GRANTS, HEADS, HELD, WAITERS
from standfast.locks.mutex_line import holder_in
from standfast.stores.protocol import STAMP_BYTES
from tests.simulation.lock_states import Attempt, Grants, LineState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from standfast.clock import Instant
    from standfast.locks.locks import Hold
    from standfast.stores.backend import Applied
    from standfast.stores.memory import MemoryRecords
    from tests.simulation.lock_process import Process

QUEUES: Final = ("queue", "queued")
"""The kinds of tickets that the store has numbered."""

LATE: Final = 0.005
"""Seconds by which a callback may be late on a simulated loop."""


@final
class LockWatch:
    """Looks at every commit, and at every contender that comes in, writes, or is refused."""

    def __init__(self, memory: MemoryRecords) -> None:
        self._memory: Final = memory
        self.problems: Final[list[str]] = []
        self.attempts: Final[dict[str, Attempt]] = {}
        self.permits: Final[dict[str, int | None]] = {}
        self.alone: Final[dict[str, tuple[str, ...]]] = {}
        self.lines: Final[dict[str, LineState]] = {}
        self._slots: Final[dict[tuple[str, int | str], Grants]] = {}
        self._presences: Final[dict[RecordKey, Instant]] = {}
        self._latest: Final[dict[str, int]] = {}

    def demand(self, holds: object, problem: str) -> None:
        """Note a problem unless something holds."""
        if not holds:
            self.problems.append(problem)

    # --- every commit --------------------------------------------------------------------------------------------

    def saw(self, process: Process, applied: Applied) -> None:
        """Look at what a commit of ``process`` has left behind."""
        touched: dict[str, LineState] = {}
        for key in applied.changed:
            _, _, kind, *parts = _parts(key)
            if kind == "presence":
                self._saw_presence(key)
            elif kind == "effect":
                self._saw_effect(key)
            elif kind in ("line", "ticket", "grant", "queue", "queued", "held"):
                name, last = parts[2 + (kind == "held")], parts[3] if kind in QUEUES else parts[-1]
                touched[name] = self._changed(touched.get(name) or self.line(name), kind, key, last)
        for name, after in touched.items():
            before, self.lines[name] = self.line(name), after
            self._check(name, process, before, after)

    def line(self, name: str) -> LineState:
        """Return the records of a line."""
        return self.lines.get(name) or LineState()

    def _changed(self, state: LineState, kind: str, key: RecordKey, last: str) -> LineState:
        record = self._memory._records.get(key)
        if kind == "line":
            return structs.replace(state, head=None if record is None else HEADS.decode(record.value))
        if kind == "grant":
            grants = {slot: grant for slot, grant in state.grants.items() if slot != int(last)}
            holder = holder_in(record) if record is not None and record.value[:STAMP_BYTES].isdigit() else None
            granted = {slot: each for slot, each in state.granted.items() if slot != int(last)}
            if record is not None:
                entry = GRANTS.decode(record.value).entry if holder is None else holder.entry.id
                grants[int(last)] = (record.version, entry)
            if holder is not None:
                granted[int(last)] = holder
            return structs.replace(state, grants=grants, granted=granted)
        if kind == "held":
            held = {name: each for name, each in state.held.items() if name != last}
            counted = {slot: grant for slot, grant in state.grants.items() if slot != last}
            if record is not None:
                held[last] = HELD.decode(record.value)
                counted[last] = (record.version, last)
            return structs.replace(state, held=held, grants=counted)
        waiters = {name: each for name, each in state.waiters.items() if each.ticket != int(last)}
        if record is not None:
            waits = holder_in(record).entry if kind in QUEUES else WAITERS.decode(record.value).entry
            waiters[waits.id] = Waiter(waits, int(last))
        return structs.replace(state, waiters=waiters)

    def _saw_presence(self, key: RecordKey) -> None:
        record, now, known = self._memory._records.get(key), self._memory.now(), self._presences.get(key)
        if record is None:
            self._presences[key] = now
        else:
            self.demand(known is None or known > now, "a presence that had lapsed came back")
            self._presences[key] = record.expires_at or now

    def _saw_effect(self, key: RecordKey) -> None:
        """What a guard let through was written by one who held when it was committed."""
        name, note = _parts(key)[3:5]
        held = any(holder.entry.note == note for holder in self.line(name).holders)
        self.demand(held, f"stale write: the guard of {note} let it through after {name} had changed hands")

    def _check(self, name: str, process: Process, before: LineState, after: LineState) -> None:
        old = {_grant_of(holder) for holder in before.holders}
        new = [holder for holder in after.holders if _grant_of(holder) not in old]
        same_life = before.head is not None and after.head is not None and before.head.life == after.head.life
        fallen = self._check_departures(name, process, before, after)
        together = all(_presence_of(holder.entry) not in fallen for holder in new)
        self.demand(together, f"expiry: one who is known to be dead was given {name}")
        self._check_order(name, new, before, after, same_life=same_life)
        self._check_room(name, new, after)
        self._check_grants(name, new, after)
        self._check_places(name, before, after, same_life=same_life)

    def _check_departures(self, name: str, process: Process, before: LineState, after: LineState) -> set[str]:
        """Nobody is dropped who lives, holds in time, and did not leave. Return the presences that were found dead."""
        stayed = {holder.entry.id for holder in after.holders} | after.waiters.keys()
        permits, now = None if after.head is None else after.head.rules.permits, self._memory.now()
        gone = [
            *((each.entry, each.ends_at is not None and each.ends_at <= now) for each in before.holders),
            *((each.entry, permits is not None and each.entry.weight > permits) for each in before.waiters.values()),
        ]
        departed = [(entry, excused) for entry, excused in gone if entry.id not in stayed]
        return {
            _presence_of(each) for each, excused in departed if self._departed(name, process, each, excused=excused)
        }

    def _departed(self, name: str, process: Process, entry: Entry, *, excused: bool) -> bool:
        """Check one departure; tell whether somebody else found it dead."""
        attempt = self.attempts[entry.note]
        if attempt.is_forced:
            return False
        self.demand(not attempt.believes(), f"exclusion: {entry.note} lost {name} and still relies on it")
        if excused or not self._is_present(entry):
            return not excused and attempt.process is not process
        by_itself = attempt.process is process and not attempt.is_inside
        self.demand(by_itself, f"dropped alive: {entry.note} was put out of {name} by {process.name}")
        attempt.has_left = True
        return False

    def _is_present(self, entry: Entry) -> bool:
        key = RecordKey("default", "default", "presence", *_presence_of(entry).split("."))
        return self._presences.get(key, 0) > self._memory.now()

    def _check_order(
        self, name: str, new: list[Holder], before: LineState, after: LineState, *, same_life: bool
    ) -> None:
        """Grants go in the order of the tickets: nobody passes one who asked earlier and still waits."""
        waited = before.waiters if same_life else {}
        # One whose presence has lapsed may ask again by another, and gets a new grant in the place that it still has.
        held = before.held.keys() | {holder.entry.id for holder in before.holders}
        new = [each for each in new if each.entry.id not in held]
        came = [each for each in new if each.entry.id not in waited or self._kept_place(waited[each.entry.id], each)]
        places = [(each, waited[each.entry.id].ticket if each.entry.id in waited else 2**60) for each in came]
        order = [ticket for each, ticket in places if each.slot != OUT_OF_SIGHT]  # others have no order in one commit
        self.demand(order == sorted(order), f"FIFO: of {name}, a later one was served before an earlier one")
        order = [ticket for _, ticket in places]
        kept = {waiter.ticket for waiter in waited.values()}  # one that was dead may have joined anew, with another
        still = [waiter.ticket for waiter in after.waiters.values() if waiter.ticket in kept]
        passed = order and still and max(order) > min(still)
        self.demand(not passed, f"FIFO: somebody passed a waiter of {name}")

    def _kept_place(self, old: Waiter, new: Holder) -> bool:
        """Tell whether one that waited holds by that place; one that was dead may have joined anew in the same step."""
        return new.entry.anchor == old.entry.anchor or self._is_present(old.entry)

    def _check_room(self, name: str, new: list[Holder], after: LineState) -> None:
        """Those who hold together may hold together."""
        holders, limit = after.holders, self.permits[name]
        modes = {holder.entry.mode for holder in holders}
        self.demand(len(modes) <= 1, f"permits: {name} is held in several modes at once")
        single = any(mode in self.alone[name] for mode in modes)
        self.demand(not single or len(holders) == 1, f"permits: {name} is shared with one who holds it alone")
        weight = sum(holder.entry.weight for holder in holders)
        self.demand(not new or limit is None or weight <= limit, f"permits: {weight} of {limit} of {name} are held")

    def _check_grants(self, name: str, new: list[Holder], after: LineState) -> None:
        """Each holder has a slot and a grant of its own; a grant that changes hands has a version never seen."""
        for holder in new:
            slot, version = self.slot(name, _slot_of(holder)), after.grants.get(_slot_of(holder), (0, ""))[0]
            self.demand(version > slot.version, f"fence: that of {name} did not grow")
            slot.version = max(slot.version, version)
            slot.order.append(_grant_of(holder))
        held = {_slot_of(holder): holder.entry.id for holder in after.holders}
        self.demand(len(held) == len(after.holders), f"permits: two hold one slot of {name}")
        fallen = after.held.keys() - held.keys()
        granted = {slot: entry for slot, (_, entry) in after.grants.items() if slot not in fallen}
        self.demand(granted == held, f"grants: those of {name} are not those of its holders")
        self._check_counts(name, after)

    def _check_counts(self, name: str, after: LineState) -> None:
        """A head counts those that have a record of their own, by their presence, while that is there."""
        head, found = after.head, Counter(_presence_of(each.entry) for each in after.held.values())
        said = {} if head is None else head.unseen_of
        for presence in found.keys() | said.keys():
            key = RecordKey("default", "default", "presence", *presence.split("."))
            is_right = said.get(presence, 0) == found[presence] or self._presences.get(key, 0) <= self._memory.now()
            self.demand(is_right, f"counts: {name} has {found[presence]} of {presence}, and says {said.get(presence)}")
        self.demand(head is None or head.unseen == sum(said.values()), f"counts: those of {name} do not add up")

    def _check_places(self, name: str, before: LineState, after: LineState, *, same_life: bool) -> None:
        """Tickets are given once, kept, and lie where the head says that waiters are."""
        head = after.head
        latest = self._latest.get(name, 0)
        self._latest[name] = max([latest, *(each.ticket for each in after.waiters.values())])
        for waiter in after.waiters.values():
            ticket = waiter.ticket
            is_seen = bool(after.granted) if after.is_queued else head and head.front <= ticket < head.next_ticket
            self.demand(is_seen, f"line: nobody sees ticket {ticket} of {name}")
            self.demand(self.attempts[waiter.entry.note].waits, f"line: {waiter.entry.note} waits but did not want to")
            if not same_life or before.head is None:
                continue
            old = before.waiters.get(waiter.entry.id)
            last = latest + 1 if after.is_queued else before.head.next_ticket
            is_new = ticket >= last and (old is None or not self._is_present(old.entry))
            kept = is_new or (old is not None and ticket == old.ticket)
            self.demand(kept, f"FIFO: {waiter.entry.note} got an old ticket of {name}")

    # --- every contender -----------------------------------------------------------------------------------------

    def slot(self, name: str, number: int | str) -> Grants:
        """Return what is known of one slot."""
        return self._slots.setdefault((name, number), Grants())

    def came_in(self, name: str, attempt: Attempt) -> None:
        """A contender is told that it holds: then it does, and its fence fits into the order of the grants."""
        hold: Hold = attempt.hold
        self.demand(not attempt.has_left, f"FIFO: {attempt.note} was put out of {name} on the way, and never told")
        held = any(_grant_of(each) == (attempt.entry, hold.since) for each in self.line(name).holders)
        told = attempt.is_forced or not attempt.believes()
        self.demand(held or told, f"exclusion: {attempt.note} came in and does not hold {name}")
        slot, number = self._place(name, attempt)
        later = {each: fence for each, fence in slot.fences.items() if (each > number) != (fence > hold.fence)}
        self.demand(not later, f"fence: {attempt.note} has {hold.fence} on {name}, which is out of order")
        slot.fences[number] = hold.fence

    def _place(self, name: str, attempt: Attempt) -> tuple[Grants, int]:
        _, _, kind, *_, last = _parts(attempt.hold.grant)
        slot = self.slot(name, last if kind == "held" else int(last))
        grant = (attempt.entry, attempt.hold.since)
        places = [number for number, each in enumerate(slot.order) if each == grant]  # time may stand still between two
        return slot, places[-1] if places else -1

    def writes(self, name: str, attempt: Attempt) -> None:
        """Let a contender write where only fences are compared: a stale one is refused, and no other one is."""
        slot, number = self._place(name, attempt)
        fence = attempt.hold.fence
        if fence >= slot.highest_fence:
            self.demand(number >= slot.latest, f"stale write: {attempt.note} wrote to {name} after a later holder")
            slot.highest_fence = fence
            slot.latest = max(slot.latest, number)
        else:
            self.demand(number < slot.latest, f"fence: the latest holder of {name} was refused")

    def was_refused(self, name: str, attempt: Attempt) -> None:
        """A guard has refused a write: then the grant has changed hands."""
        grant = (attempt.entry, attempt.hold.since)
        held = any(_grant_of(holder) == grant for holder in self.line(name).holders)
        self.demand(not held, f"guard: {attempt.note} holds {name}, and its write was refused")

    def goes_on(self, name: str, attempt: Attempt) -> None:
        """A contender is still inside: then it has been told by its own deadline, if that is over."""
        hold: Hold = attempt.hold
        late = not hold.reason and hold.presence.left() < -LATE
        self.demand(not late, f"exclusion: {attempt.note} was not told that its lease on {name} is over")

    # --- the end -------------------------------------------------------------------------------------------------

    def entries(self, name: str) -> list[Entry]:
        """Return everyone in a line."""
        state = self.line(name)
        return [*(each.entry for each in state.holders), *(each.entry for each in state.waiters.values())]

    def rows(self) -> Iterator[RecordKey]:
        """Yield what is left in the store."""
        now = self._memory.now()
        for key, record in self._memory._records.items():
            if _parts(key)[2] != "effect" and not record.is_expired(now):
                yield key


def _slot_of(holder: Holder) -> int | str:
    return holder.entry.id if holder.slot == OUT_OF_SIGHT else holder.slot


def _grant_of(holder: Holder) -> tuple[str, int]:
    return holder.entry.id, holder.granted_at


def _presence_of(entry: Entry) -> str:
    assert isinstance(entry.anchor, OfPresence)
    return entry.anchor.presence


@lru_cache(maxsize=1_000)
def _parts(key: RecordKey) -> tuple[str, ...]:
    return key.parts

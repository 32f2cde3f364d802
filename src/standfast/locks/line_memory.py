"""What a process keeps in mind of a line: which records a step will need, and what the last steps have left behind.

Nothing of it is relied on. A guess that is wrong costs a round trip, and what is committed by memory is guarded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from standfast.clock import MICROSECONDS, Instant
from standfast.locks.line import OUT_OF_SIGHT, Line, OfPresence, Rules, put_out_of_sight
from standfast.locks.line_records import (
    HEADS,
    WINDOW,
    Enter,
    Head,
    Leave,
    Renew,
    Request,
    brought_by,
    entries_named_by,
    run_of,
    waiter_in,
)
from standfast.stores.protocol import Delete, Put, Record, Snapshot

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from standfast.clock import Clock
    from standfast.keys import RecordKey
    from standfast.locks.line import Entry
    from standfast.locks.line_records import LineKeys
    from standfast.locks.line_step import StepResult
    from standfast.stores.protocol import Capabilities


# --- guessing which records a step of a line will need, from what was last seen of it ------------------------------
#
# A guess that is wrong costs a round trip, and so does one that is right but wide: each record that a step is given is
# one more that others may change meanwhile.

FEW_SLOTS: Final = 8
"""Of how many slots the grants are read in any case."""

FEW_TICKETS: Final = 8
"""By how many tickets a queue may have grown, where a step that lacks one costs a whole turn at the store."""

_EMPTY: Final = Head("", "", Rules())


@final
class Guess:
    """What was last seen of one line, and the keys that a step of it will need unless it has moved since.

    Args:
        keys: The line's records.
        most: The most keys of one step.
        limits: Of the store: a server refuses a step in one round trip, whether or not it lacks keys, and compares all
            that it is given; others decide in their turn.

    Attributes:
        is_crowded: A guess was wrong since the line was last empty.
    """

    __slots__ = ("_head", "_keys", "_listed", "_most", "_next", "_spare", "is_crowded")

    def __init__(self, keys: LineKeys, most: int, limits: Capabilities) -> None:
        self._keys, self._most = keys, most
        self._spare: Final = 1 if limits.reach == "network" else FEW_TICKETS
        self._head: Head = _EMPTY
        self._next: tuple[Entry, ...] = ()
        self._listed: int | None = None
        self.is_crowded = False

    def remember(self, line: Line) -> None:
        """Keep in mind how the line was seen."""
        kept = put_out_of_sight(line)
        self._head = (
            _EMPTY
            if line.is_empty
            else Head("", "", line.rules, kept.holders, line.front, line.next_ticket, unseen=kept.unseen)
        )
        self._next = tuple([each.entry for each in line.waiters[:FEW_SLOTS]])
        self._listed = line.listed

    @property
    def is_counting(self) -> bool:
        """Whether the line had holders that it only counts."""
        return bool(self._head.unseen)

    def wants_look(self, requests: Sequence[Request]) -> bool:
        """Return True if a look pays before joining: not in a queue, where only the own ticket is needed."""
        return self.is_crowded and not _is_queue(self._head) and any(isinstance(each, Enter) for each in requests)

    def within(self, needed: frozenset[RecordKey], likely: frozenset[RecordKey]) -> frozenset[RecordKey]:
        """Return all of these keys, if they fit into one step; else those that are needed."""
        keys = needed | likely
        return keys if len(keys) <= self._most else needed

    def sure(self, requests: Sequence[Request]) -> frozenset[RecordKey]:
        """Return the keys that the requests name."""
        keys = {self._keys.head}
        for request in requests:
            keys.update(brought_by(request))
            if isinstance(request, Leave | Renew) and request.slot is not None:
                is_counted = request.slot == OUT_OF_SIGHT
                keys.add(self._keys.held(request.entry_id) if is_counted else self._keys.grant(request.slot))
            if isinstance(request, Enter | Leave) and request.ticket is not None:
                keys.add(self._keys.ticket(request.ticket))
        return frozenset(keys)

    def likely(self, requests: Sequence[Request], head: Head | None = None, slack: int = 1) -> frozenset[RecordKey]:
        """Return the keys that a step will need unless the line has moved since ``head`` was seen."""
        head = self._head if head is None else head
        only = requests[0] if len(requests) == 1 else None
        if isinstance(only, Enter | Leave) and only.ticket is None and _is_queue(head):
            return self._for_queue(only, head, slack)
        front, last = head.front, head.next_ticket
        entering = sum(type(each) is Enter for each in requests)
        tickets: set[int] = set()
        if last > front or entering > 1 or (entering and head.holders) or self.is_crowded:
            tickets = {*range(front, min(front + WINDOW, last + slack)), *range(last, last + entering + slack)}
        keys, following = self._keys, self._next[: len(requests)]
        runs = [run for each in following if (run := run_of(each)) is not None]
        named = (*map(keys.ticket, tickets), *map(keys.ready, runs))
        if self._listed is not None and (head.unseen or len(head.holders) + entering > self._listed):
            return frozenset((*named, *self._for_counted(requests, head, entering, following)))
        slots = range(min(len(head.holders) + entering, FEW_SLOTS))
        return frozenset((*named, *map(keys.grant, slots)))

    def _for_counted(
        self, requests: Sequence[Request], head: Head, entering: int, following: Sequence[Entry]
    ) -> Iterator[RecordKey]:
        """Yield the grants that change hands in a line that lists a few holders, and counts the others."""
        keys, about = self._keys, set(entries_named_by(requests))
        listed = {holder.entry.id: holder.slot for holder in head.holders}
        free = [slot for slot in range(self._listed or 0) if slot not in listed.values()]
        yield from map(keys.grant, (*free[:entering], *(listed[each] for each in about & listed.keys())))
        yield from map(keys.held, (about | {each.id for each in following}) - listed.keys())

    def _for_queue(self, request: Request, head: Head, slack: int) -> frozenset[RecordKey]:
        """Return the keys for joining a queue, or for handing over to the first in it."""
        keys, front, last = self._keys, head.front, head.next_ticket
        if isinstance(request, Enter):
            tickets = map(keys.ticket, range(last, last + max(slack, self._spare)))
            return frozenset(tickets if last > front else (*tickets, keys.grant(0)))  # it may well be empty by now
        return frozenset((keys.ticket(front),) if last > front or self.is_crowded else ())

    def near(self, tickets: Collection[int]) -> frozenset[RecordKey]:
        """Return the keys that tell what has become of these tickets, and who comes next."""
        keys, head = self._keys, self._head
        near = {head.front, head.next_ticket, *tickets, *[ticket + 1 for ticket in tickets]}
        slots = range(max(1, min(len(head.holders), FEW_SLOTS)))
        return frozenset((keys.head, *map(keys.ticket, near), *map(keys.grant, slots)))


def _is_queue(head: Head) -> bool:
    """Return True if a line was full when it was last seen, with holders that live by their presence."""
    is_full = not head.unseen and head.rules.is_full(head.holders)
    return is_full and all(type(each.entry.anchor) is OfPresence for each in head.holders)


# --- what this process knows of the records of a line in which others wait -----------------------------------------
#
# The one that leaves such a line mostly knows all that there is to know: it was this process that let the others join,
# or the last step has shown them. So it need not look: it commits, and the guards say if it was wrong.

MOST_KNOWN: Final = 2_000
"""Of how many records of one line this process keeps in mind what they hold."""

RECALLED: Final = 3
"""How many waiters are recalled: the one that comes next, and the one after it even if one has left the line."""

KNOWN_FOR: Final = 1.0
"""Seconds for which the store's time is told from the last answer."""


@final
class KnownRecords:
    """The records of one line as they were last seen here, while there are waiters."""

    __slots__ = ("_clock", "_keys", "_received_at", "_records", "_store_time")

    def __init__(self, keys: LineKeys, clock: Clock) -> None:
        self._keys, self._clock = keys, clock
        self._records: Final[dict[RecordKey, Record | None]] = {}
        self._store_time = self._received_at = Instant(0)

    def forget(self) -> None:
        """Forget everything: another process was faster."""
        self._records.clear()

    def remember(
        self, found: StepResult, given: Collection[RecordKey], at: Instant, versions: Mapping[RecordKey, int]
    ) -> None:
        """Keep in mind what a step has seen of ``given``, and left behind, at ``at``."""
        records, line, keys = self._records, found.line, self._keys
        if line.front >= line.next_ticket or line.unseen or found.seen is None:
            records.clear()
            return
        self._store_time, self._received_at = at, self._clock.elapsed()
        if given:
            tickets = map(keys.ticket, range(line.front, min(line.next_ticket, line.front + WINDOW)))
            for key in (keys.head, *[keys.grant(holder.slot) for holder in line.holders], *tickets):
                if key in given:
                    records[key] = found.seen.get(key)
        for change in found.changes:
            if isinstance(change, Delete):
                records.pop(change.key, None)
            elif isinstance(change, Put) and (change.key in records or len(records) < MOST_KNOWN):
                records[change.key] = Record(change.key, change.value, versions[change.key])

    def recall(self) -> tuple[Snapshot, frozenset[RecordKey]] | None:
        """Return the line from its head to the first waiters, at about the store's time, and the keys that were seen.

        None: not enough is known of it.
        """
        records, keys = self._records, self._keys
        passed = self._clock.elapsed() - self._received_at
        stored = records.get(keys.head)
        if stored is None or passed > KNOWN_FOR * MICROSECONDS:
            return None
        head, found = HEADS.decode(stored.value), {keys.head: stored}
        given = {keys.head}
        for key in (
            *[keys.grant(holder.slot) for holder in head.holders],
            *map(keys.ticket, range(head.front, min(head.next_ticket, head.front + RECALLED))),
        ):
            if key not in records:
                break
            given.add(key)
            record = records[key]
            if record is not None:
                found[key] = record
                run = run_of(waiter_in(record).entry) if len(given) == len(head.holders) + 2 else None
                if run is not None:
                    given.add(keys.ready(run))
        return Snapshot(Instant(self._store_time + passed), found), frozenset(given)

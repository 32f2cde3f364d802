"""Guessing which records a step of a line will need, from what was last seen of it.

A guess that is wrong costs a round trip, and so does one that is right but wide: each record that a step is given is
one more that others may change meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from standfast.locks.algebra.entries import Attended
from standfast.locks.algebra.line import Rules
from standfast.locks.driving.readying import run_of
from standfast.locks.driving.records import WINDOW, Head
from standfast.locks.driving.requests import Enter, Leave, Renew, along_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from standfast.keys import RecordKey
    from standfast.locks.algebra.line import Line
    from standfast.locks.driving.records import LineKeys
    from standfast.locks.driving.requests import Request
    from standfast.stores.protocol import Capabilities

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

    __slots__ = ("_head", "_keys", "_most", "_next_runs", "_spare", "is_crowded")

    def __init__(self, keys: LineKeys, most: int, limits: Capabilities) -> None:
        self._keys, self._most = keys, most
        self._spare: Final = 1 if limits.reach == "network" else FEW_TICKETS
        self._head: Head = _EMPTY
        self._next_runs: tuple[str, ...] = ()
        self.is_crowded = False

    def remember(self, line: Line) -> None:
        """Keep in mind how the line was seen."""
        is_empty = not line.holders and line.front == line.next_ticket
        self._head = _EMPTY if is_empty else Head("", "", line.rules, line.holders, line.front, line.next_ticket)
        self._next_runs = tuple([run for each in line.waiters[:FEW_SLOTS] if (run := run_of(each.entry)) is not None])

    def wants_look(self, requests: Sequence[Request]) -> bool:
        """Tell whether it is worth a look before joining: not a queue, where one's own ticket is all that is needed."""
        return self.is_crowded and not _is_queue(self._head) and any(isinstance(each, Enter) for each in requests)

    def within(self, needed: frozenset[RecordKey], likely: frozenset[RecordKey]) -> frozenset[RecordKey]:
        """Return all of these keys, if a step can have so many; else those that are needed."""
        keys = needed | likely
        return keys if len(keys) <= self._most else needed

    def sure(self, requests: Sequence[Request]) -> frozenset[RecordKey]:
        """Return the keys that the requests name."""
        keys = {self._keys.head}
        for request in requests:
            keys.update(brought_by(request))
            if isinstance(request, Leave | Renew) and request.slot is not None:
                keys.add(self._keys.grant(request.slot))
            if isinstance(request, Enter | Leave) and request.ticket is not None:
                keys.add(self._keys.ticket(request.ticket))
        return frozenset(keys)

    def likely(self, requests: Sequence[Request], head: Head | None = None, slack: int = 1) -> frozenset[RecordKey]:
        """Return the keys that a step will need unless the line has moved since ``head`` was seen."""
        head = self._head if head is None else head
        if len(requests) == 1 and _is_queue(head) and _goes_the_short_way(requests[0]):
            return self._for_queue(requests[0], head, slack)
        front, last = head.front, head.next_ticket
        entering = sum(type(each) is Enter for each in requests)
        tickets: set[int] = set()
        if last > front or entering > 1 or (entering and head.holders) or self.is_crowded:
            tickets = {*range(front, min(front + WINDOW, last + slack)), *range(last, last + entering + slack)}
        slots = range(min(len(head.holders) + entering, FEW_SLOTS))
        runs, keys = self._next_runs[: len(requests)], self._keys
        return frozenset((*map(keys.ticket, tickets), *map(keys.grant, slots), *map(keys.ready, runs)))

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
    """Tell whether a line was full when it was last seen, with holders who live by their presence."""
    return head.rules.is_full(head.holders) and all(type(each.entry.anchor) is Attended for each in head.holders)


def _goes_the_short_way(request: Request) -> bool:
    return isinstance(request, Enter | Leave) and request.ticket is None


def brought_by(request: Request) -> Iterator[RecordKey]:
    """Yield the keys that a request names besides those of the line."""
    if isinstance(request, Enter | Leave) and request.marker is not None:
        yield request.marker
    along = along_of(request)
    if along is not None:
        yield from along.keys

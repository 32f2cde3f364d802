"""Steps of a line in which processes queue up, taken with as few records as there can be: the head and one ticket.

Every record that a step looks at is one more that somebody else may have changed. Who joins a line that is full needs
nothing but its own ticket, and who hands over to the first in it nothing but that one's: both leave the others out of
sight. They come to what the long way comes to, but for a gap behind the first one, which is left to the next step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from standfast.clock import later
from standfast.locks.algebra.entries import Attended, Holder, Until, Waiter
from standfast.locks.algebra.line import Granted, Line, Rules, Waiting
from standfast.locks.driving.records import GRANTS, HEADS, WAITERS, Grant, Head, waiter_in
from standfast.locks.driving.requests import Left
from standfast.stores.protocol import Change, Delete, Put, Wake

if TYPE_CHECKING:
    from standfast.clock import Instant
    from standfast.keys import RecordKey
    from standfast.locks.algebra.entries import Entry
    from standfast.locks.driving.records import LineKeys, Site
    from standfast.locks.driving.requests import Enter, Leave
    from standfast.stores.protocol import Snapshot

ONE: Final = Rules(1)

UNHURRIED: Final = 0.005
"""A holder that keeps the lock for so many seconds has the time to look when the first one begins to wait for it."""


class QuickStep(Struct, frozen=True):
    """What the step came to."""

    head: Head
    line: Line
    answer: Granted | Left | Waiting
    changes: tuple[Change, ...]
    granted: tuple[Holder, ...] = ()
    ready: tuple[Change, ...] = ()
    wakes: tuple[Wake, ...] = ()


def queue_up(
    keys: LineKeys, seen: Snapshot, given: frozenset[RecordKey], head: Head, site: Site, request: Enter
) -> QuickStep | None:
    """Let one join a line that is full, and in which it has not been before; nobody moves up by that."""
    entry, ticket = request.entry, head.next_ticket
    is_plain = request.waits and request.ticket is None and request.lease is None and request.permits is None
    is_plain = is_plain and request.since is None
    if not is_plain or type(entry.anchor) is not Attended or (head.kind, head.rules) != (site.kind, site.rules):
        return None
    if not head.rules.ever_admit(entry) or not _stays_full(head, entry, seen.at) or keys.ticket(ticket) not in given:
        return None
    waiter = Waiter(structs.replace(entry, entered_at=seen.at), ticket)
    after = structs.replace(head, next_ticket=ticket + 1)
    changes = (
        Put(keys.ticket(ticket), WAITERS.encode_own(waiter), seen.version(keys.ticket(ticket))),
        Put(keys.head, HEADS.encode_own(after), seen.version(keys.head)),
    )
    line = Line(head.rules, head.holders, (waiter,), ticket + 1, _horizon(head.front, ticket))
    return QuickStep(head, line, Waiting(ticket, ticket - head.front), changes, wakes=calls(keys, head, seen.at))


def _stays_full(head: Head, entry: Entry, at: Instant) -> bool:
    """Tell whether all permits are held, by others than the owner of an entry, and nobody's time is over."""
    return head.rules.is_full(head.holders) and not any(
        each.entry.owner == entry.owner
        or type(each.entry.anchor) is Until
        or (each.ends_at is not None and each.ends_at <= at)
        for each in head.holders
    )


def calls(keys: LineKeys, head: Head, at: Instant) -> tuple[Wake, ...]:
    """Return how to tell a holder that somebody waits now: it knows the line, then, when it lets go."""
    if head.front != head.next_ticket or len(head.holders) != 1:
        return ()
    holder = head.holders[0]
    if type(holder.entry.anchor) is not Attended or pace_after(head, holder, at) < UNHURRIED:
        return ()
    return (Wake(keys.presence(holder.entry.anchor.presence), keys.head),)


def hand_on(
    keys: LineKeys, seen: Snapshot, given: frozenset[RecordKey], head: Head, request: Leave
) -> QuickStep | None:
    """Let the only holder leave and the first of those who wait have its turn, if it is alive as far as is known."""
    if head.rules != ONE or len(head.holders) != 1 or not _may_leave(left := head.holders[0], request, seen.at):
        return None
    ticket, last, grant_key, ticket_key = head.front, head.next_ticket, keys.grant(left.slot), keys.ticket(head.front)
    record = seen.get(ticket_key)
    if record is None or not given.issuperset((grant_key, ticket_key)):
        return None
    first = waiter_in(record).entry
    if type(first.anchor) is not Attended or not first.woken or first.weight != 1:
        return None
    ends_at = None if first.max_hold is None else later(seen.at, first.max_hold)
    holder = Holder(first, 0, seen.at, ends_at)
    pace = pace_after(head, left, seen.at)
    after = Head(head.life, head.kind, head.rules, (holder,), ticket + 1, last, head.pinned, pace)
    grant = GRANTS.encode_own(Grant(first.id, first.owner, seen.at))
    changes = (
        Put(grant_key, grant, seen.version(grant_key)),
        Delete(ticket_key, record.version),
        Put(keys.head, HEADS.encode_own(after), seen.version(keys.head)),
    )
    line = Line(head.rules, (holder,), (), last, _horizon(ticket + 1, last))
    wakes = (Wake(keys.presence(first.anchor.presence), keys.head),)
    return QuickStep(head, line, Left(was_holding=True, was_waiting=False), changes, (holder,), wakes=wakes)


def _may_leave(holder: Holder, request: Leave, at: Instant) -> bool:
    """Tell whether a holder is the one who asks, in the first slot, and lives by a presence and not past its time."""
    is_over = holder.ends_at is not None and holder.ends_at <= at
    is_asking = holder.entry.id == request.entry_id and holder.slot == 0
    return is_asking and not is_over and type(holder.entry.anchor) is Attended


def _horizon(front: int, last: int) -> int | None:
    """Return from where on everybody is out of sight; None if nobody is."""
    return front if front < last else None


def pace_after(head: Head, left: Holder, at: Instant) -> float:
    """Return how many seconds a hold takes lately, when one ends."""
    took = (at - left.granted_at) / 1_000_000
    return took if not head.pace else 0.8 * head.pace + 0.2 * took

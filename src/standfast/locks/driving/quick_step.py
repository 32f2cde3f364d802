"""The commonest steps, taken the short way: into an empty line, out of one, and from one run to the next.

They come to exactly what :func:`~standfast.locks.driving.requests.step` and a
:class:`~standfast.locks.driving.records.View` come to, in a third of the time; a test compares the two on every kind of
line. Whatever is not so simple goes the long way. What a request brings along is added to either.

Where processes queue up, see :mod:`~standfast.locks.driving.quick_queue`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from standfast.clock import later
from standfast.locks.algebra.entries import Holder, OfRun, Until
from standfast.locks.algebra.line import Granted, Line
from standfast.locks.driving.quick_queue import ONE, QuickStep, hand_on, pace_after, queue_up
from standfast.locks.driving.readying import READY
from standfast.locks.driving.records import GRANTS, HEADS, WINDOW, Grant, Head, waiter_in
from standfast.locks.driving.requests import Enter, Leave, Left
from standfast.stores.protocol import Delete, Put

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.locks.algebra.entries import Entry
    from standfast.locks.driving.records import Facts, LineKeys, Site
    from standfast.locks.driving.requests import Request
    from standfast.stores.protocol import Snapshot


def quick_step(
    keys: LineKeys, seen: Snapshot, given: frozenset[RecordKey], site: Site, facts: Facts, request: Request
) -> QuickStep | None:
    """Take the step if it is one of the simple ones; None: go the long way."""
    stored = seen.get(keys.head)
    if stored is None:
        return _enter(keys, seen, given, site, facts, request) if type(request) is Enter else None
    if facts.dead:
        return None
    is_plain = not facts.tickets and not facts.front
    if type(request) is Enter and is_plain:
        return queue_up(keys, seen, given, HEADS.decode(stored.value), site, request)
    if type(request) is Leave and not request.by_force and not request.only_waiting:
        head = HEADS.decode(stored.value)
        if head.front == head.next_ticket:
            return _leave(keys, seen, given, head, request)
        return _next_turn(keys, seen, given, head, request) if is_plain else None
    return None


def _next_turn(
    keys: LineKeys, seen: Snapshot, given: frozenset[RecordKey], head: Head, request: Leave
) -> QuickStep | None:
    return hand_on(keys, seen, given, head, request) or _hand_over(keys, seen, given, head, request)


def _enter(
    keys: LineKeys, seen: Snapshot, given: frozenset[RecordKey], site: Site, facts: Facts, request: Enter
) -> QuickStep | None:
    grant_key, entry = keys.grant(0), request.entry
    if request.lease is not None or grant_key not in given or not site.rules.ever_admit(entry):
        return None
    entry = structs.replace(entry, entered_at=seen.at if request.since is None else request.since)
    ends_at = None if entry.max_hold is None else later(seen.at, entry.max_hold)
    holder = Holder(entry, 0, seen.at, ends_at)
    grant = GRANTS.encode_own(Grant(entry.id, entry.owner, seen.at))
    head = Head(facts.new_life, site.kind, site.rules, (holder,))
    changes = (Put(grant_key, grant, seen.version(grant_key)), Put(keys.head, HEADS.encode_own(head)))
    return QuickStep(head, Line(site.rules, (holder,)), Granted(holder), changes, (holder,))


def _leave(keys: LineKeys, seen: Snapshot, given: frozenset[RecordKey], head: Head, request: Leave) -> QuickStep | None:
    if len(head.holders) != 1 or head.front != head.next_ticket or head.pinned:
        return None
    holder = head.holders[0]
    grant_key = keys.grant(holder.slot)
    is_over = holder.ends_at is not None and holder.ends_at <= seen.at
    if holder.entry.id != request.entry_id or is_over or type(holder.entry.anchor) is Until:
        return None
    if grant_key not in given or not (grant := seen.version(grant_key)):
        return None
    left = Line(head.rules, next_ticket=head.next_ticket)
    changes = (Delete(grant_key, grant), Delete(keys.head, seen.version(keys.head)))
    return QuickStep(head, left, Left(was_holding=True, was_waiting=False), changes)


def _hand_over(
    keys: LineKeys, seen: Snapshot, given: frozenset[RecordKey], head: Head, request: Leave
) -> QuickStep | None:
    """Let one run leave and the next one have its turn, in a line of which all in sight are runs."""
    if head.rules != ONE or len(head.holders) != 1 or not _is_lasting(left := head.holders[0], request.entry_id):
        return None
    last, grant_key = head.next_ticket, keys.grant(left.slot)
    shown = range(head.front, min(last, head.front + WINDOW))
    waiters = [waiter_in(record) for number in shown if (record := seen.get(keys.ticket(number))) is not None]
    if not waiters or any(type(each.entry.anchor) is not OfRun for each in waiters) or not _is_plain(waiters[0].entry):
        return None
    first = waiters[0]
    ready_key, ticket_key = keys.ready(first.entry.owner), keys.ticket(first.ticket)
    if first.entry.anchor != OfRun(first.entry.owner) or not given.issuperset(
        (ready_key, grant_key, *map(keys.ticket, shown))
    ):
        return None
    holder = Holder(first.entry, left.slot, seen.at)
    line = Line(head.rules, (holder,), tuple(waiters[1:]), last, shown.stop if shown.stop < last else None)
    pace = pace_after(head, left, seen.at)
    after = Head(head.life, head.kind, head.rules, (holder,), line.front, last, head.pinned, pace)
    grant = GRANTS.encode_own(Grant(first.entry.id, first.entry.owner, seen.at))
    changes = (
        Put(grant_key, grant, seen.version(grant_key)),
        Delete(ticket_key, seen.version(ticket_key)),
        Put(keys.head, HEADS.encode_own(after), seen.version(keys.head)),
    )
    ready = Put(ready_key, READY, seen.version(ready_key))
    return QuickStep(head, line, Left(was_holding=True, was_waiting=False), changes, (holder,), (ready,))


def _is_lasting(holder: Holder, entry_id: str) -> bool:
    """Tell whether a holder is that entry, and lives as long as its run."""
    return holder.entry.id == entry_id and holder.ends_at is None and type(holder.entry.anchor) is OfRun


def _is_plain(entry: Entry) -> bool:
    return entry.weight == 1 and entry.woken and entry.max_hold is None

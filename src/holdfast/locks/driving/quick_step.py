"""The two commonest steps, taken the short way: into a line that is empty, and out of one that nobody else is in.

They come to exactly what :func:`~holdfast.locks.driving.requests.step` and a
:class:`~holdfast.locks.driving.records.View` come to, in a third of the time; a test compares the two on every kind of
line. Whatever is not so simple goes the long way. What a request brings along is added to either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, structs

from holdfast.clock import later
from holdfast.locks.algebra.entries import Holder, Until
from holdfast.locks.algebra.line import Granted, Line
from holdfast.locks.driving.records import GRANTS, HEADS, Grant, Head
from holdfast.locks.driving.requests import Enter, Leave, Left
from holdfast.stores.protocol import Change, Delete, Put

if TYPE_CHECKING:
    from holdfast.keys import RecordKey
    from holdfast.locks.driving.records import Facts, LineKeys, Site
    from holdfast.locks.driving.requests import Request
    from holdfast.stores.protocol import Snapshot


class QuickStep(Struct, frozen=True):
    """What the step came to."""

    head: Head
    line: Line
    answer: Granted | Left
    changes: tuple[Change, ...]
    granted: tuple[Holder, ...] = ()


def quick_step(
    keys: LineKeys, seen: Snapshot, given: frozenset[RecordKey], site: Site, facts: Facts, request: Request
) -> QuickStep | None:
    """Take the step if it is one of the simple ones; None: go the long way."""
    stored = seen.get(keys.head)
    if stored is None:
        return _enter(keys, seen, given, site, facts, request) if type(request) is Enter else None
    if type(request) is Leave and not facts.dead and not request.by_force and not request.only_waiting:
        return _leave(keys, seen, given, HEADS.decode(stored.value), request)
    return None


def _enter(
    keys: LineKeys, seen: Snapshot, given: frozenset[RecordKey], site: Site, facts: Facts, request: Enter
) -> QuickStep | None:
    grant_key, entry = keys.grant(0), request.entry
    if request.lease is not None or grant_key not in given or not site.rules.ever_admit(entry):
        return None
    entry = structs.replace(entry, entered_at=seen.at)
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

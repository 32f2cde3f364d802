"""A survey of the lines and rates of a space: who waits longest, who waits in a circle, and how much may pass.

It answers what an operator asks who does not know yet which key to look at. It reads a bounded number of records,
however many lines and waiters there are, says so where that was not all, and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from standfast.clock import Instant, seconds_between
from standfast.errors import InvalidArgumentError
from standfast.locks.deadlock import describe_cycle, find_cycle
from standfast.locks.inspect import lines_at
from standfast.locks.line_records import MARKERS, name_of
from standfast.locks.rate_limiter import BUCKETS, settle

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.locks.inspect import FoundLine
    from standfast.scope import Scope

PAGE: Final = 100
MOST_LINES: Final = 1_000
"""How many lines are looked at."""

MOST_WAITERS: Final = 1_000
"""How many owners that hold something and wait for something else are looked at."""

MOST_SEARCHES: Final = 20
"""From how many of those a circle is searched for."""


class LineInfo(Struct, frozen=True):
    """A line in use, and how long its first waiter has waited.

    Attributes:
        key: The key, as shown to people.
        address: Where the line lies, in parts.
        kind: As what it is in use: ``mutex``, ``semaphore``, ``mode lock``, ``limit``, ``schedule``.
        permits: How many there are; None for no limit.
        is_pinned: Whether an operator has set the permits.
        holders: How many hold it, dead ones included.
        waiting: How many wait for it at the most.
        held_for: For how many seconds the one who holds it longest has done so; None if it is not held.
        waited: For how many seconds the first in line has waited; None if none waits.
        holder: The owner that has held it longest; empty if it is not held.
        waiter: The owner that is first in line; empty if none waits.
        reverts_at: When the permits end that an operator has set; None: when they are cleared.
        reverts_to: How many there are then.
    """

    key: str
    address: tuple[str, ...]
    kind: str
    permits: int | None
    is_pinned: bool
    holders: int
    waiting: int
    held_for: float | None = None
    waited: float | None = None
    holder: str = ""
    waiter: str = ""
    reverts_at: Instant | None = None
    reverts_to: int | None = None


class LinePage(Struct, frozen=True):
    """Some lines in the order of their keys. ``more``: there are others that were not looked at, behind ``last``."""

    lines: tuple[LineInfo, ...]
    more: bool
    last: tuple[str, ...] = ()


class Circles(Struct, frozen=True):
    """Circles of owners that wait for each other, each as sentences. ``more``: not all owners were looked at."""

    circles: tuple[tuple[str, ...], ...]
    more: bool


async def read_lines(
    scope: Scope,
    *within: str,
    most: int = MOST_LINES,
    waiting: bool = False,
    prefix: str = "",
    after: tuple[str, ...] = (),
    limit: int | None = None,
) -> LinePage:
    """Read the lines of a space.

    Args:
        scope: The space.
        within: What their addresses begin with: ``"limit", "fulfil"``.
        most: How many are looked at.
        waiting: Only those that are waited for.
        prefix: Only those whose keys begin so, as they are shown to people.
        after: Begin behind this address: the ``last`` of the page before.
        limit: How many are returned; None: all that were looked at.
    """
    found: list[LineInfo] = []
    looked = 0
    start: RecordKey | None
    start, end = scope.key("line", *within).within()
    start = scope.key("line", *after).within()[1] if after else start
    last: tuple[str, ...] = ()
    while start is not None and looked < most and (limit is None or len(found) < limit):
        size = min(PAGE if limit is None else limit - len(found), PAGE, most - looked)
        page = await scope.scan(start, end, limit=size)
        looked, start = looked + len(page.records), page.more
        last = next(reversed(page.records)).parts[3:] if page.records else last
        heads = [each for each in page.records.values() if name_of(each.key.parts[3:]).startswith(prefix)]
        lines = await lines_at(scope, heads, page.at)
        found += [_info(line, page.at) for line in lines if line.waiting or not waiting]
    return LinePage(tuple(found), start is not None, last)


async def addresses_awaited_by(scope: Scope, owner: str) -> tuple[tuple[str, ...], ...]:
    """Return the addresses of the lines in which an owner waits that holds something; nothing of any other owner."""
    page = await scope.scan(*scope.key("waiting", owner).within(), limit=10)
    return tuple(MARKERS.decode(record.value).address for record in page.records.values())


def _info(line: FoundLine, at: Instant) -> LineInfo:
    oldest, first = min(line.holders, key=lambda holder: holder.granted_at, default=None), line.first
    over = line.head.reversion
    return LineInfo(
        line.keys.name,
        line.keys.address,
        line.head.kind,
        line.head.rules.permits,
        line.head.pinned,
        line.held,
        line.waiting,
        None if oldest is None else seconds_between(oldest.granted_at, at),
        None if first is None else seconds_between(first.entry.entered_at, at),
        "" if oldest is None else oldest.entry.owner,
        "" if first is None else first.entry.owner,
        None if over is None else over.at,
        None if over is None else over.permits,
    )


class RateInfo(Struct, frozen=True):
    """A rate limiter in use.

    Attributes:
        key: The key, as shown to people.
        capacity: The most tokens that it saves up.
        interval: Seconds in which it earns one.
        tokens: How many are there now.
        waiting: How many stand in line.
        closed_for: Seconds for which none passes, whatever tokens there are.
        address: Where it lies, in parts.
    """

    key: str
    capacity: int
    interval: float
    tokens: int
    waiting: int
    closed_for: float = 0.0
    address: tuple[str, ...] = ()


class RatePage(Struct, frozen=True):
    """Rate limiters in the order of their keys. ``more``: there are others."""

    rates: tuple[RateInfo, ...]
    more: bool


async def read_rates(scope: Scope, *, limit: int) -> RatePage:
    """Read the rate limiters that are in use: one that is full, open and has no line leaves no record."""
    if type(limit) is not int or limit < 1:
        raise InvalidArgumentError("limit", "it must be a whole number, at least 1", ascii(limit)[:40])
    found: list[RateInfo] = []
    start: RecordKey | None
    start, end = scope.key("rate").within()
    while start is not None and len(found) < limit:
        page = await scope.scan(start, end, limit=min(PAGE, limit - len(found)))
        for key, record in page.records.items():
            bucket = settle(BUCKETS.decode(record.value), page.at)
            closed_for = max(0.0, seconds_between(page.at, bucket.closed_until))
            rate = bucket.rate
            address = key.parts[3:]
            waiting, name = len(bucket.waiters), name_of(address)
            found.append(RateInfo(name, rate.capacity, rate.seconds, bucket.tokens, waiting, closed_for, address))
        start = page.more
    return RatePage(tuple(found), start is not None)


async def find_circles(scope: Scope, *, most: int = MOST_WAITERS, searches: int = MOST_SEARCHES) -> Circles:
    """Search for owners that wait for each other.

    Locks refuse a wait that would close a circle. What is found here was let pass all the same: the store was away, or
    an owner waits in a way that its lock does not see.
    """
    page = await scope.scan(*scope.key("waiting").within(), limit=most)
    owners = list(dict.fromkeys(key.parts[3] for key in page.records))
    found: list[tuple[str, ...]] = []
    known: set[str] = set()
    searched = 0
    for owner in owners:
        if owner in known:
            continue
        if searched == searches:
            return Circles(tuple(found), more=True)
        searched += 1
        cycle = await find_cycle(scope, owner)
        known.update(link.owner for link in cycle)
        if cycle:
            found.append(describe_cycle(cycle))
    return Circles(tuple(found), page.more is not None)

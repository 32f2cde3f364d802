"""Who waits for whom: finding circles that nobody would ever get out of.

An owner that holds something and waits for something else leaves a marker that says where it waits. From there the
holders of each line lead on to the next owners. With several permits one holder that goes on is enough to end the
wait, so a circle is one only if *every* owner that can be reached waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from holdfast.clock import Instant
from holdfast.codec import Codec
from holdfast.locks.driving.records import HEADS, WAITERS, LineKeys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.keys import RecordKey
    from holdfast.locks.algebra.entries import Waiter
    from holdfast.locks.driving.records import Head
    from holdfast.scope import Scope

DAY: Final = 86_400.0

KEPT_FOR: Final = 30 * DAY
"""After this many seconds a marker is swept up, if its process died and nobody else did it."""

MOST_OWNERS: Final = 100
"""How many owners are followed. A longer chain is not looked at any further: it is taken for no circle."""


class Marker(Struct, frozen=True):
    """An owner waits: in the line at this address, with this ticket."""

    address: tuple[str, ...]
    ticket: int
    entry: str


MARKERS: Final[Codec[Marker]] = Codec(Marker, what="a marker of a waiter")


class Link(Struct, frozen=True):
    """One owner in a circle: what it waits for, since when."""

    owner: str
    key: str
    ticket: int
    entered_at: Instant
    entry: str


def marker_key(scope: Scope, owner: str, entry_id: str) -> RecordKey:
    """Return where the marker of a waiter lies."""
    return scope.key("waiting", owner, entry_id)


async def find_circle(scope: Scope, owner: str) -> tuple[Link, ...]:
    """Return the owners that wait for each other, beginning with ``owner``; nothing if it can still go on.

    What is seen is read piece by piece, so it is looked at twice: only what is the same both times is a circle.
    """
    found = await _Search(scope).run(owner)
    return found if found and found == await _Search(scope).run(owner) else ()


@final
class _Search:
    """One walk along the waits."""

    def __init__(self, scope: Scope) -> None:
        self._scope: Final = scope
        self._links: Final[dict[str, Link]] = {}

    async def run(self, start: str) -> tuple[Link, ...]:
        edges: dict[str, tuple[str, ...]] = {}
        pending = [start]
        while pending:
            owner = pending.pop()
            if owner in edges:
                continue
            holders = await self._holders_waited_for_by(owner)
            if not holders or len(edges) >= MOST_OWNERS:
                return ()
            edges[owner] = holders
            pending += holders
        return tuple(self._links[owner] for owner in _circle(edges, start))

    async def _holders_waited_for_by(self, owner: str) -> tuple[str, ...]:
        """Return who holds what ``owner`` waits for; nobody, if it does not wait at all."""
        page = await self._scope.scan(*self._scope.key("waiting", owner).within(), limit=10)
        for record in page.records.values():
            marker = MARKERS.decode(record.value)
            found = await self._look(LineKeys(self._scope, marker.address), marker)
            if found is not None:
                head, waiter, name = found
                self._links[owner] = Link(owner, name, waiter.ticket, waiter.entry.entered_at, waiter.entry.id)
                return tuple(holder.entry.owner for holder in head.holders)
        return ()

    async def _look(self, keys: LineKeys, marker: Marker) -> tuple[Head, Waiter, str] | None:
        seen = await self._scope.read(keys.head, keys.ticket(marker.ticket))
        head, waiting = seen.get(keys.head), seen.get(keys.ticket(marker.ticket))
        if head is None or waiting is None:
            return None
        waiter = WAITERS.decode(waiting.value)
        return (HEADS.decode(head.value), waiter, keys.name) if waiter.entry.id == marker.entry else None


def _circle(edges: Mapping[str, tuple[str, ...]], start: str) -> list[str]:
    """Return a circle through ``start``; if there is none, it waits for others who wait for each other."""
    way, seen = [start], {start}
    while True:
        following = next((each for each in edges[way[-1]] if each == start), None) or edges[way[-1]][0]
        if following in seen:
            return way if following == start else []
        way.append(following)
        seen.add(following)

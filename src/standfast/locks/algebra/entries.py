"""Who stands in a line, and for how long they count as alive."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from standfast.clock import Instant


class Until(Struct, frozen=True, tag="until", tag_field="kind", gc=False):
    """Alive until an instant of the store's time: a lease. At that instant it is over."""

    at: Instant


class Attended(Struct, frozen=True, tag="presence", tag_field="kind", gc=False):
    """Alive as long as the presence is: the heartbeat of one process, shared by everything that it holds."""

    presence: str


class OfRun(Struct, frozen=True, tag="run", tag_field="kind", gc=False):
    """Alive until that run has ended, however long it sleeps. Never judged by time."""

    run: str


Anchor: TypeAlias = Until | Attended | OfRun
"""How long an entry lives: exactly one of a lease, a presence, or a run."""


class Entry(Struct, frozen=True, omit_defaults=True):
    """One acquisition: who wants what, since when.

    Attributes:
        id: Unique to this acquisition; asking again with the same id is the same acquisition.
        owner: Who waits for whom, in the eyes of deadlock detection.
        anchor: How long this entry counts as alive.
        entered_at: When it joined the line, by the store's time; of some, when they first did.
        mode: Entries of one mode share; entries of different modes exclude each other.
        weight: How many permits it takes.
        woken: Whether a permit is handed over to it directly; otherwise it asks again and takes it itself.
        max_hold: Seconds after the grant at which it is taken away, however alive its owner is.
        note: What its owner says about it, for people.
    """

    id: str
    owner: str
    anchor: Anchor
    entered_at: Instant
    mode: str = ""
    weight: Annotated[int, Meta(ge=1)] = 1
    woken: bool = True
    max_hold: float | None = None
    note: str = ""


class Holder(Struct, frozen=True, omit_defaults=True):
    """An entry that has its permits. Its grant is the record of its slot, and that record's version is its fence."""

    entry: Entry
    slot: int
    granted_at: Instant
    ends_at: Instant | None = None


class Waiter(Struct, frozen=True, omit_defaults=True):
    """An entry that waits. Tickets grow in the order of the commits that enqueued them."""

    entry: Entry
    ticket: int

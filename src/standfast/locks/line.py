"""The line: one pure algebra under every durable lock.

A line has holders and waiters. Only the front waiter may take a free permit; whatever becomes free goes to the front,
as far as it fits, and to no waiter behind it. Mutex, semaphore, read/write lock and mode lock differ only in their
:class:`Rules`.

Functions take a :class:`Line` and return another together with what happened. They read no clock and do no I/O: time
comes as an argument, and what is dead is told by a function. So the same code is model-checked, simulated and run.

One step of a line is always the same: :func:`sweep` the dead away, :func:`advance` the front, then answer requests
with :func:`enter`, :func:`renew`, :func:`leave` and :func:`resize`, advancing after each.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from msgspec import Meta, Struct, structs

from standfast.clock import Instant, later

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable

    Alive: TypeAlias = "Callable[[Entry], bool]"


# --- who stands in a line, and for how long they count as alive ----------------------------------------------------


class Until(Struct, frozen=True, tag="until", tag_field="kind", gc=False):
    """Alive until an instant of the store's time: a lease. At that instant it is over."""

    at: Instant


class OfPresence(Struct, frozen=True, tag="presence", tag_field="kind", gc=False):
    """Alive as long as the presence is: the heartbeat of one process, shared by everything that it holds."""

    presence: str


class OfRun(Struct, frozen=True, tag="run", tag_field="kind", gc=False):
    """Alive until that run has ended, however long it sleeps. Never judged by time."""

    run: str


Anchor: TypeAlias = Until | OfPresence | OfRun
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
    """An entry that has its permits. Its grant is the record of its slot, and that record's version is its fence.

    One that its line only counts has the slot :data:`OUT_OF_SIGHT`, and a record of its own instead.
    """

    entry: Entry
    slot: int
    granted_at: Instant
    ends_at: Instant | None = None


class Waiter(Struct, frozen=True, omit_defaults=True):
    """An entry that waits. Tickets grow in the order of the commits that enqueued them.

    ``pace``: how many seconds holds of its process took lately, where no head says it; 0: not known.
    """

    entry: Entry
    ticket: int = 0
    pace: float = 0.0


# --- the line: one pure algebra under every durable lock -----------------------------------------------------------

UNLIMITED: Final = None
"""As a number of permits: as many as fit by mode alone."""


MOST_HOLDERS: Final = 400
"""The most that a line lists: they share one record. Others wait, whatever the permits, until one of them leaves."""

OUT_OF_SIGHT: Final = -1
"""The slot of a holder that its line only counts: its grant is found by the id of its entry."""


class Rules(Struct, frozen=True, omit_defaults=True):
    """What may be held together.

    Attributes:
        permits: The most weight that may be held at once; :data:`UNLIMITED` for no limit.
        alone: Modes that exclude everything, their own kind included.
    """

    permits: int | None = 1
    alone: tuple[str, ...] = ()

    def admit(self, holders: Iterable[Holder], entry: Entry, unseen: int = 0, most: float = MOST_HOLDERS) -> bool:
        """Return True if ``entry`` may hold together with ``holders``, if those are fewer than ``most``.

        The ``unseen`` hold as well, each one permit without a mode.
        """
        if unseen and (entry.mode or entry.mode in self.alone):
            return False
        taken, count = unseen, 0
        for holder in holders:
            other = holder.entry
            if other.mode != entry.mode or other.mode in self.alone:
                return False
            taken += other.weight
            count += 1
        if count >= most:
            return False
        return self.permits is None or taken + entry.weight <= self.permits

    def is_full(self, holders: Iterable[Holder], unseen: int = 0) -> bool:
        """Return True if no entry at all can hold together with ``holders``, however little it wants."""
        return self.permits is not None and unseen + sum([holder.entry.weight for holder in holders]) >= self.permits

    def ever_admit(self, entry: Entry) -> bool:
        """Return True if ``entry`` could hold alone."""
        return self.permits is None or entry.weight <= self.permits


class Line(Struct, frozen=True):
    """A line as far as it is in sight: the holders but for those that are only counted, and the waiters at the front.

    Attributes:
        rules: What may be held together.
        holders: Who holds, in order of their grants.
        waiters: Those in sight, in order of their tickets.
        next_ticket: The ticket of the next one to join.
        horizon: Every waiter with a smaller ticket is in sight; others may be out of sight, though some that are known
            or have just joined may be listed. None: all are in sight. No waiter is granted past those out of sight.
        sparse: Tickets grow, but not by one each: they do not tell how many are out of sight.
        unseen: How many hold that are not among the holders, each one permit with no mode and no end by time.
        listed: How many such holders it lists before it only counts them. None: all of them.
        unseen_of: How many of the unseen live by each presence; the others are runs.
        fallen: Presences that have died and were counted. Their records are still to be deleted.
    """

    rules: Rules
    holders: tuple[Holder, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    next_ticket: int = 0
    horizon: int | None = None
    sparse: bool = False
    unseen: int = 0
    listed: int | None = None
    unseen_of: tuple[tuple[str, int], ...] = ()
    fallen: tuple[str, ...] = ()

    @property
    def held(self) -> int:
        """How many hold, in sight or not."""
        return self.unseen + len(self.holders)

    @property
    def is_empty(self) -> bool:
        """Whether none holds and none waits, and none has fallen whose records are left."""
        return not self.holders and not self.unseen and not self.fallen and self.front == self.next_ticket

    @property
    def is_full(self) -> bool:
        """Whether no entry at all could hold besides those that do."""
        return self.rules.is_full(self.holders, self.unseen)

    def admits(self, entry: Entry) -> bool:
        """Return True if ``entry`` may hold together with all that do, if none waits."""
        most = MOST_HOLDERS if self.listed is None or not is_countable(entry) else inf
        return self.rules.admit(self.holders, entry, self.unseen, most)

    @property
    def front(self) -> int:
        """The smallest ticket that a waiter may have; :attr:`next_ticket` means that none waits."""
        first = self.waiters[0].ticket if self.waiters else self.next_ticket
        return first if self.horizon is None else min(first, self.horizon)

    @property
    def is_cut_off(self) -> bool:
        """Whether the front is out of sight: another look is needed before anybody can move up."""
        return self.horizon is not None and self.front == self.horizon

    def holder(self, entry_id: str) -> Holder | None:
        """Return the holder with that id."""
        return next((holder for holder in self.holders if holder.entry.id == entry_id), None)

    def waiter(self, entry_id: str) -> Waiter | None:
        """Return the waiter with that id, if it is in sight."""
        return next((waiter for waiter in self.waiters if waiter.entry.id == entry_id), None)

    def lists(self, entry_id: str) -> bool:
        """Return True if an entry holds, or waits in sight."""
        return self.holder(entry_id) is not None or self.waiter(entry_id) is not None

    def place(self, ticket: int) -> int:
        """Count those in front of a ticket: 0 is next. Past the horizon it is the most there can be.

        Where tickets are sparse it is the least there can be.
        """
        horizon = ticket if self.horizon is None else self.horizon
        seen = sum(waiter.ticket < min(ticket, horizon) for waiter in self.waiters)
        return seen + (0 if self.sparse else max(0, ticket - horizon))


def is_countable(entry: Entry) -> bool:
    """Return True if a line need not list an entry that holds: it is like all others, and does not end by time."""
    return type(entry.anchor) is not Until and entry.weight == 1 and not entry.mode and entry.max_hold is None


def presence_of(entry: Entry) -> str | None:
    """Return the presence that an entry lives by; None: it lives by something else."""
    return entry.anchor.presence if type(entry.anchor) is OfPresence else None


def has_fallen(holder: Holder, counted: Container[str]) -> bool:
    """Return True if a holder with a record of its own holds no longer: its presence is not ``counted`` any more."""
    presence = presence_of(holder.entry)
    return presence is not None and presence not in counted


def bring_into_sight(line: Line, holders: tuple[Holder, ...]) -> Line:
    """Return a line with holders in sight that it counted.

    A holder of a presence that is not counted has fallen with it, and stays out of sight.
    """
    counts, brought = dict(line.unseen_of), list[Holder]()
    for holder in holders:
        presence = presence_of(holder.entry)
        if presence is None or _count(counts, presence, -1):
            brought.append(holder)
    if not brought:
        return line
    unseen = line.unseen - len(brought)
    return structs.replace(line, holders=(*line.holders, *brought), unseen=unseen, unseen_of=(*counts.items(),))


def put_out_of_sight(line: Line) -> Line:
    """Return a line with the holders that it lists, and the others counted: what is kept of it between two steps."""
    listed = tuple([holder for holder in line.holders if holder.slot != OUT_OF_SIGHT])
    if len(listed) == len(line.holders):
        return line
    counts = dict(line.unseen_of)
    for holder in line.holders:
        presence = presence_of(holder.entry)
        if holder.slot == OUT_OF_SIGHT and presence is not None:
            _count(counts, presence, 1)
    return structs.replace(line, holders=listed, unseen=line.held - len(listed), unseen_of=(*counts.items(),))


def _count(counts: dict[str, int], presence: str, by: int) -> bool:
    """Change the count of a presence; return False if there is none to take from."""
    after = counts.get(presence, 0) + by
    if after < 0:
        return False
    if after:
        counts[presence] = after
    else:
        del counts[presence]
    return True


class Granted(Struct, frozen=True):
    """The entry holds its permits."""

    holder: Holder


class Waiting(Struct, frozen=True):
    """The entry waits. ``place`` counts those in front of it: 0 is next."""

    ticket: int
    place: int


class TooHeavy(Struct, frozen=True):
    """The entry needs more permits than there are, so waiting would never end. It is not in the line."""

    permits: int


def sweep(line: Line, now: Instant, alive: Alive) -> Line:
    """Drop every holder and waiter that is dead or over its time, all at once, and the counts of dead presences."""
    line = _let_presences_fall(line, now, alive) if line.unseen_of else line
    holders = tuple(
        holder for holder in line.holders if alive(holder.entry) and (holder.ends_at is None or holder.ends_at > now)
    )
    waiters = tuple(waiter for waiter in line.waiters if alive(waiter.entry))
    if len(holders) == len(line.holders) and len(waiters) == len(line.waiters):
        return line
    return structs.replace(line, holders=holders, waiters=waiters)


def _let_presences_fall(line: Line, now: Instant, alive: Alive) -> Line:
    """Drop the counts of dead presences."""
    dead = {name: count for name, count in line.unseen_of if not alive(Entry(name, name, OfPresence(name), now))}
    if not dead:
        return line
    return structs.replace(
        line,
        unseen=line.unseen - sum(dead.values()),
        unseen_of=tuple([each for each in line.unseen_of if each[0] not in dead]),
        fallen=tuple(dict.fromkeys((*line.fallen, *dead))),
    )


def forget_fallen(line: Line, presences: Collection[str]) -> Line:
    """Return a line that knows no more of presences that have fallen: nothing of them is left."""
    fallen = tuple([each for each in line.fallen if each not in presences])
    return line if len(fallen) == len(line.fallen) else structs.replace(line, fallen=fallen)


def advance(line: Line, now: Instant) -> Line:
    """Hand what is free to the front of the line, as far as it fits.

    It stops at the first waiter that does not fit, so a heavy one is never starved by light ones behind it, at the
    first that wants to take its permit itself, and at the horizon. A front that can never fit, because permits were
    taken away while it waited, is refused: it would hold up all others. Its owner asks again and is told.
    """
    reach = line.next_ticket if line.horizon is None else line.horizon
    for waiter in line.waiters:
        if waiter.ticket >= reach:
            break
        holders = line.holders
        if line.rules.ever_admit(waiter.entry):
            if not waiter.entry.woken or not line.admits(waiter.entry):
                break
            holders = (*holders, _grant(waiter.entry, line, now))
        line = structs.replace(line, holders=holders, waiters=line.waiters[1:])
    return line


def enter(line: Line, entry: Entry, now: Instant) -> tuple[Line, Granted | Waiting | TooHeavy]:
    """Let ``entry`` take its permits if none waits in front of it and they are free; else let it wait.

    Asking again with the same id changes nothing but the anchor: a holder keeps its grant, a waiter its place. The
    anchor of a holder that is only counted is a part of its grant: with another one it gets a new grant, in its place.
    """
    holder = line.holder(entry.id)
    if holder is not None and holder.slot == OUT_OF_SIGHT and holder.entry.anchor != entry.anchor:
        anew = max(now, Instant(holder.granted_at + 1))  # a grant is told from others by its instant
        return _take(leave(line, entry.id), structs.replace(holder.entry, anchor=entry.anchor), anew)
    renewed, granted = renew(line, entry.id, entry.anchor)
    if granted is not None:
        return renewed, granted
    if line.rules.permits is not None and not line.rules.ever_admit(entry):
        return leave(line, entry.id), TooHeavy(line.rules.permits)
    present = line.waiter(entry.id)
    if present is not None:
        return _ask_again(line, present, entry, now)
    if line.front == line.next_ticket and line.admits(entry):
        return _take(line, entry, now)
    waiter = Waiter(entry, line.next_ticket)
    queued = structs.replace(line, waiters=(*line.waiters, waiter), next_ticket=line.next_ticket + 1)
    return queued, Waiting(waiter.ticket, line.place(waiter.ticket))


def renew(line: Line, entry_id: str, anchor: Anchor) -> tuple[Line, Granted | None]:
    """Give a holder another anchor. It keeps its grant; one who does not hold gets nothing, not even a place.

    Sweep first: a lease that is over is not renewed, whether or not anyone has taken its permit.
    """
    present = line.holder(entry_id)
    if present is None:
        return line, None
    holder = structs.replace(present, entry=structs.replace(present.entry, anchor=anchor))
    holders = tuple(holder if each is present else each for each in line.holders)
    return structs.replace(line, holders=holders), Granted(holder)


def leave(line: Line, entry_id: str) -> Line:
    """Take an entry out, whether it holds or waits. Leaving twice, or without being there, changes nothing."""
    holders = tuple(holder for holder in line.holders if holder.entry.id != entry_id)
    waiters = tuple(waiter for waiter in line.waiters if waiter.entry.id != entry_id)
    if len(holders) == len(line.holders) and len(waiters) == len(line.waiters):
        return line
    return structs.replace(line, holders=holders, waiters=waiters)


def resize(line: Line, permits: int | None) -> Line:
    """Change the number of permits. No holder is evicted; fewer permits only stop new grants."""
    return structs.replace(line, rules=structs.replace(line.rules, permits=permits))


def _ask_again(line: Line, present: Waiter, entry: Entry, now: Instant) -> tuple[Line, Granted | Waiting]:
    waiter = structs.replace(present, entry=structs.replace(present.entry, anchor=entry.anchor, woken=entry.woken))
    if line.front == waiter.ticket and line.admits(waiter.entry):
        return _take(structs.replace(line, waiters=line.waiters[1:]), waiter.entry, now)
    waiters = tuple(waiter if each is present else each for each in line.waiters)
    return structs.replace(line, waiters=waiters), Waiting(waiter.ticket, line.place(waiter.ticket))


def _take(line: Line, entry: Entry, now: Instant) -> tuple[Line, Granted]:
    holder = _grant(entry, line, now)
    return structs.replace(line, holders=(*line.holders, holder)), Granted(holder)


def _grant(entry: Entry, line: Line, now: Instant) -> Holder:
    taken = {holder.slot for holder in line.holders if holder.slot != OUT_OF_SIGHT}
    is_counted = line.listed is not None and len(taken) >= line.listed and is_countable(entry)
    slot = OUT_OF_SIGHT if is_counted else next(slot for slot in range(len(taken) + 1) if slot not in taken)
    ends_at = None if entry.max_hold is None else later(now, entry.max_hold)
    return Holder(entry, slot, now, ends_at)

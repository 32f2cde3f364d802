"""How a counted line lies in a store: which records, and what a step of it changes.

Locks with modes, limits and queues of requests lie so, and all locks on stores without alternatives. On memory, SQLite,
PostgreSQL or Redis a mutex lies as :mod:`~standfast.locks.mutex_line` says, and a semaphore of few permits as
:mod:`~standfast.locks.slot_line` does.

The head has the rules and the holders; each waiter is a record of its own, so that the cost of a hand-over does not
grow with the number of waiters; and each slot has a grant, written only when a permit changes hands, whose version is
the fence. All of it is a pure function of a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeAlias, TypeVar, final

from msgspec import Struct, structs

from standfast.clock import Instant, later
from standfast.codec import Codec
from standfast.keys import RecordKey, display
from standfast.locks.line import (
    OUT_OF_SIGHT,
    Entry,
    Granted,
    Holder,
    Line,
    OfPresence,
    OfRun,
    Rules,
    TooHeavy,
    Until,
    Waiter,
    Waiting,
    advance,
    bring_into_sight,
    enter,
    forget_fallen,
    has_fallen,
    leave,
    presence_of,
    put_out_of_sight,
    renew,
    resize,
    sweep,
)
from standfast.stores.protocol import Change, Delete, Put, Snapshot, Wake

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from standfast.scope import Scope
    from standfast.stores.protocol import AlternativeChange, Record


# --- what can be asked of a line, what is answered, and one step of it as a pure function --------------------------

MOST_FALLING: Final = 16
"""The most holders that fall in one step: each needs a key or two, and the keys of a step are limited."""


class MissingKeysError(Exception):
    """It cannot be decided without these keys. The step is taken again, with them in the snapshot."""

    def __init__(self, keys: frozenset[RecordKey]) -> None:
        super().__init__(keys)
        self.keys: Final = keys


class StepSnapshot(Snapshot, frozen=True):
    """The records before a step, and of which keys they are: those that are not ``given`` were not looked at."""

    given: frozenset[RecordKey] = frozenset()


def given_in(seen: Snapshot) -> frozenset[RecordKey]:
    """Return the keys that a snapshot was taken of, as far as it says so."""
    return seen.given if isinstance(seen, StepSnapshot) else frozenset(seen.records)


A_contra = TypeVar("A_contra", contravariant=True)


class ExtraChanges(Struct, Generic[A_contra], frozen=True):
    """Changes of the caller's own, in the same commit as what it asks for.

    ``decide(answer, seen)`` is a pure function of the answer and of the records as they were before. It returns changes
    of ``keys``, expecting the versions that it saw; whatever the answer is, also if it is not granted. It may run
    several times, on another thread. It may raise :class:`MissingKeysError` to see further keys.

    If it raises anything else, the request has not happened: nothing of it is in the line or in any record, and its
    caller alone gets the exception. It is there to say no: to a run that exists already, or to a worker that has lost
    its run.

    It may run again after it was committed, if the answer got lost: then it sees what it has written itself.

    Attributes:
        keys: All that it looks at or changes, none of it a record of the line; some forty at most.
        decide: What to commit, given the answer: of a line, that of its step.
        on_grant: For a request that is alone in its step: what to commit for the entries that the step grants. It
            returns changes, and the ready records that are not needed because their runs know already.
        wakes: Whom to wake after the commit, besides the entries of the line; asked for after ``decide``.
        next_keys: What ``on_grant`` looks at as well if the entry with this id is the next one in a mutex's line.
        guarded: What ``decide`` comes to, unless a record has changed that they guard themselves: for an entry that
            joins or holds at once, or for one that leaves and did hold. So nothing has to be read for it. None: not
            known before.
        before: When the guarded changes must be done.
    """

    keys: tuple[RecordKey, ...]
    decide: Callable[[A_contra, Snapshot], Sequence[Change]]
    on_grant: Callable[[tuple[Holder, ...], Snapshot], tuple[tuple[Change, ...], tuple[RecordKey, ...]]] | None = None
    wakes: Callable[[], tuple[Wake, ...]] | None = None
    next_keys: Callable[[str], tuple[RecordKey, ...]] | None = None
    guarded: tuple[Change, ...] | None = None
    before: Instant | None = None


class Enter(Struct, frozen=True):
    """Join the line; without ``waits``, only if that means holding at once.

    ``marker`` is where it is noted that the owner waits here: for owners that hold something else meanwhile, and so may
    be part of a cycle. ``ticket`` is the place that it had, if it asks again. With a ``lease`` the entry is anchored
    for that many seconds from the step's own time on, whatever its anchor says: the caller's clock has no say in it.
    ``extra_changes`` are committed together with any answer. ``permits`` is how many the line has from
    now on, unless an operator has set another number. ``since`` is when it entered, if that is not now. One that is
    not ``is_new`` may be in the line already.
    """

    entry: Entry
    waits: bool = True
    marker: RecordKey | None = None
    ticket: int | None = None
    lease: float | None = None
    extra_changes: ExtraChanges[Answer] | None = None
    permits: int | None = None
    since: Instant | None = None
    is_new: bool = True


class Renew(Struct, frozen=True):
    """Hold for ``lease`` seconds from the step's own time on, for one who holds; for anybody else, do nothing."""

    entry_id: str
    lease: float
    slot: int | None = None


class Leave(Struct, frozen=True):
    """Leave the line, whether holding or waiting. ``slot`` and ``ticket`` say where to look, if that is known.

    ``by_force``: its owner does not ask for it, and has to be told. ``only_waiting``: one that holds by now stays.
    ``marker`` is where it was noted that its owner waits here, and is taken away. ``extra_changes`` are committed
    together with the answer. With a ``fence`` it holds, unless the grant is at another version. ``overran``: its
    process gives it up since its ``max_hold`` is over, which by the store's time may be so a moment later.
    """

    entry_id: str
    slot: int | None = None
    ticket: int | None = None
    by_force: bool = False
    only_waiting: bool = False
    marker: RecordKey | None = None
    extra_changes: ExtraChanges[Answer] | None = None
    fence: int | None = None
    overran: bool = False


class Resize(Struct, frozen=True):
    """Set the number of permits, whatever the call sites say; not ``pinned``: until the line is empty.

    With ``until`` the line has the number that it had before again from that instant on, by the store's time.
    """

    permits: int | None
    pinned: bool = True
    until: Instant | None = None
    extra_changes: ExtraChanges[Answer] | None = None


class Reap(Struct, frozen=True):
    """Only look: let the dead fall and the front move up. ``extra_changes`` is committed with what that comes to.

    ``cleared`` are presences that have fallen, of whose records none is left.
    """

    extra_changes: ExtraChanges[Answer] | None = None
    cleared: frozenset[str] = frozenset()


Request: TypeAlias = Enter | Renew | Leave | Resize | Reap


def brought_by(request: Request) -> Iterator[RecordKey]:
    """Yield the keys that a request names besides those of the line."""
    if isinstance(request, Enter | Leave) and request.marker is not None:
        yield request.marker
    extra_changes = extra_changes_of(request)
    if extra_changes is not None:
        yield from extra_changes.keys


def entries_named_by(requests: Iterable[Request]) -> Iterator[str]:
    """Yield the entries that requests are about."""
    for request in requests:
        if isinstance(request, Enter):
            yield request.entry.id
        elif isinstance(request, Leave | Renew):
            yield request.entry_id


def extra_changes_of(request: Request) -> ExtraChanges[Answer] | None:
    """Return what is to be committed together with the answer to a request."""
    return None if isinstance(request, Renew) else request.extra_changes


class NotGranted(Struct, frozen=True):
    """It would have had to wait, and did not want to; or does not hold what it wanted to renew. ``line`` shows who."""

    line: Line


class WaitsForItself(Struct, frozen=True):
    """It would wait for its own owner, for ever. It is not in the line."""

    line: Line


class WrongKind(Struct, frozen=True):
    """The key is in use as another kind of lock. It is not in the line."""

    kind: str


class Left(Struct, frozen=True):
    """What the entry was when it left: holding, waiting, or not there at all."""

    was_holding: bool
    was_waiting: bool


class Advanced(Struct, frozen=True):
    """The line after a request that has no answer of its own."""

    line: Line


Answer: TypeAlias = Granted | Waiting | TooHeavy | NotGranted | WaitsForItself | WrongKind | Left | Advanced


def step(
    line: Line, requests: Sequence[Request], now: Instant, alive: Callable[[Entry], bool]
) -> tuple[Line, tuple[Answer, ...]]:
    """Take one step: let the dead fall, then answer each request in order, the front moving up after each."""
    line = advance(_let_fall(line, requests, now, alive), now)
    answers: list[Answer] = []
    for request in requests:
        line, answer = _answer(line, request, now)
        line = advance(line, now)
        answers.append(answer)
    return line, tuple(answers)


def _let_fall(line: Line, requests: Sequence[Request], now: Instant, alive: Callable[[Entry], bool]) -> Line:
    """Sweep, but leave some of a large crowd of dead holders to the next step; never one that is asked for."""
    swept = sweep(line, now, alive)
    if len(line.holders) - len(swept.holders) <= MOST_FALLING:
        return swept
    asked = set(entries_named_by(requests))
    stand = {holder.entry.id for holder in swept.holders}
    dead = [holder.entry.id for holder in line.holders if holder.entry.id not in stand]
    fall = set(sorted(dead, key=lambda each: each not in asked)[:MOST_FALLING])
    return structs.replace(swept, holders=tuple(each for each in line.holders if each.entry.id not in fall))


def _answer(line: Line, request: Request, now: Instant) -> tuple[Line, Answer]:
    if isinstance(request, Enter):
        return _enter(line, request, now)
    if isinstance(request, Renew):
        line, granted = renew(line, request.entry_id, Until(later(now, request.lease)))
        return line, granted or NotGranted(line)
    if isinstance(request, Leave):
        left = Left(line.holder(request.entry_id) is not None, line.waiter(request.entry_id) is not None)
        stays = request.only_waiting and left.was_holding
        return (line if stays else leave(line, request.entry_id)), left
    if isinstance(request, Resize):
        line = resize(line, request.permits)
    elif request.cleared:
        line = forget_fallen(line, request.cleared)
    return line, Advanced(line)


def _enter(line: Line, request: Enter, now: Instant) -> tuple[Line, Answer]:
    anchor = request.entry.anchor if request.lease is None else Until(later(now, request.lease))
    entry = structs.replace(request.entry, entered_at=now if request.since is None else request.since, anchor=anchor)
    if request.permits is not None and request.permits != line.rules.permits:
        line = advance(resize(line, request.permits), now)
    entered, answer = enter(line, entry, now)
    if not isinstance(answer, Waiting) or line.waiter(entry.id) is not None:
        return entered, answer
    if _waits_for_itself(line, entry):
        return line, WaitsForItself(line)
    return (entered, answer) if request.waits else (line, NotGranted(line))


def _waits_for_itself(line: Line, entry: Entry) -> bool:
    """Return True if what the owner holds here already keeps the entry, or one in front of it, out for ever."""
    own = [holder for holder in line.holders if holder.entry.owner == entry.owner]
    in_front = (waiter.entry for waiter in line.waiters)
    return bool(own) and not all(line.rules.admit(own, each) for each in (entry, *in_front))


# --- ready records: a run that sleeps is notified of its turn by a record, put in the commit that changes its place
#
# No process waits in memory for a run's place in a line. So the commit that grants or removes it puts the run's ready
# record as well, always with another version. Workers watch these records, and poll them now and then.

READY: Final = Codec(bool, what="that a run is ready").encode(value=True)
"""What a ready record holds. Only that it is there counts, and its version."""


def ready_key(scope: Scope, run: str) -> RecordKey:
    """Return where it is noted that a worker has to look at a run."""
    return scope.key("ready", run)


def run_of(entry: Entry) -> str | None:
    """Return the run that an entry lives as long as; None: it lives by something else."""
    return entry.anchor.run if isinstance(entry.anchor, OfRun) else None


# --- how a line lies in a store: which records, and what a step of it changes --------------------------------------

WINDOW: Final = 8
"""How many waiters at the front are looked at in one step."""

FEW_HOLDERS: Final = 8
"""How many holders the line of a limit lists, before it only counts them."""

SEMAPHORE: Final = "semaphore"
"""The kind of a line in which each holder takes some of a number of permits."""

LIMIT: Final = "limit"
"""The kind of a line in which runs and requests hold a place until they end: beyond a few they are only counted."""


class Reversion(Struct, frozen=True, omit_defaults=True):
    """When the permits that an operator has set end, and what the line has from then on."""

    at: Instant
    permits: int | None
    pinned: bool = False


class Head(Struct, frozen=True, omit_defaults=True):
    """The record at the head of a line. No head means that the line has no holders and no waiters.

    Attributes:
        life: Tells this head from earlier ones at the same key: tickets start anew with each.
        kind: As what the key is used: a mutex, a semaphore or a mode lock.
        pinned: The permits were set by an operator; the head stays when the line is empty.
        pace: Seconds that a hold took lately, as a moving average; 0 if none has ended yet.
        history: How many holds that were released are kept, see :mod:`standfast.locks.line_history`; 0: none.
        reversion: When the permits end that were set; None: when an operator clears them. Read it by :func:`head_at`.
        unseen: How many hold besides the holders, each in a record of its own.
        unseen_of: How many of those live by each presence. A record whose presence is not here holds nothing.
        fallen: Presences that have died and were counted. Their records are still to be deleted.
    """

    life: str
    kind: str
    rules: Rules
    holders: tuple[Holder, ...] = ()
    front: int = 0
    next_ticket: int = 0
    pinned: bool = False
    pace: float = 0.0
    history: int = 0
    reversion: Reversion | None = None
    unseen: int = 0
    unseen_of: dict[str, int] = {}
    fallen: tuple[str, ...] = ()

    @property
    def is_counting(self) -> bool:
        """Whether there are holders that it does not list, or records of such are left."""
        return bool(self.unseen or self.fallen)

    @property
    def listed(self) -> int | None:
        """How many holders that are alike it lists, before it only counts them. None: all of them."""
        return FEW_HOLDERS if self.kind == LIMIT else None


class Grant(Struct, frozen=True):
    """The record of a slot: who has it. Its version is the holder's fence."""

    entry: str
    owner: str
    granted_at: Instant


class Marker(Struct, frozen=True):
    """The record of an owner that waits while it holds something else, and so may be part of a deadlock."""

    address: tuple[str, ...]
    ticket: int
    entry: str


COUNTING: Final = 2
"""The format of a head that counts holders. A version that knows no such heads would forget the count: it refuses."""

HEADS: Final[Codec[Head]] = Codec(Head, what="the head of a line", newest=COUNTING)
HELD: Final[Codec[Holder]] = Codec(Holder, what="a holder of a line")
WAITERS: Final[Codec[Waiter]] = Codec(Waiter, what="a waiter")
GRANTS: Final[Codec[Grant]] = Codec(Grant, what="a grant")
MARKERS: Final[Codec[Marker]] = Codec(Marker, what="a marker of a waiter")


def head_value(head: Head) -> bytes:
    """Return the head of a line as it is stored."""
    return HEADS.encode_own(head, COUNTING) if head.is_counting else HEADS.encode_own(head)


MARKERS_KEPT_FOR: Final = 30 * 86_400.0
"""Seconds after which a marker goes by itself, if its process died and no other process has removed it."""


def marker_key(scope: Scope, owner: str, entry_id: str) -> RecordKey:
    """Return where the marker of a waiter lies."""
    return scope.key("waiting", owner, entry_id)


def head_at(head: Head, at: Instant) -> Head:
    """Return a head that was stored, as it is at an instant: permits that were set until then are over.

    The first step after that instant writes it down; until then every reader finds it out here.
    """
    over = head.reversion
    if over is None or over.at > at:
        return head
    rules = structs.replace(head.rules, permits=over.permits)
    return structs.replace(head, rules=rules, pinned=over.pinned, reversion=None)


def is_slotted(head: Head) -> bool:
    """Return True if the records of a semaphore lie as :mod:`~standfast.locks.slot_line` says: a record a permit."""
    return head.kind == SEMAPHORE and not head.life


def waiter_in(record: Record) -> Waiter:
    """Return the waiter that a record holds. While it moves up it is read once in every step."""
    return _decoded(record.value)


_decoded: Final = lru_cache(maxsize=4096)(WAITERS.decode)


def name_of(address: tuple[str, ...]) -> str:
    """Return a line as people are shown it: its key, or in words whose requests stand in it."""
    if address[0] == "limit":
        whose = address[3:]  # a workflow and an action have one limit, or one for each key
        return f"limit of {address[1]} for {whose[0]}" if whose else f"limit of {address[1]}"
    if address[0] != "request":
        return display(address[1:]) if address[1] else address[2]
    tenant, kind, *rest = address[1:]
    if not rest:
        return f"tenant {tenant}"
    key = f"key {rest[1]} of {rest[0]}" if kind == "custom" else f"{kind} {rest[0]}"
    return f"{key} of tenant {tenant}"


@final
class LineKeys:
    """Where the records of one line lie. Heads have a kind of their own, so that all lines can be listed."""

    __slots__ = (
        "_end",
        "_gate",
        "_gates",
        "_held",
        "_scope",
        "_seen",
        "_tickets",
        "address",
        "grants",
        "head",
        "inboxes",
        "name",
        "past",
        "queue",
    )

    def __init__(self, scope: Scope, address: tuple[str, ...], queue: str = "queue") -> None:
        self._scope: Final = scope
        self.address: Final = address
        self.name: Final = name_of(address)
        self.head: Final = scope.key("line", *address)
        self.past: Final = scope.key("past", *address)
        self._tickets: Final = scope.key("ticket", *address)
        self._end: Final = self._tickets.child("0" * 16)[len(self._tickets) + 16 :]
        self._gates: Final = scope.key("gate", *address)
        self._gate: tuple[int | None, RecordKey] | None = None
        self.grants: Final = scope.key("grant", *address)
        self._held: Final = scope.key("held", str(len(address)), *address)  # the number: no address begins with another
        self.queue: Final = scope.key(queue, *address)
        self.inboxes: Final = scope.key("presence")
        self._seen: Final[dict[int, RecordKey]] = {}

    @classmethod
    def of_head(cls, scope: Scope, head: RecordKey) -> LineKeys:
        """Return the keys of the line whose head was found at ``head``."""
        return cls(scope, head.parts[3:])

    def with_slots(self) -> LineKeys:
        """Return the keys of the same line if it has slots: its waiters are not where those of a mutex are.

        One that takes it for a mutex, and joins, must not be granted a permit before it finds out.
        """
        return LineKeys(self._scope, self.address, "queued")

    def gate(self, permits: int | None) -> RecordKey:
        """Return the key of the gate of a line with slots, with that number of permits."""
        if self._gate is None or self._gate[0] != permits:
            self._gate = permits, self._gates.child(str(permits))
        return self._gate[1]

    def ticket(self, number: int) -> RecordKey:
        """Return the key of the waiter with that ticket; they sort by number."""
        # As child() does. A step names a dozen of them.
        return RecordKey.from_encoded(b"%b%016d%b" % (self._tickets, number, self._end))

    def tickets_from(self, number: int) -> tuple[RecordKey, RecordKey]:
        """Return the range of all tickets from a number on."""
        return self.ticket(number), self._tickets.within()[1]

    def queued(self, number: int) -> RecordKey:
        """Return what the key of a ticket in the queue of a mutex or of slots begins with."""
        return RecordKey.from_encoded(b"%b%016d" % (self.queue, number))

    def number(self, ticket: RecordKey) -> int:
        """Return the number of a ticket in such a queue."""
        return int(ticket[len(self.queue) : len(self.queue) + 16])

    def grant(self, slot: int) -> RecordKey:
        """Return the key of a slot's grant."""
        key = self._seen.get(slot)
        if key is None:
            key = self._seen[slot] = self.grants.child(str(slot))
        return key

    def held(self, entry_id: str) -> RecordKey:
        """Return the key of the grant of an entry that its line only counts."""
        return self._held.child(entry_id)

    def all_held(self) -> tuple[RecordKey, RecordKey]:
        """Return the range of the grants of all entries that the line only counts."""
        return self._held.within()

    def held_by(self, presence: str) -> tuple[RecordKey, RecordKey]:
        """Return the range of the grants of counted entries of a presence, and of others of its process."""
        process = presence.partition(".")[0]
        return self._held.child(f"{process}:"), self._held.child(f"{process};")

    def grant_of(self, holder: Holder) -> RecordKey:
        """Return the key of a holder's grant."""
        return self.held(holder.entry.id) if holder.slot == OUT_OF_SIGHT else self.grant(holder.slot)

    def presence(self, name: str) -> RecordKey:
        """Return the key of a presence, which is named by its opening of the space and a number."""
        opening, _, number = name.partition(".")
        return self.inboxes.child(opening, number)

    def ready(self, run: str) -> RecordKey:
        """Return where it is noted that a worker has to look at a run."""
        return ready_key(self._scope, run)


class LockSpec(Struct, frozen=True):
    """What the call site says about the line. It counts if there is no line yet; else the head does.

    ``history``: how many holds that were released are kept; the larger number counts.
    """

    kind: str
    rules: Rules
    history: int = 0


class LineFacts(Struct, frozen=True):
    """What is known before a step, and cannot cease to be true.

    Attributes:
        dead: Presences that have lapsed, or whose process has died. Neither ever comes back.
        front: In the life ``life`` of the line, no waiter has a smaller ticket.
        tickets: Tickets of this process's own waiters, which may be out of sight.
        new_life: The name of the line's life if it has to begin one.
        killed: Those of the dead whose process was seen to die.
    """

    dead: frozenset[str] = frozenset()
    life: str = ""
    front: int = 0
    tickets: tuple[int, ...] = ()
    new_life: str = ""
    killed: frozenset[str] = frozenset()


def is_alive(facts: LineFacts, at: Instant, entry: Entry) -> bool:
    """Return True if an entry's anchor holds at a time, by what is known of presences."""
    anchor = entry.anchor
    if isinstance(anchor, OfPresence):
        return anchor.presence not in facts.dead
    return not isinstance(anchor, Until) or anchor.at > at


class StepView(Protocol):
    """A line as it was read, however its records lie, and the way back from a changed line to changes.

    While it is ``missing`` keys, the rest means nothing: the step is to be taken again with them.
    """

    keys: LineKeys
    facts: LineFacts
    missing: set[RecordKey]

    @property
    def head(self) -> Head:
        """What the head says."""
        ...

    @property
    def line(self) -> Line:
        """What was in sight of the line."""
        ...

    @property
    def history(self) -> int:
        """How many holds that were released are kept."""
        ...

    def get(self, key: RecordKey) -> Record | None:
        """Return what was read of a key; one that was not read is missing."""
        ...

    def fence_of(self, holder: Holder) -> int:
        """Return the version of a holder's grant as it was read."""
        ...

    def changes(self, line: Line, *, resized: Resize | None = None) -> tuple[AlternativeChange, ...]:
        """Return what turns this view into ``line``; ``resized``: what has set its permits, if something has."""
        ...


@final
class LineView:
    """A line as one snapshot shows it, and the way back from a changed line to changes.

    ``missing`` names keys that the snapshot would have had to be taken of; while there are any, the rest means
    nothing and the step is to be repeated with them. Of the holders that are only counted, those of ``entries`` are
    brought into sight.
    """

    __slots__ = (
        "_fallen",
        "_given",
        "_is_stored",
        "_shown",
        "_snapshot",
        "facts",
        "head",
        "history",
        "keys",
        "line",
        "missing",
    )

    def __init__(
        self,
        keys: LineKeys,
        snapshot: Snapshot,
        given: frozenset[RecordKey],
        spec: LockSpec,
        facts: LineFacts,
        entries: Iterable[str] = (),
    ) -> None:
        self.keys, self._snapshot, self._given, self.facts = keys, snapshot, given, facts
        self.missing: set[RecordKey] = set()
        self._fallen: tuple[str, ...] = ()
        stored = snapshot.get(keys.head)
        kept = None if stored is None else HEADS.decode(stored.value)
        head = Head(facts.new_life, spec.kind, spec.rules) if kept is None else head_at(kept, snapshot.at)
        self.head: Final = head
        self._is_stored: Final = head is kept
        self.history: Final = max(self.head.history, spec.history)
        front = max(self.head.front, facts.front) if facts.life == self.head.life else self.head.front
        last = self.head.next_ticket
        self._shown: Final = range(min(front, last), min(last, front + WINDOW))
        horizon = self._shown.stop if self._shown.stop < last else None
        beyond = sorted(ticket for ticket in facts.tickets if ticket >= self._shown.stop)
        line = Line(
            self.head.rules,
            self.head.holders,
            tuple(filter(None, map(self.waiter_at, (*self._shown, *beyond)))),
            last,
            horizon,
            unseen=self.head.unseen,
            listed=self.head.listed,
            unseen_of=(*self.head.unseen_of.items(),),
            fallen=self.head.fallen,
        )
        self.line: Final = bring_into_sight(line, self._unseen(line, entries)) if self.head.is_counting else line

    def _unseen(self, line: Line, entries: Iterable[str]) -> tuple[Holder, ...]:
        """Return those of ``entries`` that have a record of their own."""
        known = {*(each.entry.id for each in line.holders), *(each.entry.id for each in line.waiters)}
        records = [self.get(self.keys.held(each)) for each in dict.fromkeys(entries) if each not in known]
        found = [HELD.decode(record.value) for record in records if record is not None]
        self._fallen = tuple([each.entry.id for each in found if has_fallen(each, self.head.unseen_of)])
        return tuple(found)

    def waiter_at(self, ticket: int) -> Waiter | None:
        """Return the waiter with that ticket; None: it is gone."""
        record = self.get(self.keys.ticket(ticket))
        return None if record is None else waiter_in(record)

    def in_sight(self) -> Line:
        """Return the line up to the first waiter that was not read: the ones behind it are out of sight."""
        line, given = self.line, self._given
        unseen = next((number for number in self._shown if self.keys.ticket(number) not in given), None)
        if unseen is None:
            return line
        return structs.replace(
            line, waiters=tuple([each for each in line.waiters if each.ticket < unseen]), horizon=unseen
        )

    def get(self, key: RecordKey) -> Record | None:
        """Return what the snapshot has of a key; one that it was not taken of is missing."""
        if key not in self._given:
            self.missing.add(key)
        return self._snapshot.get(key)

    def fence_of(self, holder: Holder) -> int:
        """Return the version of a holder's grant as it was in the snapshot."""
        return 0 if (record := self.get(self.keys.grant_of(holder))) is None else record.version

    def changes(self, line: Line, *, resized: Resize | None = None) -> tuple[Change, ...]:
        """Return what turns this view into ``line``; ``resized``: what has set its permits, if something has."""
        return (*self._grant_changes(line), *self._waiter_changes(line), *self._head_change(line, resized))

    def _grant_changes(self, line: Line) -> Iterator[Change]:
        before, after = self._by_slot(self.line), self._by_slot(line)
        for entry_id in self._fallen:
            if entry_id not in after:
                yield from self._delete(self.keys.held(entry_id))
        for slot in before.keys() | after.keys():
            old, new = before.get(slot), after.get(slot)
            if new is None:
                yield from self._delete(self.keys.grant(slot) if isinstance(slot, int) else self.keys.held(slot))
            elif old is None or _grant_id(old) != _grant_id(new):
                grant = Grant(new.entry.id, new.entry.owner, new.granted_at)
                value = GRANTS.encode_own(grant) if isinstance(slot, int) else HELD.encode_own(new)
                yield self._put(self.keys.grant_of(new), value)

    @staticmethod
    def _by_slot(line: Line) -> Mapping[int | str, Holder]:
        """Return the holders by their slots; those that are only counted by the ids of their entries."""
        return {each.entry.id if each.slot == OUT_OF_SIGHT else each.slot: each for each in line.holders}

    def _waiter_changes(self, line: Line) -> Iterator[Change]:
        before = {waiter.ticket: waiter for waiter in self.line.waiters}
        after = {waiter.ticket: waiter for waiter in line.waiters}
        for ticket in before.keys() - after.keys():
            yield from self._delete(self.keys.ticket(ticket))
        for ticket, waiter in after.items():
            if before.get(ticket) != waiter:
                yield self._put(self.keys.ticket(ticket), WAITERS.encode_own(waiter))

    def _head_change(self, line: Line, resized: Resize | None) -> Iterator[Change]:
        if not self.head.life:  # of a mutex, whose records lie otherwise
            return
        old, kept = self.head, put_out_of_sight(line)
        pinned, reversion = (
            (old.pinned, old.reversion) if resized is None else (resized.pinned, reversion_after(old, resized))
        )
        if not pinned and line.is_empty:
            yield from self._delete(self.keys.head)
            return
        pace, held = old.pace, {_grant_id(holder) for holder in line.holders}
        for holder in self.line.holders:
            if _grant_id(holder) not in held:
                took = (self._snapshot.at - holder.granted_at) / 1_000_000
                pace = took if not pace else 0.8 * pace + 0.2 * took
        head = Head(
            old.life,
            old.kind,
            line.rules,
            kept.holders,
            line.front,
            line.next_ticket,
            pinned,
            pace,
            self.history,
            reversion,
            kept.unseen,
            dict(kept.unseen_of),
            kept.fallen,
        )
        if head != old or not self._is_stored:
            yield self._put(self.keys.head, head_value(head))

    def _put(self, key: RecordKey, value: bytes) -> Put:
        record = self.get(key)
        return Put(key, value, 0 if record is None else record.version)

    def _delete(self, key: RecordKey) -> Iterator[Change]:
        record = self.get(key)
        if record is not None:
            yield Delete(key, record.version)


def wakes_after(view: StepView, after: Line, told: Collection[str]) -> Iterator[Wake]:
    """Yield whom to wake after a step: the entries whose place has changed, but for those ``told`` by the answer."""
    keys, before, dead = view.keys, view.line, view.facts.dead
    stayed = {waiter.entry.id for waiter in after.waiters} | {*told}
    held = {_grant_id(holder) for holder in after.holders}
    moved = [(each.entry, keys.head, each.ticket) for each in before.waiters if each.entry.id not in stayed]
    moved += [  # a holder that was only counted is told by its own record that it was evicted
        (each.entry, keys.held(each.entry.id) if each.slot == OUT_OF_SIGHT else keys.head, 0)
        for each in before.holders
        if _grant_id(each) not in held and each.entry.id not in told
    ]
    for entry, about, ticket in moved:
        presence, now = presence_of(entry), after.holder(entry.id)
        if presence is not None and presence not in dead:
            is_shown = now is not None and now.slot != OUT_OF_SIGHT and not now.ends_at  # one with an end has to read
            shows = (keys.grant_of(now), keys.ticket(ticket)) if now and is_shown else ()
            yield Wake(keys.presence(presence), about, shows=shows)


def ready_changes(view: StepView, runs: Iterable[str]) -> tuple[Put, ...]:
    """Return what tells runs that their place has changed: each ready record gets another version."""
    keys = [view.keys.ready(run) for run in runs]
    return tuple([Put(key, READY, 0 if (record := view.get(key)) is None else record.version) for key in keys])


def reversion_after(old: Head, resized: Resize) -> Reversion | None:
    """Return what a line goes back to: what it had before the first of the numbers that are set for a while."""
    if resized.until is None:
        return None
    if old.reversion is not None:
        return structs.replace(old.reversion, at=resized.until)
    return Reversion(resized.until, old.rules.permits, old.pinned)


def _grant_id(holder: Holder) -> tuple[str, Instant]:
    return holder.entry.id, holder.granted_at


def presences_of(entries: Iterable[Entry]) -> frozenset[str]:
    """Return the presences that entries are anchored to."""
    return frozenset(entry.anchor.presence for entry in entries if isinstance(entry.anchor, OfPresence))

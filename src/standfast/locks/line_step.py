"""One step of a line, as a pure function of a snapshot: the answers, and everything that is committed.

:func:`decide_step` takes the commonest steps the short way (:func:`quick_step`), with as few records as there can be.
All others go the long way, through a :class:`~standfast.locks.line_records.LineView`, together with the extra changes
of their requests.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Final, TypeAlias, cast, final

from msgspec import Struct, structs

from standfast.clock import Instant, later
from standfast.errors import InvalidChangeError
from standfast.keys import RecordKey
from standfast.locks.line import Granted, Holder, Line, OfPresence, OfRun, Rules, Until, Waiter, Waiting, presence_of
from standfast.locks.line_history import history_change
from standfast.locks.line_records import (
    GRANTS,
    HEADS,
    MARKERS,
    MARKERS_KEPT_FOR,
    READY,
    WAITERS,
    WINDOW,
    Answer,
    Enter,
    ExtraChanges,
    Grant,
    Head,
    Leave,
    Left,
    LineFacts,
    LineKeys,
    LineView,
    LockSpec,
    Marker,
    MissingKeysError,
    Reap,
    Renew,
    Request,
    Resize,
    StepSnapshot,
    StepView,
    WrongKind,
    entries_named_by,
    extra_changes_of,
    head_value,
    is_alive,
    ready_changes,
    run_of,
    step,
    waiter_in,
    wakes_after,
)
from standfast.stores.protocol import (
    AlternativeChange,
    Append,
    Capabilities,
    Change,
    Check,
    Count,
    Decision,
    Delete,
    Empty,
    MoveFirst,
    Put,
    Snapshot,
    Wake,
)
from standfast.stores.validation import check_decision

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from standfast.locks.line import Entry


# --- steps of a line in which processes queue up, taken with as few records as there can be: the head and one
# ticket ---
#
# Every record that a step looks at is one more that others may have changed. An entry that joins a full line needs
# nothing but its own ticket, and who hands over to the first in it nothing but that one's: both leave the others out of
# sight. They come to what the long way comes to, but for a gap behind the first one, which is left to the next step.

ONE: Final = Rules(1)


class QuickStep(Struct, frozen=True):
    """What the step came to."""

    head: Head
    line: Line
    answer: Granted | Left | Waiting
    changes: tuple[Change, ...]
    granted: tuple[Holder, ...] = ()
    ready: tuple[Change, ...] = ()
    wakes: tuple[Wake, ...] = ()

    def result(self, seen: Snapshot) -> StepResult:
        """Return it as what a step comes to."""
        return StepResult(self.head, (self.answer,), self.line, granted=self.granted, seen=seen, changes=self.changes)


def queue_up(
    keys: LineKeys, seen: Snapshot, given: frozenset[RecordKey], head: Head, spec: LockSpec, request: Enter
) -> QuickStep | None:
    """Let an entry join a full line in which it has not been before; no other entry moves up by that."""
    entry, ticket = request.entry, head.next_ticket
    is_plain = request.waits and request.ticket is None and request.lease is None and request.permits is None
    is_plain = is_plain and request.since is None
    if not is_plain or type(entry.anchor) is not OfPresence or (head.kind, head.rules) != (spec.kind, spec.rules):
        return None
    if not head.rules.ever_admit(entry) or not _stays_full(head, entry, seen.at) or keys.ticket(ticket) not in given:
        return None
    waiter = Waiter(structs.replace(entry, entered_at=seen.at), ticket)
    after = structs.replace(head, next_ticket=ticket + 1)
    changes = (
        Put(keys.ticket(ticket), WAITERS.encode_own(waiter), seen.version(keys.ticket(ticket))),
        Put(keys.head, head_value(after), seen.version(keys.head)),
    )
    line = Line(head.rules, head.holders, (waiter,), ticket + 1, _horizon(head.front, ticket), listed=head.listed)
    return QuickStep(head, line, Waiting(ticket, ticket - head.front), changes)


def _stays_full(head: Head, entry: Entry, at: Instant) -> bool:
    """Return True if all permits are held, by others than the owner of an entry, and no hold is over."""
    return head.rules.is_full(head.holders) and not any(
        each.entry.owner == entry.owner
        or type(each.entry.anchor) is Until
        or (each.ends_at is not None and each.ends_at <= at)
        for each in head.holders
    )


def hand_on(
    keys: LineKeys, seen: Snapshot, given: frozenset[RecordKey], head: Head, request: Leave
) -> QuickStep | None:
    """Let the only holder leave and the first waiter have its turn, if it is alive as far as is known."""
    if head.rules != ONE or len(head.holders) != 1 or not _may_leave(left := head.holders[0], request, seen.at):
        return None
    ticket, last, grant_key, ticket_key = head.front, head.next_ticket, keys.grant(left.slot), keys.ticket(head.front)
    record = seen.get(ticket_key)
    if record is None or not given.issuperset((grant_key, ticket_key)):
        return None
    first = waiter_in(record).entry
    if type(first.anchor) is not OfPresence or not first.woken or first.weight != 1:
        return None
    ends_at = None if first.max_hold is None else later(seen.at, first.max_hold)
    holder = Holder(first, 0, seen.at, ends_at)
    pace = pace_after(head, left, seen.at)
    after = Head(head.life, head.kind, head.rules, (holder,), ticket + 1, last, head.pinned, pace)
    grant = GRANTS.encode_own(Grant(first.id, first.owner, seen.at))
    changes = (
        Put(grant_key, grant, seen.version(grant_key)),
        Delete(ticket_key, record.version),
        Put(keys.head, head_value(after), seen.version(keys.head)),
    )
    line = Line(head.rules, (holder,), (), last, _horizon(ticket + 1, last), listed=head.listed)
    shows = () if ends_at else (grant_key, ticket_key)
    wakes = (Wake(keys.presence(first.anchor.presence), keys.head, shows=shows),)
    return QuickStep(head, line, Left(was_holding=True, was_waiting=False), changes, (holder,), wakes=wakes)


def _may_leave(holder: Holder, request: Leave, at: Instant) -> bool:
    """Return True if a holder is the one that asks, in the first slot, lives by a presence and not past its time."""
    is_over = holder.ends_at is not None and holder.ends_at <= at
    is_asking = holder.entry.id == request.entry_id and holder.slot == 0
    return is_asking and not is_over and type(holder.entry.anchor) is OfPresence


def _horizon(front: int, last: int) -> int | None:
    """Return from which ticket on waiters are out of sight; None if none is."""
    return front if front < last else None


def pace_after(head: Head, left: Holder, at: Instant) -> float:
    """Return how many seconds a hold takes lately, when one ends."""
    took = (at - left.granted_at) / 1_000_000
    return took if not head.pace else 0.8 * head.pace + 0.2 * took


# --- the commonest steps, taken the short way: into an empty line, out of one, and from one run to the next --------
#
# They come to exactly what :func:`~standfast.locks.line_records.step` and a
# :class:`~standfast.locks.line_records.LineView` come to, in a third of the time; a test compares the two on every kind
# of line. Whatever is not so simple goes the long way. The extra changes of a request are added to either.


def quick_step(
    keys: LineKeys, seen: Snapshot, given: frozenset[RecordKey], spec: LockSpec, facts: LineFacts, request: Request
) -> QuickStep | None:
    """Take the step if it is one of the simple ones; None: go the long way."""
    stored = seen.get(keys.head)
    if stored is None:
        return _enter(keys, seen, given, spec, facts, request) if type(request) is Enter else None
    if facts.dead or type(request) not in (Enter, Leave) or (head := HEADS.decode(stored.value)).is_counting:
        return None
    is_plain = not facts.tickets and not facts.front
    if type(request) is Enter and is_plain:
        return queue_up(keys, seen, given, head, spec, request) if head.reversion is None else None
    if type(request) is Leave and not (request.by_force or request.only_waiting or request.overran or spec.history):
        # That the hold was released is noted, and permits that were set for a while end: both the long way.
        is_noted = bool(head.history) or head.reversion is not None
        if head.front == head.next_ticket and not is_noted:
            return _leave(keys, seen, given, head, request)
        if is_plain and not is_noted:
            return hand_on(keys, seen, given, head, request) or _hand_over(keys, seen, given, head, request)
    return None


def _enter(
    keys: LineKeys, seen: Snapshot, given: frozenset[RecordKey], spec: LockSpec, facts: LineFacts, request: Enter
) -> QuickStep | None:
    grant_key, entry = keys.grant(0), request.entry
    if request.lease is not None or grant_key not in given or not spec.rules.ever_admit(entry):
        return None
    entry = structs.replace(entry, entered_at=seen.at if request.since is None else request.since)
    ends_at = None if entry.max_hold is None else later(seen.at, entry.max_hold)
    holder = Holder(entry, 0, seen.at, ends_at)
    grant = GRANTS.encode_own(Grant(entry.id, entry.owner, seen.at))
    head = Head(facts.new_life, spec.kind, spec.rules, (holder,), history=spec.history)
    changes = (Put(grant_key, grant, seen.version(grant_key)), Put(keys.head, head_value(head)))
    line = Line(spec.rules, (holder,), listed=head.listed)
    return QuickStep(head, line, Granted(holder), changes, (holder,))


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
    left = Line(head.rules, next_ticket=head.next_ticket, listed=head.listed)
    changes = (Delete(grant_key, grant), Delete(keys.head, seen.version(keys.head)))
    return QuickStep(head, left, Left(was_holding=True, was_waiting=False), changes)


def _hand_over(
    keys: LineKeys, seen: Snapshot, given: frozenset[RecordKey], head: Head, request: Leave
) -> QuickStep | None:
    """Let one run leave and the next one have its turn, in a line of which all in sight are runs."""
    if head.rules != ONE or len(head.holders) != 1:
        return None
    left = head.holders[0]
    if left.entry.id != request.entry_id or left.ends_at is not None or type(left.entry.anchor) is not OfRun:
        return None
    last, grant_key = head.next_ticket, keys.grant(left.slot)
    tickets = ((number, keys.ticket(number)) for number in range(head.front, min(last, head.front + WINDOW)))
    shown = list(takewhile(lambda each: each[1] in given, tickets))
    waiters = [waiter_in(record) for _, key in shown if (record := seen.get(key)) is not None]
    if not waiters or any(type(each.entry.anchor) is not OfRun for each in waiters):
        return None
    first = waiters[0]
    if first.entry.weight != 1 or not first.entry.woken or first.entry.max_hold is not None:
        return None
    ready_key, ticket_key = keys.ready(first.entry.owner), keys.ticket(first.ticket)
    if first.entry.anchor != OfRun(first.entry.owner) or not given.issuperset((ready_key, grant_key)):
        return None
    holder, unseen_from = Holder(first.entry, left.slot, seen.at), shown[-1][0] + 1
    horizon = unseen_from if unseen_from < last else None
    line = Line(head.rules, (holder,), tuple(waiters[1:]), last, horizon, listed=head.listed)
    pace = pace_after(head, left, seen.at)
    after = Head(head.life, head.kind, head.rules, (holder,), line.front, last, head.pinned, pace)
    grant = GRANTS.encode_own(Grant(first.entry.id, first.entry.owner, seen.at))
    changes = (
        Put(grant_key, grant, seen.version(grant_key)),
        Delete(ticket_key, seen.version(ticket_key)),
        Put(keys.head, head_value(after), seen.version(keys.head)),
    )
    ready = Put(ready_key, READY, seen.version(ready_key))
    return QuickStep(head, line, Left(was_holding=True, was_waiting=False), changes, (holder,), (ready,))


# --- which runs are told: those whose place has changed without their asking -----------------------------------------

_Place: TypeAlias = tuple[str, int]
"""Holding since an instant, or waiting with a ticket."""


def runs_to_notify(
    before: Line, after: Line, requests: Sequence[Request], answers: Sequence[Answer]
) -> tuple[str, ...]:
    """Return the runs whose place in the line is another one than they know of.

    One that asks knows what it was answered, which is not always how the step ends: it may be told to wait, and be
    granted by an entry that leaves in the same step.
    """
    known = {entry.id: (entry, place) for entry, place in _places(before)}
    for request, answer in zip(requests, answers, strict=True):
        _note_answer(known, request, answer)
    if not known:
        return ()
    now = {entry.id: place for entry, place in _places(after)}
    told = (run_of(entry) for entry, place in known.values() if now.get(entry.id) != place)
    return tuple(dict.fromkeys(run for run in told if run is not None))


def _places(line: Line) -> Iterator[tuple[Entry, _Place]]:
    for holder in line.holders:
        if type(holder.entry.anchor) is OfRun:
            yield holder.entry, ("holds", holder.granted_at)
    for waiter in line.waiters:
        if type(waiter.entry.anchor) is OfRun:
            yield waiter.entry, ("waits", waiter.ticket)


def _note_answer(known: dict[str, tuple[Entry, _Place]], request: Request, answer: Answer) -> None:
    if isinstance(request, Leave) and isinstance(answer, Left):
        if not request.by_force and not (request.only_waiting and answer.was_holding):
            known.pop(request.entry_id, None)
    elif isinstance(request, Enter) and run_of(request.entry) is not None and not isinstance(answer, WrongKind):
        known.pop(request.entry.id, None)
        if isinstance(answer, Granted):
            known[request.entry.id] = (request.entry, ("holds", answer.holder.granted_at))
        elif isinstance(answer, Waiting):
            known[request.entry.id] = (request.entry, ("waits", answer.ticket))


# --- what one step of a line comes to, as a pure function of a snapshot: the answers, and everything that is
# committed ---

FEW_FENCES: Final = 16
"""The most fences of earlier grants that are read in one step; the rest follows in the next look."""

Outcome: TypeAlias = Answer | Exception
"""What becomes of a request: its answer, or what its own function has raised."""


class StepInput(Struct, frozen=True):
    """All that a step is a function of, but for the snapshot.

    Attributes:
        given: The keys of which the snapshot is taken.
        interest: The entries whose fences are to be told when they hold.
        own: Where wakes for this process are sent: its own waiters are told by the step itself.
    """

    keys: LineKeys
    requests: Sequence[Request]
    spec: LockSpec
    given: frozenset[RecordKey]
    facts: LineFacts
    interest: Collection[str]
    own: RecordKey
    limits: Capabilities


class StepResult(Struct, frozen=True):
    """What one step of a line came to, or the keys that it lacked.

    ``outcomes`` are those of the first requests: the rest share a key with them that both change, and need a step of
    their own. ``seen`` is what it was decided on, and ``changes`` what it changes in the line.
    """

    head: Head
    outcomes: tuple[Outcome, ...] = ()
    line: Line = Line(Rules())
    fences: dict[str, int] = {}
    granted: tuple[Holder, ...] = ()
    missing: frozenset[RecordKey] = frozenset()
    disagrees: bool = False
    seen: Snapshot | None = None
    changes: tuple[AlternativeChange, ...] = ()


class Sight(Struct, frozen=True):
    """A line as it was seen, with nothing left uncommitted.

    Attributes:
        line: What was in sight of it.
        life: Which life of the line it was.
        fences: The fence of each holder that this process asked about.
        at: When, by the store's time.
        asked_at: When, by this process's clock, before it was asked for.
        versions: Of everything that the step has put.
        unread: From which ticket on it was not looked whether waiters of this process hold by now, and are only
            counted; None: there is none of whom that is not known.
    """

    line: Line
    life: str
    fences: dict[str, int]
    at: Instant
    asked_at: Instant
    versions: dict[RecordKey, int] = {}
    unread: int | None = None


class Answered(Struct, frozen=True):
    """The answer to one request, and the line it left behind."""

    answer: Answer
    sight: Sight


class OtherLayoutError(Exception):
    """The records of the line lie as those of a mutex do since it was last seen. Only raised and caught among lines."""


class StepDecision(Struct, frozen=True):
    """What one step of a line came to, and what is to be committed for it."""

    result: StepResult
    changes: tuple[AlternativeChange, ...] = ()
    wake: tuple[Wake, ...] = ()


def decide_step(asked: StepInput, seen: Snapshot) -> Decision[StepResult]:
    """Take one step of a counted line: answer the requests in order, and say what is to be committed."""
    if len(asked.requests) == 1 and (quick := _decide_quickly(asked, seen)):
        return quick
    view = LineView(asked.keys, seen, asked.given, asked.spec, asked.facts, entries_named_by(asked.requests))
    if not view.head.life and view.head.kind == asked.spec.kind:
        raise OtherLayoutError
    found = take_step(asked, view, seen)
    return Decision(found.result, cast("tuple[Change, ...]", found.changes), wake=found.wake)


def take_step(asked: StepInput, view: StepView, seen: Snapshot) -> StepDecision:
    """Take one step of a line that is seen as ``view``, by the pure line."""
    served, errors = len(asked.requests), dict[int, Exception]()
    while not view.missing:
        extras = _Extras(asked, seen, served, errors)
        found = _decide(asked, view, extras)
        if found is not None:
            return found
        served = extras.served
        view.missing.update(extras.missing_keys)
    return StepDecision(StepResult(view.head, missing=frozenset(view.missing)))


def _decide_quickly(asked: StepInput, seen: Snapshot) -> Decision[StepResult] | None:
    request = asked.requests[0]
    quick = quick_step(asked.keys, seen, asked.given, asked.spec, asked.facts, request)
    if quick is None:
        return None
    answer = quick.answer
    is_waiting = type(answer) is Waiting
    if is_waiting and any(holder.entry.id in asked.interest for holder in quick.head.holders):
        return None  # a holder is to be told its fence, which only the long way looks up
    found = quick.result(seen)
    wakes: tuple[Wake, ...] = ()
    if quick.wakes:
        wakes = tuple([wake for wake in quick.wakes if not wake.to.startswith(asked.own)])
    if type(answer) is Waiting and not answer.place:
        wakes = (*wakes, *_to_holder(asked, quick.head))
    if not _brings_something(request):
        return Decision(found, (*quick.changes, *quick.ready), wake=wakes)
    extras = _Extras(asked, seen, 1, {})
    if not extras.add((quick.answer,), quick.changes, quick.ready, quick.granted):
        return Decision(StepResult(quick.head, missing=extras.missing_keys)) if extras.missing_keys else None
    return Decision(found, cast("tuple[Change, ...]", extras.with_those(quick.changes)), wake=(*wakes, *extras.wakes))


def _decide(asked: StepInput, view: StepView, extras: _Extras) -> StepDecision | None:
    """Take the step with the requests that are left; None: it lacks keys, or one request less is left now."""
    requests, at = extras.requests, extras.seen.at
    if not requests:
        return StepDecision(StepResult(view.head, extras.outcomes(()), view.line))
    head, spec, conflict = view.head, asked.spec, None
    if (head.kind, head.rules.alone) != (spec.kind, spec.rules.alone):
        conflict = WrongKind(head.kind if head.kind != spec.kind else f"{head.kind} with other modes")
    taken = (
        _unless_pinned(requests, head)
        if conflict is None
        else [Reap() if isinstance(each, Enter | Resize) else each for each in requests]
    )
    line, answers = step(view.line, taken, at, partial(is_alive, asked.facts, at))
    if conflict is not None:
        pairs = zip(requests, answers, strict=True)
        answers = tuple([conflict if isinstance(each, Enter | Resize) else answer for each, answer in pairs])
    changes = (*view.changes(line, resized=_resized(taken)), *history_change(view, line, requests, at))
    ready = ready_changes(view, runs_to_notify(view.line, line, requests, answers))
    fences, granted = _fences(asked, view, line, requests)
    if view.missing or not extras.add(answers, changes, ready, granted):
        return None
    # A number that was set on purpose is meant to differ.
    is_other = head.rules != spec.rules and not head.pinned
    disagrees = conflict is None and is_other and any(isinstance(each, Enter) for each in requests)
    outcomes, seen = extras.outcomes(answers), extras.seen
    answered = StepResult(head, outcomes, line, fences, granted, frozenset(), disagrees, seen, changes)
    return StepDecision(answered, extras.with_those(changes), (*_wakes(asked, view, line, requests), *extras.wakes))


@final
class _Extras:
    """The extra changes in a step. A request that refuses its answer is left out, and the step is taken anew."""

    __slots__ = (
        "_asked",
        "_at",
        "_changes",
        "_errors",
        "_markers",
        "missing_keys",
        "requests",
        "seen",
        "served",
        "wakes",
    )

    def __init__(self, asked: StepInput, seen: Snapshot, served: int, errors: dict[int, Exception]) -> None:
        self._asked, self.seen, self._errors = asked, seen, errors
        self.served = served
        self._at: Final = [at for at in range(served) if at not in errors]
        self.requests: Final = [asked.requests[at] for at in self._at]
        self._markers: Final[list[Change]] = []
        self._changes: Final[dict[RecordKey, Change]] = {}
        self.wakes: Final[list[Wake]] = []
        self.missing_keys: frozenset[RecordKey] = frozenset()

    def add(
        self,
        answers: Sequence[Answer],
        changes: Sequence[AlternativeChange],
        ready: Sequence[Change] = (),
        granted: tuple[Holder, ...] = (),
    ) -> bool:
        """Ask each request for its extra changes; return True if all of it fits into one commit."""
        if any(map(_brings_something, self.requests)) and not self._ask(answers, changes):
            return False
        self._changes.update(
            (change.key, change) for change in ready
        )  # also if a request says otherwise: a look does no harm
        for extra_changes in map(extra_changes_of, self.requests) if granted else ():
            if extra_changes is None or extra_changes.on_grant is None:
                continue
            more, know = extra_changes.on_grant(granted, self.seen)
            check_decision(Decision(None, more), self.seen, tuple(self._asked.given), self._asked.limits)
            for key in know:
                self._changes.pop(key, None)
            self._changes.update((change.key, change) for change in more)
        return True

    def _ask(self, answers: Sequence[Answer], changes: Sequence[AlternativeChange]) -> bool:
        self._markers.extend(_markers(self._asked.keys, self.requests, answers, self.seen))
        taken = {*keys_changed(changes), *keys_changed(self._markers)}
        for at, request, answer in zip(self._at, self.requests, answers, strict=True):
            extra_changes = extra_changes_of(request)
            if extra_changes is None:
                continue
            shared = [self._changes[key] for key in extra_changes.keys if key in self._changes]
            if not all(isinstance(each, Check) for each in shared):  # it has to see what the others make of them
                self.served = at
                return False
            try:
                self._add(extra_changes, answer, taken)
            except Exception as error:  # noqa: BLE001 -- the caller gets it
                self._errors[at] = error
                return False
            if self.missing_keys:
                return False
        return True

    def _add(self, extra_changes: ExtraChanges[Answer], answer: Answer, taken: Collection[RecordKey]) -> None:
        seen = self.seen
        try:
            changes = extra_changes.decide(answer, StepSnapshot(seen.at, seen.records, seen.more, self._asked.given))
        except MissingKeysError as missing:
            self.missing_keys = missing.keys - self._asked.given
            if not self.missing_keys:
                raise InvalidChangeError("extra changes miss keys that they were given") from missing
            return
        wakes = () if extra_changes.wakes is None else extra_changes.wakes()
        check_decision(
            Decision(None, tuple(changes), wake=wakes), self.seen, tuple(self._asked.given), self._asked.limits
        )
        for change in changes:
            if change.key not in taken:
                self._changes[change.key] = change
            elif not isinstance(change, Check):  # the step itself guards the key at the same version
                raise InvalidChangeError(f"{change.key} is a record of the line itself")
        self.wakes.extend(wakes)

    def with_those(self, changes: Sequence[AlternativeChange]) -> tuple[AlternativeChange, ...]:
        """Return the changes of the line together with all that is brought along."""
        return (*changes, *self._markers, *self._changes.values())

    def outcomes(self, answers: Sequence[Answer]) -> tuple[Outcome, ...]:
        """Return what becomes of each request that this step has dealt with."""
        found: dict[int, Outcome] = {**self._errors, **dict(zip(self._at, answers, strict=True))}
        return tuple([found[at] for at in range(self.served)])


def keys_changed(changes: Iterable[AlternativeChange]) -> set[RecordKey]:
    """Return the keys that changes name, but for prefixes."""
    return {change.key for change in changes if not isinstance(change, Append | Count | Empty | MoveFirst)}


def _brings_something(request: Request) -> bool:
    return extra_changes_of(request) is not None or (isinstance(request, Enter | Leave) and request.marker is not None)


def _markers(
    keys: LineKeys, requests: Sequence[Request], answers: Sequence[Answer], seen: Snapshot
) -> Iterator[Change]:
    """Note where an owner waits that may be part of a cycle, for as long as it waits."""
    found: dict[RecordKey, Put | None] = {}
    for request, answer in zip(requests, answers, strict=True):
        if not isinstance(request, Enter | Leave) or request.marker is None:
            continue
        found[request.marker] = None
        if isinstance(request, Enter) and isinstance(answer, Waiting):
            marker = MARKERS.encode(Marker(keys.address, answer.ticket, request.entry.id))
            expires_at = None if isinstance(request.entry.anchor, OfRun) else later(seen.at, MARKERS_KEPT_FOR)
            found[request.marker] = Put(request.marker, marker, seen.version(request.marker), expires_at)
    for key, put in found.items():
        if put is not None:
            yield put
        elif key in seen.records:
            yield Delete(key, seen.version(key))


def _fences(
    asked: StepInput, view: StepView, line: Line, requests: Sequence[Request]
) -> tuple[dict[str, int], tuple[Holder, ...]]:
    """Return the fences of holders from before, and the holders whose fence this very commit makes."""
    before = {(holder.entry.id, holder.granted_at) for holder in view.line.holders}
    granted = tuple(holder for holder in line.holders if (holder.entry.id, holder.granted_at) not in before)
    told = {_told_fence(each) for each in requests}
    wanted = [
        holder
        for holder in line.holders
        if (holder.entry.id in asked.interest or holder.entry.id in told) and holder not in granted
    ]
    wanted.sort(key=lambda holder: holder.entry.id not in told)
    return {holder.entry.id: view.fence_of(holder) for holder in wanted[:FEW_FENCES]}, granted


def _told_fence(request: Request) -> str | None:
    """Return the entry that a request leases or a run enters: it is told its fence, though no task waits for it."""
    if isinstance(request, Renew):
        return request.entry_id
    if not isinstance(request, Enter):
        return None
    return request.entry.id if request.lease is not None or isinstance(request.entry.anchor, OfRun) else None


def _wakes(asked: StepInput, view: StepView, line: Line, requests: Sequence[Request]) -> Iterator[Wake]:
    # Waiters of this process, and entries that leave by themselves, are told by the step itself.
    left = [each.entry_id for each in requests if isinstance(each, Leave) and not each.by_force]
    yield from dict.fromkeys(wake for wake in wakes_after(view, line, left) if not wake.to.startswith(asked.own))
    if line.waiters and view.head.front == view.head.next_ticket and line.holders == view.line.holders:
        yield from _to_holder(asked, view.head)


def _to_holder(asked: StepInput, head: Head) -> Iterator[Wake]:
    """Tell the one that holds of the first that waits, where the store has no alternatives.

    It then looks at the line while it holds, and hands it over by what it has seen, in one round trip. Those that wait
    behind the first are seen by the one that is next.
    """
    if asked.limits.alternatives or asked.limits.wakes != "push" or asked.limits.reach != "network":
        return
    if len(head.holders) == 1 and (presence := presence_of(head.holders[0].entry)) is not None:
        wake = Wake(asked.keys.presence(presence), asked.keys.head)
        if not wake.to.startswith(asked.own):
            yield wake


def _unless_pinned(requests: Sequence[Request], head: Head) -> Sequence[Request]:
    """Return the requests without the permits that they would give a line whose permits were set on purpose."""
    if not any(isinstance(each, Enter) and each.permits is not None for each in requests):
        return requests
    resized = _resized(requests)
    if not (head.pinned if resized is None else resized.pinned):
        return requests
    return [structs.replace(each, permits=None) if isinstance(each, Enter) else each for each in requests]


def _resized(requests: Sequence[Request]) -> Resize | None:
    """Return what sets the permits last of several requests."""
    return next((each for each in reversed(requests) if isinstance(each, Resize)), None)

"""The line of a semaphore with slots: a record a permit, so that no two processes race for one of them.

========================  =====================================  ===============================================
``line/<key>``            the head: kind, permits                put with the first grant, deleted with the last
``gate/<key>/<n>``        that there are ``n`` permits, and      put and deleted with the head; deleted while
                          each that holds has one of them        some entry does not fit into that
``grant/<key>/<slot>``    who holds; its version is the fence    put when a permit is taken or changes hands
``queued/<key>/<n>/…``    a waiter; the store draws ``n``        appended, and moved into a grant
========================  =====================================  ===============================================

While the gate is there, four commits do nearly all of the work, each in one round trip and without a read before it:

* **Enter**: under the gate create the grant of a free slot; or, as there are as many grants as permits, append a
  ticket; or create head, gate and grant.
* **Leave**: move the first ticket into the own grant; or else, as there is none, delete the grant while there is
  another one, and with the last one head and gate.
* **Withdraw**: delete the ticket.

This is correct because one that joins counts all grants, and does not pass one that deletes a grant, which
finds no ticket: **while there is a ticket, all permits are held**. So a free slot means that none waits, and may be
taken without a look (``tests/model/test_slot_line.py``).

Everything else is decided by the pure line (:mod:`standfast.locks.line`) on what was read. If its outcome keeps to that
sentence, it is committed under the gate, guarded by the records that it changes. If not (an entry with a weight,
permits that were set to fewer than are held, a history) the gate is closed first: the head gets another version, then
the gate is deleted. Without a gate every commit replaces the head at the version that was read, as in a counted line;
the first whose outcome keeps to the sentence puts the gate back.

Lines begin so by a plain entry: of a process, with one permit and no time of its own. One that a run begins, or an
operator, is a counted line, as are all with more than :data:`MOST_SLOTS` permits.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias, final

from msgspec import Struct, structs

from standfast.clock import MICROSECONDS, Instant
from standfast.errors import StoreBusyError
from standfast.locks.line import MOST_HOLDERS, Entry, Granted, Holder, Line, OfPresence, Rules, Waiter, Waiting
from standfast.locks.line_records import (
    HEADS,
    SEMAPHORE,
    WAITERS,
    Enter,
    Head,
    Leave,
    Left,
    LineFacts,
    LockSpec,
    Reap,
    Resize,
    brought_by,
    extra_changes_of,
    head_at,
    head_value,
    is_alive,
    is_slotted,
    reversion_after,
)
from standfast.locks.line_step import Answered, Sight, StepInput, keys_changed, take_step
from standfast.locks.mutex_line import (
    QUICK_TRIES,
    TRIES,
    UNDRAWN,
    WINDOW,
    commit_all,
    grant_value,
    holder_in,
    left_behind,
    next_keys,
    own_ticket,
    queued_in,
    read_front,
    suffix_of,
    ticket_changes,
    unstamped_value,
    withdraw,
)
from standfast.stores.protocol import (
    Alternative,
    Append,
    Check,
    Choice,
    Conflict,
    Count,
    Delete,
    Empty,
    MoveFirst,
    Present,
    Put,
    Record,
    Snapshot,
    Stamped,
)
from standfast.stores.validation import MOST_ALTERNATIVES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from standfast.clock import Clock
    from standfast.keys import RecordKey
    from standfast.locks.line_records import LineKeys, Request
    from standfast.locks.line_step import StepDecision, StepResult
    from standfast.scope import Scope
    from standfast.stores.protocol import AlternativeChange, Commit


MOST_SLOTS: Final = 100
"""The most permits of a line with slots: the grants of all of them are read at once."""

MOST_TICKETS: Final = 16
"""The most tickets that the general way looks at."""

STREAK: Final = 16
"""How many that leave have to leave others behind, one after the other, before the next one is taken to do so. A wrong
guess costs a round trip: so at most one leave in forty asks twice, however often one is the last."""

FEW_WAYS: Final = 4
"""How many slots an entry tries at once where the first ones are free most often."""

MOST_WAYS: Final = MOST_ALTERNATIVES - 2
"""How many it tries where they are not."""

ENTER_TRIES: Final = 8
"""How often an entry is refused, while slots come and go, before it goes the general way."""


Way: TypeAlias = "tuple[AlternativeChange, ...]"
"""What one alternative guards and does."""


def is_plain(request: Request, spec: LockSpec) -> bool:
    """Return True if an entry of a process takes one permit of few, has not been in the line, and brings nothing."""
    if type(request) is not Enter or spec.kind != SEMAPHORE or spec.history or not _are_few(spec.rules.permits):
        return False
    entry = request.entry
    brings = request.extra_changes or request.marker or request.permits or request.lease or request.since
    is_new = request.is_new and request.ticket is None and not brings
    is_light = entry.weight == 1 and not entry.mode and entry.max_hold is None
    return is_new and is_light and entry.woken and type(entry.anchor) is OfPresence


def _are_few(permits: int | None) -> bool:
    return permits is not None and 1 <= permits <= MOST_SLOTS


def keeps_to_slots(line: Line, head: Head) -> bool:
    """Return True if a line may have a gate: each that holds has one permit, and if one waits, all are held."""
    permits = line.rules.permits
    if permits is None or not _are_few(permits) or line.rules.alone or head.history or head.reversion is not None:
        return False
    if any(each.entry.weight != 1 or each.entry.mode or each.slot >= permits for each in line.holders):
        return False
    return len(line.holders) == permits or (not line.waiters and line.horizon is None)


@lru_cache(maxsize=64)
def _first_head(rules: Rules) -> bytes:
    """Return the head of a line that begins."""
    return head_value(Head("", SEMAPHORE, rules))


# --- what was read, and the way back from a changed line to changes --------------------------------------------------


class SlotRecords(Struct, frozen=True):
    """The records of a line, as they were read. ``is_open``: there was a gate, as old as the head."""

    head: Record | None
    gate: Record | None
    grants: dict[int, Record]

    @property
    def is_open(self) -> bool:
        """Whether the gate is as old as the head: both are written together."""
        return self.head is not None and self.gate is not None and self.gate.version == self.head.version


@final
class SlotView:
    """A line with slots as it was read: what a step is decided on.

    Args:
        keys: Its records.
        records: What was read of them.
        seen: All that was read.
        given: The keys that ``seen`` was taken of.
        spec: What the call site says about the line.
        facts: What is known besides.
        queue: The first tickets, and others that matter; None: none were read.
        horizon: From which ticket on others may be out of sight; None: none are.

    Attributes:
        is_open: There was a gate.
        pace: How many seconds a hold of this process took lately.
        must_close: What is to become of the line cannot be committed under the gate.
    """

    __slots__ = (
        "_given",
        "_records",
        "_seen",
        "_tickets",
        "facts",
        "head",
        "history",
        "is_open",
        "keys",
        "line",
        "missing",
        "must_close",
        "pace",
    )

    def __init__(
        self,
        keys: LineKeys,
        records: SlotRecords,
        seen: Snapshot,
        given: frozenset[RecordKey],
        spec: LockSpec,
        facts: LineFacts,
        queue: Iterable[Record] | None,
        horizon: int | None,
    ) -> None:
        self.pace = 0.0
        self.keys, self._records, self._seen, self._given, self.facts = keys, records, seen, given, facts
        self.missing: set[RecordKey] = set()
        self.must_close = False
        stored, self.is_open = records.head, records.is_open
        self.head: Final = (
            Head("", SEMAPHORE, spec.rules) if stored is None else head_at(HEADS.decode(stored.value), seen.at)
        )
        self.history: Final = max(self.head.history, spec.history)
        holders = sorted(
            [holder_in(each) for each in records.grants.values()], key=lambda each: (each.granted_at, each.slot)
        )
        held = {holder.entry.id for holder in holders}  # read after the tickets: it may have been one of them
        self._tickets: Final = {keys.number(record.key): record for record in queue or ()}
        waiters = [queued_in(keys, record) for _, record in sorted(self._tickets.items())]
        if queue is None:  # while there is a free slot, none waits
            is_free = stored is None or (records.is_open and len(holders) < (self.head.rules.permits or 0))
            horizon = None if is_free else 0
        waiters = [each for each in waiters if each.entry.id not in held]
        self.line: Final = Line(self.head.rules, tuple(holders), tuple(waiters), UNDRAWN, horizon, sparse=True)

    def get(self, key: RecordKey) -> Record | None:
        """Return what was read of a key; one that was not read is missing."""
        if key not in self._given:
            self.missing.add(key)
        return self._seen.get(key)

    def fence_of(self, holder: Holder) -> int:
        """Return the version of the holder's grant."""
        return self._version(holder.slot)

    def _version(self, slot: int) -> int:
        record = self._records.grants.get(slot)
        return 0 if record is None else record.version

    def changes(self, line: Line, *, resized: Resize | None = None) -> tuple[AlternativeChange, ...]:
        """Return what turns this view into ``line``; ``resized``: what has set its permits, if something has."""
        records = self._records
        head = structs.replace(self.head, rules=line.rules, history=self.history)
        if resized is not None:
            head = structs.replace(head, pinned=resized.pinned, reversion=reversion_after(self.head, resized))
        is_over = line.is_empty and not head.pinned
        slots = [*self._slot_changes(line)]
        tickets = [*ticket_changes(self.keys, self._tickets, self.line, line, self.pace)]
        if records.head is not None and records.gate is None:
            return (*slots, *tickets, *self._closed(line, head, is_over=is_over, is_same=not slots and not tickets))
        if records.head is None and is_over:
            return ()
        if records.head is None:
            gate = [self.keys.gate(line.rules.permits)] if keeps_to_slots(line, head) else []
            return (*slots, *tickets, *[Put(key, head_value(head)) for key in (self.keys.head, *gate)])
        self.must_close = not records.is_open or not (is_over or keeps_to_slots(line, head)) or head != self.head
        if not slots and not tickets and not is_over and not self.must_close:
            return ()
        guards = [*self._guards(line, slots, tickets, is_over=is_over)]
        looks_below = any(isinstance(each, Append | Empty) for each in (*tickets, *guards))
        self.must_close |= looks_below and any(isinstance(each, Put | Delete) for each in tickets)
        return () if self.must_close else (*slots, *tickets, *guards)

    def _closed(self, line: Line, head: Head, *, is_over: bool, is_same: bool) -> Iterator[AlternativeChange]:
        """Return what becomes of the head while there is no gate: each change of the line replaces it."""
        stored = self._records.head
        assert stored is not None  # noqa: S101 -- for the type checker: it was looked at
        if is_over:
            yield Delete(stored.key, stored.version)
        elif (is_open := keeps_to_slots(line, head)) or not is_same or head_value(head) != stored.value:
            yield Put(stored.key, head_value(head), stored.version)
            if is_open:
                yield Put(self.keys.gate(line.rules.permits), head_value(head))

    def _guards(
        self, line: Line, slots: Iterable[AlternativeChange], tickets: Iterable[AlternativeChange], *, is_over: bool
    ) -> Iterator[AlternativeChange]:
        """Return what must be so for changes under the gate, and what becomes of it."""
        keys, records = self.keys, self._records
        touched = keys_changed(slots)
        is_freed = any(isinstance(each, Delete) for each in slots)
        is_passed = any(not self.line.lists(each.entry.id) and each.slot in records.grants for each in line.holders)
        if is_freed or is_passed or is_over:  # a newcomer takes what is over, and passes none
            yield Empty(keys.queue)
        permits, held = self.head.rules.permits or 0, {record.key for record in records.grants.values()}
        if any(isinstance(each, Append) for each in tickets):  # all are held that this does not take itself
            yield Count(keys.grants, permits - len(touched - held))
        if is_over and records.gate is not None and records.head is not None:
            yield Count(keys.grants, most=len(touched & held))
            yield Delete(records.gate.key, records.gate.version)
            yield Delete(records.head.key, records.head.version)
        elif records.gate is not None:
            yield Present(records.gate.key)
            if is_freed:  # it is not the last one, which takes the head along
                yield from map(Present, sorted(held - touched)[:1])

    def _slot_changes(self, line: Line) -> Iterator[AlternativeChange]:
        before = {each.slot: each for each in self.line.holders}
        after = {each.slot: each for each in line.holders}
        for slot in before.keys() | after.keys():
            key, new = self.keys.grant(slot), after.get(slot)
            if new is None:
                yield Delete(key, self._version(slot))
            elif new != before.get(slot):
                pace = 0.0 if self.line.lists(new.entry.id) else self.pace
                yield Put(key, grant_value(new, pace), self._version(slot))


async def grants_in(scope: Scope, keys: LineKeys) -> dict[int, Record]:
    """Return all grants of a line by their slots, as of one moment."""
    page = await scope.scan(*keys.grants.within(), limit=scope.at_most(MOST_HOLDERS))
    return {int(key.parts[-1]): record for key, record in page.records.items()}


def pace_in(grants: Iterable[Record]) -> float:
    """Return how many seconds a hold took lately, as the processes say that hold; 0: none of them knows."""
    said = [pace for each in grants if (pace := WAITERS.decode(unstamped_value(each)).pace)]
    return sum(said) / len(said) if said else 0.0


def _has_dead_holders(line: Line, facts: LineFacts, at: Instant) -> bool:
    """Return True if some are left that fall in the next step: not all of a crowd fall in one."""
    return any(
        not is_alive(facts, at, each.entry) or (each.ends_at is not None and each.ends_at <= at)
        for each in line.holders
    )


def _rounded(pace: float) -> float:
    return float(f"{max(0.0, pace):.2g}")


# --- driving it ------------------------------------------------------------------------------------------------------


@final
class SlotDriver:
    """All requests of one process on one line with slots.

    Args:
        scope: Where the line lies.
        keys: Its records.
        clock: The process's own clock.
        dead: Presences that are known to be gone, and which of them were seen to die.
        seen: Called with what each step has left behind.
        granted: Called with the grant of another entry that a step has made.
        disagrees: Called with the head if a call site says another number of permits.
    """

    def __init__(
        self,
        scope: Scope,
        keys: LineKeys,
        clock: Clock,
        dead: tuple[set[str], set[str]],
        seen: Callable[[Sight], None],
        granted: Callable[[Record], object],
        disagrees: Callable[[Head], None],
    ) -> None:
        self._scope, self._keys, self._clock, self._seen = scope, keys, clock, seen
        self._granted, self._disagrees = granted, disagrees
        self._dead, self._killed = dead
        self._gate: Record | None = None  # as it was last seen
        self._head = Head("", SEMAPHORE, Rules())  # what it says
        self._permits = 0  # how many permits the line had; 0: it is not known
        self._random: Final = random.Random(scope.presence_name)  # noqa: S311 -- spreads processes over the slots
        self._is_tight = False  # most slots were held
        self._order: list[int] = []  # of the slots, unlike that of other processes
        self._next = 0  # where in that order to look for a free one
        self._freed: list[int] = []  # slots that this process gave back; others look elsewhere first
        self._entering = 0  # how many entries of this process are under way
        self._mine: set[int] = set()  # slots that entries of this process hold
        self._waited = self._began = False  # the last one that entered had to wait, or found the line free
        self._left_others = 0  # how many that left one after the other were not the last one
        self._tickets: Final[dict[str, RecordKey]] = {}
        self._since: Final[dict[str, Instant]] = {}
        self._pace = 0.0

    async def do(self, request: Request, spec: LockSpec) -> Answered | None:
        """Answer a request; None: the line is of another kind."""
        if type(request) is Enter:
            if is_plain(request, spec):
                return await self._enter(request, spec)
        elif type(request) is Leave:
            ticket, since = self._tickets.pop(request.entry_id, None), self._since.pop(request.entry_id, None)
            if request.slot is not None:
                self._mine.discard(request.slot)
            brings = request.extra_changes or request.marker
            if not (brings or request.by_force or request.only_waiting or request.overran or spec.history):
                if request.fence is not None and request.slot is not None:
                    return await self._leave(request, request.slot, request.fence, since, spec)
                if ticket is not None:
                    gone = await withdraw(self._scope, self._keys, self._clock, ticket, spec.rules)
                    if gone is not None:
                        return gone
        return await self.step(request, spec)

    def note_grant(self, holder: Holder) -> None:
        """Note since when an entry of this process holds."""
        self._since[holder.entry.id] = holder.granted_at
        self._mine.add(holder.slot)

    # --- the short ways ----------------------------------------------------------------------------------------------

    async def _enter(self, request: Enter, spec: LockSpec) -> Answered | None:
        value, free = WAITERS.encode_own(Waiter(request.entry, pace=_rounded(self._pace))), list[int]()
        for _ in range(ENTER_TRIES):
            permits = self._permits or spec.rules.permits or 1
            self._entering += 1
            ways = self._ways_in(request, spec, permits, value, free)
            asked_at = self._clock.elapsed()
            try:
                chosen = await self._scope.choose(*[Alternative(way) for way in ways])
            finally:
                self._entering -= 1
            if isinstance(chosen, Choice):
                tried = sum(type(way[-1]) is Stamped for way in ways[: chosen.index])
                self._is_tight = tried >= FEW_WAYS - 1
                return await self._entered(request.entry, ways[chosen.index], chosen, asked_at)
            gone = {key for key, record in chosen.current.items() if record is None}
            if self._keys.gate(permits) in gone and self._keys.head in chosen.current:
                break  # it has another number of permits, or no gate
            free, self._is_tight = [], True
            if request.waits:  # it looked at all of them
                free = [slot for slot in self._order if self._keys.grant(slot) not in chosen.current]
            self._began = False
            if not request.waits and not free:
                break
        self._permits = 0
        return await self.step(request, spec)

    def _ways_in(self, request: Enter, spec: LockSpec, permits: int, value: bytes, free: Sequence[int]) -> list[Way]:
        """Return the alternatives of one that enters. At most one of them holds, so the likeliest comes first."""
        keys, entry, gate = self._keys, request.entry, Present(self._keys.gate(permits))
        head = _first_head(spec.rules)
        if len(self._order) != permits:
            self._order = self._random.sample(range(permits), permits)
        slots = self._slots_to_try(free)
        first = Stamped(keys.grant(slots[0] % (spec.rules.permits or 1)), value)
        begin: Way = (Put(keys.head, head), Put(keys.gate(spec.rules.permits), head), first)
        join: Way = (gate, Count(keys.grants, permits), Append(keys.queue, value, suffix_of(entry), stamped=True))
        takes: list[Way] = [(gate, Stamped(keys.grant(slot), value)) for slot in slots]
        joins = [join] if request.waits else []
        if self._began:
            return [begin, *takes, *joins]
        return [*joins, *takes, begin] if self._waited else [*takes, *joins, begin]

    def _slots_to_try(self, free: Sequence[int]) -> list[int]:
        """Return some slots that are likely to be free: that are known to be, or that this process had before.

        Entries of this process that come at once begin with different ones. One that found the line free the last time
        looks at one slot only: others keep to theirs.
        """
        order, most = self._order, MOST_WAYS if self._is_tight else FEW_WAYS
        likely = dict.fromkeys(self._random.sample(free, min(most, len(free))))
        if not free and self._freed and (slot := self._freed.pop()) < len(order):
            likely[slot] = None
        else:
            self._next += 1
        for place in range(self._next, self._next + len(order)):
            if len(likely) >= (1 if self._began and not self._mine and self._entering == 1 else most):
                break
            if (slot := order[place % len(order)]) not in self._mine:
                likely[slot] = None
        return [*likely] or [order[self._next % len(order)]]

    async def _entered(self, entry: Entry, way: Way, chosen: Choice, asked_at: Instant) -> Answered | None:
        keys, first = self._keys, way[0]
        self._began = isinstance(first, Put)
        if isinstance(first, Put):
            self._keep_gate(Record(keys.gate(HEADS.decode(first.value).rules.permits), first.value, chosen.version))
        elif isinstance(first, Present):
            if (gate := chosen.present.get(first.key)) is None:  # the answer got lost, and what was found does not say
                gate = (await self._scope.read(first.key)).get(first.key)
            self._keep_gate(gate)
        rules = self._head.rules
        self._waited = isinstance(way[-1], Append)
        if self._waited:
            ticket = chosen.appended
            assert ticket is not None  # noqa: S101 -- for the type checker: it has appended one
            self._tickets[entry.id] = ticket
            line = Line(rules, (), (), UNDRAWN, 0, sparse=True)
            return Answered(Waiting(keys.number(ticket), 0), Sight(line, "", {}, chosen.at, asked_at))
        grant = next(each.key for each in way if isinstance(each, Stamped))
        slot = int(grant.parts[-1])
        holder = Holder(structs.replace(entry, entered_at=chosen.at), slot, chosen.at)
        self.note_grant(holder)
        fences = {entry.id: chosen.version}
        line = Line(rules, (holder,), (), UNDRAWN, sparse=True)
        return Answered(Granted(holder), Sight(line, "", fences, chosen.at, asked_at))

    def _keep_gate(self, gate: Record | None) -> None:
        self._gate = gate
        if gate is not None:
            self._head = HEADS.decode(gate.value)
            self._permits = self._head.rules.permits or 0

    async def _leave(
        self, request: Leave, slot: int, fence: int, since: Instant | None, spec: LockSpec
    ) -> Answered | None:
        """Hand over, or free the permit.

        After some that left others behind, the next one most likely does so, too, and does not try to be the last one:
        in a batch that takes locks, on a server, that all others wait for.
        """
        keys, grant = self._keys, self._keys.grant(slot)
        leaves_others = self._left_others >= STREAK
        for _ in range(QUICK_TRIES):
            gate = self._gate
            if gate is None:
                break
            asked_at = self._clock.elapsed()
            ways = self._ways_out(gate, slot, fence)
            chosen = await self._scope.choose(*[Alternative(each) for each in (ways[-2:] if leaves_others else ways)])
            if isinstance(chosen, Choice):
                is_last = not chosen.index and not leaves_others and not self._head.pinned
                self._left_others = 0 if is_last else self._left_others + 1
                if chosen.moved is None:
                    self._freed.append(slot)
                if since is not None:
                    took = (chosen.at - since) / MICROSECONDS
                    self._pace = 0.8 * self._pace + 0.2 * took if self._pace else took
                if chosen.moved is not None:
                    self._granted(chosen.moved)
                left = Left(was_holding=True, was_waiting=False)
                return Answered(left, Sight(Line(self._head.rules), "", {}, chosen.at, asked_at))
            own = chosen.current.get(grant)
            is_lost = grant in chosen.current and (own is None or own.version != fence)
            if not leaves_others or is_lost or keys.head in chosen.current:
                break
            leaves_others, self._left_others = False, 0
        return await self.step(request, spec)

    def _ways_out(self, gate: Record, slot: int, fence: int) -> list[Way]:
        """Return the alternatives of one that leaves: it is the last one, it hands over, or it frees its permit."""
        keys, grant = self._keys, self._keys.grant(slot)
        is_open = Check(keys.head, gate.version)  # head and gate are written together
        hand_over: Way = (MoveFirst(keys.queue, grant, fence, keys.inboxes), is_open)
        free: Way = (Empty(keys.queue), Delete(grant, fence), is_open)
        if self._head.pinned:
            return [hand_over, free]
        last = (Delete(gate.key, gate.version), Delete(grant, fence), Delete(keys.head, gate.version))
        is_last, is_not = Count(keys.grants, most=1), Count(keys.grants, least=2)
        return [(Empty(keys.queue), is_last, *last), hand_over, (is_not, *free)]

    # --- the general way ---------------------------------------------------------------------------------------------

    async def look(self) -> Sight | None:
        """Read the line; None: it is of another kind."""
        asked_at = self._clock.elapsed()
        page = await self._scope.scan(*self._keys.queue.within(), limit=WINDOW)
        found = await self._read(frozenset(), _ANY)
        if found is None:
            return None
        records, seen = found
        view = self._view(records, seen, frozenset(), _ANY, LineFacts(), page, ())
        fences = {holder.entry.id: view.fence_of(holder) for holder in view.line.holders}
        return Sight(view.line, "", fences, seen.at, asked_at)

    async def step(self, request: Request, spec: LockSpec) -> Answered | None:
        """Read the line, decide by the pure one, and commit that if it is still so; None: it is of another kind."""
        keys, scope = self._keys, self._scope
        brought = {*brought_by(request)}
        named = {*brought}
        scans = type(request) is not Enter or request.ticket is not None or not request.is_new
        for _ in range(TRIES):
            facts = LineFacts(dead=frozenset(self._dead), killed=frozenset(self._killed))
            if facts.dead or spec.history:
                named.add(keys.past)
            asked_at = self._clock.elapsed()
            found = await self._look_at(request, spec, facts, named, scans=scans)
            if found is None:
                return None
            view, records, seen, given = found
            asked = StepInput(keys, (request,), spec, given, facts, (), scope.presence, scope.store.capabilities)
            decision = take_step(asked, view, seen)
            result = decision.result
            if result.missing:
                brought |= result.missing - named
                named |= result.missing
            elif result.line.is_cut_off and not result.line.is_full and not scans and view.is_open:
                scans = True  # a holder has fallen, and who comes next was not looked at
            elif view.must_close:
                await self._close(records)
            elif type(request) is not Reap and _appends_beside(keys, decision.changes):
                await self.step(Reap(), _ANY)  # two commits: the store looks at all tickets
            else:
                done = await self._commit(decision, records, seen, brought)
                if not isinstance(done, Conflict):
                    is_left = _has_dead_holders(result.line, facts, seen.at)
                    self._dead.difference_update(() if is_left else facts.dead)
                    self._killed.intersection_update(self._dead)
                    answered = self._finish(view, result, done, asked_at)
                    if is_left or (result.line.is_cut_off and not result.line.is_full):
                        await self.step(Reap(), _ANY)  # more have their turns, or are over, than were looked at
                    return answered
        raise StoreBusyError(keys.name, f"its line moved on {TRIES} times while a step was taken")

    async def _look_at(
        self, request: Request, spec: LockSpec, facts: LineFacts, named: set[RecordKey], *, scans: bool
    ) -> tuple[SlotView, SlotRecords, Snapshot, frozenset[RecordKey]] | None:
        """Read what a request is decided on; None: the line is of another kind."""
        keys, scope = self._keys, self._scope
        most = scope.at_most(MOST_TICKETS)
        page = await read_front(scope, keys, facts, most) if scans else None
        also = await own_ticket(scope, keys, request, page)
        if page is not None:
            named.update(next_keys(keys, page, extra_changes_of(request)))
        found = await self._read(frozenset(named), spec)
        # A request may find no line if it begins one with slots, or needs none.
        may_begin = is_plain(request, spec) if isinstance(request, Enter) else not isinstance(request, Resize)
        if found is None or (found[0].head is None and not may_begin):
            return None
        records, seen = found
        if records.head is not None and records.gate is None:  # whatever changes after the head was read changes it
            page = await read_front(scope, keys, facts, most)
            also = await own_ticket(scope, keys, request, page)
        given = frozenset({*named, *seen.records})
        return self._view(records, seen, given, spec, facts, page, also), records, seen, given

    async def _read(self, named: frozenset[RecordKey], spec: LockSpec) -> tuple[SlotRecords, Snapshot] | None:
        """Read the line; None: it is of another kind. Under a gate few slots are read at the same moment as it."""
        keys, permits = self._keys, self._permits or spec.rules.permits or 1
        while True:
            slots = {keys.grant(slot): slot for slot in range(permits if _are_few(permits) else 0)}
            together = len(named) + len(slots) + 2 <= self._scope.at_most(MOST_SLOTS)
            seen = await self._scope.read(*named, keys.head, keys.gate(permits), *(slots if together else ()))
            stored = seen.get(keys.head)
            if stored is None:
                self._keep_gate(None)
                return SlotRecords(None, None, {}), seen
            head = HEADS.decode(stored.value)
            if not is_slotted(head):
                return None
            if head.rules.permits != permits and _are_few(head.rules.permits):
                permits = head.rules.permits or 1
                continue
            gate = seen.get(keys.gate(permits))
            self._keep_gate(gate)
            if gate is None or not together:  # under the gate a change is guarded by each grant that it rests on
                grants = await grants_in(self._scope, keys)
                found = {record.key: record for record in grants.values()}
                return SlotRecords(stored, gate, grants), Snapshot(seen.at, {**seen.records, **found})
            grants = {slot: record for key, slot in slots.items() if (record := seen.get(key)) is not None}
            return SlotRecords(stored, gate, grants), seen

    async def _close(self, records: SlotRecords) -> None:
        """Take the gate away. First the head gets another version: none that leaves hands over by the old one."""
        if records.head is None or records.gate is None:
            return
        if records.is_open:
            closed = await self._scope.commit(Put(records.head.key, records.head.value, records.head.version))
            if isinstance(closed, Conflict):
                return
        await self._scope.commit(Delete(records.gate.key, records.gate.version))

    def _view(
        self,
        records: SlotRecords,
        seen: Snapshot,
        given: frozenset[RecordKey],
        spec: LockSpec,
        facts: LineFacts,
        page: Snapshot | None,
        also: Iterable[Record],
    ) -> SlotView:
        keys, queue, horizon = self._keys, None, None
        if page is not None:
            queue = (*page.records.values(), *also)
            horizon = keys.number(next(reversed(page.records))) + 1 if page.more is not None else None
        view = SlotView(keys, records, seen, given, spec, facts, queue, horizon)
        view.pace = _rounded(self._pace)
        return view

    async def _commit(
        self, decision: StepDecision, records: SlotRecords, seen: Snapshot, brought: Collection[RecordKey]
    ) -> Choice | Commit | Conflict | Snapshot:
        """Commit what was decided, if all that it was decided on is still so."""
        changes: list[AlternativeChange] = [*decision.changes]
        touched = keys_changed(changes)
        is_closed = records.head is not None and records.gate is None
        if not changes and not is_closed:
            return seen
        if is_closed and records.head is not None and records.head.key not in touched:
            changes.append(Check(records.head.key, records.head.version))
        elif not is_closed and records.gate is not None and records.gate.key not in touched:
            changes.append(Present(records.gate.key))
        looked_at = [seen.records[key] for key in brought if key in seen.records and key not in touched]
        changes += [Check(record.key, record.version) for record in looked_at]
        return await commit_all(self._scope, Alternative(tuple(changes), decision.wake))

    def _finish(
        self, view: SlotView, found: StepResult, done: Choice | Commit | Snapshot, asked_at: Instant
    ) -> Answered:
        sight, outcome = left_behind(view, found, done, asked_at)
        if self._keys.head in sight.versions or found.line.is_empty:
            self._gate = None  # another one counts now
        if found.disagrees:
            self._disagrees(found.head)
        self._seen(sight)
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, Granted):
            self.note_grant(outcome.holder)
        return Answered(outcome, sight)


_ANY: Final = LockSpec("", Rules())


def _appends_beside(keys: LineKeys, changes: Iterable[AlternativeChange]) -> bool:
    """Return True if changes append a ticket, and change others, which cannot be in one commit."""
    if not any(isinstance(each, Append) for each in changes):
        return False
    return any(isinstance(each, Put | Delete) and each.key.startswith(keys.queue) for each in changes)

"""The line of a mutex: its records lie so that no two processes race for one of them.

======================  =============================================  ================================================
``line/<key>``          the head: that the mutex is held               put when it is taken, deleted when it gets free
``grant/<key>/0``       who holds it; its version is the fence         put when it changes hands
``queue/<key>/<n>/…``   a waiter; ``n`` is drawn by the store          appended, and moved into the grant
======================  =============================================  ================================================

Three commits do nearly all of the work, each of them in one round trip and without a read before it:

* **Enter**: create head and grant; or else, as the head is present, append a ticket. Joining conflicts with no commit.
* **Leave**: move the first ticket into the grant, which is at the leaver's fence; or else, as there is no ticket,
  delete head and grant.
* **Withdraw**: delete the ticket.

The store decides between the alternatives. It notifies the process of the waiter that it moves, in the same
transaction, with the new grant: that process reads nothing to know that it holds.

This is correct because no commit that finds the head present passes the one that deletes it, which finds no ticket:
a waiter is seen by the one that leaves, or sees that the mutex is free (``tests/model/test_mutex_line.py``).

Everything else goes the general way: the records are read, the pure line (:mod:`standfast.locks.line`) decides, and one
guarded commit does it. That is so for runs that leave, for entries with a marker, a ``max_hold`` or extra changes
that are not known before, and for histories, evictions and the dead. Where a store has no alternatives a mutex is a
counted line like any other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import lru_cache
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import structs

from standfast.clock import MICROSECONDS, Instant, later
from standfast.errors import StoreBusyError
from standfast.keys import RecordKey
from standfast.locks.line import Entry, Granted, Holder, Line, OfPresence, Rules, Until, Waiter, Waiting
from standfast.locks.line_records import (
    HEADS,
    READY,
    WAITERS,
    Enter,
    Head,
    Leave,
    Left,
    LineFacts,
    LockSpec,
    Reap,
    brought_by,
    extra_changes_of,
    run_of,
)
from standfast.locks.line_step import Answered, Sight, StepInput, keys_changed, take_step
from standfast.stores.protocol import (
    STAMP_BYTES,
    Alternative,
    Append,
    Check,
    Choice,
    Conflict,
    Delete,
    Empty,
    MoveFirst,
    Present,
    Put,
    Record,
    Snapshot,
    Stamped,
    stamped,
    unstamped,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping

    from standfast.clock import Clock
    from standfast.locks.line_records import Answer, ExtraChanges, LineKeys, Request, Resize, StepView
    from standfast.locks.line_step import Outcome, StepDecision, StepResult
    from standfast.scope import Scope
    from standfast.stores.protocol import AlternativeChange, Change, Commit


# --- records -------------------------------------------------------------------------------------------------------
#
# A ticket is the time when it was appended and an entry; a grant is the time when it was made and a ticket. Both times
# are written by the store. A value that the general way writes has the first of them in the entry.

MUTEX: Final = "mutex"
ONE: Final = Rules(1)
SLOT: Final = 0
HEAD: Final = HEADS.encode_own(Head("", MUTEX, ONE))

UNDRAWN: Final = 10**16 - 1
"""The ticket of a waiter that joins in this very commit: larger than any that a store draws."""


_head_in: Final = lru_cache(maxsize=64)(HEADS.decode)
"""Returns the head that a value says. Those of mutexes are few."""


def is_mutex(head: Head) -> bool:
    """Return True if the records of a line lie as this module says, and not as those of a counted line."""
    return head.kind == MUTEX and not head.life


def suffix_of(entry: Entry) -> bytes:
    """Return how the key of a waiter's ticket ends: by the address of its process if the store may move it."""
    anchor = entry.anchor
    if type(anchor) is not OfPresence or not entry.woken or entry.max_hold is not None:
        return b""
    return _inbox(anchor.presence) if entry.weight == 1 and not entry.mode else b""


@lru_cache(maxsize=100)
def _inbox(presence: str) -> bytes:
    """Return the rest of the key that a process listens at, which all of its presences share."""
    return bytes(RecordKey(presence.partition(".")[0]))


def is_of_mutex(grant: Record) -> bool:
    """Return True if a grant begins with the time when it was made, as that of a counted line does not."""
    return grant.value[:STAMP_BYTES].isdigit()


def holder_in(record: Record) -> Holder:
    """Return the holder that a grant is for."""
    granted_at, entry = _entry_in(record.value)
    ends_at = None if entry.max_hold is None else later(granted_at, entry.max_hold)
    return Holder(entry, slot_of(record.key), granted_at, ends_at)


def slot_of(grant: RecordKey) -> int:
    """Return the slot that a grant is of: the last part of its key."""
    number = grant[grant.rfind(b"\x00\x01", 0, -2) + 2 : -2]
    return int(number) if number.isdigit() else SLOT


def queued_in(keys: LineKeys, record: Record) -> Waiter:
    """Return the waiter that a ticket is of."""
    return Waiter(_entry_in(record.value)[1], keys.number(record.key))


def _entry_in(value: bytes) -> tuple[Instant, Entry]:
    """Return the time that a value begins with, if it does, and the entry in it."""
    first = last = Instant(0)
    while value[:STAMP_BYTES].isdigit():
        last, value = unstamped(value)
        first = first or last
    entry = WAITERS.decode(value).entry
    return first, entry if entry.entered_at else structs.replace(entry, entered_at=last)


def unstamped_value(record: Record) -> bytes:
    """Return what a ticket or a grant says, without the times before it."""
    value = record.value
    while value[:STAMP_BYTES].isdigit():
        value = unstamped(value)[1]
    return value


def grant_value(holder: Holder, pace: float = 0.0) -> bytes:
    """Return a grant as it is stored."""
    return stamped(holder.granted_at, WAITERS.encode_own(Waiter(holder.entry, pace=pace)))


# --- the general way: a line as a snapshot shows it, and the way back from a changed line to changes ---------------


@final
class MutexView:
    """A mutex's line as it was read: what a step is decided on.

    Args:
        keys: Its records.
        seen: What was read of them, and of all else that the step looks at.
        given: The keys that ``seen`` was taken of.
        spec: What the call site says about the line.
        facts: What is known besides.
        queue: The first tickets, and others that matter; None: none were read.
        horizon: From which ticket on others may be out of sight; None: none are.
    """

    __slots__ = ("_given", "_records", "_seen", "facts", "head", "history", "keys", "line", "missing")

    def __init__(
        self,
        keys: LineKeys,
        seen: Snapshot,
        given: frozenset[RecordKey],
        spec: LockSpec,
        facts: LineFacts,
        queue: Iterable[Record] | None,
        horizon: int | None,
    ) -> None:
        self.keys, self._seen, self._given, self.facts = keys, seen, given, facts
        self.missing: set[RecordKey] = set()
        stored, grant = seen.get(keys.head), seen.get(keys.grant(SLOT))
        self.head: Final = Head("", MUTEX, ONE) if stored is None else HEADS.decode(stored.value)
        self.history: Final = max(self.head.history, spec.history)
        holders = () if grant is None else (holder_in(grant),)
        held = {holder.entry.id for holder in holders}  # read after the tickets: it may have been one of them
        self._records: Final = {keys.number(record.key): record for record in queue or ()}
        waiters = [queued_in(keys, record) for _, record in sorted(self._records.items())]
        if queue is None:
            horizon = None if stored is None else 0  # a mutex that is free has no waiters
        line = Line(ONE, holders, tuple([each for each in waiters if each.entry.id not in held]), UNDRAWN, horizon)
        self.line: Final = structs.replace(line, sparse=True)

    def get(self, key: RecordKey) -> Record | None:
        """Return what was read of a key; one that was not read is missing."""
        if key not in self._given:
            self.missing.add(key)
        return self._seen.get(key)

    def fence_of(self, holder: Holder) -> int:  # noqa: ARG002 -- there is but one
        """Return the version of the holder's grant."""
        return self._seen.version(self.keys.grant(SLOT))

    def changes(self, line: Line, *, resized: Resize | None = None) -> tuple[AlternativeChange, ...]:  # noqa: ARG002 -- the number of a mutex's permits is none that could be set
        """Return what turns this view into ``line``."""
        keys, grant, at = self.keys, self.keys.grant(SLOT), self._seen.version
        changes = [*ticket_changes(keys, self._records, self.line, line)]
        if line.holders and line.holders != self.line.holders:
            holder = line.holders[0]
            changes.append(Put(grant, grant_value(holder), at(grant)))
            if self.line.holders and not self.line.lists(holder.entry.id):
                changes.append(Empty(keys.queue))  # a newcomer takes what is over, and passes none
        if line.holders:
            head = structs.replace(self.head, history=self.history)
            if head != self.head or keys.head not in self._seen.records:
                changes.append(Put(keys.head, HEADS.encode_own(head), at(keys.head)))
            elif any(each.ticket == UNDRAWN for each in line.waiters):
                changes.append(Present(keys.head))
        elif self.line.holders:
            changes += [Empty(keys.queue), Delete(keys.head, at(keys.head)), Delete(grant, at(grant))]
        return tuple(changes)


# --- what a mutex shares with a semaphore that has slots: the store draws the tickets of their waiters -------------

MOST_DEAD: Final = 64
"""How many dead waiters at the front are removed at once."""


def ticket_changes(
    keys: LineKeys, tickets: Mapping[int, Record], before: Line, after: Line, pace: float = 0.0
) -> Iterator[AlternativeChange]:
    """Yield what turns the tickets of a line as it was read into those of the line as it is to be.

    ``pace``: how many seconds a hold of this process took lately, which one that joins says.
    """
    stay = {each.ticket: each for each in after.waiters}
    for ticket, record in tickets.items():
        if ticket not in stay:
            yield Delete(record.key, record.version)
    old = {each.ticket: each for each in before.waiters}
    for ticket, waiter in stay.items():
        if old.get(ticket) == waiter:
            continue
        value = WAITERS.encode_own(Waiter(waiter.entry, pace=pace if ticket == UNDRAWN else 0.0))
        append = Append(keys.queue, value, suffix_of(waiter.entry))
        if ticket == UNDRAWN:
            yield append
            continue
        record, key = tickets[ticket], append.key_of(ticket)  # it has another anchor now, and keeps its place
        if record.key == key:
            yield Put(key, value, record.version)
        else:
            yield from (Delete(record.key, record.version), Put(key, value))


async def read_front(scope: Scope, keys: LineKeys, facts: LineFacts, limit: int) -> Snapshot:
    """Read the first tickets, and remove those of the dead."""
    while True:
        page = await scope.scan(*keys.queue.within(), limit=limit)
        if not any(is_dead(each, facts) for each in page.records.values()):
            return page
        more = await scope.scan(*keys.queue.within(), limit=scope.at_most(MOST_DEAD))
        dead = [each for each in more.records.values() if is_dead(each, facts)]
        if dead:
            await scope.commit(*[Delete(each.key, each.version) for each in dead])


async def read_ticket(scope: Scope, keys: LineKeys, ticket: int) -> Record | None:
    """Return the record of a ticket, however far back; None: there is none."""
    found = await scope.scan(keys.queued(ticket), keys.queued(ticket + 1), limit=1)
    return next(iter(found.records.values()), None)


async def own_ticket(scope: Scope, keys: LineKeys, request: Request, page: Snapshot | None) -> tuple[Record, ...]:
    """Return the ticket that a request is about, if it is not in the page: far back it counts as well."""
    ticket = request.ticket if isinstance(request, Enter | Leave) else None
    if page is None or page.more is None or ticket is None:
        return ()
    record = await read_ticket(scope, keys, ticket)
    return () if record is None or record.key in page.records else (record,)


async def withdraw(scope: Scope, keys: LineKeys, clock: Clock, ticket: RecordKey, rules: Rules) -> Answered | None:
    """Take the ticket of a waiter away; None: it has been granted, or is in the line no more."""
    asked_at = clock.elapsed()
    gone = await scope.commit(Delete(ticket, keys.number(ticket)))  # the number is its version
    if isinstance(gone, Conflict):
        return None
    left = Left(was_holding=False, was_waiting=True)
    return Answered(left, Sight(Line(rules), "", {}, gone.at, asked_at))


async def commit_all(scope: Scope, step: Alternative) -> Choice | Commit | Conflict:
    """Commit a step, guards and all. If its store was moved to one without alternatives, none joins there."""
    if scope.store.capabilities.alternatives:
        return await scope.choose(step)
    return await scope.commit(
        *[each for each in step.changes if isinstance(each, Put | Delete | Check)], wake=step.wake
    )


def left_behind(
    view: StepView, found: StepResult, done: Choice | Commit | Snapshot, asked_at: Instant
) -> tuple[Sight, Outcome]:
    """Return the line as a step has left it, and the step's outcome, with the ticket that the store has drawn."""
    keys, line, [outcome] = view.keys, found.line, found.outcomes
    versions = {} if isinstance(done, Snapshot) else done.versions
    drawn = done.appended if isinstance(done, Choice) else None
    number = UNDRAWN if drawn is None else keys.number(drawn)
    waiters = [structs.replace(each, ticket=number) if each.ticket == UNDRAWN else each for each in line.waiters]
    fences = {each.entry.id: versions.get(keys.grant(each.slot)) or view.fence_of(each) for each in line.holders}
    sight = Sight(structs.replace(line, waiters=tuple(waiters)), "", fences, done.at, asked_at, versions)
    if isinstance(outcome, Waiting) and outcome.ticket == UNDRAWN:
        outcome = structs.replace(outcome, ticket=number)
    return sight, outcome


# --- driving it ----------------------------------------------------------------------------------------------------

WINDOW: Final = 8
"""How many waiters at the front are looked at in one step."""

KNOWN: Final = 64
"""How many waiters at the front are read, so that the runs among them are known when their turns come."""

TRIES: Final = 50
"""How often a step is taken again because another process was faster."""

SHORTEST_PACE: Final = 0.001
"""How long a hold is said to take that takes less, in seconds: none estimates waits from such holds more closely."""

QUICK_TRIES: Final = 3
"""How often the short way is tried."""


@final
class MutexDriver:
    """All requests of one process on the line of one mutex.

    Args:
        scope: Where the line lies.
        keys: Its records.
        clock: The process's own clock.
        dead: Presences that are known to be gone, and which of them were seen to die.
        seen: Called with what each step has left behind.
        granted: Called with the grant of another entry that a step has made.
        elsewhere: Answers a request on a line that is of another kind.

    Attributes:
        asked: Requests that no caller waits for. One that enters comes after them.
        held_since: When an entry of this process was last granted, by the store's time; None: not known.
    """

    def __init__(
        self,
        scope: Scope,
        keys: LineKeys,
        clock: Clock,
        dead: tuple[set[str], set[str]],
        seen: Callable[[Sight], None],
        granted: Callable[[Record], object],
        elsewhere: Callable[[Request, LockSpec], Awaitable[Answered]],
    ) -> None:
        self._scope, self._keys, self._clock, self._seen, self._granted = scope, keys, clock, seen, granted
        self._elsewhere: Final = elsewhere
        self._grant: Final = keys.grant(SLOT)
        self._present: Final = Present(keys.head)
        self._empty: Final = Empty(keys.queue)
        self._dead, self._killed = dead
        self._head: Record | None = None
        self._pace = self._told_pace = 0.0
        self._own_head = Put(keys.head, HEAD)  # says how long holds of this process take
        self._is_checked = False  # the store has seen all keys of this line once
        self.held_since: Instant | None = None
        self._known: Final[deque[Record]] = deque()  # the first tickets, which are not moved by the store
        self._length: Final = len(Append(keys.queue, b"").key_of(0))  # of the key of such a ticket
        self._meets_runs = False  # when the line was last looked at, such a one was the first
        self._tickets: Final[dict[str, RecordKey]] = {}
        self.asked: Final[set[asyncio.Task[Any]]] = set()

    def begin(self, work: Coroutine[Any, Any, Answered]) -> asyncio.Task[Answered]:
        """Answer a request that its caller does not wait for. One that enters comes after it."""
        task = asyncio.get_running_loop().create_task(work)
        if not task.done():  # an eager one may be
            self.asked.add(task)
            task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Answered]) -> None:
        self.asked.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone

    def do(self, request: Request, spec: LockSpec) -> Coroutine[Any, Any, Answered]:
        """Answer a request."""
        if type(request) is Enter:
            if self.asked and asyncio.current_task() not in self.asked:  # this task may have asked to leave
                return self._enter_after(request, spec)
            if _is_plain(request, spec):
                return self._enter(request, spec)
        elif type(request) is Leave:
            ticket = self._tickets.pop(request.entry_id, None) if self._tickets else None
            brings = request.extra_changes or request.marker
            if not (brings or request.by_force or request.only_waiting or request.overran or spec.history):
                if request.fence is not None:
                    return self._leave(request, request.fence, spec)
                if ticket is not None:
                    return self._withdraw(request, ticket, spec)
        return self._do_generally(request, spec)

    async def _enter_after(self, request: Enter, spec: LockSpec) -> Answered:
        """Let an entry join when all that was asked before is answered."""
        await asyncio.wait(self.asked)
        return await (self._enter if _is_plain(request, spec) else self._do_generally)(request, spec)

    async def _do_generally(self, request: Request, spec: LockSpec) -> Answered:
        answered = await self.step(request, spec)
        return await self._elsewhere(request, spec) if answered is None else answered

    # --- the short ways ------------------------------------------------------------------------------------------

    async def _enter(self, request: Enter, spec: LockSpec) -> Answered:
        entry, scope, grant, put = request.entry, self._scope, self._grant, self._own_head
        value, extra, before = WAITERS.encode_own(Waiter(entry)), _NONE, None
        if request.extra_changes is not None:
            extra, before = request.extra_changes.guarded or (), request.extra_changes.before
        ways = [Alternative((put, Stamped(grant, value), *extra), before=before)]
        if request.waits:
            append = Append(self._keys.queue, value, suffix_of(entry), stamped=True)
            ways.append(Alternative((self._present, append, *extra), before=before))
        for _ in range(QUICK_TRIES):
            asked_at = self._clock.elapsed()
            chosen = await (scope.choose_unchecked if self._is_checked and not extra else scope.choose)(*ways)
            self._is_checked = True
            if isinstance(chosen, Conflict):
                if request.waits and not any(each.key in chosen.current for each in extra):
                    continue  # it got free between the first alternative and the second
                break
            if chosen.index != 0:
                joined = await self._joined(entry, chosen, extra, asked_at)
                return await self._elsewhere(request, spec) if joined is None else joined
            at, version = chosen.at, chosen.versions[grant]
            self._head, self.held_since = Record(put.key, put.value, version), at
            holder = Holder(structs.replace(entry, entered_at=at), SLOT, at)
            return Answered(Granted(holder), Sight(Line(ONE, (holder,)), "", {entry.id: version}, at, asked_at))
        return await self._do_generally(request, spec)

    async def _joined(
        self, entry: Entry, chosen: Choice, extra: Iterable[Change], asked_at: Instant
    ) -> Answered | None:
        keys, ticket = self._keys, chosen.appended
        assert ticket is not None  # noqa: S101 -- for the type checker: it has appended one
        head = chosen.present.get(keys.head)
        if head is None:  # the answer got lost, and what was found of it does not say
            head = (await self._scope.read(keys.head)).get(keys.head)
        if head is not None and head.value != HEAD and not is_mutex(_head_in(head.value)):
            undo = [Delete(each.key, chosen.version) if isinstance(each, Put) else each for each in extra]
            if isinstance(await self._scope.commit(Delete(ticket, chosen.version), *undo), Conflict):
                await self._scope.commit(Delete(ticket, chosen.version))  # the rest is in other hands
            return None
        self._head = head
        if type(entry.anchor) is OfPresence:  # others may leave in another process
            self._tickets[entry.id] = ticket
        else:
            self._meets_runs = True
        line = Line(ONE, (), (), UNDRAWN, 0, sparse=True)
        return Answered(Waiting(keys.number(ticket), 0), Sight(line, "", {}, chosen.at, asked_at))

    async def _leave(self, request: Leave, fence: int, spec: LockSpec) -> Answered:
        keys, grant = self._keys, self._grant
        move = Alternative((MoveFirst(keys.queue, grant, fence, keys.inboxes),))
        for _ in range(QUICK_TRIES):
            head = self._head
            if head is None or (head.value != HEAD and _head_in(head.value).history):
                break
            asked_at = self._clock.elapsed()
            free = Alternative((self._empty, Delete(keys.head, head.version), Delete(grant, fence)))
            chosen = await self._scope.choose_unchecked(move, free)
            if isinstance(chosen, Choice):
                self._note_pace(chosen.at)
                if chosen.moved is not None:
                    self._granted(chosen.moved)
                return Answered(_HELD, Sight(_FREE, "", {}, chosen.at, asked_at))
            if keys.head not in chosen.current:
                break
            self._head = chosen.current[keys.head]
        return await self._do_generally(request, spec)

    async def leave_known(self, request: Leave, spec: LockSpec) -> Answered | None:
        """Let a run leave, together with what it brings along, without a look; None: it has not.

        A process that waits is moved by the store. A run is known here if the front of the line was read since: those
        that join stand behind it, and one that has left is found out by the guards.
        """
        extra, head, fence = request.extra_changes, self._head, request.fence
        if extra is None or extra.guarded is None or fence is None or head is None or self._dead:
            return None
        if spec.history or (head.value != HEAD and _head_in(head.value).history):
            return None
        if not self._known and self._meets_runs:
            return None
        asked_at, grant, first = self._clock.elapsed(), self._keys.grant(SLOT), None
        ways: list[tuple[AlternativeChange, ...]]
        if self._known:
            first = self._known.popleft()
            entry = _entry_in(first.value)[1]
            if run_of(entry) is None:
                return None
            handed = (Delete(first.key, first.version), Stamped(grant, first.value, fence))
            ways = [(*handed, *self._welcome(entry, extra))]
        else:
            move = MoveFirst(self._keys.queue, grant, fence, self._keys.inboxes)
            ways = [(move,), (Empty(self._keys.queue), Delete(self._keys.head, head.version), Delete(grant, fence))]
        try:
            chosen = await self._scope.choose(
                *[Alternative((*way, *extra.guarded), before=extra.before) for way in ways]
            )
        except BaseException:
            self._known.clear()
            raise
        if isinstance(chosen, Conflict):
            self._known.clear()
            return None
        line, fences = Line(ONE), dict[str, int]()
        if first is not None:
            holder = holder_in(Record(grant, stamped(chosen.at, first.value), chosen.version))
            line, fences = Line(ONE, (holder,), (), UNDRAWN, 0, sparse=True), {holder.entry.id: chosen.version}
        elif chosen.moved is not None:
            self._granted(chosen.moved)
        return Answered(Left(was_holding=True, was_waiting=False), Sight(line, "", fences, chosen.at, asked_at))

    def _welcome(self, entry: Entry, extra: ExtraChanges[Answer]) -> tuple[Change, ...]:
        """Return what tells a run that it holds: it is made ready, unless the one that leaves tells it."""
        welcome: tuple[Change, ...] = ()
        know: tuple[RecordKey, ...] = ()
        if extra.next_keys is not None and extra.on_grant is not None:
            extra.next_keys(entry.id)
            welcome, know = extra.on_grant((Holder(entry, SLOT, Instant(0)),), _NOTHING_SEEN)
        run = run_of(entry)
        ready = () if run is None or (key := self._keys.ready(run)) in know else (Put(key, READY),)
        return (*welcome, *ready)

    def _note_pace(self, at: Instant) -> None:
        """Note how long the hold of this process took: it says so when it takes the mutex the next time."""
        if self.held_since is None:
            return
        took, self.held_since = (at - self.held_since) / MICROSECONDS, None
        pace = self._pace = 0.8 * self._pace + 0.2 * took if self._pace else took
        pace = max(SHORTEST_PACE, pace)
        if not 0.7 * self._told_pace < pace < 1.4 * self._told_pace:  # else it is near enough
            self._told_pace = pace
            head = Head("", MUTEX, ONE, pace=float(f"{pace:.1g}"))
            self._own_head = Put(self._keys.head, HEADS.encode_own(head))

    async def _withdraw(self, request: Leave, ticket: RecordKey, spec: LockSpec) -> Answered:
        gone = await withdraw(self._scope, self._keys, self._clock, ticket, ONE)
        return await self._do_generally(request, spec) if gone is None else gone

    # --- the general way -----------------------------------------------------------------------------------------

    async def look(self, at: Collection[str] = ()) -> Sight | None:
        """Read the line; None: it is of another kind. If an entry that is looked ``at`` holds, waiters are not read."""
        keys, asked_at = self._keys, self._clock.elapsed()
        page = None if at else await self._scope.scan(*keys.queue.within(), limit=WINDOW)
        seen = await self._scope.read(keys.head, keys.grant(SLOT))
        view = self._view(seen, frozenset(), _ANY, LineFacts(), page, ())
        if at and view is not None and not any(holder.entry.id in at for holder in view.line.holders):
            return await self.look()
        if view is None:
            return None
        fences = {holder.entry.id: view.fence_of(holder) for holder in view.line.holders}
        return Sight(view.line, "", fences, seen.at, asked_at)

    async def step(self, request: Request, spec: LockSpec) -> Answered | None:
        """Read the line, decide by the pure one, and commit that if it is still so."""
        keys, scope = self._keys, self._scope
        brought = {*brought_by(request)}
        named = {keys.head, keys.grant(SLOT), *brought}
        scans = type(request) is not Enter or request.ticket is not None or not request.is_new
        for _ in range(TRIES):
            facts = LineFacts(dead=frozenset(self._dead), killed=frozenset(self._killed))
            if facts.dead or spec.history:
                named.add(keys.past)
            asked_at = self._clock.elapsed()
            page = await self._front(facts) if scans else None
            also = await own_ticket(scope, keys, request, page)
            if page is not None:
                named.update(next_keys(keys, page, extra_changes_of(request)))
            seen = await scope.read(*named)
            view = self._view(seen, frozenset(named), spec, facts, page, also)
            if view is None:
                return None
            limits = scope.store.capabilities
            asked = StepInput(keys, (request,), spec, frozenset(named), facts, (), scope.presence, limits)
            decision = take_step(asked, view, seen)
            found = decision.result
            if found.missing:
                brought |= found.missing - named
                named |= found.missing
            elif found.line.is_cut_off and not found.line.holders:
                scans = True  # the holder has fallen, and who comes next was not looked at
            elif fallen := _beside_the_queue(keys, decision.changes):  # two commits: the store looks at all tickets
                await (scope.commit(*fallen) if type(request) is Reap else self.step(Reap(), _ANY))
            else:
                done = await self._commit(decision, seen, brought)
                if not isinstance(done, Conflict):
                    while self._known and Delete(self._known[0].key, self._known[0].version) in decision.changes:
                        self._known.popleft()
                    self._dead.difference_update(facts.dead)
                    self._killed.intersection_update(self._dead)
                    return self._finish(view, found, done, asked_at)
        raise StoreBusyError(keys.name, f"its line moved on {TRIES} times while a step was taken")

    async def _front(self, facts: LineFacts) -> Snapshot:
        """Read the first waiters, keep the runs among them in mind, and return as many as a step looks at."""
        page = await read_front(self._scope, self._keys, facts, KNOWN)
        self._known.clear()
        self._known.extend(takewhile(lambda each: len(each.key) == self._length, page.records.values()))
        self._meets_runs = bool(self._known)
        if len(page.records) <= WINDOW:
            return page
        first = dict(islice(page.records.items(), WINDOW))
        return Snapshot(page.at, first, next(islice(page.records, WINDOW, None)))

    def _view(
        self,
        seen: Snapshot,
        given: frozenset[RecordKey],
        spec: LockSpec,
        facts: LineFacts,
        page: Snapshot | None,
        also: Iterable[Record],
    ) -> MutexView | None:
        """Return the line as it was read; None: it is of another kind."""
        keys, head = self._keys, seen.get(self._keys.head)
        if head is not None and head.value != HEAD and not is_mutex(_head_in(head.value)):
            return None
        self._head = head
        if page is None:
            return MutexView(keys, seen, given, spec, facts, None, None)
        horizon = keys.number(next(reversed(page.records))) + 1 if page.more is not None else None
        return MutexView(keys, seen, given, spec, facts, (*page.records.values(), *also), horizon)

    async def _commit(
        self, decision: StepDecision, seen: Snapshot, brought: Collection[RecordKey]
    ) -> Choice | Commit | Conflict | Snapshot:
        """Commit what was decided, if all that it was decided on is still so."""
        keys = self._keys
        changes: list[AlternativeChange] = [*decision.changes]
        if not changes:
            return seen
        touched = keys_changed(changes)
        looked_at = [seen.records[key] for key in brought if key in seen.records and key not in touched]
        changes += [Check(record.key, record.version) for record in looked_at]
        if keys.head in seen.records and touched.isdisjoint((keys.head, keys.grant(SLOT))):
            changes.append(Present(keys.head))
        return await commit_all(self._scope, Alternative(tuple(changes), decision.wake))

    def _finish(
        self, view: MutexView, found: StepResult, done: Choice | Commit | Snapshot, asked_at: Instant
    ) -> Answered:
        sight, outcome = left_behind(view, found, done, asked_at)
        if self._keys.head in sight.versions or not found.line.holders:
            self._head = None  # another version of it counts now
        self._seen(sight)
        if isinstance(outcome, Exception):
            raise outcome
        return Answered(outcome, sight)


_ANY: Final = LockSpec("", ONE)
_NONE: Final[tuple[Change, ...]] = ()
_FREE: Final = Line(ONE)
_HELD: Final = Left(was_holding=True, was_waiting=False)
_NOTHING_SEEN: Final = Snapshot(Instant(0), {})


def _is_plain(request: Enter, spec: LockSpec) -> bool:
    """Return True if an entry joins that has not been in the line, and what it brings along can be undone."""
    entry, extra = request.entry, request.extra_changes
    if request.marker or request.permits or request.lease or request.since or spec.history:
        return False
    if not request.is_new or request.ticket is not None or not entry.woken or entry.max_hold is not None:
        return False
    if extra is None:
        return type(entry.anchor) is OfPresence
    if type(entry.anchor) is Until or extra.guarded is None:
        return False
    can_be_undone = [type(each) is Check or (type(each) is Put and not each.expected) for each in extra.guarded]
    return all(can_be_undone)


def next_keys(keys: LineKeys, page: Snapshot, extra: ExtraChanges[Answer] | None) -> Iterator[RecordKey]:
    """Yield where the first waiter is told of its turn, if it is a run, and what is to be known of it besides."""
    for record in page.records.values():
        entry = _entry_in(record.value)[1]
        run = run_of(entry)
        if run is not None:
            yield keys.ready(run)
            if extra is not None and extra.next_keys is not None:
                yield from extra.next_keys(entry.id)
            return


def is_dead(ticket: Record, facts: LineFacts) -> bool:
    """Return True if the waiter that a ticket is of is known to be dead."""
    anchor = _entry_in(ticket.value)[1].anchor if facts.dead else None
    return isinstance(anchor, OfPresence) and anchor.presence in facts.dead


def _beside_the_queue(keys: LineKeys, changes: Iterable[AlternativeChange]) -> list[Put | Delete]:
    """Return the changes of tickets that cannot be in one commit with the rest: it appends one, or finds no other."""
    if not any(isinstance(each, Append | Empty) for each in changes):
        return []
    return [each for each in changes if isinstance(each, Put | Delete) and each.key.startswith(keys.queue)]

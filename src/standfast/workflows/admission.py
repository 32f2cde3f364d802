"""Admission of runs by their limits: a run holds a place in each of its lines before it is executed.

A start takes the places that are free in the commit that creates the run; a run that waits takes the rest when its turn
comes; a run that is cancelled or has waited too long leaves its lines without having begun.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Final, final

from msgspec import structs

from standfast.clock import later
from standfast.errors import RunNotFoundError, StoreBusyError, StoreError, WorkflowConcurrencyLimitExceededError
from standfast.locks.entry import (
    EnterRequest,
    ExtraChanges,
    Granted,
    Line,
    LineEntries,
    NotGranted,
    OfRun,
    Waiting,
)
from standfast.locks.inspect import count_waiting
from standfast.stores.protocol import Conflict, Put
from standfast.workflows.activation import Activation
from standfast.workflows.control import next_id
from standfast.workflows.journal import Claim
from standfast.workflows.limits import (
    Admitted,
    Full,
    InLine,
    Place,
    admitted_state,
    entry_id_of,
    entry_of,
    spec_of,
    waiting_state,
    waits_until,
    why_over,
)
from standfast.workflows.messages import cancel
from standfast.workflows.records import (
    HEADERS,
    NO_DUE,
    OWNERSHIPS,
    READY,
    RUN_STATES,
    Header,
    Ownership,
    RunKeys,
    RunState,
    Standing,
    Started,
    after_gone,
    creation,
    deletion_of,
    find_there,
    first_state,
    header_of,
    relisting,
    taken,
    taking,
)
from standfast.workflows.termination import MovedError, end_unstarted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from standfast.clock import Instant
    from standfast.keys import RecordKey
    from standfast.locks.entry import Answer, Answered
    from standfast.locks.run_locks import RunLockInfo
    from standfast.stores.protocol import Change, Record, Snapshot
    from standfast.workflows.records import Start, WorkerPresence
    from standfast.workflows.runtime import Runtime

    Write = Callable[["Place", Snapshot], Sequence[Change]]


# --- taking places in several lines, in one commit: all that are free, up to the first that is not -----------------

WAITS: Final = ("queue", "cancel_running")
"""What to do at a limit that means to stand in line."""

JOIN_ALIKE: Final = "join_alike"
"""What to do in the line of a request: join one of which the same is said; if there is none, stand in line."""


@final
class Admission:
    """A run that takes its places in lines.

    Args:
        runtime: Where.
        run_id: The run.
        standings: Its lines.
        admitted: In how many of them it holds a place already.
        ticket: Its ticket in the next one.
        is_start: The run is being started: it may be refused, and brings the number of permits that its code says.
            Later it waits whatever its code says, because its start has been confirmed.
    """

    def __init__(
        self,
        runtime: Runtime,
        run_id: str,
        standings: Sequence[Standing],
        *,
        admitted: int = 0,
        ticket: int | None = None,
        is_start: bool = False,
    ) -> None:
        self._entries, self._run_id, self._standings = LineEntries(runtime.lines), run_id, standings
        self._admitted, self._ticket, self._is_start = admitted, ticket, is_start
        self.place: Place | None = None

    async def take_places(self, keys: Iterable[RecordKey], write: Write) -> Answered:
        """Enter the lines; commit what ``write`` returns for the place found. If it raises, nothing happens."""

        def decide(answers: tuple[Answer, ...], seen: Snapshot) -> Sequence[Change]:
            last, at = answers[-1], self._admitted + len(answers) - 1
            standing = self._standings[at]
            if isinstance(last, Granted):
                self.place = Admitted()
            elif isinstance(last, Waiting):
                self.place = InLine(standing, at, last)
            else:
                line = last.line if isinstance(last, NotGranted) else Line(spec_of(standing).rules)
                self.place = Full(standing, line)
            return write(self.place, seen)

        first, *others = self._standings[self._admitted :]
        requests = [self._request(first, self._ticket), *map(self._request, others)]
        answered = await self._entries.enter_all(requests, ExtraChanges(tuple(keys), decide))
        if isinstance(self.place, InLine):
            self._entries.look_after(self.place.standing.address)
        return answered

    def _request(self, standing: Standing, ticket: int | None = None) -> EnterRequest:
        waits = not self._is_start or standing.on_limit in WAITS
        permits = standing.permits if self._is_start else None
        entry = entry_of(self._run_id, standing)
        return EnterRequest(standing.address, spec_of(standing), entry, waits, ticket, permits)


# --- taking up runs that have to wait for their turn: only one that holds its places is driven ---------------------

LOOK_AGAIN: Final = 5.0
"""Seconds after which a run that waits for its run lock is looked at again at the latest."""


async def admit(
    runtime: Runtime, keys: RunKeys, header: Header, state: RunState, version: int, lease: RunLockInfo | None
) -> tuple[Claim, RunState] | None:
    """Claim a run that has no place in some of its lines yet, if it can have them now. Otherwise it goes on waiting.

    One that is cancelled or has waited too long ends here, without having run. One that is leased takes its places and
    waits for its run lock.
    """
    if state.collects and state.cancel is None and state.until is not None and state.until > runtime.now():
        return None
    ending = why_over(header, state, runtime.now())
    if ending is not None and await end_unstarted(runtime, keys.id, header, state, version, ending):
        return None
    worker = await runtime.ensure_presence()
    admission = _Admission(runtime, keys, header, state, version, worker, lease)
    try:
        return await admission.claim()
    except MovedError:
        if not runtime.may_act():
            runtime.lost_presence()
        return None


def awaiting_lease(state: RunState, lease: RunLockInfo, at: Instant) -> RunState:
    """Return the state of a run that could be driven but for its run lock; its release makes the run ready.

    It is looked at again when the lease ends, and before that now and then: its holder may die or be evicted.
    """
    until = min(lease.expires_at, later(at, LOOK_AGAIN))
    return structs.replace(
        state, until=until, waits_for=f"its run lock, held by {lease.holder:.200}", lease_awaited=True
    )


@final
class _Admission:
    """One try to claim a run that waits."""

    def __init__(
        self,
        runtime: Runtime,
        keys: RunKeys,
        header: Header,
        state: RunState,
        version: int,
        worker: WorkerPresence,
        lease: RunLockInfo | None,
    ) -> None:
        self._runtime, self._keys, self._header, self._before, self._version = runtime, keys, header, state, version
        self._worker, self._lease = worker, lease
        self._leased = None if lease is None else awaiting_lease(state, lease, runtime.now())
        self._own: Final = keys.own(worker.presence)
        self._at: Final = runtime.now()  # where it is listed is named before the store says what time it is
        self._after = state

    async def claim(self) -> tuple[Claim, RunState] | None:
        """Take the places that are left, and the run if these are all."""
        state, lines = self._before, self._header.lines
        arrival = Admission(self._runtime, self._keys.id, lines, admitted=state.admitted, ticket=state.ticket)
        answered = await arrival.take_places(self._named(), self._write)
        self._runtime.saw(answered.sight.at)
        place, versions = arrival.place, answered.sight.versions
        if isinstance(place, InLine) and place.standing.on_limit == "cancel_running":
            await make_room(self._runtime, self._keys.id, place.standing, place.waiting.ticket)
        if self._leased is not None and self._after.lease_awaited:
            self._runtime.emit_moved(self._keys.id, self._after, 0, state, self._header)
        if not self._after.owner:
            return None
        right = Claim(self._own, versions[self._own], self._worker.presence, versions[self._keys.state])
        return right, self._after

    def _named(self) -> list[RecordKey]:
        keys, state = self._keys, self._before
        begins = self._header.begins_at
        leased_until = None if self._leased is None else self._leased.until
        timers = [keys.timer(at) for at in {state.until, begins, leased_until} if at is not None]
        moved = structs.replace(state, changed_at=self._at)
        listed = {*keys.listed(state, self._header), *keys.listed(moved, self._header)}
        return [keys.state, keys.ready, self._own, self._worker.guard.key, *timers, *listed]

    def _write(self, place: Place, seen: Snapshot) -> list[Change]:
        keys, state, worker = self._keys, self._before, self._worker
        if seen.version(keys.state) != self._version or seen.version(worker.guard.key) != worker.guard.expected:
            raise MovedError
        if isinstance(place, InLine):
            return self._wait(place, seen)
        admitted = admitted_state(state, len(self._header.lines))
        begins = self._header.begins_at
        if begins is not None and begins > seen.at and state.cancel is None:
            self._after = structs.replace(admitted, until=begins, waits_for="the time of its start")
            put = Put(keys.timer(begins), NO_DUE, seen.version(keys.timer(begins)))
            return [put, *self._rewritten(seen), *deletion_of(seen, keys.ready)]
        if self._leased is not None:
            return self._await_lease(self._leased, seen)
        self._after = taken(admitted, worker.presence, seen.at)
        return taking(keys, self._header, worker, state, self._after, seen)

    def _await_lease(self, leased: RunState, seen: Snapshot) -> list[Change]:
        """Take the places, and be driven when the run lock is free."""
        keys, before = self._keys, self._before
        self._after = admitted_state(leased, len(self._header.lines))
        changes = [*self._rewritten(seen), *deletion_of(seen, keys.ready)]
        if leased.until is not None and leased.until != before.until:
            timer = keys.timer(leased.until)
            changes += [] if before.until is None else deletion_of(seen, keys.timer(before.until))
            changes.append(Put(timer, NO_DUE, seen.version(timer)))
        return changes

    def _wait(self, place: InLine, seen: Snapshot) -> list[Change]:
        """Go on waiting: the process that grants the place makes the run ready again."""
        state, keys = self._before, self._keys
        changes = deletion_of(seen, keys.ready)
        if (state.admitted, state.ticket) == (place.admitted, place.waiting.ticket):
            self._after = state
            # Where there was news, the next version says so: the one that claims the run without a look finds it out.
            return [*changes, *self._rewritten(seen)] if changes else []
        until = state.until
        if state.collects and until is not None:  # its own time has come: from now on it waits for its turn
            changes += deletion_of(seen, keys.timer(until))
            until = None
        self._after = waiting_state(state, place, self._at, until)  # however many lines there are
        return [*changes, *self._rewritten(seen), *relisting(keys, self._header, state, self._after, seen)]

    def _rewritten(self, seen: Snapshot) -> list[Change]:
        return [Put(self._keys.state, RUN_STATES.encode_own(self._after), seen.version(self._keys.state))]


# --- starting runs that need a place in lines: place and run in one commit -----------------------------------------

TRIES: Final = 20


async def start_in_lines(runtime: Runtime, asked: Start, standings: tuple[Standing, ...]) -> Started:
    """Start a run that needs a place in lines."""
    room_for: dict[tuple[str, ...], int] = {}
    above = await _above(runtime, asked.parent)
    for _ in range(TRIES):
        worker = await runtime.ensure_presence() if asked.drive and not asked.delay else None
        starting = _Starting(runtime, asked, standings, worker, room_for, above)
        try:
            return await starting.start()
        except _FoundError as there:
            is_header = there.key == RunKeys(runtime.space, asked.run_id).header
            if is_header and (anew := after_gone(asked, there.record)) is not None:
                asked = anew
                continue
            met = await find_there(runtime.space, asked, Conflict(runtime.now(), {there.key: there.record}))
            if met is not None:
                return met
        except _WorkerLostError:
            runtime.lost_presence()
        except _FullError as refused:
            joined = await _joined(runtime, refused.full)
            if joined is not None:
                return Started(joined, is_new=False)
            if refused.full.standing.on_limit != JOIN_ALIKE:
                raise _refusal(asked, refused.full) from None
            standings = tuple(
                # There was no run to join: it waits.
                structs.replace(each, on_limit="queue") if each.on_limit == JOIN_ALIKE else each
                for each in standings
            )
        except _QueueFullError as refused:
            await _look_closer(runtime, asked, refused.place, room_for)
    raise StoreBusyError("a run", f"it could not be started in {TRIES} tries")


async def _joined(runtime: Runtime, full: Full) -> str | None:
    """Return the run to join, if that is what to do: the oldest, or the oldest of which the same is said."""
    standing, line = full.standing, full.line
    if standing.on_limit == JOIN_ALIKE:
        entries = [*(holder.entry for holder in line.holders), *(waiter.entry for waiter in line.waiters)]
        return next((entry.owner for entry in entries if entry.note == standing.note), None)
    if standing.on_limit != "join":
        return None
    holders = await LineEntries(runtime.lines).all_holders(standing.address) if line.unseen else line.holders
    return holders[0].entry.id if holders else None


def _refusal(asked: Start, full: Full) -> WorkflowConcurrencyLimitExceededError:
    name, label, limit = asked.workflow.name, full.standing.label, full.line.rules.permits or full.standing.permits
    if not full.line.holders:
        return WorkflowConcurrencyLimitExceededError(name, label, limit)
    first = full.line.holders[0]
    is_run = isinstance(first.entry.anchor, OfRun)
    return WorkflowConcurrencyLimitExceededError(name, label, limit, first.entry.owner, first.granted_at, is_run)


async def _above(runtime: Runtime, run_id: str) -> frozenset[str]:
    """Return under which ids those stand in lines who wait for a child: its parent, and theirs."""
    found: set[str] = set()
    while run_id:
        key = RunKeys(runtime.space, run_id).header
        record = (await runtime.space.read(key)).get(key)
        if record is None:
            break
        header = HEADERS.decode(record.value)
        found.update(entry_id_of(run_id, standing) for standing in header.lines)
        run_id = header.parent
    return frozenset(found)


async def _look_closer(runtime: Runtime, asked: Start, place: InLine, room_for: dict[tuple[str, ...], int]) -> None:
    """Count the waiters one by one: from afar, those that left the line before their turn count as well."""
    standing = place.standing
    most, address = standing.most_waiting or 0, standing.address
    waiting = await count_waiting(runtime.space, address, most)
    left = most - waiting
    if left <= 0:
        raise WorkflowConcurrencyLimitExceededError(
            asked.workflow.name, standing.label, standing.permits, waiting=waiting
        ) from None
    room_for[address] = place.waiting.place + left


class _FoundError(Exception):
    """There is such a run already, or such an idempotency key."""

    def __init__(self, key: RecordKey, record: Record | None) -> None:
        super().__init__(key)
        self.key, self.record = key, record


class _WorkerLostError(Exception):
    """This worker is taken for dead."""


class _FullError(Exception):
    """A line is full, and the run does not wait."""

    def __init__(self, full: Full) -> None:
        super().__init__(full)
        self.full = full


class _QueueFullError(Exception):
    """As many as may wait seem to wait already."""

    def __init__(self, place: InLine) -> None:
        super().__init__(place)
        self.place = place


@final
class _Starting:
    """One try to start a run."""

    def __init__(
        self,
        runtime: Runtime,
        asked: Start,
        standings: tuple[Standing, ...],
        worker: WorkerPresence | None,
        room_for: dict[tuple[str, ...], int],
        above: frozenset[str],
    ) -> None:
        self._runtime, self._asked, self._standings, self._worker = runtime, asked, standings, worker
        self._room_for, self._above = room_for, above
        self._keys: Final = RunKeys(runtime.space, asked.run_id)
        self._own: Final = None if worker is None else self._keys.own(worker.presence)
        self._once: Final = runtime.space.key("once", asked.idempotency_key) if asked.idempotency_key else None
        self._arrival: Final = Admission(runtime, asked.run_id, standings, is_start=True)
        self._at: Final = runtime.now()
        self._header: Final = header_of(asked, self._at, standings)
        self._state: RunState | None = None

    async def start(self) -> Started:
        """Take the places, and create the run where it stands then."""
        try:
            answered = await self._arrival.take_places(self._named(), self._write)
        except (CancelledError, StoreError):
            self._runtime.dropped.add(self._keys.id)  # if it was written all the same, no task here is about to load it
            raise
        self._runtime.saw(answered.sight.at)
        place, state = self._arrival.place, self._state
        if state is not None:
            fence = 0 if self._own is None or not state.owner else answered.sight.versions[self._own]
            self._runtime.emit_moved(self._keys.id, state, fence, None, self._header)
            if self._worker is not None and self._own is not None and state.owner:
                version = answered.sight.versions[self._keys.state]
                claim = Claim(self._own, fence, self._worker.presence, version, is_first=True)
                workflow, restored = self._asked.workflow, self._asked.restored
                self._runtime.execute(
                    Activation(self._runtime, self._keys, workflow, self._header, state, claim, (), restored)
                )
            if isinstance(place, InLine):
                self._runtime.note_queued(self._keys.id, self._header, state, answered.sight.versions[self._keys.state])
        if isinstance(place, InLine) and place.standing.on_limit == "cancel_running":
            await make_room(self._runtime, self._keys.id, place.standing, place.waiting.ticket)
        return Started(self._keys.id, is_new=True)

    def _named(self) -> list[RecordKey]:
        ends = {self._header.begins_at, waits_until(self._header, self._at)}
        keys = [self._keys.header, self._keys.state, self._keys.ready]
        keys += [self._keys.timer(each) for each in ends if each is not None]
        keys += [change.key for change in self._asked.extra_changes]
        keys += self._keys.listed(first_state(self._asked, self._at, ""), self._header)
        keys += [] if self._once is None else [self._once]
        return keys if self._worker is None or self._own is None else [*keys, self._own, self._worker.guard.key]

    # --- what is committed ---------------------------------------------------------------------------------------

    def _write(self, place: Place, seen: Snapshot) -> list[Change]:
        """Return the changes that create the run; raise if it is not to be created."""
        self._check_is_new(seen)
        if isinstance(place, Full):
            raise _FullError(place)
        if isinstance(place, InLine):
            self._check_may_wait(place, seen)
            state = first_state(self._asked, self._at, "")
            state = waiting_state(state, place, self._at, waits_until(self._header, self._at))
            is_ready = place.standing.on_limit == "cancel_running"  # should this process die, another one makes room
        else:
            presence = "" if self._worker is None else self._worker.presence
            state = admitted_state(first_state(self._asked, self._at, presence), len(self._standings))
            is_ready = not state.owner and state.until is None
        self._state = state
        changes = creation(self._runtime.space, self._asked, self._at, state, self._standings)
        changes = [change for change in changes if change.key != self._keys.ready]
        if is_ready:
            changes.append(Put(self._keys.ready, READY, seen.version(self._keys.ready)))
        if self._worker is not None and self._own is not None and state.owner:
            ownership = OWNERSHIPS.encode_own(Ownership(self._keys.id, seen.at))
            changes += self._worker.guard, Put(self._own, ownership, seen.version(self._own))
        return [*changes, *self._asked.extra_changes]

    def _check_is_new(self, seen: Snapshot) -> None:
        for key, expected in ((self._once, 0), (self._keys.header, self._asked.over)):
            if key is not None and seen.version(key) != expected:
                raise _FoundError(key, seen.get(key))
        for change in self._asked.extra_changes:
            if seen.version(change.key) != change.expected:
                raise _FoundError(change.key, seen.get(change.key))
        if self._worker is not None and seen.version(self._worker.guard.key) != self._worker.guard.expected:
            raise _WorkerLostError

    def _check_may_wait(self, place: InLine, seen: Snapshot) -> None:
        standing = place.standing
        most = self._room_for.get(standing.address, standing.most_waiting)
        if most is not None and place.waiting.place >= most:
            raise _QueueFullError(place)
        if self._above:
            self._check_parents_do_not_hold(standing, seen)

    def _check_parents_do_not_hold(self, standing: Standing, seen: Snapshot) -> None:
        """Refuse to wait for ever in a line that only runs hold which wait for this one."""
        entries = LineEntries(self._runtime.lines)
        line = entries.line_in(standing.address, seen)
        if line is None or not {each.entry.id for each in line.holders} <= self._above:
            return
        if line.unseen:
            others = self._above - {each.entry.id for each in line.holders}
            if line.unseen > len(others) or len(entries.unseen_in(standing.address, others, seen)) < line.unseen:
                return
        raise _FullError(Full(standing, Line(line.rules)))


# --- making room: the oldest unfinished runs of a line are cancelled, so that a new one has its turn -----------------


async def make_room(runtime: Runtime, run_id: str, standing: Standing, ticket: int) -> None:
    """Cancel as many runs in front of one that waits as need to go for its turn to come. Doing it again is harmless."""
    entries, own = LineEntries(runtime.lines), entry_id_of(run_id, standing)
    line = await entries.read(standing.address)
    holders = await entries.all_holders(standing.address) if line.unseen else line.holders
    in_front = [holder.entry.id for holder in holders]
    in_front += [waiter.entry.id for waiter in line.waiters if waiter.ticket < ticket]
    staying = await _last_of(runtime, [each for each in in_front if each != own])
    too_many = len(staying) + 1 - (line.rules.permits or standing.permits)
    for each in staying[: max(0, too_many)]:
        try:
            await cancel(runtime, each, f"the run {run_id!r} takes its place")
        except RunNotFoundError:
            continue


async def _last_of(runtime: Runtime, entries: Sequence[str]) -> list[str]:
    """Return the runs that stand in a line under these ids, which may have gone on as new ones, but for the leaving."""
    found: dict[str, str | None] = {}
    pending, page = {each: each for each in entries}, runtime.space.at_most(100)
    while pending:
        some = dict(list(pending.items())[:page])
        keys = {each: RunKeys(runtime.space, run_id).state for each, run_id in some.items()}
        seen = await runtime.space.read(*keys.values())
        for each, run_id in some.items():
            record = seen.get(keys[each])
            state = None if record is None else RUN_STATES.decode(record.value)
            if state is not None and state.continues:
                pending[each] = next_id(run_id)
                continue
            del pending[each]
            is_leaving = state is None or state.has_ended or state.cancel is not None
            found[each] = None if is_leaving else run_id
    return [last for each in entries if (last := found[each]) is not None]

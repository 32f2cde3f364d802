"""Locks that a run holds, however long it sleeps: a place in the same lines that processes stand in.

The place is anchored to the run, not to the process that drives it. It is taken and left in one commit with the event
that says so, so the process that cleans up after a run finds in its history every line that it may stand in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import msgspec
from msgspec import Raw, Struct, structs

from standfast.clock import Instant, later, seconds_between
from standfast.durations import optional_seconds
from standfast.errors import (
    HoldTimeoutError,
    LeaseLostError,
    LockMismatchError,
    ReentryError,
    StandfastError,
    TooHeavyError,
    UsageError,
    WaitCycleError,
    WithdrawnError,
)
from standfast.events import DeadlockRefused, RunLocked, RunUnlocked
from standfast.locks.deadlock import describe_cycle
from standfast.locks.entry import (
    EnterRequest,
    Entry,
    ExtraChanges,
    Granted,
    Holder,
    LeaveRequest,
    Left,
    LineEntries,
    LockSpec,
    OfRun,
    Rules,
    RunGrant,
    TooHeavy,
    Waiting,
    WaitsForItself,
    WrongKind,
)
from standfast.locks.lock_record import check_permits
from standfast.locks.locks import LONGEST_NOTE, check_text, spec_of
from standfast.scope import address_of
from standfast.stores.group_commit import GroupedStore
from standfast.stores.protocol import Check, Delete, Put
from standfast.workflows.activation import raise_lost
from standfast.workflows.control import RunCancelled, Unload
from standfast.workflows.failures import describe, restore
from standfast.workflows.journal import Held
from standfast.workflows.records import DUES, HEADERS, RUN_STATES, Due, HistoryEvent, RunKeys, events_of
from standfast.workflows.replay import OVER, Wait, branch_of, is_within
from standfast.workflows.steps import ask, commit_with_journal, note_resumed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from standfast.durations import Duration
    from standfast.keys import RecordKey
    from standfast.locks.entry import Answer, Answered
    from standfast.locks.locks import DurableLock
    from standfast.stores.protocol import Change, Record, Snapshot
    from standfast.workflows.activation import Activation
    from standfast.workflows.replay import Branch
    from standfast.workflows.runtime import Runtime
    from standfast.workflows.steps import JournalCommit


# --- what a lock of a run leaves in its history, and how it is cleaned up from there -------------------------------


class LockRequest(Struct, frozen=True):
    """What is asked for.

    Attributes:
        name: The key, for people.
        address: Where its line lies.
        spec: What kind of line it is.
        operation: What the operation is called: ``mutex``, ``semaphore``, ``mode_lock``.
        timeout: How long to wait at most.
    """

    name: str
    address: tuple[str, ...]
    spec: LockSpec
    operation: str
    mode: str = ""
    weight: int = 1
    timeout: float | None = None
    max_hold: float | None = None
    note: str = ""


class Asked(Struct, frozen=True, omit_defaults=True):
    """What the first event of a lock tells: enough to leave the line without the run's code."""

    address: tuple[str, ...]
    kind: str
    name: str
    owner: str
    permits: int | None = None
    alone: tuple[str, ...] = ()

    @property
    def spec(self) -> LockSpec:
        """What kind of line it is."""
        return LockSpec(self.kind, Rules(self.permits, self.alone))


class Granting(Struct, frozen=True, omit_defaults=True):
    """What the second event of a lock tells: its grant."""

    fence: int
    slot: int
    granted_at: Instant
    ends_at: Instant | None = None


ASKED: Final = msgspec.json.Decoder(Asked)
GRANTING: Final = msgspec.json.Decoder(Granting)


@final
class RunHold:
    """A lock that a run holds, for the length of an ``async with`` block.

    Attributes:
        key: The key.
        fence: Larger than that of every earlier holder. Give it to whatever the lock protects.
        granted_at: Since when, by the store's time.
        ends_at: When it is taken away at the latest; None: never.
        guard: A change that lets a commit, or a write to a state of the same space, happen only while this is held.
    """

    __slots__ = ("ends_at", "fence", "granted_at", "guard", "key", "slot")

    def __init__(self, key: str, held: Granting, grant: RecordKey) -> None:
        self.key, self.fence, self.slot = key, held.fence, held.slot
        self.granted_at, self.ends_at = held.granted_at, held.ends_at
        self.guard: Final = Check(grant, held.fence)

    def __repr__(self) -> str:
        return f"<RunHold {self.key} with fence {self.fence}>"


async def release_all(runtime: Runtime, run_id: str) -> int:
    """Leave every line that a run may stand in by its own code, for one that ends without it; return how many.

    Call it when the run has ended, or can do nothing any more. Doing it twice is harmless.
    """
    asked: dict[str, Asked] = {}
    for event in await events_of(runtime.space, RunKeys(runtime.space, run_id)):
        if event.kind == "lock":
            asked[event.id] = ASKED.decode(event.value or b"{}")
        elif event.kind == "released":
            asked.pop(event.id, None)
    entries = LineEntries(runtime.lines)
    for operation, each in asked.items():
        await entries.leave(LeaveRequest(each.address, each.spec, f"{run_id}:{operation}", owner=each.owner))
    return len(asked)


# --- A run's place in the line of a lock: taking it, keeping it while the run sleeps, and leaving ------------------

Place: TypeAlias = RunGrant | Waiting | None
"""Holding, waiting, or not there."""

FAR_BACK: Final = 60.0
"""Seconds between two looks at a line by one who stands so far back that it does not see the front."""

EACH_PLACE: Final = 10.0
"""Seconds by which the look comes later for each one in front: those are nearer, and look earlier."""


@final
class LockAcquisition:
    """One acquisition of a lock by one branch of a run.

    Attributes:
        request: What is asked for.
        branch: By which branch.
        operation: The id of the operation.
        asked_at: Since when it stands in line, by the store's time.
        as_of: How often the run had looked for news when it was last certain not to have its turn.
    """

    def __init__(self, activation: Activation, branch: Branch, operation: str, request: LockRequest) -> None:
        self.request, self.branch, self.operation = request, branch, operation
        self.asked_at = Instant(0)
        self.as_of = 0
        self._activation = activation
        self._is_unmarked = False  # it was entered here, and left no marker
        self._joined: Waiting | None = None  # as it was told when it joined, until it looks again
        self._ticket: int | None = None
        self._entries: Final = LineEntries(activation.runtime.lines)
        run = activation.keys.id
        # Branches that run side by side may wait for each other, so each is an owner of its own.
        self._owner: Final = f"{run}/{branch.path}" if branch.path else run
        self.entry: Final = Entry(
            f"{run}:{operation}",
            self._owner,
            OfRun(run),
            Instant(0),
            mode=request.mode,
            weight=request.weight,
            max_hold=request.max_hold,
            note=request.note,
        )

    # --- getting in ----------------------------------------------------------------------------------------------

    async def enter(self) -> StandfastError | tuple[Place, Instant]:
        """Stand in line, and record it; return the place and since when, or why that is not possible."""
        if (own := self._in_its_own_way()) is not None:
            return ReentryError(self.request.name, own, self.operation)
        answered = await self._enter(is_new=True)
        refused = self._refusal(answered.answer)
        return refused if refused is not None else (await self._place(answered), answered.sight.at)

    async def enter_again(self) -> StandfastError | Place:
        """Stand in line once more, at its end: the place was lost before it was known to be held."""
        answered = await self._enter(is_new=False)
        return self._refusal(answered.answer) or await self._place(answered)

    async def _enter(self, *, is_new: bool) -> Answered:
        self.as_of = self._activation.inbox_poll.polls
        is_marked = self._may_circle()
        self._is_unmarked = is_new and not is_marked

        async def send(sent: JournalCommit) -> Answered:
            def decide(answer: Answer, seen: Snapshot) -> Sequence[Change]:
                sent.check(seen)
                sent.added = None
                if not is_new:
                    return sent.changes()
                return sent.changes(self._asks(seen.at)) if isinstance(answer, Granted | Waiting) else ()

            guarded = sent.changes(self._asks(self._activation.runtime.now())) if is_new else None
            return await self._entries.enter(
                EnterRequest(self.request.address, self.request.spec, self.entry),
                is_new=is_new,
                marker=is_marked,
                extra_changes=ExtraChanges(sent.keys, decide, guarded=guarded, before=sent.before),
            )

        answered = await commit_with_journal(
            self._activation, self.branch, self.operation, send, line=self.request.address
        )
        self._activation.runtime.saw(answered.sight.at)
        return answered

    def _asks(self, at: Instant) -> HistoryEvent:
        request, rules = self.request, self.request.spec.rules
        asked = Asked(request.address, request.spec.kind, request.name, self._owner, rules.permits, rules.alone)
        until = None if request.timeout is None else later(at, request.timeout)
        return HistoryEvent("lock", self.operation, at, Raw(msgspec.json.encode(asked)), until=until)

    async def _place(self, answered: Answered) -> Place:
        grant = self._entries.grant_in(self.request.address, self.entry.id, answered)
        if grant is None and isinstance(answered.answer, Waiting):
            self._joined = answered.answer
            self._ticket = self._joined.ticket
            return self._joined
        return grant or await self.look()

    def _held_above(self) -> list[Held]:
        """Return what this branch holds, and those that wait for its end."""
        journal, path = self._activation.journal, self.branch.path
        return [] if journal is None else [held for held in journal.holds.values() if is_within(path, held.path)]

    def _may_circle(self) -> bool:
        return bool(self._held_above()) or bool(self._activation.header.lines)

    def _in_its_own_way(self) -> str | None:
        """Return a hold of this branch, or of one that waits for it, that would keep it waiting for ever."""
        own = [held.entry for held in self._held_above() if held.line == self.request.address]
        holders = [Holder(entry, 0, Instant(0)) for entry in own]
        return own[0].id if holders and not self.request.spec.rules.admit(holders, self.entry) else None

    def _refusal(self, answer: Answer) -> StandfastError | None:
        request = self.request
        if isinstance(answer, TooHeavy):
            return TooHeavyError(request.name, request.weight, answer.permits)
        if isinstance(answer, WrongKind):
            return LockMismatchError(request.name, f"a {answer.kind}", f"a {request.spec.kind}")
        if isinstance(answer, WaitsForItself):
            return ReentryError(request.name, self._owner, self.operation)
        return None

    # --- waiting -------------------------------------------------------------------------------------------------

    async def look(self) -> Place:
        """Return the place."""
        self._joined = None
        place = await self._entries.find(self.request.address, self.entry.id, ticket=self._ticket, owner=self._owner)
        self._ticket = place.ticket if isinstance(place, Waiting) else None
        return place

    async def look_after(self) -> tuple[Place, Instant | None]:
        """Let those fall in front who are over; return the place, and when to look again."""
        if self._joined is None:
            self.as_of = self._activation.inbox_poll.polls
        next_end = await reap_line(self._activation.runtime, self.request.address)
        place = self._joined or await self.look()  # the commit that grants it later makes the run ready
        self._joined = None
        if not isinstance(place, Waiting):
            return place, None
        if next_end is not None:
            return place, later(next_end, place.place * EACH_PLACE)
        last = self._entries.last_seen(self.request.address)
        is_far = last is not None and last.horizon is not None
        return place, later(self._activation.runtime.now(), FAR_BACK + place.place * EACH_PLACE) if is_far else None

    async def was_withdrawn(self) -> bool:
        """Return True if an operator took it out of the line."""
        return await self._activation.runtime.lines.was_cancelled(self.entry.id)

    async def circle(self) -> tuple[str, ...]:
        """Return the circle in which it has to give way; nothing if it may wait."""
        if not self._may_circle():
            return ()
        return describe_cycle(await self._entries.cycle_to_break(self._owner, self.entry.id))

    async def held_by_parent(self) -> str | None:
        """Return a run that holds what this one waits for, and waits for this one's end: that would never end."""
        header = self._activation.header
        line = await self._entries.read(self.request.address) if header.parent else None
        holders = [] if line is None else [each for each in line.holders if isinstance(each.entry.anchor, OfRun)]
        while holders and header.parent:
            path = branch_of(header.parent_step)
            for holder in holders:
                is_above = _is_held_around(holder.entry, header.parent, path)
                if is_above and not self.request.spec.rules.admit([holder], self.entry):
                    return header.parent
            key = RunKeys(self._activation.runtime.space, header.parent).header
            record = (await self._activation.runtime.space.read(key)).get(key)
            if record is None:
                return None
            header = HEADERS.decode(record.value)
        return None

    def holders(self) -> tuple[str, ...]:
        """Return who held when the line was last seen."""
        last = self._entries.last_seen(self.request.address)
        return () if last is None else tuple(holder.entry.owner for holder in last.holders)

    # --- getting out ---------------------------------------------------------------------------------------------

    async def leave(self, problem: StandfastError | None = None, hold: RunHold | None = None) -> HistoryEvent:
        """Leave the line and record it, with what is to be raised, if anything; return that event.

        Args:
            problem: Why it leaves.
            hold: What it is taken to hold: if it does not, that is to be raised.
        """
        events: list[HistoryEvent] = []

        async def send(sent: JournalCommit) -> Answered:
            def decide(answer: Answer, seen: Snapshot) -> Sequence[Change]:
                sent.check(seen)
                raised = problem
                if hold is not None and isinstance(answer, Left) and not answer.was_holding:
                    reason = "it was released by force, or its max_hold is over"
                    raised = LeaseLostError(self.request.name, hold.fence, reason)
                failure = None if raised is None else describe(raised, self._activation.runtime.known)
                events[:] = [HistoryEvent("released", self.operation, seen.at, failure=failure)]
                return sent.changes(*events)

            leave = LeaveRequest(
                self.request.address,
                self.request.spec,
                self.entry.id,
                slot=None if hold is None else hold.slot,
                owner=self._owner,
                fence=None if hold is None else hold.fence,
            )
            if hold is not None and problem is None and self._is_unmarked:
                released = HistoryEvent("released", self.operation, self._activation.runtime.now())
                changes = sent.changes(released)
                known = ExtraChanges((), decide, following.on_known_grant, None, following.keys, changes, sent.before)
                answered = await self._entries.leave_known(leave, known)
                if answered is not None:
                    events[:] = [released]
                    return answered
                sent.added = None
            extra = ExtraChanges(sent.keys, decide, following.on_grant, next_keys=following.keys)
            return await self._entries.leave(leave, extra_changes=extra)

        line, following = self.request.address, _NextTurn(self._activation.runtime, self.request.address)
        try:
            answered = await commit_with_journal(
                self._activation, self.branch, self.operation, send, line=line, leaving=True
            )
        except BaseException:
            following.drop(notify=True)  # it may have been written
            raise
        following.tell(answered)
        self._activation.runtime.saw(answered.sight.at)
        return events[0]


@final
class _NextTurn:
    """The run in this process whose turn comes when another one leaves a line: it is told, and not made to look.

    The commit guards that it is driven here, and it is not unloaded before it was told. If it is driven elsewhere by
    then, the commit is refused, and it is made ready like any other.
    """

    __slots__ = ("_address", "_following", "_granted", "_runtime")

    def __init__(self, runtime: Runtime, address: tuple[str, ...]) -> None:
        self._runtime, self._address = runtime, address
        self._following: tuple[Activation, Wait] | None = None
        self._granted: Holder | None = None

    def keys(self, entry_id: str) -> tuple[RecordKey, ...]:
        """Return what guards that the run of an entry is driven here, if it is and waits for its turn."""
        self.drop()
        activation, wait = self._runtime.turns.get(entry_id, (None, None))
        if activation is None or wait is None or activation.claim is None or wait.future.done():
            return ()
        if activation.is_unloading or activation.is_stopping:
            return ()
        self._following = activation, wait
        activation.awaited += 1
        return (activation.claim.key,)

    def on_known_grant(
        self, granted: tuple[Holder, ...], _: Snapshot
    ) -> tuple[tuple[Change, ...], tuple[RecordKey, ...]]:
        """Return what :meth:`on_grant` does, without a look at the guard."""
        activation, _wait = self._following or (None, None)
        if activation is None or activation.claim is None:
            return (), ()
        self._granted = granted[0]
        return (Check(activation.claim.key, activation.claim.fence),), (activation.keys.ready,)

    def on_grant(self, granted: tuple[Holder, ...], seen: Snapshot) -> tuple[tuple[Change, ...], tuple[RecordKey, ...]]:
        """Return the guard, and that the run need not be made ready, if it is the one that has its turn now."""
        self._granted = None
        activation, _ = self._following or (None, None)
        if activation is None or activation.claim is None or len(granted) != 1:
            return (), ()
        run, claim = activation.keys, activation.claim
        if granted[0].entry.anchor != OfRun(run.id) or seen.version(claim.key) != claim.fence:
            return (), ()
        self._granted = granted[0]
        return (Check(claim.key, claim.fence),), (run.ready,)

    def tell(self, answered: Answered) -> None:
        """Tell the run that it has its turn, if it was granted."""
        granted, (activation, wait) = self._granted, self._following or (None, None)
        self.drop()
        if granted is None or activation is None or wait is None:
            return
        turn = LineEntries(self._runtime.lines).grant_in(self._address, granted.entry.id, answered)
        if turn is None or wait.future.done():
            activation.notify()
        else:
            wait.settle(turn)
            store = self._runtime.space.store
            if isinstance(store, GroupedStore):  # what this run does next, and the leaving of that one, go together
                store.expect_another()

    def drop(self, *, notify: bool = False) -> None:
        """Let the run go: with ``notify``, it looks for itself."""
        activation, _ = self._following or (None, None)
        self._following = self._granted = None
        if activation is not None:
            activation.awaited -= 1
            if notify:
                activation.notify()
            activation.note_idleness()


def _is_held_around(entry: Entry, run: str, path: str) -> bool:
    """Return True if an entry is of a run's branch, or of one above it."""
    held_in = entry.owner.removeprefix(run)
    return entry.anchor == OfRun(run) and is_within(path, held_in.removeprefix("/"))


# --- locks that a run holds, however long it sleeps: a place in the same lines that processes stand in -------------

LOCK: Final = ("lock", "held", "released", "went_on", "cancelled")


@final
class ContextLock:
    """A lock that is about to be held: enter it with ``async with``. Get it from ``ctx.mutex`` and its like."""

    __slots__ = ("_activation", "_find_branch", "_hold", "_request", "_standing")

    def __init__(self, activation: Activation, find_branch: Callable[[str], Branch], request: LockRequest) -> None:
        self._activation, self._find_branch, self._request = activation, find_branch, request
        self._standing: LockAcquisition | None = None
        self._hold: RunHold | None = None

    def __repr__(self) -> str:
        return f"<ContextLock {self._request.operation} {self._request.name}>"

    async def __aenter__(self) -> RunHold:
        return await ask(self._activation, self._come_in())

    async def _come_in(self) -> RunHold:
        request = self._request
        if self._standing is not None:
            raise UsageError(
                f"the hold of {request.name}",
                "was entered already",
                "call ctx.mutex(...) anew for each block",
            )
        branch = self._find_branch(f"ctx.{request.operation}")
        standing = self._standing = LockAcquisition(
            self._activation, branch, branch.next_id(request.operation), request
        )
        event = await self._turn(standing)
        if event is None:
            place, until = await self._enter(standing)
            return await self._or_leave(standing, until, place)
        if event.kind == "released":
            raise self._failed(event)
        asked = ASKED.decode(event.value or b"{}")
        if asked.address != request.address:
            self._activation.differ(f"the lock {asked.name!r}", f"the lock {request.name!r}")
            raise Unload
        standing.asked_at = event.at
        return await self._or_leave(standing, event.until, None, is_replayed=True)

    async def __aexit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: object) -> None:
        await ask(self._activation, self._go_out(problem))

    async def _go_out(self, problem: BaseException | None) -> None:
        standing, hold = self._standing, self._hold
        if isinstance(problem, Unload) or standing is None or hold is None:
            return
        event = await self._turn_undisturbed(standing)
        if event is None:
            event = await standing.leave(hold=hold if problem is None else None)
            self._has_left(standing, hold)
            self._tell_unlocked(standing, hold, event.at, is_lost=event.failure is not None)
            note_resumed(self._activation, standing.operation)
        else:
            self._has_left(standing, hold)
            await self._pass_by(standing)
        if event.failure is not None:
            raise self._failed(event)

    def _has_left(self, standing: LockAcquisition, hold: RunHold) -> None:
        """Rely on the lock no longer. That it is lost may be found while it is left: then that is no news any more."""
        if self._activation.journal is not None:
            self._activation.journal.holds.pop(hold.guard.key, None)
        lost = standing.branch.lost
        if lost is not None and (lost.key, lost.fence) == (hold.key, hold.fence):
            standing.branch.lost = None

    # --- the history ---------------------------------------------------------------------------------------------

    async def _turn(self, standing: LockAcquisition) -> HistoryEvent | None:
        return await self._activation.turn(standing.branch, LOCK, standing.operation)

    async def _turn_undisturbed(self, standing: LockAcquisition) -> HistoryEvent | None:
        """As ``_turn``, for one who leaves."""
        return await self._activation.turn(standing.branch, LOCK, standing.operation, is_leaving=True)

    async def _pass_by(self, standing: LockAcquisition) -> None:
        if await self._turn_undisturbed(standing) is None:
            note_resumed(self._activation, standing.operation)

    def _failed(self, event: HistoryEvent) -> Exception:
        if event.failure is None:
            return LeaseLostError(self._request.name, 0, "no reason was recorded")
        return restore(event.failure, self._activation.runtime.known)

    # --- getting in ----------------------------------------------------------------------------------------------

    async def _enter(self, standing: LockAcquisition) -> tuple[Place, Instant | None]:
        entered = await standing.enter()
        if isinstance(entered, StandfastError):
            runtime = self._activation.runtime
            event = HistoryEvent(
                "released", standing.operation, runtime.now(), failure=describe(entered, runtime.known)
            )
            self._activation.note(event)
            self._tell_refused(entered)
            raise self._failed(event)
        place, at = entered
        standing.asked_at = min(at, place.granted_at) if isinstance(place, RunGrant) else at
        return place, None if self._request.timeout is None else later(at, self._request.timeout)

    async def _or_leave(
        self, standing: LockAcquisition, until: Instant | None, place: Place, *, is_replayed: bool = False
    ) -> RunHold:
        try:
            return await self._wait_for_turn(standing, until, place, is_replayed=is_replayed)
        except (RunCancelled, LeaseLostError):
            if await self._turn_undisturbed(standing) is None:
                self._tell_unlocked(standing, None, (await standing.leave()).at)
                note_resumed(self._activation, standing.operation)
            else:
                await self._pass_by(standing)
            raise

    async def _wait_for_turn(
        self, standing: LockAcquisition, until: Instant | None, place: Place, *, is_replayed: bool
    ) -> RunHold:
        if is_replayed:
            event = await self._turn(standing)
            if event is not None and event.kind == "held":
                return self._take(standing, GRANTING.decode(event.value or b""))
            if event is not None:
                await self._pass_by(standing)
                raise self._failed(event)
            place = await standing.look()
        if isinstance(place, Waiting) and (circle := await standing.circle()):
            await self._give_up(standing, WaitCycleError(self._request.name, standing.operation, circle))
        if isinstance(place, Waiting) and (parent := await standing.held_by_parent()):
            await self._give_up(standing, ReentryError(self._request.name, parent, standing.operation))
        while not isinstance(place, RunGrant):
            place = await (self._stand_again(standing) if place is None else self._wait_a_while(standing, until))
        if standing.branch.lost is not None:
            raise_lost(self._activation, standing.branch, standing.operation)
        held = Granting(place.fence, place.slot, place.granted_at, place.ends_at)
        now, packed = self._activation.runtime.now(), Raw(msgspec.json.encode(held))
        self._activation.note(HistoryEvent("held", standing.operation, now, packed))
        self._tell_locked(standing, held)
        taken = self._take(standing, held)
        if self._activation.journal is not None:
            self._activation.journal.note_held(taken.guard.key)
        return taken

    def _tell_unlocked(
        self, standing: LockAcquisition, hold: RunHold | None, at: Instant, *, is_lost: bool = False
    ) -> None:
        runtime = self._activation.runtime
        if runtime.hooks:
            runtime.emit(
                RunUnlocked(
                    at=runtime.clock.wall(),
                    run=self._activation.keys.id,
                    step=standing.operation,
                    key=self._request.name,
                    fence=0 if hold is None else hold.fence,
                    held=0.0 if hold is None else max(0.0, seconds_between(hold.granted_at, at)),
                    held_from=Instant(0) if hold is None else hold.granted_at,
                    outcome="refused" if hold is None else "lost" if is_lost else "released",
                    **self._facts(),
                )
            )

    def _tell_refused(self, problem: StandfastError) -> None:
        runtime, request = self._activation.runtime, self._request
        if runtime.hooks and isinstance(problem, WaitCycleError | ReentryError):
            refused = DeadlockRefused(
                at=runtime.clock.wall(),
                key=request.name,
                family=request.address[1],
                kind=request.spec.kind,
                reason=type(problem).__name__,
                run=self._activation.keys.id,
            )
            runtime.emit(refused)

    def _tell_locked(self, standing: LockAcquisition, held: Granting) -> None:
        runtime = self._activation.runtime
        if runtime.hooks:
            waited = max(0.0, seconds_between(standing.asked_at, held.granted_at))
            runtime.emit(
                RunLocked(
                    at=runtime.clock.wall(),
                    run=self._activation.keys.id,
                    step=standing.operation,
                    key=self._request.name,
                    fence=held.fence,
                    waited=waited,
                    asked_at=standing.asked_at,
                    **self._facts(),
                )
            )

    def _facts(self) -> dict[str, Any]:
        """Return what is told of a lock besides: only names that were declared."""
        activation, request = self._activation, self._request
        return {
            "family": request.address[1],
            "kind": request.spec.kind,
            "mode": request.mode,
            "workflow": activation.workflow.name,
            "position": 0 if activation.journal is None else activation.journal.position,
        }

    def _take(self, standing: LockAcquisition, held: Granting) -> RunHold:
        activation, request = self._activation, self._request
        grant = LineEntries(activation.runtime.lines).grant_key(request.address, held.slot)
        if activation.journal is not None:
            path = standing.branch.path
            activation.journal.holds[grant] = Held(
                held.fence, request.name, path, request.address, held.ends_at, standing.entry
            )
        self._hold = RunHold(request.name, held, grant)
        return self._hold

    async def _stand_again(self, standing: LockAcquisition) -> Place:
        """Enter once more, unless an operator has taken it out."""
        if await standing.was_withdrawn():
            await self._give_up(standing, WithdrawnError(self._request.name))
        entered = await standing.enter_again()
        if isinstance(entered, StandfastError):
            await self._give_up(standing, entered)
            raise Unload  # it was raised
        return entered

    async def _give_up(self, standing: LockAcquisition, problem: StandfastError) -> None:
        event = await standing.leave(problem)
        self._tell_unlocked(standing, None, event.at)
        self._tell_refused(problem)
        note_resumed(self._activation, standing.operation)
        raise self._failed(event)

    async def _wait_a_while(self, standing: LockAcquisition, until: Instant | None) -> Place:
        """Wait until something may have changed; return the place then."""
        activation, request, branch = self._activation, self._request, standing.branch
        place, look_at = await standing.look_after()
        if branch.cancel is not None:
            activation.raise_cancel(branch, standing.operation)
        if not isinstance(place, Waiting):
            return place
        if until is not None and until <= activation.runtime.now():
            await self._give_up(standing, HoldTimeoutError(request.name, request.timeout or 0.0, standing.holders()))
        wakes_at = min((each for each in (until, look_at) if each is not None), default=None)
        line = request.address if wakes_at is not None and wakes_at != until else ()

        async def look(wait: Wait) -> None:
            found = await standing.look()
            if not isinstance(found, Waiting):
                wait.settle(found)

        about = f"the {request.spec.kind} {request.name!r}"
        wait = Wait(about, wakes_at, look, line=line, as_of=standing.as_of)
        turns, here = activation.runtime.turns, (activation, wait)
        turns[standing.entry.id] = here
        try:
            found = await activation.wait(branch, wait)
        finally:
            if turns.get(standing.entry.id) is here:
                del turns[standing.entry.id]
        if branch.cancel is not None:
            activation.raise_cancel(branch, standing.operation)
        if activation.is_unloading:
            raise Unload
        if found is OVER:
            return await standing.look()
        return found if isinstance(found, RunGrant) else None


def lock_request(
    lock: DurableLock,
    operation: str,
    *,
    timeout: Duration | None,
    max_hold: Duration | None,
    note: str,
    mode: str = "",
    weight: int = 1,
) -> LockRequest:
    """Check what is asked for, before anything is written."""
    return LockRequest(
        str(lock.key),
        address_of(lock.key),
        spec_of(lock),
        operation,
        mode,
        check_permits(weight),
        optional_seconds(timeout, what="timeout"),
        optional_seconds(max_hold, what="max_hold", minimum=0.001),
        check_text(note, "note", LONGEST_NOTE),
    )


# --- the line in which an unloaded run waits: reaping it without loading the run -------------------------------------
#
# While a run waits behind a process, or behind a hold that ends by itself, a worker has to reap those that are over.
# The run's record in the timer index says when, and where.


EVERY: Final = 1.0
"""Seconds between two looks at the same line for the same run, at the least."""


SEES_DEATH_AFTER: Final = 5.0
"""Seconds after which a look finds that a process in front has died, where the store can see that."""


def due_of(activation: Activation, until: Instant) -> Due:
    """Return what is due at the next instant at which something of a run is: perhaps only a look at one line."""
    instants = [(wait.until, wait.line) for wait in activation.waits if wait.until is not None]
    if activation.header.deadline is not None:
        instants.append((activation.header.deadline, ()))
    lines = {line for at, line in instants if at == until}
    if len(lines) != 1 or () in lines:
        return Due()
    return Due(look_at=lines.pop(), then=min((at for at, _ in instants if at > until), default=None))


async def reap_line(runtime: Runtime, address: tuple[str, ...]) -> Instant | None:
    """Remove the entries of a line that have expired; return when to look again, None if none expires by time."""
    entries = LineEntries(runtime.lines)
    next_end = await entries.reap(address)
    if next_end is None:
        return None
    soon = later(runtime.now(), SEES_DEATH_AFTER)
    if entries.sees_death(address):
        next_end = min(next_end, soon)
    return max(next_end, later(runtime.now(), EVERY))


async def reap_waited_line(runtime: Runtime, keys: RunKeys, state: Record, timer: Record) -> None:
    """Reap the line that a timer names, and set the timer anew."""
    due = DUES.decode(timer.value)
    look_at = await reap_line(runtime, due.look_at)
    until = min((at for at in (look_at, due.then) if at is not None), default=None)
    waits = structs.replace(RUN_STATES.decode(state.value), until=until)
    changes: list[Change] = [
        Put(keys.state, RUN_STATES.encode_own(waits), state.version),
        Delete(timer.key, timer.version),
    ]
    if until is not None:
        again = keys.timer(until)
        expected = (await runtime.space.read(again)).version(again)
        changes.append(Put(again, DUES.encode(due if until == look_at else Due()), expected))
    # If it is refused, the run was taken up or another worker has looked: then that one has set the timer.
    await runtime.space.commit(*changes)

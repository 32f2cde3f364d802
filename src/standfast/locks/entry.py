"""The door to the lines of a space: how workflows and flows enter, wait, hand over, leave, evict and look.

Nothing above the locks knows how a line works inside; it asks here. (``space.mutex(...).hold()`` does not: it is part
of the locks, and goes by :mod:`~standfast.locks.acquire`.) There are two kinds of entries:

* Of a process: :func:`acquire` waits for the turn and :func:`release` gives it back. The entry lives by the presence of
  its process, and falls with it.
* Of a run: :class:`LineEntries` enters, finds and leaves. The entry lives until the run ends, however long it sleeps.
  No process waits for its turn: the commit that grants or removes it puts the run's ready record as well, and the
  worker that executes the run looks then. So everything can be asked again by another process, with the same result.

A request can bring :class:`ExtraChanges`, which are committed together with its answer.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct, structs

from standfast.clock import Instant
from standfast.errors import StandfastError, StoreClosedError
from standfast.events import PermitsDisagree
from standfast.ids import new_id
from standfast.keys import RecordKey
from standfast.locks.acquire import (
    AcquireRequest,
    HeldEntry,
    acquire,
    owner_of_task,
    release,
    release_with,
    undo_cancellation,
)
from standfast.locks.deadlock import GIVEN, PATIENCE, cycle_to_break, find_cycle, give_way
from standfast.locks.inspect import find_waiter, held_of
from standfast.locks.line import (
    MOST_HOLDERS,
    OUT_OF_SIGHT,
    Entry,
    Granted,
    Holder,
    Line,
    OfRun,
    Rules,
    TooHeavy,
    Waiter,
    Waiting,
)
from standfast.locks.line_driver import LocalHold, grant_seen
from standfast.locks.line_records import (
    LIMIT,
    MARKERS,
    Answer,
    Enter,
    ExtraChanges,
    Leave,
    Left,
    LineFacts,
    LineView,
    LockSpec,
    MissingKeysError,
    NotGranted,
    Reap,
    Resize,
    WaitsForItself,
    WrongKind,
    given_in,
    marker_key,
    presences_of,
)
from standfast.locks.line_step import Answered, StepInput, decide_step
from standfast.locks.registry import Lines
from standfast.stores.protocol import Change, Check

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from standfast.locks.deadlock import BlockedOwner
    from standfast.locks.line_driver import LocalLine
    from standfast.locks.line_step import Sight
    from standfast.stores.protocol import Snapshot, Wake

__all__ = [
    "LIMIT",
    "MOST_HOLDERS",
    "OUT_OF_SIGHT",
    "AcquireRequest",
    "Answer",
    "Answered",
    "EnterRequest",
    "Entry",
    "ExtraChanges",
    "Granted",
    "HeldEntry",
    "Holder",
    "LeaveRequest",
    "Left",
    "Line",
    "LineEntries",
    "Lines",
    "LocalHold",
    "LockSpec",
    "MissingKeysError",
    "NotGranted",
    "OfRun",
    "Rules",
    "RunGrant",
    "TooHeavy",
    "Waiting",
    "WaitsForItself",
    "WrongKind",
    "acquire",
    "given_in",
    "owner_of_task",
    "release",
    "release_with",
    "undo_cancellation",
]

REAPS: Final = 4
"""How often a line is reaped in a row while entries in it fall."""

_ANY: Final = LockSpec("", Rules())


class EnterRequest(Struct, frozen=True):
    """A run's entry joins a line.

    Attributes:
        address: Where the line lies.
        spec: What the line is.
        entry: Anchored to a run; its id names this acquisition for ever.
        waits: Whether to stand in line. Otherwise it is not granted if it cannot hold at once.
        ticket: The place that it has, if that is known.
        permits: How many permits the line has from now on, unless an operator has set another number; None: as it has.
    """

    address: tuple[str, ...]
    spec: LockSpec
    entry: Entry
    waits: bool = True
    ticket: int | None = None
    permits: int | None = None


class LeaveRequest(Struct, frozen=True):
    """An entry leaves a line, whether it holds or waits.

    Attributes:
        address: Where the line lies.
        spec: What the line is.
        entry_id: Which entry.
        slot: The slot of its grant, if it is known to hold: this saves a look.
        ticket: Its ticket, if it is known to have waited: so does this.
        owner: Its owner, if it has entered with a marker: that is removed in the same commit.
        fence: The version of its grant, if that is known: :meth:`LineEntries.leave_known` leaves a mutex by it.
    """

    address: tuple[str, ...]
    spec: LockSpec
    entry_id: str
    slot: int | None = None
    ticket: int | None = None
    owner: str | None = None
    fence: int | None = None


class RunGrant(Struct, frozen=True):
    """The grant of an entry that holds.

    Attributes:
        fence: Larger than that of every earlier holder of the slot.
        slot: Which slot it has: pass it on when it leaves.
        granted_at: Since when, by the store's time.
        ends_at: When it is taken away, however alive the run is; None: never.
        grant: The record whose version the fence is.
    """

    fence: int
    slot: int
    granted_at: Instant
    ends_at: Instant | None
    grant: RecordKey

    @property
    def guard(self) -> Check:
        """A change that lets a commit happen only while this is held."""
        return Check(self.grant, self.fence)


@final
class LineEntries:
    """The entries in the lines of one space.

    ``address`` is that of a key (:func:`standfast.scope.address_of`), ``spec`` says what kind of line it is.
    """

    __slots__ = ("_lines",)

    def __init__(self, lines: Lines) -> None:
        self._lines: Final = lines

    # --- entering and leaving ------------------------------------------------------------------------------------

    async def enter(
        self,
        request: EnterRequest,
        *,
        is_new: bool = False,
        marker: bool = False,
        extra_changes: ExtraChanges[Answer] | None = None,
    ) -> Answered:
        """Join a line, or ask again: a holder keeps its grant and is told its fence, a waiter keeps its place.

        The answer is what was so when it was this request's turn. Its sight shows how the step ended; see
        :meth:`grant_in`.

        Args:
            request: Which entry, and where.
            is_new: This id has certainly never been in the line, so that it need not be searched for.
            marker: Let others find the cycle that this wait may be part of; for a run that holds something already.
                Look for it with :meth:`cycle_to_break` when it waits, and give the owner when it leaves.
            extra_changes: What to commit together with the answer.
        """
        address, entry, ticket = request.address, request.entry, request.ticket
        line = self._line(address)
        if ticket is None and request.waits and not is_new:
            ticket = _ticket(await self.find(address, entry.id, owner=entry.owner))
        noted = marker_key(self._lines.scope, entry.owner, entry.id) if marker else None
        enter = Enter(
            entry,
            request.waits,
            noted,
            ticket,
            extra_changes=extra_changes,
            permits=request.permits,
            is_new=is_new,
        )
        answered = await line.driver.do(enter, request.spec)
        head, line.driver.disagreement = line.driver.disagreement, None
        if head is not None and self._lines.hooks and self._lines.is_first(address, request.spec):
            at, key = self._lines.clock.wall(), line.driver.keys.name
            stored, asked = head.rules.permits, request.spec.rules.permits
            self._lines.hooks.emit(PermitsDisagree(at=at, key=key, stored=stored, asked=asked))
        return answered

    async def enter_all(
        self, requests: Sequence[EnterRequest], extra_changes: ExtraChanges[tuple[Answer, ...]]
    ) -> Answered:
        """Join several lines in one commit: all in which the entry holds at once, up to the first in which it does not.

        The extra changes are decided by the answers of the lines that were entered, in their order; all but the last
        are grants. If their ``decide`` raises, no line was entered.
        """
        first, lines = requests[0], self._lines
        others = [_OtherLine(lines, each.address, each.spec, (_enter_of(each),), new_id()) for each in requests[1:]]
        wakes: tuple[Wake, ...] = ()

        def decide(answer: Answer, seen: Snapshot) -> Sequence[Change]:
            nonlocal wakes
            answers, changes, wakes = [answer], list[Change](), ()
            for other in others:
                if not isinstance(answers[-1], Granted):
                    break
                entered, more, woken = other.decide(seen)
                answers += entered
                changes += more
                wakes = (*wakes, *woken)
            written = extra_changes.decide(tuple(answers), seen)
            taken = {change.key for change in written}  # of two changes of a run's record, the caller's is more exact
            return (*written, *(change for change in changes if change.key not in taken))

        async with AsyncExitStack() as entering:  # of many at once, each would find the line changed by those before it
            for other in sorted(others, key=lambda each: each.address):  # in one order: no two wait for each other
                await entering.enter_async_context(other.line.entering)
            named = frozenset(extra_changes.keys).union(*(other.likely_keys() for other in others))
            extra = ExtraChanges[Answer](tuple(named), decide, wakes=lambda: wakes)
            enter = structs.replace(_enter_of(first), extra_changes=extra)
            answered = await lines.line(first.address).driver.do(enter, first.spec)
        for other in others:
            if other.is_cut_off:  # the next one there is out of sight
                await other.line.driver.do(Reap(), other.spec)
        return answered

    async def leave(self, request: LeaveRequest, *, extra_changes: ExtraChanges[Answer] | None = None) -> Answered:
        """Leave a line, whether holding or waiting. Leaving twice changes nothing, but commits the extra changes."""
        leave = structs.replace(await self._located(request), extra_changes=extra_changes)
        return await self._line(request.address).driver.do(leave, request.spec)

    async def leave_known(self, request: LeaveRequest, extra_changes: ExtraChanges[Answer]) -> Answered | None:
        """Hand a place on by what this process knows of the line, without a look at it.

        None: nothing has happened. Not enough was known, or it is not so any more; then use :meth:`leave_all`. The
        extra changes must be ``guarded``, and their ``on_grant`` gets no records.
        """
        leave = Leave(request.entry_id, request.slot, fence=request.fence, extra_changes=extra_changes)
        return await self._line(request.address).driver.leave_known(leave, request.spec)

    async def leave_all(
        self, requests: Sequence[LeaveRequest], *, extra_changes: ExtraChanges[Answer] | None = None
    ) -> Answered:
        """Leave several lines, five at most, in one commit; each makes the next one in it ready.

        The answer is that of one of them. Several entries in each and every line leave one after the other, but for the
        last of the first line.
        """
        groups: dict[tuple[str, ...], list[LeaveRequest]] = {}
        for each in requests:
            groups.setdefault(each.address, []).append(each)
        first, *rest = sorted(groups.values(), key=len)
        for each in first[:-1]:
            await self.leave(each)
        others = [
            _OtherLine(self._lines, group[0].address, group[0].spec, [await self._located(each) for each in group])
            for group in rest
        ]
        leave = await self._located(first[-1])
        return await self._leave_with(first[-1], leave, others, extra_changes)

    async def leave_waiting(
        self,
        request: LeaveRequest,
        others: Sequence[LeaveRequest],
        *,
        only_waiting: bool,
        extra_changes: ExtraChanges[Answer],
    ) -> Answered:
        """Leave the line in which an entry waits, and the ``others`` in which it holds, in one commit.

        Nothing is searched for. With ``only_waiting``, an entry that holds by now stays in the first line; let the
        extra changes raise then, and it stays in all of them.
        """
        leave = Leave(request.entry_id, request.slot, request.ticket, only_waiting=only_waiting)
        held = [_OtherLine(self._lines, each.address, each.spec, (Leave(each.entry_id, each.slot),)) for each in others]
        return await self._leave_with(request, leave, held, extra_changes)

    async def _leave_with(
        self,
        request: LeaveRequest,
        leave: Leave,
        others: Sequence[_OtherLine],
        extra_changes: ExtraChanges[Answer] | None,
    ) -> Answered:
        extra = _with_others(others, extra_changes) if others else extra_changes
        leave = structs.replace(leave, extra_changes=extra)
        answered = await self._lines.line(request.address).driver.do(leave, request.spec)
        for other in others:
            if other.is_cut_off:  # the next one is out of sight
                await self._lines.reap(other.line)
        return answered

    async def _located(self, request: LeaveRequest) -> Leave:
        self._line(request.address)
        slot, ticket = request.slot, request.ticket
        if slot is None and ticket is None:
            found = await self.find(request.address, request.entry_id, owner=request.owner)
            slot, ticket = found.slot if isinstance(found, RunGrant) else None, _ticket(found)
        noted = None if request.owner is None else marker_key(self._lines.scope, request.owner, request.entry_id)
        return Leave(request.entry_id, slot, ticket, marker=noted)

    async def resize(
        self,
        address: tuple[str, ...],
        spec: LockSpec,
        permits: int | None,
        *,
        pinned: bool,
        until: Instant | None = None,
        extra_changes: ExtraChanges[Answer] | None = None,
    ) -> None:
        """Set the number of permits, whatever call sites say; not ``pinned``: until the line is empty.

        With ``until`` it is what it was before again from that instant on. The first step after it does that: let
        something call :meth:`advance` then.
        """
        await self._lines.line(address).driver.do(Resize(permits, pinned, until, extra_changes), spec)

    async def advance(
        self, address: tuple[str, ...], spec: LockSpec, *, extra_changes: ExtraChanges[Answer] | None = None
    ) -> None:
        """Take a step that asks for nothing: permits that were set for a while end, and the front moves up."""
        await self._lines.line(address).driver.do(Reap(extra_changes), spec)

    async def reap(self, address: tuple[str, ...]) -> Instant | None:
        """Drop the entries whose process is gone or whose time is over; return when to look again at the latest.

        None: no entry in sight ends by time; the holders are runs, or there are none.
        """
        line = self._line(address)
        if line.reaping is None:  # of a crowd that has just joined, all are served by one that begins after that
            line.reaping = self._lines.own(self._reap(line))
        return await asyncio.shield(line.reaping)

    def look_after(self, address: tuple[str, ...]) -> None:
        """Let processes in front of a run that has just begun to wait fall if they are gone: soon, and beside all else.

        A run waits in no process, so no process polls the line for it. Nothing is asked of the store if there are only
        runs in the line, and entries of this process.
        """
        last, here = self.last_seen(address), f"{self._lines.scope.presence_name}."
        if last is not None:
            entries = [*(each.entry for each in last.holders), *(each.entry for each in last.waiters)]
            if all(name.startswith(here) for name in presences_of(entries)):
                return
        self._lines.own(self._reap_safely(address))

    async def _reap_safely(self, address: tuple[str, ...]) -> None:
        with suppress(StandfastError):  # a server that goes round finds it
            await self.reap(address)

    async def _reap(self, line: LocalLine) -> Instant | None:
        await asyncio.sleep(0)
        line.reaping = None
        for _ in range(REAPS):
            if not await self._lines.reap(line):
                break
        return line.next_end

    # --- looking: nothing is written -----------------------------------------------------------------------------

    async def find(
        self, address: tuple[str, ...], entry_id: str, *, ticket: int | None = None, owner: str | None = None
    ) -> RunGrant | Waiting | None:
        """Return whether an entry holds or waits, however far back; None: neither.

        With its ticket, or its owner if it has a marker, one far back is found at once. Otherwise the line is searched.
        """
        line = self._line(address)
        sight = await line.driver.look({entry_id})
        found = _seen(line, entry_id, sight)
        if found is not None or sight.line.horizon is None:
            return found
        waiter = await self._far_back(line, entry_id, ticket, owner)
        if waiter is not None:
            return Waiting(waiter.ticket, sight.line.place(waiter.ticket))
        return _seen(line, entry_id, await line.driver.look({entry_id}))  # it may have moved up meanwhile

    async def _far_back(self, line: LocalLine, entry_id: str, ticket: int | None, owner: str | None) -> Waiter | None:
        scope = self._lines.scope
        if ticket is None and owner is not None:
            marker = marker_key(scope, owner, entry_id)
            found = (await scope.read(marker)).get(marker)
            ticket = None if found is None else MARKERS.decode(found.value).ticket
        if ticket is not None:
            waiter = await line.driver.waiter_at(ticket)
            if waiter is not None and waiter.entry.id == entry_id:
                return waiter
        return await find_waiter(scope, line.driver.keys, entry_id)

    def grant_in(self, address: tuple[str, ...], entry_id: str, answered: Answered) -> RunGrant | None:
        """Return the grant of an entry, as the step that answered its request has left the line."""
        found = _seen(self._line(address), entry_id, answered.sight)
        return found if isinstance(found, RunGrant) else None

    def grant_key(self, address: tuple[str, ...], slot: int) -> RecordKey:
        """Return the record of a slot's grant, whose version is the holder's fence."""
        return self._lines.line(address).driver.keys.grant(slot)

    async def read(self, address: tuple[str, ...]) -> Line:
        """Return a line as it is now: the holders that it lists, and the first waiters."""
        return (await self._lines.line(address).driver.look()).line

    async def all_holders(self, address: tuple[str, ...]) -> list[Holder]:
        """Return all that hold a line, the oldest first, those included that it only counts: one read each hundred."""
        line, keys = await self.read(address), self._lines.line(address).driver.keys
        counted = await held_of(self._lines.scope, keys, dict(line.unseen_of), None)
        return sorted([*line.holders, *counted], key=lambda each: each.granted_at)

    def unseen_in(self, address: tuple[str, ...], entries: Collection[str], seen: Snapshot) -> frozenset[str]:
        """Return which of ``entries`` hold a line that only counts them, as a snapshot shows it.

        Raises:
            MissingKeysError: It does not show where that is told.
        """
        keys = self._lines.line(address).driver.keys
        held = {keys.held(each): each for each in entries}
        missing = held.keys() - given_in(seen)
        if missing:
            raise MissingKeysError(frozenset(missing))
        return frozenset(each for key, each in held.items() if seen.get(key) is not None)

    def line_in(self, address: tuple[str, ...], seen: Snapshot) -> Line | None:
        """Return the line as a snapshot shows it; None: it is empty, or the snapshot does not show its head."""
        keys = self._lines.line(address).driver.keys
        if seen.get(keys.head) is None:
            return None
        return LineView(keys, seen, given_in(seen), _ANY, LineFacts()).line

    def last_seen(self, address: tuple[str, ...]) -> Line | None:
        """Return the line as this process saw it last, without asking the store; None: not at all."""
        last = self._lines.line(address).last
        return None if last is None else last.line

    def first_waiter(self, address: tuple[str, ...]) -> str | None:
        """Return the entry of this process that has waited longest in a line."""
        waits = self._lines.line(address).waits
        return next((entry_id for entry_id, wait in waits.items() if not wait.turn.done()), None)

    def is_idle(self, address: tuple[str, ...]) -> bool:
        """Whether this process asks nothing of the line at the moment."""
        return self._lines.line(address).driver.is_idle

    def sees_death(self, address: tuple[str, ...]) -> bool:
        """Whether the store can see the process of an entry die, when the line was last reaped."""
        return any(self._lines.line(address).liveness_tokens.values())

    # --- holds of this process, and deadlocks --------------------------------------------------------------------

    def track(self, address: tuple[str, ...], entry_id: str, hold: LocalHold) -> None:
        """Tell ``hold`` when its entry is seen to hold no longer."""
        self._lines.line(address).holds[entry_id] = hold

    def untrack(self, address: tuple[str, ...], entry_id: str) -> None:
        """Tell it no longer."""
        self._lines.line(address).holds.pop(entry_id, None)

    async def cycle_to_break(self, owner: str, entry_id: str) -> tuple[BlockedOwner, ...]:
        """Return the cycle in which a waiting entry has to give way, because it closed it; nothing if it may wait.

        Then let it leave the line, and raise :class:`~standfast.errors.WaitCycleError`. Ask again after a crash: no
        other process does it instead.
        """
        scope = self._lines.scope
        while cycle := await cycle_to_break(scope, owner, entry_id, _wait_a_while):
            if await give_way(scope, cycle, entry_id, survives=True):
                return cycle
            for _ in range(GIVEN):  # another one has given way, and is about to leave
                await _wait_a_while()
                if not await find_cycle(scope, owner):
                    return ()
        return ()

    def _line(self, address: tuple[str, ...]) -> LocalLine:
        self._lines.guard.check()
        if self._lines.is_closing:
            raise StoreClosedError(repr(self._lines.scope), "it was closed")
        return self._lines.line(address)


def _enter_of(request: EnterRequest) -> Enter:
    return Enter(request.entry, request.waits, ticket=request.ticket, permits=request.permits)


def _seen(line: LocalLine, entry_id: str, sight: Sight) -> RunGrant | Waiting | None:
    holder, waiter = sight.line.holder(entry_id), sight.line.waiter(entry_id)
    if holder is not None and holder.ends_at is not None and holder.ends_at <= sight.at:
        return None  # its time is over, though no step of the line has dropped it yet
    grant = None if holder is None else grant_seen(holder, sight)
    if holder is not None and grant is not None:
        key = line.driver.keys.grant_of(holder)
        return RunGrant(grant.fence, holder.slot, holder.granted_at, holder.ends_at, key)
    return None if waiter is None else Waiting(waiter.ticket, sight.line.place(waiter.ticket))


def _ticket(found: RunGrant | Waiting | None) -> int | None:
    return found.ticket if isinstance(found, Waiting) else None


async def _wait_a_while() -> bool:
    await asyncio.sleep(PATIENCE)
    return True


# --- several lines in one commit: the others are decided in the step of the first ----------------------------------


@final
class _OtherLine:
    """A line whose step is taken in that of another line. It is decided like a step of its own."""

    def __init__(
        self,
        lines: Lines,
        address: tuple[str, ...],
        spec: LockSpec,
        requests: Sequence[Enter | Leave],
        new_life: str = "",
    ) -> None:
        self._scope, self._requests = lines.scope, requests
        self.address, self.spec = address, spec
        self.line: Final = lines.line(address)
        tickets = tuple(each.ticket for each in requests if isinstance(each, Leave) and each.ticket is not None)
        self._facts: Final = LineFacts(tickets=tickets, new_life=new_life or lines.scope.presence_name)
        self.is_cut_off = False

    def likely_keys(self) -> frozenset[RecordKey]:
        """Return what the step will likely look at, as the line was last seen."""
        return self.line.driver.likely_keys(self._requests)

    def decide(self, seen: Snapshot) -> tuple[Collection[Answer], tuple[Change, ...], tuple[Wake, ...]]:
        """Return the answers, what changes the line, and whom to wake."""
        # No line of this process sees the outcome: waiters of this process are woken like all others.
        unheard, limits = self._scope.key("unheard"), self._scope.store.capabilities
        keys = self.line.driver.keys
        asked = StepInput(keys, self._requests, self.spec, given_in(seen), self._facts, (), unheard, limits)
        decision = decide_step(asked, seen)
        step = decision.answer
        if step.missing:
            raise MissingKeysError(step.missing)
        self.is_cut_off = step.line.is_cut_off
        # Requests without extra changes are all answered; none of them raises.
        return [each for each in step.outcomes if not isinstance(each, Exception)], decision.changes, decision.wake


def _with_others(others: Sequence[_OtherLine], extra_changes: ExtraChanges[Answer] | None) -> ExtraChanges[Answer]:
    """Return the extra changes together with those of other lines that are left in the same commit."""
    wakes: tuple[Wake, ...] = ()

    def decide(answer: Answer, seen: Snapshot) -> Sequence[Change]:
        nonlocal wakes
        missing: frozenset[RecordKey] = frozenset()
        changes: dict[RecordKey, Change] = {}
        wakes = ()
        try:
            if extra_changes is not None:
                changes.update((change.key, change) for change in extra_changes.decide(answer, seen))
        except MissingKeysError as lacking:
            missing |= lacking.keys
        for other in others:
            try:
                _, more, woken = other.decide(seen)
            except MissingKeysError as lacking:
                missing |= lacking.keys
            else:
                changes.update((change.key, change) for change in more)  # two may make the same run ready
                wakes = (*wakes, *woken)
        if missing:
            raise MissingKeysError(missing)
        return tuple(changes.values())

    named = frozenset(() if extra_changes is None else extra_changes.keys)
    named = named.union(*(other.likely_keys() for other in others))
    on_grant = None if extra_changes is None else extra_changes.on_grant
    return ExtraChanges(tuple(named), decide, on_grant, lambda: wakes)

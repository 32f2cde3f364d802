"""Runs in lines: places that are kept however long a run sleeps, whichever process drives it.

A run's entry is anchored to the run (:class:`~standfast.locks.line.OfRun`). No process waits for its turn:
whoever grants it, or turns it out, puts the run's ready record (:mod:`standfast.locks.line_records`), and whoever
drives the run then looks. So everything here can be asked again by another process, and comes to the same.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct, structs

from standfast.clock import Instant
from standfast.errors import StoreClosedError
from standfast.events import PermitsDisagree
from standfast.keys import RecordKey
from standfast.locks.deadlock import GIVEN, MARKERS, PATIENCE, cycle_to_break, find_cycle, give_way, marker_key
from standfast.locks.inspect import find_waiter, was_turned_out
from standfast.locks.line import Waiting
from standfast.locks.line_driver import grant_seen
from standfast.locks.line_records import WAITERS, Enter, ExtraChanges, Leave, LineFacts, LockSpec, MissingKeys
from standfast.locks.line_step import StepInput, decide_step
from standfast.stores.protocol import Check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.locks.deadlock import Link
    from standfast.locks.line import Entry, Waiter
    from standfast.locks.line_driver import Answered, LocalLine, Sight
    from standfast.locks.line_records import Answer, StepSnapshot
    from standfast.locks.registry import Lines
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Wake


# --- leaving several lines in one commit: a run that ends gives back all that it holds, or has not ended -----------


class LeaveRequest(Struct, frozen=True):
    """Who leaves which line. ``slot`` and ``ticket`` say where to look, ``owner`` that it has entered with a marker."""

    address: tuple[str, ...]
    spec: LockSpec
    entry_id: str
    slot: int | None = None
    ticket: int | None = None
    owner: str | None = None


@final
class Departure:
    """One line that is left in the step of another one, by one or several. It is decided like a step of its own."""

    def __init__(self, scope: Scope, line: LocalLine, leaves: Sequence[Leave], spec: LockSpec) -> None:
        self._scope, self._leaves, self._spec = scope, leaves, spec
        self.line: Final = line
        self.keys: Final = line.driver.likely_keys(leaves)
        self.is_cut_off = False

    def decide(self, seen: StepSnapshot) -> tuple[tuple[Change, ...], tuple[Wake, ...]] | MissingKeys:
        """Return what takes the entry out of the line, and tells whoever comes next."""
        # No line of this process sees what becomes of it: those who wait here are woken like all others.
        nobody, limits = self._scope.key("nobody"), self._scope.store.capabilities
        tickets = tuple(each.ticket for each in self._leaves if each.ticket is not None)
        facts = LineFacts(tickets=tickets, new_life=self._scope.presence_name)
        asked = StepInput(self.line.driver.keys, self._leaves, self._spec, seen.given, facts, (), nobody, limits)
        decision = decide_step(asked, seen)
        if decision.answer.missing:
            return MissingKeys(decision.answer.missing)
        self.is_cut_off = decision.answer.line.is_cut_off
        return decision.changes, decision.wake


def leaving_as_well(departures: Sequence[Departure], extra_changes: ExtraChanges | None) -> ExtraChanges:
    """Return what comes along, with further lines that are left in the same commit."""

    def decide(answer: Answer, seen: StepSnapshot) -> tuple[tuple[Change, ...], tuple[Wake, ...]] | MissingKeys:
        found = () if extra_changes is None else (extra_changes.decide(answer, seen),)
        lacking: frozenset[RecordKey] = frozenset()
        changes: dict[RecordKey, Change] = {}
        wakes: list[Wake] = []
        for each in (*found, *(departure.decide(seen) for departure in departures)):
            if isinstance(each, MissingKeys):
                lacking |= each.keys
            else:
                changes.update((change.key, change) for change in each[0])  # two may make the same run ready
                wakes.extend(each[1])
        return MissingKeys(lacking) if lacking else (tuple(changes.values()), tuple(wakes))

    named = frozenset(() if extra_changes is None else extra_changes.keys).union(*(each.keys for each in departures))
    return ExtraChanges(tuple(named), decide, None if extra_changes is None else extra_changes.on_grant)


# --- runs in lines: places that are kept however long a run sleeps, whichever process drives it --------------------

LOOKS: Final = 4
"""How often a line is looked after in a row while somebody falls in it."""


class RunGrant(Struct, frozen=True):
    """That an entry holds.

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
    """The entries of runs in the lines of one space.

    ``address`` is that of a key (:func:`standfast.scope.address_of`), ``spec`` says what kind of line it is.
    """

    __slots__ = ("_lines",)

    def __init__(self, lines: Lines) -> None:
        self._lines: Final = lines

    async def enter(
        self,
        address: tuple[str, ...],
        spec: LockSpec,
        entry: Entry,
        *,
        waits: bool = True,
        ticket: int | None = None,
        is_new: bool = False,
        marker: bool = False,
        extra_changes: ExtraChanges | None = None,
    ) -> Answered:
        """Join a line, or ask again: a holder keeps its grant and is told its fence, a waiter keeps its place.

        Answered is what was so when it was this request's turn. The sight shows how the step ended; see :meth:`turn`.

        Args:
            address: Where the line lies.
            spec: What the line is.
            entry: Anchored to a run; its id names this acquisition for ever.
            waits: Whether to stand in line. Otherwise it is refused if it cannot hold at once.
            ticket: The place that it has, if that is known.
            is_new: This id has certainly never been in the line, so that nobody needs to look for it.
            marker: Let others find the circle that this wait may be part of; for a run that holds something already.
                Look for it with :meth:`cycle_to_break` when it waits, and give the owner when it leaves.
            extra_changes: What to commit together with the answer.
        """
        line = self._line(address)
        if ticket is None and waits and not is_new:
            ticket = _ticket(await self.look(address, entry.id, owner=entry.owner))
        noted = marker_key(self._lines.scope, entry.owner, entry.id) if marker else None
        answered = await line.driver.do(Enter(entry, waits, noted, ticket, extra_changes=extra_changes), spec)
        self._note_disagreement(line, address, spec)
        return answered

    async def leave(
        self,
        address: tuple[str, ...],
        spec: LockSpec,
        entry_id: str,
        *,
        slot: int | None = None,
        ticket: int | None = None,
        owner: str | None = None,
        extra_changes: ExtraChanges | None = None,
    ) -> Answered:
        """Leave a line, whether holding or waiting. Leaving twice changes nothing, but commits what comes along.

        Args:
            address: Where the line lies.
            spec: What the line is.
            entry_id: Who leaves.
            slot: The slot of its turn, if it is known to hold: this saves a look.
            ticket: Its ticket, if it is known to have waited: so does this.
            owner: Its owner, if it has entered with a marker: that is taken away in the same commit.
            extra_changes: What to commit together with the answer.
        """
        return await self.leave_all(
            [LeaveRequest(address, spec, entry_id, slot, ticket, owner)], extra_changes=extra_changes
        )

    async def leave_all(
        self, leaving: Sequence[LeaveRequest], *, extra_changes: ExtraChanges | None = None
    ) -> Answered:
        """Leave several lines, five at most, in one commit; each makes the next one in it ready.

        The answer is that of one of them. Several entries in each and every line leave one after the other, but for the
        last of the first line.
        """
        groups: dict[tuple[str, ...], list[LeaveRequest]] = {}
        for each in leaving:
            groups.setdefault(each.address, []).append(each)
        first, *others = sorted(groups.values(), key=len)
        for each in first[:-1]:
            await self.leave_all([each])
        departures = [await self._departure(group) for group in others]
        leave = structs.replace(await self._request(first[-1]), extra_changes=extra_changes)
        if departures:
            leave = structs.replace(leave, extra_changes=leaving_as_well(departures, extra_changes))
        answered = await self._line(first[-1].address).driver.do(leave, first[-1].spec)
        for departure in departures:
            if departure.is_cut_off:  # the next one is out of sight
                await self._lines.reap(departure.line)
        return answered

    async def _departure(self, group: Sequence[LeaveRequest]) -> Departure:
        leaves = [await self._request(each) for each in group]
        return Departure(self._lines.scope, self._line(group[0].address), leaves, group[0].spec)

    async def _request(self, each: LeaveRequest) -> Leave:
        slot, ticket = each.slot, each.ticket
        if slot is None and ticket is None:
            found = await self.look(each.address, each.entry_id, owner=each.owner)
            slot, ticket = found.slot if isinstance(found, RunGrant) else None, _ticket(found)
        noted = None if each.owner is None else marker_key(self._lines.scope, each.owner, each.entry_id)
        return Leave(each.entry_id, slot, ticket, marker=noted)

    # --- looking -------------------------------------------------------------------------------------------------

    async def look(
        self, address: tuple[str, ...], entry_id: str, *, ticket: int | None = None, owner: str | None = None
    ) -> RunGrant | Waiting | None:
        """Return whether an entry holds or waits, however far back; None: neither. Nothing is written.

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

    def turn(self, address: tuple[str, ...], entry_id: str, answered: Answered) -> RunGrant | None:
        """Return that an entry holds, as the step that answered its request has left the line."""
        found = _seen(self._line(address), entry_id, answered.sight)
        return found if isinstance(found, RunGrant) else None

    async def was_withdrawn(self, entry_id: str) -> bool:
        """Tell whether an operator took a waiter out of its line, within the last day."""
        return await was_turned_out(self._lines.scope, entry_id)

    async def reap(self, address: tuple[str, ...]) -> Instant | None:
        """Let those fall whose process is gone or whose time is over; return when to look again at the latest.

        None: nobody in sight falls by time; those who hold are runs, or nobody holds.
        """
        line = self._line(address)
        for _ in range(LOOKS):
            if not await self._lines.reap(line):
                break
        return line.next_end

    async def _far_back(self, line: LocalLine, entry_id: str, ticket: int | None, owner: str | None) -> Waiter | None:
        scope, keys = self._lines.scope, line.driver.keys
        if ticket is None and owner is not None:
            marker = marker_key(scope, owner, entry_id)
            found = (await scope.read(marker)).get(marker)
            ticket = None if found is None else MARKERS.decode(found.value).ticket
        if ticket is not None:
            key = keys.ticket(ticket)
            record = (await scope.read(key)).get(key)
            waiter = None if record is None else WAITERS.decode(record.value)
            if waiter is not None and waiter.entry.id == entry_id:
                return waiter
        return await find_waiter(scope, keys, entry_id)

    # --- circles -------------------------------------------------------------------------------------------------

    async def find_circle_of(self, owner: str) -> tuple[Link, ...]:
        """Return the owners that wait for each other, beginning with ``owner``; nothing if it can still go on."""
        return await find_cycle(self._lines.scope, owner)

    async def cycle_to_break(self, owner: str, entry_id: str) -> tuple[Link, ...]:
        """Return the circle in which a waiting entry has to give way, as the one who closed it; nothing if it may wait.

        Then let it leave the line, and raise :class:`~standfast.errors.WaitCycleError` with
        :func:`~standfast.locks.deadlock.shown` of it. Ask again after a crash: nobody else does it instead.
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

    # --- the rest ------------------------------------------------------------------------------------------------

    def _line(self, address: tuple[str, ...]) -> LocalLine:
        self._lines.guard.check()
        if self._lines.is_closing:
            raise StoreClosedError(repr(self._lines.scope), "it was closed")
        return self._lines.line(address)

    def _note_disagreement(self, line: LocalLine, address: tuple[str, ...], spec: LockSpec) -> None:
        head, line.driver.disagreement = line.driver.disagreement, None
        if head is not None and self._lines.hooks and self._lines.is_news(address, spec):
            at, key = self._lines.clock.wall(), line.driver.keys.name
            stored, asked = head.rules.permits, spec.rules.permits
            self._lines.hooks.emit(PermitsDisagree(at=at, key=key, stored=stored, asked=asked))


def _seen(line: LocalLine, entry_id: str, sight: Sight) -> RunGrant | Waiting | None:
    holder, waiter = sight.line.holder(entry_id), sight.line.waiter(entry_id)
    if holder is not None and holder.ends_at is not None and holder.ends_at <= sight.at:
        return None  # its time is over, though no step of the line has dropped it yet
    turn = None if holder is None else grant_seen(holder, sight)
    if holder is not None and turn is not None:
        grant = line.driver.keys.grant(holder.slot)
        return RunGrant(turn.fence, holder.slot, holder.granted_at, holder.ends_at, grant)
    return None if waiter is None else Waiting(waiter.ticket, sight.line.place(waiter.ticket))


def _ticket(found: RunGrant | Waiting | None) -> int | None:
    return found.ticket if isinstance(found, Waiting) else None


async def _wait_a_while() -> bool:
    await asyncio.sleep(PATIENCE)
    return True

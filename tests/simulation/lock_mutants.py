"""Durable locks that are wrong, each in the way of some real lock: the very code, with one piece of it replaced.

The simulation has to find every one of them, by the same checks that the right code passes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from standfast.clock import MICROSECONDS, Instant
from standfast.locks import acquire as acquiring
from standfast.locks import line_records as requests
from standfast.locks import line_step as deciding
from standfast.locks import mutex_line, slot_line
from standfast.locks.heartbeat import MARGIN, Presence
from standfast.locks.line import (
    Granted,
    Line,
    Waiter,
    Waiting,
    _grant,
    advance,
    bring_into_sight,
    enter,
    leave,
    put_out_of_sight,
    renew,
    resize,
    sweep,
)
from standfast.locks.line_records import Leave, Left, LineView
from standfast.locks.locks import Hold
from standfast.locks.registry import Lines
from standfast.stores.memory import MemoryRecords
from standfast.stores.protocol import Alternative, Check, Count, Empty, Present, Put
from tests.model.line_mutants import barging, counts_kept, evicting, immortal_waiters, light_ones_first
from tests.simulation.mutant_hunt import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator
    from contextlib import AbstractContextManager

    from standfast.keys import RecordKey
    from standfast.locks.acquire import AcquireRequest
    from standfast.locks.line import Entry, Holder
    from standfast.locks.line_driver import LocalLine
    from standfast.locks.line_records import Answer, Head, Request
    from standfast.stores.protocol import Change, Record, Store

    Alive = Callable[[Entry], bool]
    Patches = tuple[tuple[Any, str, Any], ...]


# --- no fence: a grant is written once, and stays when the permit changes hands -------------------------------

_grant_changes, _fences = LineView._grant_changes, deciding._fences


def written_once(view: LineView, line: Line) -> Iterator[Change]:
    """Write a grant only where there is none yet."""
    return (each for each in _grant_changes(view, line) if not (isinstance(each, Put) and each.expected))


def fences_of_old(asked: Any, view: LineView, line: Line, some: Any) -> tuple[dict[str, int], tuple[Holder, ...]]:
    """Return the fence that is there, whoever it was given to."""
    fences, granted = _fences(asked, view, line, some)
    old = {holder.entry.id: fence for holder in granted if (fence := view.fence_of(holder))}
    return fences | old, tuple(holder for holder in granted if holder.entry.id not in old)


# --- fence from the clock: a number that each process reads off its own time of day ---------------------------

_make_hold = Hold.__init__


def fenced_by_clock(hold: Hold, lines: Lines, *args: Any) -> None:
    """Take the time of day for a fence."""
    _make_hold(hold, lines, *args)
    hold.fence = lines.clock.wall()  # type: ignore[misc]  # which is what is wrong with it


def true_guard(hold: Hold) -> Check:
    """Guard by the true fence all the same: only what the resource sees is wrong."""
    return Check(hold.grant, hold._place.turn.fence)


# --- reap without looking again: whoever was once seen with an end is taken for dead after it -----------------

_presences, _seen_once = Lines._presences, dict[str, Instant]()


async def first_seen(lines: Lines, line: LocalLine, names: list[str]) -> dict[str, Instant]:
    """Judge presences by when they ended as they were first seen, though they have been renewed."""
    mine = {name: f"{lines.scope.presence_name}/{name}" for name in names}
    _seen_once.update(
        {
            mine[name]: end
            for name, end in (await _presences(lines, line, names)).items()
            if mine[name] not in _seen_once
        }
    )
    now = (await lines.scope.read(line.driver.keys.head)).at
    return {name: _seen_once[mine[name]] for name in names if _seen_once.get(mine[name], 0) > now}


# --- release by slot: whoever has it now ----------------------------------------------------------------------

_answer = requests._answer


def whoever_has_it(line: Line, request: Request, now: Instant) -> tuple[Line, Answer]:
    """Let go of a slot, though it may be in other hands by now."""
    if isinstance(request, Leave) and request.slot is not None and not request.by_force:
        found = next((holder for holder in line.holders if holder.slot == request.slot), None)
        if found is not None:
            return leave(line, found.entry.id), Left(was_holding=True, was_waiting=False)
    return _answer(line, request, now)


# --- a counter for the set: permits are counted down and up, not those who hold -------------------------------


def count_down(line: Line, entry: Entry, now: Instant) -> tuple[Line, Any]:
    """Take from the counter, if there is enough and nobody waits."""
    free = line.rules.permits
    renewed, granted = renew(line, entry.id, entry.anchor)
    if free is None or granted is not None:
        return (renewed, granted) if granted is not None else enter(line, entry, now)
    present = line.waiter(entry.id)
    if present is None and line.front == line.next_ticket and free >= entry.weight:
        holder = _grant(entry, line, now)
        return resize(structs.replace(line, holders=(*line.holders, holder)), free - entry.weight), Granted(holder)
    waiter = Waiter(entry, line.next_ticket if present is None else present.ticket)
    others = tuple(each for each in line.waiters if each is not present)
    waiters = tuple(sorted((*others, waiter), key=lambda each: each.ticket))
    last = max(line.next_ticket, waiter.ticket + 1)
    return structs.replace(line, waiters=waiters, next_ticket=last), Waiting(waiter.ticket, line.place(waiter.ticket))


def count_on(line: Line, now: Instant) -> Line:
    """Serve the front from the counter."""
    if line.rules.permits is None:
        return advance(line, now)
    reach = line.next_ticket if line.horizon is None else line.horizon
    while line.waiters and line.waiters[0].ticket < reach and line.waiters[0].entry.weight <= (line.rules.permits or 0):
        entry = line.waiters[0].entry
        holders = (*line.holders, _grant(entry, line, now))
        line = structs.replace(resize(line, (line.rules.permits or 0) - entry.weight), holders=holders)
        line = structs.replace(line, waiters=line.waiters[1:])
    return line


def count_up(line: Line, entry_id: str) -> Line:
    """Give back to the counter, also for one who had nothing any more."""
    holder, is_waiting = line.holder(entry_id), line.waiter(entry_id) is not None
    left = leave(line, entry_id)
    if line.rules.permits is None or is_waiting:
        return left
    return resize(left, line.rules.permits + (1 if holder is None else holder.entry.weight))


def sweep_and_count(line: Line, now: Instant, alive: Alive) -> Line:
    """Give back for the dead."""
    swept = sweep(line, now, alive)
    fell = sum(each.entry.weight for each in line.holders) - sum(each.entry.weight for each in swept.holders)
    return swept if line.rules.permits is None else resize(swept, line.rules.permits + fell)


# --- presences that are trusted too long ----------------------------------------------------------------------

_renew = Presence.renew


async def come_back(presence: Presence, store: Store) -> bool:
    """Make a presence anew that has lapsed."""
    presence._is_made = False
    return await _renew(presence, store)


async def from_the_answer(presence: Presence, store: Store) -> bool:
    """Reckon the deadline from when the answer came, not from when it was asked for."""
    renewed = await _renew(presence, store)
    presence.renewed_at = presence._clock.elapsed()
    presence.deadline = Instant(presence._clock.elapsed() + round(presence.lease * (1 - MARGIN) * MICROSECONDS))
    return renewed


# --- commits on a mutex that look at too little, and a store that moves the wrong ticket ---------------------------


def without(guard: type) -> Callable[..., Alternative]:
    """Return what makes alternatives without one kind of guard."""

    def make(changes: tuple[Any, ...], wake: tuple[Any, ...] = (), before: Instant | None = None) -> Alternative:
        return Alternative(tuple(each for each in changes if not isinstance(each, guard)), wake, before=before)

    return make


def light_or_heavy(line: Line, _head: Head) -> bool:
    """Leave the gate open whatever an entry takes."""
    return all(each.slot < (line.rules.permits or 0) for each in line.holders)


def last_below(memory: MemoryRecords, prefix: RecordKey, most: int, without: Container[RecordKey] = ()) -> list[Record]:
    """Return the last records that continue a key."""
    found = [key for key in memory._order if key.startswith(prefix) and key != prefix and key not in without]
    return [memory._records[key] for key in found[::-1][:most]]


# --- those who wait -------------------------------------------------------------------------------------------


def stay(
    lines: Lines,
    line: LocalLine,  # noqa: ARG001 -- as _leave_for_certain
    leave: Leave,  # noqa: ARG001 -- as _leave_for_certain
    presence: Presence | None,
    request: AcquireRequest,  # noqa: ARG001 -- as _leave_for_certain
) -> asyncio.Task[Any]:
    """Give up, and leave a ghost in the line."""
    if presence is not None:
        lines.heartbeat.leave(presence)
    return lines.own(asyncio.sleep(0))


def never(_lines: Lines) -> None:
    """Never look without a hint."""


# --- holders that are only counted, by their presences ---------------------------------------------------------


def whoever_has_a_record(line: Line, holders: tuple[Holder, ...]) -> Line:
    """Take every record for a holder, though its presence may have fallen."""
    brought = bring_into_sight(line, holders)
    fallen = [each for each in holders if brought.holder(each.entry.id) is None]
    return structs.replace(brought, holders=(*brought.holders, *fallen), unseen=brought.unseen - len(fallen))


def counted_with_the_others(line: Line) -> Line:
    """Count all that are out of sight as if they were runs."""
    return structs.replace(put_out_of_sight(line), unseen_of=line.unseen_of)


def nothing_cleared(_lines: Lines, _line: LocalLine, _presence: str, _after: float = 0.0) -> None:
    """Leave the records of the dead where they are."""


def renewed_in_place(line: Line, entry: Entry, now: Instant) -> tuple[Line, Any]:
    """Let one that asks again by another presence keep its record, which says the old one."""
    renewed, granted = renew(line, entry.id, entry.anchor)
    return enter(line, entry, now) if granted is None else (renewed, granted)


COUNTED_MUTANTS: Final[dict[str, Patches]] = {
    "the count of a dead presence is kept": ((requests, "sweep", counts_kept),),
    "a record counts though its presence has fallen": ((requests, "bring_into_sight", whoever_has_a_record),),
    "a presence is not counted": ((requests, "put_out_of_sight", counted_with_the_others),),
    "what has fallen is left": ((Lines, "_clear", nothing_cleared),),
    "one that asks again stays with its old presence": ((requests, "enter", renewed_in_place),),
}
"""Wrong in the way of lines that only count some of their holders."""

MUTANTS: Final[dict[str, Patches]] = {
    "no fence": ((LineView, "_grant_changes", written_once), (deciding, "_fences", fences_of_old)),
    "fence from the clock": ((Hold, "__init__", fenced_by_clock), (Hold, "guard", property(true_guard))),
    "barging": ((requests, "enter", barging),),
    "reap without looking again": ((Lines, "_presences", first_seen),),
    "release by slot": ((requests, "_answer", whoever_has_it),),
    "a counter for the set": (
        (requests, "enter", count_down),
        (requests, "advance", count_on),
        (requests, "leave", count_up),
        (requests, "sweep", sweep_and_count),
    ),
    "waiters never expire": ((requests, "sweep", immortal_waiters),),
    "renewal after the end": ((Presence, "renew", come_back),),
    "deadline from the answer": ((Presence, "renew", from_the_answer),),
    "light ones pass a heavy one": ((requests, "advance", light_ones_first),),
    "lowering permits evicts": ((requests, "resize", evicting),),
    "ghosts of those who gave up": ((acquiring, "_leave_for_certain", stay),),
    "no look without a hint": ((Lines, "_start_polling", never),),
    "a mutex gets free without a look for waiters": ((mutex_line, "Alternative", without(Empty)),),
    "a mutex is joined that got free": ((mutex_line, "Alternative", without(Present)),),
    "a slot gets free without a look for waiters": ((slot_line, "Alternative", without(Empty)),),
    "slots are joined though one is free": ((slot_line, "Alternative", without(Count)),),
    "slots are handed over without a look at the head": ((slot_line, "Alternative", without(Check)),),
    "the gate stays open for heavy ones": ((slot_line, "keeps_to_slots", light_or_heavy),),
    "the last ticket is moved": ((MemoryRecords, "_below", last_below),),
}


def mutated(name: str) -> AbstractContextManager[None]:
    """Run the code with one of the mutants in it."""
    return replaced({**MUTANTS, **COUNTED_MUTANTS}[name])

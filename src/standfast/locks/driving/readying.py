"""Telling runs: a run that sleeps learns of its turn by a record, put in the very commit that changes its place.

Nobody waits in memory for a run's place in a line. So whoever grants it, or turns it out, puts the run's ready record
as well, always with another version. Workers watch those records, and look now and then without being woken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from standfast.codec import Codec
from standfast.locks.algebra.entries import Entry, OfRun
from standfast.locks.algebra.line import Granted, Waiting
from standfast.locks.driving.requests import Enter, Leave, Left, WrongKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from standfast.keys import RecordKey
    from standfast.locks.algebra.line import Line
    from standfast.locks.driving.requests import Answer, Request
    from standfast.scope import Scope

READY: Final = Codec(bool, what="that a run is ready").encode(value=True)
"""What a ready record holds. Only that it is there counts, and its version."""

_Place: TypeAlias = tuple[str, int]
"""Holding since an instant, or waiting with a ticket."""


def ready_key(scope: Scope, run: str) -> RecordKey:
    """Return where it is noted that somebody has to look at a run."""
    return scope.key("ready", run)


def run_of(entry: Entry) -> str | None:
    """Return the run that an entry lives as long as; None: it lives by something else."""
    return entry.anchor.run if isinstance(entry.anchor, OfRun) else None


def runs_to_tell(before: Line, after: Line, requests: Sequence[Request], answers: Sequence[Answer]) -> tuple[str, ...]:
    """Return the runs whose place in the line is another one than they know of.

    One that asks knows what it was answered, which is not always how the step ends: it may be told to wait, and be
    granted by somebody who leaves in the same step.
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

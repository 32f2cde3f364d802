"""Engines that are wrong, each in the way of some real one: the very code, with one piece of it replaced.

The simulation has to find every one of them, by the same checks that the right code passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from standfast.locks import line_records as requests
from standfast.locks import line_step as readying
from standfast.locks.line import OUT_OF_SIGHT, Line, put_out_of_sight
from standfast.locks.line_records import Leave, LineView
from standfast.stores.protocol import Check, Commit, Conflict, Delete, Put
from standfast.workflows import admin as administration
from standfast.workflows import admission, claims, execution, handover, inbox, records, worker
from standfast.workflows import parallel as children
from standfast.workflows import replay as cutting
from standfast.workflows import termination as forcing
from standfast.workflows.activation import Activation
from standfast.workflows.inbox import Inbox, LoadedItem, Sending
from standfast.workflows.journal import Journal
from standfast.workflows.records import CHUNKS, RUN_STATES, Chunk, Found
from standfast.workflows.replay import LIVE, Live, Mismatch, Replay, show
from standfast.workflows.runtime import Runtime
from standfast.workflows.steps import JournalCommit
from tests.simulation.mutant_hunt import replaced

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterator, Sequence
    from contextlib import AbstractContextManager

    from standfast.locks.line import Entry, Holder
    from standfast.locks.line_records import Answer, Request
    from standfast.stores.protocol import Change, Snapshot
    from standfast.workflows.records import Header, HistoryEvent, RunKeys, RunState, WorkerPresence

    Patches = tuple[tuple[Any, str, Any], ...]


def no_fence(journal: Journal) -> tuple[Check, ...]:
    """Write whoever drives the run by now: guard by its header, which never changes."""
    header, records = journal._keys.header, journal._scope.store.backend._memory._records  # type: ignore[attr-defined] # of the memory store
    held = (Check(key, held.fence) for key, held in journal.holds.items())
    return (Check(header, records[header].version), *held)


async def flush_unfenced(journal: Journal) -> Conflict | None:
    """Write events in the same way."""
    taken, answer = await journal.begin(), None
    try:
        answer = await journal._scope.commit(*no_fence(journal), *journal._chunks(taken.events))
    finally:
        journal.end(taken, 0 if isinstance(answer, Commit) else None, {})
    return answer if isinstance(answer, Conflict) else None


def flush_unfenced_at_once(journal: Journal) -> Coroutine[Any, Any, Conflict | None] | None:
    """Write a step's record in the same way."""
    return flush_unfenced(journal) if journal.has_work else None


def always(_runtime: Runtime, _presence: str | None = None) -> bool:
    """Act although others may take this process for dead."""
    return True


async def all_are_dead(_scope: object, names: list[str]) -> tuple[list[str], dict[str, str]]:
    """Take everybody else for dead."""
    return names, {}


def left_there(inbox: Inbox, letter: LoadedItem) -> Check:
    """Take a letter, and leave it in the inbox."""
    takes(inbox, letter)
    return Check(letter.key, letter.version)


def unknown(_sending: Sending, _keys: RunKeys) -> None:
    """Remember no id."""


async def never_polls(_worker: worker.Worker) -> None:
    """Rely on hints."""


def in_any_order(
    replay: Replay, branch: str, kinds: Collection[str], operation_id: str
) -> HistoryEvent | Live | Mismatch:
    """Let each branch replay its own events, whatever the others do."""
    waiting = replay._by_branch.get(branch)
    if not waiting:
        return LIVE
    event = replay._events[waiting[0]]
    if event.id != operation_id or event.kind not in kinds:
        return Mismatch(show(event.kind, event.id), show(next(iter(kinds)), operation_id))
    waiting.popleft()
    replay._position += 1
    return event


def deletes_no_listing(
    keys: RunKeys, header: Header, worker: WorkerPresence, before: RunState, after: RunState, seen: Snapshot
) -> list[Change]:
    """Take up a run from a line, and leave it in the index of runs as waiting."""
    return [
        change for change in claims_all(keys, header, worker, before, after, seen) if "runs" not in change.key.parts
    ]


claims_all: Final = records.taking


def lists_nothing(_keys: RunKeys, _state: RunState, _tags: tuple[str, ...]) -> list[Change]:
    """Do not list a run."""
    return []


def no_due(_activation: Activation) -> None:
    """Say that nothing is ever due."""


def hears_nothing(_parent: Activation, _child_id: str, _state: RunState) -> None:
    """Do not hear of the end of a child that was driven in the same process."""


takes: Final = Inbox.take

MUTANTS: Final[dict[str, Patches]] = {
    "acts without its presence": ((Runtime, "may_act", always),),
    "takes the living for dead": ((worker, "find_dead", all_are_dead),),
    "signals stay in the inbox": ((Inbox, "take", left_there),),
    "signals without ids": ((Sending, "marker", unknown),),
    "effects before records": ((Journal, "is_dirty", property(lambda _: False)),),
    "no look without a hint": ((worker.Worker, "_poll_all", never_polls),),
    "branches replayed in any order": ((Replay, "ask", in_any_order),),
    "children end unheard": ((Activation, "child_ended", hears_nothing),),
    "no timers": ((Activation, "due_at", no_due),),
    "what is claimed in its turn stays listed": (
        (admission, "taking", deletes_no_listing),
        (handover, "taking", deletes_no_listing),
    ),
    "what ends is not listed": ((execution, "listing", lists_nothing),),
    "what died is not listed": ((claims, "listing", lists_nothing),),
}


# --- those that only show when an operator acts -------------------------------------------------------------------


def even_if_empty(sent: JournalCommit, *events: HistoryEvent) -> tuple[Change, ...]:
    """Write a part of the history also if there is nothing to write."""
    sent.added = len(events)
    return (Put(sent._chunks[0], CHUNKS.encode_own(Chunk((*sent._taken.events, *events)))),)


async def at_all_that_come(journal: Journal, *, is_alone: bool = False) -> Conflict | None:
    """Look at locks, and miss those that other branches have taken meanwhile."""
    del is_alone
    seen = await journal._scope.read(*journal.holds) if journal.holds else None
    gone = {} if seen is None else {key: None for key, h in journal.holds.items() if seen.version(key) != h.fence}
    return Conflict(seen.at, dict(gone)) if seen is not None and gone else None


def waits_for_the_purged(seen: Snapshot, keys: RunKeys) -> RunState | None:
    """Wait for a child that is no longer there."""
    record = seen.get(keys.state)
    state = None if record is None else RUN_STATES.decode(record.value)
    return state if state is None or state.has_ended else None


def inside_of_a_lock(run_id: str, state: RunState, events: Sequence[HistoryEvent]) -> list[HistoryEvent]:
    """Keep what was done inside of a lock that was lost at its end."""
    place = cutting._cause(state, events)
    if place == len(events) or events[place].kind != "released":
        return cutting.cut_for_retry(run_id, state, events)
    return [event for event in events[:place] if event.id != events[place].id or event.kind == "child"]


def own_alone(journal: Journal) -> tuple[Check, ...]:
    """Write whoever holds the run's locks by now."""
    return (journal._own,)


async def sees_nothing(_journal: Journal, *, is_alone: bool = False) -> None:
    """Do not look who holds the run's locks by now."""
    del is_alone


async def lets_nothing_go(runtime: Runtime, run: Found) -> None:
    """Keep everything that a run held which was ended by force."""
    await forcing._has_left(runtime, run.id)


def tells_nobody(known: dict[str, Any], request: Request, answer: Answer) -> None:
    """Do not tell a run that an operator took it out of a line."""
    told(known, request, answer)
    if isinstance(request, Leave):
        known.pop(request.entry_id, None)


told: Final = readying._note_answer

OPERATED_MUTANTS: Final[dict[str, Patches]] = {
    "no fence": (
        (Journal, "guards", no_fence),
        (Journal, "_flush_events", flush_unfenced),
        (Journal, "flush_at_once", flush_unfenced_at_once),
    ),
    "an empty part of a history": ((JournalCommit, "written", even_if_empty),),
    "locks of other branches are lost": ((Journal, "_look_at_holds", at_all_that_come),),
    "waits for a purged child": (
        (children, "ending_in", waits_for_the_purged),
        (inbox, "ending_in", waits_for_the_purged),
    ),
    "goes on inside of a lock": ((administration, "cut_for_retry", inside_of_a_lock),),
    "locks do not guard": ((Journal, "guards", own_alone), (Journal, "_look_at_holds", sees_nothing)),
    "a forced end releases nothing": ((forcing, "let_go", lets_nothing_go),),
    "what ended by force is not listed": ((forcing, "listing", lists_nothing),),
    "tells nobody who was turned out": ((readying, "_note_answer", tells_nobody),),
}


# --- those that only show where a line counts its holders ---------------------------------------------------------


def forgets_who_left(line: Line) -> Line:
    """Count one that has left for ever."""
    after = put_out_of_sight(line)
    is_known = any(each.slot == OUT_OF_SIGHT for each in line.holders)
    return structs.replace(after, unseen=after.unseen + 1) if line.unseen and not is_known else after


def by_the_listed(line: Line, entry: Entry) -> bool:
    """Admit by those that are listed."""
    return line.rules.admit(line.holders, entry)


def leaves_its_record(view: LineView, line: Line) -> Iterator[Change]:
    """Delete no record of one that is only counted."""
    return (each for each in grants_of(view, line) if not (isinstance(each, Delete) and "held" in each.key.parts))


def sees_none(_view: LineView, _line: Line, _entries: object) -> tuple[Holder, ...]:
    """Do not look for those that are only counted."""
    return ()


grants_of: Final = LineView._grant_changes

COUNTED_MUTANTS: Final[dict[str, Patches]] = {
    "a count that is not taken back": ((requests, "put_out_of_sight", forgets_who_left),),
    "only those that are listed are counted": ((Line, "admits", by_the_listed),),
    "the record of one that left stays": ((LineView, "_grant_changes", leaves_its_record),),
    "those out of sight are not found": ((LineView, "_unseen", sees_none),),
}


def mutated(name: str) -> AbstractContextManager[None]:
    """Run the code with one of the mutants in it."""
    return replaced((MUTANTS | OPERATED_MUTANTS | COUNTED_MUTANTS)[name])

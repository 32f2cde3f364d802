"""Engines that are wrong, each in the way of some real one: the very code, with one piece of it replaced.

The simulation has to find every one of them, by the same checks that the right code passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from standfast.locks import line_records as readying
from standfast.locks.line_records import Leave
from standfast.stores.protocol import Check, Commit, Conflict, Put
from standfast.workflows import admin as administration
from standfast.workflows import messages as forcing
from standfast.workflows import parallel as children
from standfast.workflows import replay as cutting
from standfast.workflows import worker
from standfast.workflows.activation import Activation
from standfast.workflows.inbox import Letter, Mail, Sending
from standfast.workflows.journal import Journal
from standfast.workflows.records import CHUNKS, LIVES, Chunk
from standfast.workflows.replay import LIVE, Live, Mismatch, Replay, show
from standfast.workflows.runtime import Host
from standfast.workflows.steps import Ride
from tests.simulation.hunting import replaced

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from contextlib import AbstractContextManager

    from standfast.locks.line_records import Answer, Request
    from standfast.stores.protocol import Change, Snapshot
    from standfast.workflows.records import Life, Mark, RunKeys

    Patches = tuple[tuple[Any, str, Any], ...]


def no_fence(journal: Journal) -> tuple[Check, ...]:
    """Write whoever drives the run by now: guard by its header, which never changes."""
    header, records = journal._keys.header, journal._host.space.store.backend._memory._records  # type: ignore[attr-defined] # of the memory store
    held = (Check(key, held.fence) for key, held in journal.holds.items())
    return (Check(header, records[header].version), *held)


async def flush_unfenced(journal: Journal) -> Conflict | None:
    """Write marks in the same way."""
    taken, answer = await journal.begin(), None
    try:
        answer = await journal._host.space.commit(*no_fence(journal), *journal._chunks(taken.marks))
    finally:
        journal.end(taken, 0 if isinstance(answer, Commit) else None, {})
    return answer if isinstance(answer, Conflict) else None


def always(_host: Host, _presence: str | None = None) -> bool:
    """Act although others may take this process for dead."""
    return True


async def all_are_dead(_scope: object, names: list[str]) -> tuple[list[str], dict[str, str]]:
    """Take everybody else for dead."""
    return names, {}


def left_there(mail: Mail, letter: Letter) -> Check:
    """Take a letter, and leave it in the inbox."""
    if letter in mail._letters:
        mail._letters.remove(letter)
    return Check(letter.key, letter.version)


def unknown(_sending: Sending, _keys: RunKeys) -> None:
    """Remember no id."""


async def never_looks(_worker: worker.Worker) -> None:
    """Rely on hints."""


def in_any_order(replay: Replay, branch: str, kinds: Collection[str], operation_id: str) -> Mark | Live | Mismatch:
    """Let each branch replay its own marks, whatever the others do."""
    waiting = replay._by_branch.get(branch)
    if not waiting:
        return LIVE
    mark = replay._marks[waiting[0]]
    if mark.id != operation_id or mark.kind not in kinds:
        return Mismatch(show(mark.kind, mark.id), show(next(iter(kinds)), operation_id))
    waiting.popleft()
    replay._position += 1
    return mark


def no_due(_activation: Activation) -> None:
    """Say that nothing is ever due."""


MUTANTS: Final[dict[str, Patches]] = {
    "acts without its presence": ((Host, "may_act", always),),
    "takes the living for dead": ((worker, "find_dead", all_are_dead),),
    "signals stay in the inbox": ((Mail, "take", left_there),),
    "signals without ids": ((Sending, "marker", unknown),),
    "effects before records": ((Journal, "is_dirty", property(lambda _: False)),),
    "no look without a hint": ((worker.Worker, "_look_around", never_looks),),
    "branches replayed in any order": ((Replay, "ask", in_any_order),),
    "no timers": ((Activation, "due_at", no_due),),
}


# --- those that only show when an operator acts -------------------------------------------------------------------


def even_if_empty(sent: Ride, *marks: Mark) -> tuple[Change, ...]:
    """Write a part of the history also if there is nothing to write."""
    sent.added = len(marks)
    return (Put(sent._chunks[0], CHUNKS.encode_own(Chunk((*sent._taken.marks, *marks)))),)


async def at_all_that_come(journal: Journal, *, is_alone: bool = False) -> Conflict | None:
    """Look at locks, and miss those that other branches have taken meanwhile."""
    del is_alone
    seen = await journal._host.space.read(*journal.holds) if journal.holds else None
    gone = {} if seen is None else {key: None for key, h in journal.holds.items() if seen.version(key) != h.fence}
    return Conflict(seen.at, dict(gone)) if seen is not None and gone else None


def waits_for_the_purged(seen: Snapshot, keys: RunKeys) -> Life | None:
    """Wait for a child that is no longer there."""
    record = seen.get(keys.life)
    life = None if record is None else LIVES.decode(record.value)
    return life if life is None or life.has_ended else None


def inside_of_a_lock(run_id: str, life: Life, marks: Sequence[Mark]) -> list[Mark]:
    """Keep what was done inside of a lock that was lost at its end."""
    place = cutting._cause(life, marks)
    if place == len(marks) or marks[place].kind != "released":
        return cutting.cut_for_retry(run_id, life, marks)
    return [mark for mark in marks[:place] if mark.id != marks[place].id or mark.kind == "child"]


def own_alone(journal: Journal) -> tuple[Check, ...]:
    """Write whoever holds the run's locks by now."""
    return (journal._own,)


async def sees_nothing(_journal: Journal, *, is_alone: bool = False) -> None:
    """Do not look who holds the run's locks by now."""
    del is_alone


async def lets_nothing_go(host: Host, run: forcing.Found) -> None:
    """Keep everything that a run held which was ended by force."""
    await forcing._has_left(host, run.id)


def tells_nobody(known: dict[str, Any], request: Request, answer: Answer) -> None:
    """Do not tell a run that an operator took it out of a line."""
    told(known, request, answer)
    if isinstance(request, Leave):
        known.pop(request.entry_id, None)


told: Final = readying._note_answer

OPERATED_MUTANTS: Final[dict[str, Patches]] = {
    "no fence": ((Journal, "guards", no_fence), (Journal, "_flush_marks", flush_unfenced)),
    "an empty part of a history": ((Ride, "written", even_if_empty),),
    "locks of other branches are lost": ((Journal, "_look_at_holds", at_all_that_come),),
    "waits for a purged child": ((children, "ending_in", waits_for_the_purged),),
    "goes on inside of a lock": ((administration, "cut_for_retry", inside_of_a_lock),),
    "locks do not guard": ((Journal, "guards", own_alone), (Journal, "_look_at_holds", sees_nothing)),
    "a forced end releases nothing": ((forcing, "let_go", lets_nothing_go),),
    "tells nobody who was turned out": ((readying, "_note_answer", tells_nobody),),
}


def mutated(name: str) -> AbstractContextManager[None]:
    """Run the code with one of the mutants in it."""
    return replaced((MUTANTS | OPERATED_MUTANTS)[name])

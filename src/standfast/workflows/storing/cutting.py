"""Where a history may be cut, so that a run can go on from there. Pure functions of marks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from standfast.errors import InvalidWorkflowError
from standfast.workflows.running.cancelling import is_of_run
from standfast.workflows.running.replay import branch_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from standfast.workflows.storing.failures import Failure
    from standfast.workflows.storing.records import Life, Mark

MOST_MARKS: Final = 200
MOST_BYTES: Final = 80_000

OPEN: Final = {"child": ("child_done",), "lock": ("held", "released"), "began": ("step", "transaction")}
"""Marks of operations that have begun, and those by which they are seen to be done."""


def cut_at(run_id: str, marks: Sequence[Mark], step: str, *, fork: bool = True) -> list[Mark]:
    """Return what was recorded before a step. Refused if there is no such step, or a lock was held there.

    Everything that was recorded after it goes too, in other branches as well: what remains is how the history was at
    that moment, so that a run can go on from it as after a crash.
    """
    place = next((number for number, mark in enumerate(marks) if mark.id == step and mark.kind != "update"), None)
    if place is None:
        known = ", ".join(dict.fromkeys(mark.id for mark in marks if mark.kind == "step")) or "none"
        raise InvalidWorkflowError(
            f"step {step!r:.200} of the run {run_id!r}", f"it is not recorded; there are {known:.500}"
        )
    kept = list(marks[:place])
    _check_locks(f"step {step!r:.200} of the run {run_id!r}", marks, kept)
    return _without_open(kept, tuple(OPEN) if fork else ("lock",))


def cut_for_retry(run_id: str, life: Life, marks: Sequence[Mark]) -> list[Mark]:
    """Return what a run that has ended goes on from: what was recorded before that which ended it.

    Of the operation that failed nothing is kept, so that it has all its attempts again; a child's start is kept, and so
    is what branches beside it went on to do until they were told to stop. Refused if a lock was held there.
    """
    place = _cause(life, marks)
    if place == len(marks):
        _check_locks(f"the run {run_id!r}", marks, marks)
        return _without_open(list(marks), ("lock",))
    cause = marks[place]
    before, beside = marks[:place], list(_beside(branch_of(cause.id), marks[place + 1 :]))
    # With the marks of the operation itself: if it is the end of a lock, what was done inside goes with the lock.
    _check_locks(f"step {cause.id!r:.200} of the run {run_id!r}", marks, (*before, *beside))
    kept = [mark for mark in before if mark.id != cause.id or mark.kind == "child"]
    return _without_open([*kept, *beside], ("lock",))


def _beside(path: str, later: Sequence[Mark]) -> Iterator[Mark]:
    """Return what was done later in spite of what happened in a branch: in those beside it, and by updates."""
    stopped: set[str] = set()
    for mark in later:
        branch = branch_of(mark.id)
        if mark.kind == "update":
            yield mark
        elif _is_beside(path, branch) and branch not in stopped:
            if mark.kind == "cancelled":
                stopped.add(branch)
            else:
                yield mark


def _is_beside(path: str, other: str) -> bool:
    """Tell whether a branch belongs to the same gather or race as another one, or as one around that."""
    for mine, his in zip(path.split("/"), other.split("/"), strict=False):
        if mine != his:
            group = mine.rpartition(".")[0]
            return bool(group) and group == his.rpartition(".")[0]
    return False  # the branch itself, one around it, or one within it


def _cause(life: Life, marks: Sequence[Mark]) -> int:
    """Return the place of the mark that ended a run; the end of the history if its code just raised."""
    if life.status in ("cancelled", "timed_out"):
        told = (number for number, mark in enumerate(marks) if mark.kind == "cancelled" and is_of_run(mark))
        return next(told, len(marks))
    for number in range(len(marks) - 1, -1, -1):
        if _is_same(marks[number].failure, life.failure):
            return number
    return len(marks) - 1 if marks and marks[-1].failure is not None else len(marks)


def _is_same(recorded: Failure | None, ended: Failure | None) -> bool:
    if recorded is None or ended is None:
        return False
    return (recorded.type, recorded.message) == (ended.type, ended.message)


def _check_locks(what: str, marks: Sequence[Mark], kept: Sequence[Mark]) -> None:
    """Refuse a cut inside of a lock: it was given back since, and others may have it."""
    if held := _held(kept):
        problem = f"{', '.join(held)} was held there and is not any more; go on from {_outside(marks, held)!r}"
        raise InvalidWorkflowError(what, problem)


def _held(marks: Sequence[Mark]) -> dict[str, None]:
    """Return the locks that are held at the end of a history, in the order in which they were granted."""
    held: dict[str, None] = {}
    for mark in marks:
        if mark.kind == "held":
            held[mark.id] = None
        elif mark.kind == "released":
            held.pop(mark.id, None)
    return held


def _outside(marks: Sequence[Mark], held: Collection[str]) -> str:
    """Return where a history can be cut instead: at the operation that took these locks, or one held around them."""
    while True:
        place = next(number for number, mark in enumerate(marks) if mark.id in held)
        held = _held(marks[:place])
        if not held:
            return marks[place].id


def open_children(marks: Sequence[Mark]) -> list[str]:
    """Return the ids of the children that were started and whose end is not recorded."""
    children = {mark.id: mark for mark in marks if mark.kind == "child" and mark.failure is None}
    for mark in marks:
        if mark.kind == "child_done":
            children.pop(mark.id, None)
    return [msgspec.json.decode(mark.value, type=str) for mark in children.values() if isinstance(mark.value, Raw)]


def _without_open(marks: list[Mark], kinds: Collection[str]) -> list[Mark]:
    """Leave out what had begun and was not done, where nothing of it is left. Each mark is the last of its branch."""
    done = {(mark.kind, mark.id) for mark in marks}
    return [
        mark
        for mark in marks
        if mark.kind not in kinds
        or mark.failure is not None
        or any((kind, mark.id) in done for kind in OPEN[mark.kind])
    ]


def chunks_of(marks: Sequence[Mark]) -> Iterator[tuple[int, list[Mark]]]:
    """Divide a history into chunks that can be stored; each with the position of its first mark."""
    some: list[Mark] = []
    position = size = 0
    for mark in marks:
        weight = len(mark.value) if isinstance(mark.value, Raw) else 0
        if some and (len(some) == MOST_MARKS or size + weight > MOST_BYTES):
            yield position, some
            position, size, some = position + len(some), 0, []
        some.append(mark)
        size += weight
    if some:
        yield position, some

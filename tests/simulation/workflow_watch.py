"""What must be true of durable workflows, looked at after every commit and before every step.

It sees the records themselves, and which process wrote them; it knows nothing of how a run is driven.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from standfast.workflows.running.replay import branch_of
from standfast.workflows.storing.records import CHUNKS, LIVES, Life, Mark

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.stores.backend import Applied
    from standfast.stores.memory import Memory
    from standfast.workflows.context.performing import CurrentStep
    from tests.simulation.lock_process import Process

Attempt = tuple[str, str, int]


@final
class WorkflowWatch:
    """Looks at every commit of every process, and at every step that begins."""

    def __init__(self, memory: Memory) -> None:
        self._memory: Final = memory
        self.problems: Final[list[str]] = []
        self.presences: Final[dict[str, Process]] = {}
        self.marks: Final[dict[str, list[Mark]]] = {}
        self.lives: Final[dict[str, Life]] = {}
        self._owners: Final[dict[str, set[str]]] = {}
        self._fences: Final[dict[str, int]] = {}
        self._recorded: Final[dict[tuple[str, str], Mark]] = {}
        self._tried: Final[Counter[tuple[str, str]]] = Counter()
        self._begun: Final[dict[Attempt, Process]] = {}
        self._last: Final[dict[tuple[str, str, str], CurrentStep]] = {}
        self._cancelled: Final[set[str]] = set()
        self._inside: Final[set[tuple[str, str]]] = set()
        self.shaken: Final[set[str]] = set()
        self.steps = 0

    def demand(self, holds: object, problem: str) -> None:
        """Note a problem unless something holds."""
        if not holds:
            self.problems.append(problem)

    # --- every commit --------------------------------------------------------------------------------------------

    def saw(self, process: Process, applied: Applied) -> None:
        """Look at what a commit of ``process`` has left behind."""
        changed = [(key, key.parts[2], key.parts[3:]) for key in applied.changed]
        drivers = {parts[0]: set(self._owners.get(parts[0], ())) for _, kind, parts in changed if kind == "step"}
        for key, kind, parts in changed:
            if kind == "own":
                self._saw_owner(key, parts[0], parts[1])
            elif kind == "life":
                self._saw_life(key, parts[0])
        for key, kind, parts in changed:
            if kind == "step":
                self._saw_chunk(process, key, parts, drivers[parts[0]])
        for run in {parts[-1] if kind == "own" else parts[0] for _, kind, parts in changed if kind in ("own", "life")}:
            self._check_owner(run)

    def _saw_owner(self, key: RecordKey, presence: str, run: str) -> None:
        record = self._memory._records.get(key)
        owners = self._owners.setdefault(run, set())
        if record is None:
            owners.discard(presence)
        else:
            self.demand(record.version > self._fences.get(run, 0), f"fence: that of {run} did not grow")
            self._fences[run] = record.version
            owners.add(presence)

    def _saw_life(self, key: RecordKey, run: str) -> None:
        record, before = self._memory._records.get(key), self.lives.get(run)
        self.demand(record is not None, f"lost: {run} is gone")
        if record is not None:
            after = LIVES.decode(record.value)
            self.demand(before is None or not before.has_ended, f"end: {run} ended, and changed after that")
            self.lives[run] = after

    def _check_owner(self, run: str) -> None:
        owners, life = self._owners.get(run, set()), self.lives.get(run)
        self.demand(len(owners) <= 1, f"driver: {run} is driven by {sorted(owners)}")
        self.demand(life is None or {life.owner} - {""} == owners, f"driver: {run} does not say who drives it")

    def _saw_chunk(self, process: Process, key: RecordKey, parts: tuple[str, ...], drivers: set[str]) -> None:
        run, position = parts[0], int(parts[1])
        history, record = self.marks.setdefault(run, []), self._memory._records.get(key)
        self.demand(record is not None, f"history: a part of that of {run} was removed")
        self.demand(position == len(history), f"history: {run} has {len(history)} marks, and one was put at {position}")
        mine = any(self.presences.get(each.partition(".")[0]) is process for each in drivers)
        self.demand(mine, f"fence: {process.name} wrote the history of {run}, which it does not drive")
        if record is not None:
            added = CHUNKS.decode(record.value).marks
            history.extend(added)
            for mark in added:
                self._saw_mark(run, mark)

    def _saw_mark(self, run: str, mark: Mark) -> None:
        if mark.kind == "cancelled":
            self._cancelled.add(mark.id)
        if mark.kind == "tried":
            self._tried[run, mark.id] += 1
        if mark.kind == "step":
            word, _, place = mark.id.partition(" the ")
            if word == "enter":
                self._inside.add((place, run))
            elif word == "leave":
                self._inside.discard((place, run))
            self.demand((run, mark.id) not in self._recorded, f"history: {mark.id} of {run} was recorded twice")
            self._recorded[run, mark.id] = mark

    # --- every step ----------------------------------------------------------------------------------------------

    def begins(self, process: Process, step: CurrentStep) -> None:
        """A step begins: then it is not recorded, and nobody who may still record it has begun it."""
        self.steps += 1
        run, attempt = step.run_id, (step.run_id, step.step_id, step.attempt)
        self.demand((run, step.step_id) not in self._recorded, f"again: {step.step_id} of {run} is recorded, and ran")
        self.demand(self._tried[run, step.step_id] < step.attempt, f"again: attempt {attempt} is recorded, and ran")
        word, _, place = step.step_id.partition(" the ")
        others = [other for where, other in self._inside if word == "enter" and where == place and other != run]
        self.demand(not others, f"{place}: {run} came in while {others} was inside")
        first = self._begun.get(attempt)
        excused = first is None or first.is_dead or {first.name, process.name} & self.shaken
        self.demand(excused, f"again: {attempt} ran twice, and nothing was wrong with {first and first.name}")
        self._begun[attempt] = process
        self._check_last(process, step)

    def _check_last(self, process: Process, step: CurrentStep) -> None:
        """What was done before in the same branch, by the same process, is recorded before anything else is done."""
        place = (step.run_id, branch_of(step.step_id), process.name)
        before, self._last[place] = self._last.get(place), step
        if before is None or (before.step_id, before.attempt) == (step.step_id, step.attempt):
            return
        key = (before.run_id, before.step_id)
        recorded = key in self._recorded or self._tried[key] >= before.attempt or before.step_id in self._cancelled
        self.demand(recorded, f"order: {step.step_id} of {step.run_id} began before {before.step_id} was recorded")

    # --- the end -------------------------------------------------------------------------------------------------

    def taken(self, run: str, kind: str) -> list[Any]:
        """Return what a run took from outside, as its history says."""
        values = [mark.value for mark in self.marks.get(run, []) if mark.kind == kind and mark.until is None]
        return [msgspec.json.decode(value) for value in values if value]

    def rows(self, *kinds: str) -> list[str]:
        """Return what is left in the store of these kinds."""
        now = self._memory.now()
        rows = self._memory._records.items()
        return [str(key) for key, record in rows if key.parts[2] in kinds and not record.is_expired(now)]

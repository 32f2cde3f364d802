"""What must be true of durable workflows, looked at after every commit and before every step.

It sees the records themselves, and which process wrote them; it knows nothing of how a run is driven.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from msgspec import structs

from standfast.keys import RecordKey
from standfast.locks.line_records import GRANTS, HEADS
from standfast.locks.mutex_line import holder_in
from standfast.locks.run_locks import LISTINGS, NEAR
from standfast.stores.protocol import STAMP_BYTES
from standfast.workflows.records import CHUNKS, HEADERS, RUN_STATES, HistoryEvent, RunState
from standfast.workflows.replay import branch_of

if TYPE_CHECKING:
    from standfast.stores.backend import Applied
    from standfast.stores.memory import MemoryRecords
    from standfast.workflows.records import Header
    from standfast.workflows.steps import CurrentStep
    from tests.simulation.lock_process import Process

Attempt = tuple[str, str, int]

LOCK_OF: Final = {"mutex": "shared", "bounded": "bounded"}
"""The key of the lock that a place is inside of, for those that are inside of one."""

LISTED: Final = ("runs", "tagged", "begun", "begun-tagged")
"""The kinds of records that are the index of runs."""

COUNTED: Final = ("line", "held")
"""The kinds of records that say how many hold a limit."""

MOST_CLAIMS: Final = 60
"""How often a run is taken up at most, besides once for each thing that an operator does to it."""


def family_of(run: str) -> str:
    """Return the first of the runs that one descends from, as its child or because it went on as a new one."""
    return re.split(r"[.~]", run, maxsplit=1)[0]


def listings_of(run: str, state: RunState, header: Header) -> set[tuple[str, ...]]:
    """Return where a run is listed in the index of runs; one that a worker drives is not."""
    if state.owner:
        return set()
    rest = (f"{state.changed_at:016d}", run)
    found: set[tuple[str, ...]] = {("runs", state.status, header.workflow, *rest)} | {
        ("tagged", tag, state.status, *rest) for tag in header.tags
    }
    if not 0 <= state.changed_at - header.started_at < NEAR:
        rest = (f"{header.started_at:016d}", run)
        found |= {("begun", state.status, header.workflow, *rest)}
        found |= {("begun-tagged", tag, state.status, *rest) for tag in header.tags if state.has_ended}
    return found


@final
class WorkflowWatch:
    """Looks at every commit of every process, and at every step that begins."""

    def __init__(self, memory: MemoryRecords) -> None:
        self._memory: Final = memory
        self.problems: Final[list[str]] = []
        self.presences: Final[dict[str, Process]] = {}
        self.events: Final[dict[str, list[HistoryEvent]]] = {}
        self.states: Final[dict[str, RunState]] = {}
        self._owners: Final[dict[str, set[str]]] = {}
        self._fences: Final[dict[str, int]] = {}
        self._recorded: Final[dict[tuple[str, str], HistoryEvent]] = {}
        self._tried: Final[Counter[tuple[str, str]]] = Counter()
        self._begun: Final[dict[Attempt, Process]] = {}
        self._last: Final[dict[tuple[str, str, str, int], CurrentStep]] = {}
        self._cancelled: Final[set[str]] = set()
        self._inside: Final[set[tuple[str, str]]] = set()
        self._grants: Final[dict[RecordKey, str]] = {}
        self._grant_fences: Final[dict[RecordKey, int]] = {}
        self._claims: Final[Counter[str]] = Counter()
        self._listed: Final[dict[str, set[tuple[str, ...]]]] = {}
        self._unheld: Final[Counter[tuple[str, int, str]]] = Counter()
        self._verbs: Final[dict[str, Counter[str]]] = {}
        self._permits: Final[dict[str, int]] = {}
        self.shaken: Final[set[str]] = set()
        self.is_erased = False
        self.steps = 0

    def demand(self, holds: object, problem: str) -> None:
        """Note a problem unless something holds."""
        if not holds:
            self.problems.append(problem)

    # --- what operators do ---------------------------------------------------------------------------------------

    def operated(self, run: str, verb: str) -> None:
        """An operator is about to do something to a run: what may come of it is no problem from now on."""
        self._verbs.setdefault(family_of(run), Counter())[verb] += 1

    def allow(self, place: str, permits: int) -> None:
        """An operator is about to let so many in."""
        self._permits[place] = max(permits, self._permits.get(place, 1))

    def verbs(self, run: str) -> Counter[str]:
        """Return what operators have done to a run and those that belong to it."""
        return self._verbs.get(family_of(run), Counter())

    # --- every commit --------------------------------------------------------------------------------------------

    def saw(self, process: Process, applied: Applied) -> None:
        """Look at what a commit of ``process`` has left behind."""
        changed = [(key, key.parts[2], key.parts[3:]) for key in applied.changed]
        drivers = {parts[0]: set(self._owners.get(parts[0], ())) for _, kind, parts in changed if kind == "step"}
        ended = {run for run, state in self.states.items() if state.has_ended}
        for key, kind, _ in changed:
            if kind == "grant":
                self._saw_grant(key)
        for key, kind, parts in changed:
            if kind == "own":
                self._saw_owner(key, parts[0], parts[1])
            elif kind == "life":
                self._saw_state(key, parts[0])
        rewritten = {run for run in drivers if run in ended or run not in self.states}
        for run in rewritten:
            self._saw_rewritten(run)
        for key, kind, parts in changed:
            if kind == "step" and parts[0] not in rewritten:
                self._saw_chunk(process, key, parts, drivers[parts[0]])
        self._check_counted(changed)
        self._check_inside()
        for run in {parts[-1] if kind == "own" else parts[0] for _, kind, parts in changed if kind in ("own", "life")}:
            self._check_owner(run)
        self._saw_listings([each for each in changed if each[1] in (*LISTED, "life")])

    def _saw_listings(self, changed: list[tuple[RecordKey, str, tuple[str, ...]]]) -> None:
        for key, kind, parts in changed:
            if kind != "life":
                listed = self._listed.setdefault(parts[-1], set())
                (listed.add if key in self._memory._records else listed.discard)((kind, *parts))
        for key, _, parts in changed:
            self._check_listed(parts[-1], key)

    def _check_listed(self, run: str, near: RecordKey) -> None:
        """A run is listed where its state says, and nowhere else; one that a worker drives is not listed."""
        state, (namespace, tenant, *_) = self.states.get(run), near.parts
        wanted: set[tuple[str, ...]] = set()
        times: set[str] = set()
        if state is not None:
            header = HEADERS.decode(self._memory._records[RecordKey(namespace, tenant, "run", run)].value)
            wanted = listings_of(run, state, header)
            times = {f"{header.started_at:016d}", f"{state.changed_at:016d}"}
        found = self._listed.get(run, set())
        self.demand(found == wanted, f"index: {run} is listed at {sorted(found)}, not at {sorted(wanted)}")
        for place in found:
            told = LISTINGS.decode(self._memory._records[RecordKey(namespace, tenant, *place)].value)
            said = {str(int(told)).zfill(16), place[-2]}
            self.demand(told is True or said <= times, f"index: {run} is listed at {place} with {told}, not of {times}")

    def _saw_owner(self, key: RecordKey, presence: str, run: str) -> None:
        record = self._memory._records.get(key)
        owners = self._owners.setdefault(run, set())
        if record is None:
            owners.discard(presence)
        else:
            self.demand(record.version > self._fences.get(run, 0), f"fence: that of {run} did not grow")
            self._fences[run] = record.version
            owners.add(presence)
            self._claims[run] += 1
            most = MOST_CLAIMS + 4 * self.verbs(run).total()
            self.demand(self._claims[run] <= most, f"spin: {run} was taken up {self._claims[run]} times")

    def _saw_state(self, key: RecordKey, run: str) -> None:
        record, before, verbs = self._memory._records.get(key), self.states.get(run), self.verbs(run)
        if record is None:
            self.demand(verbs["purge"] or self.is_erased, f"lost: {run} is gone")
            self.states.pop(run, None)
            self._forget(run)
            return
        after = RUN_STATES.decode(record.value)
        if before is not None and before.has_ended:
            same = structs.replace(before, leaving=after.leaving, purging=after.purging)
            goes_on = not after.has_ended and not before.purging and before.status != "completed"
            has_left = before.leaving and after == structs.replace(before, leaving=False)  # a start that was called off
            excused = has_left or (after == same and (verbs or self.is_erased)) or (goes_on and verbs["retry"])
            self.demand(excused, f"end: {run} ended, and changed after that")
            if goes_on:
                _drop(run, self._begun, self._last)
        self.states[run] = after

    def _saw_rewritten(self, run: str) -> None:
        """An operator has written a history: of a run that goes on again, is forked, or is being deleted."""
        verbs = self.verbs(run)
        self.demand(
            verbs["retry"] or verbs["fork"] or verbs["purge"] or self.is_erased,
            f"history: that of {run} was written anew",
        )
        rows = [(key, record) for key, record in self._memory._records.items() if key.parts[2] == "step"]
        mine = sorted((int(key.parts[4]), CHUNKS.decode(record.value)) for key, record in rows if key.parts[3] == run)
        self._forget(run)
        for position, chunk in mine:
            history = self.events.setdefault(run, [])
            self.demand(position == len(history), f"history: {run} has {len(history)} marks, then one at {position}")
            history.extend(chunk.events)
            for event in chunk.events:
                self._saw_event(run, event)
        self._leaves(run)

    def _forget(self, run: str) -> None:
        """Nothing that was recorded of a run counts any more."""
        self.events.pop(run, None)
        _drop(run, self._recorded, self._tried, self._begun, self._last)
        self._leaves(run)

    def _leaves(self, run: str) -> None:
        """A run is nowhere inside: it has ended, or goes on and has yet to come in again."""
        for place in [each for each in self._inside if each[1] == run]:
            self._inside.discard(place)

    def _saw_grant(self, key: RecordKey) -> None:
        record = self._memory._records.get(key)
        if record is None:
            self._grants.pop(key, None)
            return
        self.demand(record.version > self._grant_fences.get(key, 0), f"fence: that of {key} did not grow")
        self._grant_fences[key] = record.version
        is_mutex = record.value[:STAMP_BYTES].isdigit()
        self._grants[key] = holder_in(record).entry.id if is_mutex else GRANTS.decode(record.value).entry

    def _holds(self, place: str, run: str) -> bool:
        """Tell whether a run holds the lock of a place."""
        return any(entry.startswith(f"{run}:") and LOCK_OF[place] in key.parts for key, entry in self._grants.items())

    def _check_inside(self) -> None:
        """A run that lost the lock of a place, or has ended, is inside no more: only an operator does that to one."""
        for place, run in tuple(self._inside):
            state = self.states.get(run)
            if state is None or state.has_ended or (place in LOCK_OF and not self._holds(place, run)):
                self._inside.discard((place, run))
                excused = self.verbs(run) or place == "bounded"
                self.demand(excused, f"{place}: {run} was inside, and lost it")

    def _check_counted(self, changed: list[tuple[RecordKey, str, tuple[str, ...]]]) -> None:
        """A line counts as many holders as have a record of their own."""
        space = changed[0][0].parts[:2] if changed else ()
        for address in {parts if kind == "line" else parts[1:-1] for _, kind, parts in changed if kind in COUNTED}:
            record = self._memory._records.get(RecordKey(*space, "line", *address))
            said = 0 if record is None else HEADS.decode(record.value).unseen
            held = RecordKey(*space, "held", str(len(address)), *address)
            found = sum(key.startswith(held) for key in self._memory._records)
            self.demand(said == found, f"limit: {address} counts {said}, and {found} are there")

    def _check_owner(self, run: str) -> None:
        owners, state = self._owners.get(run, set()), self.states.get(run)
        self.demand(len(owners) <= 1, f"driver: {run} is driven by {sorted(owners)}")
        self.demand(state is None or {state.owner} - {""} == owners, f"driver: {run} does not say who drives it")

    def _saw_chunk(self, process: Process, key: RecordKey, parts: tuple[str, ...], drivers: set[str]) -> None:
        run, position = parts[0], int(parts[1])
        history, record = self.events.setdefault(run, []), self._memory._records.get(key)
        self.demand(record is not None, f"history: a part of that of {run} was removed")
        self.demand(position == len(history), f"history: {run} has {len(history)} marks, and one was put at {position}")
        mine = any(self.presences.get(each.partition(".")[0]) is process for each in drivers)
        self.demand(mine, f"fence: {process.name} wrote the history of {run}, which it does not drive")
        if record is not None:
            added = CHUNKS.decode(record.value).events
            self.demand(added, f"history: a part of that of {run} is empty")
            history.extend(added)
            for event in added:
                self._saw_event(run, event)

    def _saw_event(self, run: str, event: HistoryEvent) -> None:
        if event.kind in ("cancelled", "lost"):
            self._cancelled.add(event.id)
        if event.kind == "tried":
            self._tried[run, event.id] += 1
        if event.kind == "step":
            word, _, place = event.id.partition(" the ")
            if word == "enter":
                self._inside.add((place, run))
            elif word == "leave":
                self._inside.discard((place, run))
            self.demand((run, event.id) not in self._recorded, f"history: {event.id} of {run} was recorded twice")
            self._recorded[run, event.id] = event

    # --- every step ----------------------------------------------------------------------------------------------

    def begins(self, process: Process, step: CurrentStep) -> None:
        """A step begins: then it is not recorded, and nobody who may still record it has begun it."""
        self.steps += 1
        if self.verbs(step.run_id) and step.fence != self._fences.get(step.run_id):
            self._check_last(process, step)  # its process has not heard yet that the run is no longer its own
            return
        run, attempt = step.run_id, (step.run_id, step.step_id, step.attempt)
        self.demand((run, step.step_id) not in self._recorded, f"again: {step.step_id} of {run} is recorded, and ran")
        self.demand(self._tried[run, step.step_id] < step.attempt, f"again: attempt {attempt} is recorded, and ran")
        self._check_room(step)
        first = self._begun.get(attempt)
        excused = first is None or first.is_dead or {first.name, process.name} & self.shaken
        self.demand(excused, f"again: {attempt} ran twice, and nothing was wrong with {first and first.name}")
        self._begun[attempt] = process
        self._check_last(process, step)

    def _check_room(self, step: CurrentStep) -> None:
        """A step in a place has its lock, and finds room. One step of a block may not know yet that it is gone."""
        run, (word, _, place) = step.run_id, step.step_id.partition(" the ")
        if place in LOCK_OF and not self._holds(place, run):
            self._unheld[run, step.fence, place] += 1
            once = self._unheld[run, step.fence, place] <= 1 and (self.verbs(run) or place == "bounded")
            self.demand(once, f"{place}: {step.step_id} of {run} began without its lock")
        elif word == "enter":
            others = [other for where, other in self._inside if where == place and other != run]
            self.demand(len(others) < self._permits.get(place, 1), f"{place}: {run} came in while {others} was inside")

    def _check_last(self, process: Process, step: CurrentStep) -> None:
        """What was done before in the same branch, by the same process, is recorded before anything else is done."""
        fence = step.fence if self.verbs(step.run_id) else 0
        place = (step.run_id, branch_of(step.step_id), process.name, fence)
        before, self._last[place] = self._last.get(place), step
        if before is None or (before.step_id, before.attempt) == (step.step_id, step.attempt):
            return
        key = (before.run_id, before.step_id)
        recorded = key in self._recorded or self._tried[key] >= before.attempt or before.step_id in self._cancelled
        self.demand(recorded, f"order: {step.step_id} of {step.run_id} began before {before.step_id} was recorded")

    # --- the end -------------------------------------------------------------------------------------------------

    def taken(self, run: str, kind: str) -> list[Any]:
        """Return what a run took from outside, as its history says."""
        values = [event.value for event in self.events.get(run, []) if event.kind == kind and event.until is None]
        return [msgspec.json.decode(value) for value in values if value]

    def rows(self, *kinds: str) -> list[str]:
        """Return what is left in the store of these kinds."""
        now = self._memory.now()
        rows = self._memory._records.items()
        return [str(key) for key, record in rows if key.parts[2] in kinds and not record.is_expired(now)]


def _drop(run: str, *noted: dict[Any, Any]) -> None:
    """Forget what was noted of a run."""
    for each in noted:
        for known in [key for key in each if key[0] == run]:
            del each[known]

"""What must be true of executions and records, whatever was killed: checked from the ledger and the final store."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias, final

from msgspec import Struct

from standfast.workflows.records import effect_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from standfast import Engine
    from standfast.workflows.queries import HistoryEntry
    from standfast.workflows.schedules.schedules import ScheduleInfo
    from tests.integration.workflows.ledger import Entry

Attempt: TypeAlias = tuple[str, int]
"""The idempotency key of a step, and which attempt."""

INTERRUPTED: Final = "StepInterruptedError"

STEPS_IN_LOCK: Final = 2
"""How many steps a run takes each time that it holds the lock."""


class Found(Struct, frozen=True):
    """What was found.

    Attributes:
        attempts: How many attempts of steps were executed.
        duplicates: How many of them were executed again, because of a kill, a lost lease or a fault.
        interrupted: How many at-most-once steps were given up, for the same reasons.
        late: How many executions came from workers that had lost their lease and did not know yet.
        problems: What must not be.
    """

    attempts: int
    duplicates: int
    interrupted: int
    late: int
    problems: tuple[str, ...]


@final
class Excuses:
    """From when on a worker's work may be done again: it was killed or stopped, or the store could not be reached.

    Where a death cannot be seen, a worker that stands still for longer than its lease is taken for dead: it tells of
    it, perhaps long after that.
    """

    def __init__(self, ledger: Iterable[Entry]) -> None:
        self._since: dict[int, float] = {}
        self._everybody = float("inf")
        for entry in ledger:
            if entry.what in ("kill", "stop"):
                self._since.setdefault(entry.pid, entry.at)
            elif entry.what == "event" and entry.name == "PresenceLost":
                self._since.setdefault(entry.pid, float("-inf"))
            elif entry.what == "fault":
                self._everybody = min(self._everybody, entry.at)

    def has(self, pid: int, at: float = float("inf")) -> bool:
        """Tell whether what a process was doing may be done again, at that time."""
        return min(self._since.get(pid, float("inf")), self._everybody) < at


def in_time(ledger: Iterable[Entry], excuses: Excuses) -> list[Entry]:
    """Leave out what was done by an excused worker after its run had been taken over: its records are refused."""
    fences: dict[str, int] = defaultdict(int)
    kept: list[Entry] = []
    for entry in ledger:
        run = entry.key.partition(":")[0]
        if entry.fence >= fences[run] or not excuses.has(entry.pid, entry.at):
            kept.append(entry)
        fences[run] = max(fences[run], entry.fence)
    return kept


async def records_of(engine: Engine) -> dict[Attempt, str]:
    """Return what the histories of all runs say: which execution each attempt of a step is recorded with."""
    recorded: dict[Attempt, str] = {}
    after: str | None = None
    while True:
        page = await engine.list(limit=500, after=after)
        for run in page.runs:
            recorded |= _records(run.id, await engine.history(run.id))
        if (after := page.next) is None:
            return recorded


def _records(run_id: str, history: Iterable[HistoryEntry]) -> dict[Attempt, str]:
    recorded: dict[Attempt, str] = {}
    tried: dict[str, int] = defaultdict(int)
    for entry in history:
        if entry.kind in ("step", "tried"):
            tried[entry.id] += 1
            said = str(entry.value) if entry.failure is None else f"{entry.failure.type} {entry.failure.message}"
            recorded[effect_key("default", "default", run_id, 1, entry.id), tried[entry.id]] = said
    return recorded


def check(ledger: Iterable[Entry], recorded: Mapping[Attempt, str]) -> Found:
    """Check every attempt of every step: executed again only with an excuse, and never once it was recorded."""
    ledger = list(ledger)
    excuses = Excuses(ledger)
    begun: dict[Attempt, list[Entry]] = defaultdict(list)
    kept = in_time(ledger, excuses)
    for entry in kept:
        if entry.what == "begin":
            begun[entry.key, entry.attempt].append(entry)
    problems = [problem for each, runs in begun.items() for problem in _problems(runs, recorded.get(each), excuses)]
    made_up = [each for each, record in recorded.items() if each not in begun and INTERRUPTED not in record]
    problems += [f"{each} is recorded and was never executed" for each in made_up]
    return Found(
        len(begun),
        sum(len(runs) - 1 for runs in begun.values()),
        sum(INTERRUPTED in record for record in recorded.values()),
        _beginnings(ledger) - _beginnings(kept),
        tuple(problems),
    )


def _beginnings(ledger: Iterable[Entry]) -> int:
    return sum(entry.what == "begin" for entry in ledger)


def _problems(runs: list[Entry], record: str | None, excuses: Excuses) -> Iterable[str]:
    last = runs[-1]
    name = f"{last.key}, attempt {last.attempt}"
    if last.name == "once" and len(runs) > 1:
        yield f"{name} was executed {len(runs)} times, and is to be executed at most once"
    if record is not None and INTERRUPTED in record:
        if last.name != "once" or not excuses.has(last.pid):
            yield f"{name} is said to be interrupted, and {last.pid} was not killed"
    elif record is None:
        yield f"{name} was executed and is not recorded"
    elif last.nonce not in record:
        yield f"{name} was executed again after it was recorded"
    for one, after in pairwise(runs):
        if not excuses.has(one.pid, after.at):
            yield f"{name} was executed again by {after.pid} while {one.pid}, that had executed it, was alive"
        if one.fence >= after.fence:
            yield f"{name} was executed again with fence {after.fence}, after {one.fence}"


def check_locks(ledger: Iterable[Entry]) -> list[str]:
    """Check that no two runs were inside the lock: from the first step of one in it to its last there is no other."""
    ledger = list(ledger)
    sections: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    for entry in in_time(ledger, Excuses(ledger)):
        run, _, step = entry.key.partition(":")
        name, _, number = step.partition("#")
        if name == "locked_work":
            sections[run, (int(number or 1) - 1) // STEPS_IN_LOCK].append(entry)
    ordered = sorted(sections.items(), key=lambda section: section[1][0].at)
    return [
        f"{two} came in while {one} was inside, at {came[0].at}"
        for (one, was), (two, came) in pairwise(ordered)
        if was[-1].at > came[0].at
    ]


async def check_ticks(engine: Engine, info: ScheduleInfo) -> None:
    """Check that ticks lie a second apart, without a gap but for those that are counted as missed."""
    page = await engine.list(limit=10_000)
    found = [run.id.rpartition("@")[2] for run in page.runs if run.id.startswith(f"{info.id}@")]
    ticks = sorted(map(datetime.fromisoformat, found))
    gaps = sum(round((later - earlier).total_seconds()) - 1 for earlier, later in pairwise(ticks))
    assert (len(ticks), info.refused, info.skipped) == (info.started, 0, 0)
    if info.backfill:
        assert (gaps, info.missed) == (0, 0)
    else:
        assert gaps <= info.missed


def check_lanes(ledger: Iterable[Entry]) -> list[str]:
    """Check that the runs of each lane were driven one after another, in the order of their numbers."""
    ledger = list(ledger)
    seen: dict[str, int] = defaultdict(int)
    problems: list[str] = []
    for entry in in_time(ledger, Excuses(ledger)):
        lane, _, number = entry.name.partition(" ")
        if entry.what == "begin" and number:
            if int(number) not in (seen[lane], seen[lane] + 1):
                problems.append(f"number {number} of {lane} had its turn after {seen[lane]}")
            seen[lane] = int(number)
    return problems

"""What must be true of executions and records, whatever was killed: checked from the ledger and the final store."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from holdfast.stores import Put, Worked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast import Engine, Space
    from holdfast.stores.sqlite.work import SqlWork
    from holdfast.workflows.operating.information import HistoryEntry
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
        duplicates: How many of them were executed again, because of a kill.
        interrupted: How many at-most-once steps were given up, because of a kill.
        problems: What must not be.
    """

    attempts: int
    duplicates: int
    interrupted: int
    problems: tuple[str, ...]


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
            recorded[f"{run_id}:{entry.id}", tried[entry.id]] = said
    return recorded


def check(ledger: Iterable[Entry], recorded: Mapping[Attempt, str]) -> Found:
    """Check every attempt of every step: executed again only after a kill, and never once it was recorded."""
    begun: dict[Attempt, list[Entry]] = defaultdict(list)
    killed_at: dict[int, float] = {}
    for entry in ledger:
        if entry.what == "begin":
            begun[entry.key, entry.attempt].append(entry)
        elif entry.what == "kill":
            killed_at[entry.pid] = entry.at
    problems = [problem for each, runs in begun.items() for problem in _problems(runs, recorded.get(each), killed_at)]
    made_up = [each for each, record in recorded.items() if each not in begun and INTERRUPTED not in record]
    problems += [f"{each} is recorded and was never executed" for each in made_up]
    return Found(
        len(begun),
        sum(len(runs) - 1 for runs in begun.values()),
        sum(INTERRUPTED in record for record in recorded.values()),
        tuple(problems),
    )


def _problems(runs: list[Entry], record: str | None, killed_at: Mapping[int, float]) -> Iterable[str]:
    last = runs[-1]
    name = f"{last.key}, attempt {last.attempt}"
    if last.name == "once" and len(runs) > 1:
        yield f"{name} was executed {len(runs)} times, and is to be executed at most once"
    if record is not None and INTERRUPTED in record:
        if last.name != "once" or last.pid not in killed_at:
            yield f"{name} is said to be interrupted, and {last.pid} was not killed"
    elif record is None:
        yield f"{name} was executed and is not recorded"
    elif last.nonce not in record:
        yield f"{name} was executed again after it was recorded"
    for one, after in pairwise(runs):
        if killed_at.get(one.pid, float("inf")) > after.at:
            yield f"{name} was executed again by {after.pid} while {one.pid}, that had executed it, was alive"
        if one.fence >= after.fence:
            yield f"{name} was executed again with fence {after.fence}, after {one.fence}"


def check_locks(ledger: Iterable[Entry]) -> list[str]:
    """Check that no two runs were inside the lock: from the first step of one in it to its last there is no other."""
    sections: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    for entry in ledger:
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


async def paid_twice(space: Space) -> list[tuple[object, ...]]:
    """Return what was written more than once to the table that transactions write to."""

    def look(sql: SqlWork) -> list[tuple[object, ...]]:
        if not sql.execute("SELECT 1 FROM sqlite_master WHERE name = 'payments'"):
            return []
        return list(sql.execute("SELECT name, count(*) FROM payments GROUP BY name HAVING count(*) > 1"))

    answer = await space.commit_with(look, Put(space.key("looked"), b""))
    assert isinstance(answer, Worked)
    return answer.answer

"""One look at everything: the store, the workers, the runs, the lines, and what needs a person.

It is what an operator asks first, and what a monitor asks again and again. So it reads a bounded number of records,
however much is stored: what it counts it counts up to a bound, and what it looks through it looks through from the
front. Nothing is changed by looking.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from msgspec import Struct

from standfast.clock import Instant, later, seconds_between
from standfast.durations import seconds
from standfast.errors import StandfastError
from standfast.locks.inspect import arguments_of, counted, length, one_line
from standfast.locks.survey import LineInfo, find_circles, read_lines
from standfast.stores.encryption import EncryptedStore
from standfast.stores.group_commit import GroupedStore
from standfast.stores.protocol import Decision, Put
from standfast.workflows.fleet import WorkerInfo, list_workers
from standfast.workflows.records import ENDED, RUN_STATES, RunState
from standfast.workflows.run_index import STATUSES, RunCount, RunFilter, count_runs, list_runs
from standfast.workflows.runtime import ready_for
from standfast.workflows.schedules.schedules import info_of
from standfast.workflows.schedules.spec import STORED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from standfast.durations import Duration
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot
    from standfast.workflows.runtime import Runtime

MOST_WORKERS: Final = 1_000
MOST_READY: Final = 500
"""How many runs that are ready are looked at."""

MOST_SCHEDULES: Final = 1_000
MOST_ENDED: Final = 5_000
"""How many runs that ended in the last minute are counted."""

EXAMPLES: Final = 5
"""How many of each kind are named."""

OVERDUE: Final = 60.0
"""Seconds after which a run that is ready, and that no worker takes up, is overdue."""

LATELY: Final = 86_400.0
PATIENCE: Final = 600.0

WRITES_WITHIN: Final = 2.0
"""Seconds that the store has to write something."""

PROBE: Final = b"{}" + b" " * 4_000
"""What is written to find out if the store writes: about as much as a usual commit."""

_MINUTE: Final = 60.0
_PAGE: Final = 100

ConcernKind: TypeAlias = Literal[
    "refused-writes",
    "no-worker",
    "dead-workers",
    "no-code",
    "misfit-runs",
    "overdue-runs",
    "failed-runs",
    "quarantined-runs",
    "late-schedules",
    "stopped-schedules",
    "circles",
    "long-waits",
]
"""What can need a person, in the order in which it is told."""


class StoreInfo(Struct, frozen=True):
    """The store.

    Attributes:
        backend: What it is: ``sqlite``, ``postgresql``.
        address: Which, without secrets; empty if only the space is known.
        round_trip: Seconds that a read took.
        size: Bytes that it takes, where that is known; None: it is not.
        records: About how many records a server says that it has; None: it does not say.
    """

    backend: str
    address: str
    round_trip: float
    size: int | None = None
    records: int | None = None


class Concern(Struct, frozen=True):
    """Something that needs a person.

    Attributes:
        kind: What.
        words: That in a sentence.
        count: How many there are; if :attr:`has_more` is true, at least that number.
        has_more: Whether there may be more than were counted.
        examples: Some of them: ids of runs, workers and schedules, keys of lines.
        command: What to type next, after ``standfast``.
    """

    kind: ConcernKind
    words: str
    count: int
    has_more: bool = False
    examples: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


class Overview(Struct, frozen=True):
    """How everything in a namespace and tenant is. Get it from ``await engine.overview()``.

    Attributes:
        at: When, by the store's time.
        namespace: Where.
        tenant: Whose.
        store: The store.
        workers: The processes that drive runs.
        runs: How many runs there are by status.
        ready: How many runs wait for a worker, or have news that one is to take.
        ended: How many runs have ended in the last minute.
        lines: The lines that are waited for longest, the longest first.
        more_lines: Whether there are lines that were not looked at.
        concerns: What needs a person; empty: all is well.
    """

    at: Instant
    namespace: str
    tenant: str
    store: StoreInfo
    workers: tuple[WorkerInfo, ...]
    runs: dict[str, RunCount]
    ready: RunCount
    ended: RunCount
    lines: tuple[LineInfo, ...] = ()
    more_lines: bool = False
    concerns: tuple[Concern, ...] = ()


async def overview(runtime: Runtime, address: str, lately: Duration, patience: Duration, most: int) -> Overview:
    """Look at everything."""
    scope, clock = runtime.space, runtime.clock
    since, longest = seconds(lately, what="lately"), seconds(patience, what="patience")
    began = clock.elapsed()
    at = (await scope.read(scope.key("worker"))).at
    took = seconds_between(began, clock.elapsed())
    runtime.saw(at)
    workers = await list_workers(scope, limit=MOST_WORKERS)
    runs = {
        status: await count_runs(scope, RunFilter(status=frozenset({status})), most=most) for status in sorted(STATUSES)
    }
    ready, states = await _ready(scope, most)
    lines = await read_lines(scope, waiting=True)
    waits = sorted(lines.lines, key=lambda line: -(line.waited or 0.0))
    silent = any(worker.silent_for is None or worker.silent_for > runtime.space.lease / 2 for worker in workers)
    refused = await refused_writes(scope, is_suspected=silent)
    late = RunFilter(status=ENDED, ended_after=later(at, -_MINUTE))
    found = [
        *(_of_refused(refused) if refused else _of_workers(workers, ready)),
        *_of_misfits(states, at, is_all=ready.number <= MOST_READY),
        *_of_ready(states, workers, at, is_all=ready.number <= MOST_READY),
        *await _of_ended(scope, at, since, most),
        *_of_quarantined(runs["quarantined"], await _names(scope, RunFilter(status=frozenset({"quarantined"})))),
        *await _of_schedules(scope),
        *await _of_circles(scope),
        *_of_waits(waits, longest, is_all=not lines.more),
    ]
    return Overview(
        at,
        scope.namespace,
        scope.tenant,
        StoreInfo(scope.store.capabilities.backend, address, took, *await _size(scope)),
        workers,
        runs,
        ready,
        await count_runs(scope, late, most=MOST_ENDED),
        tuple(waits[:EXAMPLES]),
        lines.more,
        tuple(found),
    )


async def refused_writes(scope: Scope, *, is_suspected: bool = False) -> str:
    """Return why the store refuses writes; empty: it takes them, as far as is known.

    It is tried only if the last transaction of this process failed, or something else lets it be suspected. What is
    written then is gone by itself after a minute.
    """
    store = scope.store
    problem = store.write_problem if isinstance(store, (GroupedStore, EncryptedStore)) else None
    if problem is None and not is_suspected:
        return ""
    key = scope.key("probe")

    def write(seen: Snapshot) -> Decision[None]:
        return Decision(None, (Put(key, PROBE, seen.version(key), later(seen.at, _MINUTE)),))

    try:
        async with asyncio.timeout(WRITES_WITHIN):
            await scope.update([key], write)
    except (StandfastError, TimeoutError) as refused:
        return (
            str(refused) or f"a write is not answered within {WRITES_WITHIN:g} s; is a replica away that it waits for?"
        )
    return ""


async def _size(scope: Scope) -> tuple[int | None, int | None]:
    """Return the bytes and the records of the store, as far as they are known."""
    store = scope.store
    if not isinstance(store, GroupedStore):
        return None, None
    if (size := store.size()) is not None:
        return size.size, None
    told = await store.measure()
    return (None, None) if told is None else (told.size, told.records)


# --- workers, and runs that wait for one ----------------------------------------------------------------------------


async def _ready(scope: Scope, most: int) -> tuple[RunCount, dict[str, RunState]]:
    """Count the runs that are ready, and read the first of them."""
    names: list[str] = []
    start, end = scope.key("ready").within()
    while len(names) <= most:
        page = await scope.scan(start, end, limit=min(500, most + 1 - len(names)))
        names += [key.parts[-1] for key in page.records]
        if page.more is None:
            break
        start = page.more
    states: dict[str, RunState] = {}
    size = scope.at_most(_PAGE)
    for first in range(0, min(len(names), MOST_READY), size):
        keys = {name: scope.key("life", name) for name in names[first : first + size]}
        seen = await scope.read(*keys.values())
        states |= {name: RUN_STATES.decode(seen.records[key].value) for name, key in keys.items() if seen.version(key)}
    return RunCount(min(len(names), most), has_more=len(names) > most), states


def _of_refused(problem: str) -> Iterable[Concern]:
    """Yield that the store refuses writes; then it is not known which workers live, as they cannot say so."""
    words = f"the store refuses writes: nothing continues, and workers cannot renew their presence: {one_line(problem)}"
    yield Concern("refused-writes", words, 1)


def _of_workers(workers: Collection[WorkerInfo], ready: RunCount) -> Iterable[Concern]:
    dead = [worker for worker in workers if not worker.is_alive]
    if ready.number and len(dead) == len(workers):
        words = f"no worker is there, and {_runs(ready)} {'waits' if str(ready) == '1' else 'wait'} for one"
        yield Concern("no-worker", words, ready.number, ready.has_more, command=("worker", "MODULE:ENGINE"))
    if dead:
        left = sum(worker.runs for worker in dead)
        names = tuple(f"{worker.id} ({worker.host}, process {worker.process})" for worker in dead[:EXAMPLES])
        words = f"{counted(len(dead), 'worker')} died, with {counted(left, 'run')} to be taken over by another one"
        yield Concern("dead-workers", words, len(dead), examples=names, command=("workers",))


def _of_ready(
    states: dict[str, RunState], workers: Collection[WorkerInfo], at: Instant, *, is_all: bool
) -> Iterable[Concern]:
    alive = [worker for worker in workers if worker.is_alive]
    if not alive or not all(worker.is_whole for worker in alive):
        return
    known = {each for worker in alive for each in worker.workflows}
    free = {run: state for run, state in states.items() if not state.owner and not state.has_ended}
    waiting = {run: state for run, state in free.items() if not state.is_misfit}
    unknown = {run: state for run, state in waiting.items() if (state.workflow, state.version) not in known}
    if unknown:
        names = sorted({_named(state) for state in unknown.values()})
        code = ", ".join(names[:EXAMPLES])
        words = f"no worker has the code of {code}: {counted(len(unknown), 'run')} cannot continue"
        yield Concern(
            "no-code", words, len(unknown), not is_all, tuple(unknown)[:EXAMPLES], ("runs", "show", next(iter(unknown)))
        )
    ages = {run: seconds_between(state.changed_at, at) for run, state in waiting.items() if run not in unknown}
    overdue = sorted((run for run, age in ages.items() if age > OVERDUE), key=lambda run: -ages[run])
    if overdue:
        oldest = length(ages[overdue[0]])
        words = f"{counted(len(overdue), 'run')} waited more than {length(OVERDUE)} for a worker, the first {oldest}"
        yield Concern("overdue-runs", words, len(overdue), not is_all, tuple(overdue[:EXAMPLES]), ("workers",))


def _of_misfits(states: dict[str, RunState], at: Instant, *, is_all: bool) -> Iterable[Concern]:
    """Tell of runs that workers have taken up and could not drive: their code is there, and does not fit."""
    ages = {run: ready_for(state, at) or 0.0 for run, state in states.items() if state.is_misfit}
    if ages:
        found = sorted(ages, key=lambda run: -ages[run])
        first = states[found[0]]
        words = (
            f"the code of no worker that tried fits {counted(len(found), 'run')}: {_named(first)}"
            f" {one_line(found[0])} waits for {one_line(first.waits_for)}, since {length(ages[found[0]])};"
            " start a worker with its code, or end it with runs cancel --force"
        )
        yield Concern("misfit-runs", words, len(found), not is_all, tuple(found[:EXAMPLES]), ("runs", "show", found[0]))


def _named(state: RunState) -> str:
    return one_line(f"{state.workflow}@{state.version}" if state.version else state.workflow)


# --- runs that ended badly ------------------------------------------------------------------------------------------


async def _names(scope: Scope, chosen: RunFilter) -> tuple[str, ...]:
    return tuple(run.id for run in (await list_runs(scope, chosen, newest_first=True, limit=EXAMPLES)).runs)


async def _of_ended(scope: Scope, at: Instant, since: float, most: int) -> Iterable[Concern]:
    chosen = RunFilter(status=frozenset({"failed", "timed_out"}), ended_after=later(at, -since))
    count = await count_runs(scope, chosen, most=most)
    if not count.number:
        return ()
    words = f"{_runs(count)} failed in the last {length(since)}"
    command = ("runs", "list", "--status", "failed", "--status", "timed_out", "--newest-first")
    return (Concern("failed-runs", words, count.number, count.has_more, await _names(scope, chosen), command),)


def _of_quarantined(count: RunCount, names: tuple[str, ...]) -> Iterable[Concern]:
    if count.number:
        words = f"{_runs(count)} quarantined: workers died with {'it' if str(count) == '1' else 'them'}"
        command = ("runs", "list", "--status", "quarantined")
        yield Concern("quarantined-runs", words, count.number, count.has_more, names, command)


# --- schedules ------------------------------------------------------------------------------------------------------


async def _of_schedules(scope: Scope) -> Iterable[Concern]:
    late: list[str] = []
    stopped: dict[str, str] = {}
    page = await scope.scan(*scope.key("schedule").within(), limit=MOST_SCHEDULES)
    for key, record in page.records.items():
        name, stored = key.parts[-1], STORED.decode(record.value)
        if stored.is_deleted:
            continue
        if stored.lacks:
            stopped[name] = stored.lacks
        elif info_of(name, stored).is_late(page.at):
            late.append(name)
    more, found = page.more is not None, list[Concern]()
    if late:
        words = f"{counted(len(late), 'schedule')} late: no worker fires {'it' if len(late) == 1 else 'them'}"
        found.append(
            Concern("late-schedules", words, len(late), more, tuple(late[:EXAMPLES]), ("schedules", "show", late[0]))
        )
    if stopped:
        first = next(iter(stopped))
        words = f"{counted(len(stopped), 'schedule')} paused, as something is not there: {one_line(stopped[first])}"
        names = tuple(stopped)[:EXAMPLES]
        found.append(Concern("stopped-schedules", words, len(stopped), more, names, ("schedules", "show", first)))
    return found


# --- lines ----------------------------------------------------------------------------------------------------------


async def _of_circles(scope: Scope) -> Iterable[Concern]:
    found = await find_circles(scope)
    if not found.circles:
        return ()
    words = f"{counted(len(found.circles), 'circle')} of owners wait for each other: {'; '.join(found.circles[0])}"
    examples = tuple("; ".join(circle) for circle in found.circles[:EXAMPLES])
    return (Concern("circles", one_line(words), len(found.circles), found.more, examples, ("locks", "list")),)


def _of_waits(waits: Collection[LineInfo], longest: float, *, is_all: bool) -> Iterable[Concern]:
    long = [line for line in waits if (line.waited or 0.0) > longest]
    if long:
        first = long[0]
        many = f"{counted(len(long), 'line')} with a wait of more than {length(longest)}"
        words = (
            f"{many}: {one_line(first.key)}, {length(first.waited or 0.0)}, held by {one_line(first.holder) or 'none'}"
        )
        names = tuple(line.key for line in long[:EXAMPLES])
        yield Concern("long-waits", words, len(long), not is_all, names, _look_at(first))


def _look_at(line: LineInfo) -> tuple[str, ...]:
    """Return the command that shows a line."""
    if line.kind == "limit":
        return ("limits", "show", *arguments_of(line.address[1]))
    if line.kind == "schedule":
        return ("schedules", "show", *arguments_of(line.address[1]))
    _, family, *parts = line.address
    return ("locks", "explain", *(("--family", family) if family else ()), *arguments_of(*parts))


def _runs(count: RunCount) -> str:
    return f"{count} {'run' if str(count) == '1' else 'runs'}"

"""The first screen and that of the store: what needs a person, how much gets done, and how the store grows."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, final
from weakref import WeakKeyDictionary

from standfast.clock import MICROSECONDS, Instant, later, seconds_between
from standfast.locks.inspect import length, one_line
from standfast.locks.line_history import lost_holds
from standfast.stores.group_commit import GroupedStore
from standfast.web.dashboard.bulk import list_work
from standfast.web.dashboard.diagrams import sparkline
from standfast.workflows.engine import retention_of
from standfast.workflows.records import ENDED
from standfast.workflows.run_index import RunFilter, count_runs

if TYPE_CHECKING:
    from starlette.responses import Response

    from standfast.scope import Scope
    from standfast.space import Space
    from standfast.web.dashboard.pages import View
    from standfast.workflows.run_index import RunCount

MINUTES: Final = 30
"""Over how many minutes the throughput is drawn."""

AT_ONCE: Final = 2
"""How many past minutes are counted for one page: the others are, when it is drawn again."""

MOST_A_MINUTE: Final = 1_000
"""Up to how many runs of a minute are counted."""

MOST_LOST: Final = 200
"""How many lines are searched for leases that were lost."""

MOST_WORK: Final = 20
LATELY: Final = 86_400.0
_MINUTE: Final = 60 * MICROSECONDS


# --- throughput -------------------------------------------------------------------------------------------------------


@final
class Throughput:
    """How many runs ended in each of the last minutes. What is over does not change, so it is counted once."""

    def __init__(self) -> None:
        self._counts: Final[OrderedDict[int, RunCount]] = OrderedDict()

    async def read(self, scope: Scope, now: Instant) -> list[RunCount | None]:
        """Return the count of each minute, the oldest first; None where it is not known yet."""
        this = now // _MINUTE
        asked = 0
        for minute in range(this, this - MINUTES, -1):
            if minute in self._counts and minute < this - 1:  # the last one may have been counted before its end
                continue
            if asked > AT_ONCE:
                break
            asked += 1
            start, end = Instant(minute * _MINUTE), Instant((minute + 1) * _MINUTE)
            chosen = RunFilter(status=ENDED, ended_after=start, ended_before=end)
            self._counts[minute] = await count_runs(scope, chosen, most=MOST_A_MINUTE)
        while len(self._counts) > 2 * MINUTES:
            self._counts.pop(min(self._counts))
        return [self._counts.get(minute) for minute in range(this - MINUTES + 1, this + 1)]


# --- the first screen -------------------------------------------------------------------------------------------------

_measured: Final[WeakKeyDictionary[Space, Throughput]] = WeakKeyDictionary()


def _link(view: View, kind: str, name: str) -> tuple[str, str]:
    """Return a link to an example of what needs a person: its name, and the page that shows it."""
    if kind.endswith(("-runs", "no-code")):
        return name, view.url("run", id=name)
    places = {"late-schedules": "schedules", "stopped-schedules": "schedules", "dead-workers": "workers"}
    return name, view.url(places.get(kind, "lines"), **({"prefix": name} if kind == "long-waits" else {}))


async def now(view: View) -> Response:
    """Show what needs a person, who works, how much gets done, and who waits longest."""
    engine = view.engine
    told = await engine.overview(most=100)
    concerns = [
        (each.words, [_link(view, each.kind, name) for name in each.examples], _all_of(view, each.kind))
        for each in told.concerns
    ]
    lost = await lost_holds(engine.space, later(told.at, -LATELY), most=MOST_LOST)
    if lost:
        first = lost[0]
        ago = length(max(0.0, seconds_between(first.hold.ended_at, told.at)))
        words = f"{len(lost):,} {'lease was' if len(lost) == 1 else 'leases were'} lost in the last day; the last one "
        words += f"{ago} ago: {one_line(first.key)}, {first.hold.end}"
        links = {each.key: view.url("line", at=list(each.address)) for each in lost[:5]}
        concerns.append((words, list(links.items()), ""))
    for name, each in await list_work(engine.space, MOST_WORK):
        if each.state == "cut off" and seconds_between(each.began_at, told.at) < LATELY:
            words = f"work on many runs was cut off: {each.seen:,} of {each.count} were {each.done_word}"
            concerns.append((words, [("do the rest", view.url("bulk", id=name))], ""))
    counts = await _measured.setdefault(engine.space, Throughput()).read(engine.space, told.at)
    return view.page(
        "now.html",
        counts=told.runs,
        alive=sum(worker.is_alive for worker in told.workers),
        concerns=concerns,
        waits=told.lines[:8],
        more_lines=told.more_lines,
        store=told.store,
        ended=told.ended,
        ready=told.ready,
        spark=sparkline([None if each is None else each.number for each in counts]),
        most=max((each.number for each in counts if each is not None), default=0),
        done_lately=sum(each.number for each in counts if each is not None),
        minutes=MINUTES,
    )


def _all_of(view: View, kind: str) -> str:
    """Return the page that lists all of a kind of what needs a person; empty: there is none."""
    if kind == "failed-runs":
        return view.url("runs", status="failed", ended_after="1 day")
    return view.url("runs", status="quarantined") if kind == "quarantined-runs" else ""


# --- the store --------------------------------------------------------------------------------------------------------

KINDS: Final = {
    "life": "runs",
    "step": "chunks of histories",
    "line": "lines in use",
    "held": "runs that hold a place of a large limit",
    "ticket": "waiters",
    "request": "requests",
    "schedule": "schedules",
    "worker": "workers",
    "past": "lines with a history",
    "audit": "entries of the audit",
}
MOST_RECORDS: Final = 200
"""Up to how many records of a kind are counted."""

MOST_WHOLE: Final = 20_000
"""Up to how many records of all kinds and tenants are counted."""

SAMPLES: Final = 120
_sizes: Final[WeakKeyDictionary[GroupedStore, deque[tuple[Instant, int]]]] = WeakKeyDictionary()


async def store(view: View) -> Response:
    """Show how large the store is, what is in it, how it grows, and for how long it is kept."""
    engine, space = view.engine, view.engine.space
    told = await engine.overview(most=100)
    backend = space.store
    size = backend.size() if isinstance(backend, GroupedStore) else None
    samples: list[tuple[Instant, int]] = []
    if size is not None and isinstance(backend, GroupedStore):
        kept = _sizes.setdefault(backend, deque(maxlen=SAMPLES))
        if not kept or told.at - kept[-1][0] >= 10 * MICROSECONDS:
            kept.append((told.at, size.size))
        samples = list(kept)
    whole = backend.count(MOST_WHOLE) if isinstance(backend, GroupedStore) else None
    counts = await asyncio.gather(*(_count(space, kind) for kind in KINDS))
    ages: dict[str, RunCount] = {}
    for name, seconds in _AGES.items():
        lately = RunFilter(status=ENDED, ended_after=later(told.at, -seconds))
        ages[name] = await count_runs(space, lately, most=MOST_RECORDS)
    grown = None
    if len(samples) > 1:
        took = seconds_between(samples[0][0], samples[-1][0])
        grown = (samples[-1][1] - samples[0][1], took)
    return view.page(
        "store.html",
        store=told.store,
        size=size,
        whole=whole,
        whole_most=MOST_WHOLE,
        counts=[(KINDS[kind], count) for kind, count in zip(KINDS, counts, strict=True)],
        ages=ages,
        runs={name: told.runs[name] for name in sorted(ENDED)},
        samples=sparkline([each for _, each in samples]),
        grown=grown,
        retention=_retention(view),
        capabilities=backend.capabilities,
    )


_AGES: Final = {"the last minute": 60.0, "the last hour": 3_600.0, "the last day": 86_400.0, "the last week": 604_800.0}


async def _count(scope: Scope, kind: str) -> str:
    page = await scope.scan(*scope.key(kind).within(), limit=MOST_RECORDS)
    return f"{len(page.records):,}{'+' if page.more is not None else ''}"


def _retention(view: View) -> list[tuple[str, str]] | None:
    """Return for how long runs are kept, if this process deletes them; None: it does not, and workers may."""
    kept = retention_of(view.engine)
    if kept is None:
        return None
    named = {each: getattr(kept, each) for each in ("completed", "failed", "cancelled", "timed_out")}
    shown = {**named, **{f"of {one_line(name)}": value for name, value in kept.workflows.items()}}
    return [(name.replace("_", " "), "for ever" if value is None else str(value)) for name, value in shown.items()]

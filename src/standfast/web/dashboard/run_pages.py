"""The screens of runs: a list by what the address asks for, one run, two compared, and one as a test to paste."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import msgspec
from msgspec import Struct, structs
from starlette.responses import Response

from standfast.clock import MICROSECONDS
from standfast.errors import ForbiddenError, RunNotFoundError
from standfast.flows.bulk import COUNTED, RETRIED, SHOWN
from standfast.locks.inspect import moment, one_line
from standfast.web.dashboard.access import PageError
from standfast.web.dashboard.bulk import BulkCount, bulk_named, list_work, read_work
from standfast.web.dashboard.diagrams import LOCKS, MOST_ROWS, draw, stretches_of
from standfast.web.dashboard.values import failure_of, masked, moment_in, number_in, shown
from standfast.workflows.parallel import id_of
from standfast.workflows.queries import HistoryEntry, entry_of, info_of
from standfast.workflows.records import CHUNKS, ENDED, HistoryEvent, RunKeys, Status, events_of, find
from standfast.workflows.run_index import chosen_by
from standfast.workflows.saved_history import read_saved
from standfast.workflows.timeline import WAITS, SpanKind, timeline_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from standfast.scope import Scope
    from standfast.web.dashboard.pages import View
    from standfast.workflows.queries import RunInfo

PAGE: Final = 50
MOST_CHILDREN: Final = 20
MOST_COUNTED: Final = 100
"""Up to how many runs of each status are counted: a count costs as much as it counts."""

MOST_COMPARED: Final = 5_000
"""How many entries of each history are compared."""

MOST_TEXT: Final = 200_000
"""How many characters of a test are shown on its page; the file has all."""

LONG: Final = 1_000
"""How many entries a history has that is drawn as a whole; of a longer one a part is read, and drawn."""

PART: Final = 150
"""How many entries of a long history are read and drawn: fewer than rows can be, as what is open has rows too."""

STATUSES: Final = cast("tuple[str, ...]", get_args(Status))
TIMES: Final = ("started_after", "started_before", "ended_after", "ended_before")


# --- the list ---------------------------------------------------------------------------------------------------------


class ChosenRuns(Struct, frozen=True):
    """Which runs an address asks for.

    Attributes:
        given: What it says, by name, as texts; what is empty is not said.
        filters: The same, as an engine takes it.
    """

    given: dict[str, str]
    filters: dict[str, Any]


def chosen_in(query: Mapping[str, str], now: int) -> ChosenRuns:
    """Return which runs an address asks for; refuse what cannot be meant."""
    names = ("status", "workflow", "tag", *TIMES)
    given = {name: query.get(name, "").strip() for name in names if query.get(name, "").strip()}
    if given.get("status", STATUSES[0]) not in STATUSES:
        raise PageError(400, "This address is not right", "There is no such status.", f"Try {', '.join(STATUSES)}.")
    filters: dict[str, Any] = {name: given[name] for name in names[:3] if name in given}
    return ChosenRuns(
        given, filters | {name: moment_in(given[name], name.replace("_", " "), now) for name in TIMES if name in given}
    )


async def runs(view: View) -> Response:
    """Show runs by what the address asks for, in the order of time."""
    query = view.query
    if found := query.get("id", ""):
        return await run(view, run_id=found)
    chosen = chosen_in(query, view.now)
    is_oldest = query.get("order") == "oldest"
    page = await view.engine.list(
        newest_first=not is_oldest, limit=PAGE, after=query.get("after") or None, **chosen.filters
    )
    others = {name: value for name, value in chosen.filters.items() if name != "status"}
    counts: dict[str, object] = dict.fromkeys(STATUSES, "")
    if chosen_by(**others).is_indexed:  # else a count reads every run that it passes over
        counts = {each: await view.engine.count(status=each, most=MOST_COUNTED, **others) for each in STATUSES}
    status = chosen.given.get("status", "")
    bulk = [name for name, statuses in BULK.items() if chosen.given and (not status or status in statuses)]
    return view.page(
        "runs.html",
        runs=page.runs,
        next=page.next,
        counts=counts,
        given=chosen.given,
        status=status,
        is_oldest=is_oldest,
        bulk=bulk,
    )


BULK: Final[dict[str, frozenset[str]]] = {
    "runs.cancel": frozenset(STATUSES) - ENDED,
    "runs.retry": RETRIED,
    "runs.purge": ENDED,
}
"""What can be done to all runs that are listed, and which statuses it can be done to."""


async def count_chosen(view: View, action: str, query: dict[str, str], reason: str = "") -> BulkCount:
    """Count the runs that an address asks for, and that this can be done to. Nothing is changed."""
    chosen = chosen_in(query, view.now)
    bulk = bulk_named(action, reason)
    status = chosen.given.get("status")
    if not chosen.given:
        raise PageError(400, "Nothing was done", "Say which runs are meant.", "Filter the list of runs first.")
    if status is not None and status not in BULK[action]:
        words = f"Runs that are {status.replace('_', ' ')} cannot be {bulk.done}."
        raise PageError(400, "Nothing was done", words, "Choose another status in the list of runs.")
    filters: dict[str, Any] = chosen.filters | {"status": {status} if status else BULK[action]}
    given = chosen.given | {name: chosen.filters[name].isoformat() for name in TIMES if name in chosen.filters}
    number = await view.engine.count(**filters, most=COUNTED)
    return BulkCount(bulk, filters, given, number, (await view.engine.list(**filters, limit=SHOWN)).runs)


async def progress(view: View) -> Response:
    """Show how far a change of many runs has come, or the latest of them."""
    job_id, space = view.query.get("id", ""), view.engine.space
    if not job_id:
        return view.page("bulk.html", job=None, jobs=await list_work(space))
    job = await read_work(space, job_id)
    here = view.dashboard.jobs.here(job_id)
    if here is not None and here.space is space and not here.is_over:  # newer than what is written
        changed = here.changed
        job = structs.replace(job, done=changed.done, not_done=len(changed.failed), state="under way")
    return view.page("bulk.html", job=job, job_id=job_id, jobs=())


# --- one run ----------------------------------------------------------------------------------------------------------


class HistoryPart(Struct, frozen=True):
    """A part of a history that is shown: its events, the place of the first one, and how many there are in all."""

    events: list[HistoryEvent]
    first: int
    total: int

    @property
    def is_whole(self) -> bool:
        """Whether it is all that the run has recorded."""
        return len(self.events) == self.total


async def read_part(scope: Scope, keys: RunKeys, first: int | None) -> HistoryPart:
    """Read a history whole; of a long one a part, at the cost of that part.

    Args:
        scope: Where the run is.
        keys: Its keys.
        first: The place of the first event of the part; None: the last part.
    """
    start, end = keys.history()
    last = (await scope.scan(start, end, limit=1, reverse=True)).records
    if not last:
        return HistoryPart([], 0, 0)
    key, record = next(iter(last.items()))
    total = int(key.parts[-1]) + len(CHUNKS.decode(record.value).events)
    if total <= LONG:
        return HistoryPart(await events_of(scope, keys), 0, total)
    first = max(0, min(total - 1, total - PART if first is None else first))
    before = (await scope.scan(start, keys.chunk(first).successor(), limit=1, reverse=True)).records
    at = int(next(iter(before)).parts[-1])
    events: list[HistoryEvent] = []
    page = await scope.scan(keys.chunk(at), end, limit=PART)  # a chunk has an event at least
    for each in page.records.values():
        events.extend(CHUNKS.decode(each.value).events)
    return HistoryPart(events[first - at : first - at + PART], first, total)


async def run(view: View, run_id: str = "") -> Response:
    """Show one run: how it is, its timeline, its history, and what can be done to it."""
    run_id = run_id or view.query.get("id", "")
    scope = view.engine.space
    found = await view.engine.get(run_id)
    asked = view.query.get("from", "")
    part = await read_part(scope, RunKeys(scope, run_id), number_in(asked, 0) if asked else None)
    record, events = await find(scope, run_id), part.events
    header = record.header
    if not part.is_whole and events:  # it is drawn from its first event on
        header = structs.replace(header, started_at=events[0].at, begins_at=None, lines=())
    is_last = part.first + len(events) >= part.total
    state = record.state if is_last else structs.replace(record.state, status="completed", changed_at=events[-1].at)
    told = timeline_of(run_id, header, state, events, view.engine.runtime.now())
    # Of what is not shown only what the drawing needs is unpacked.
    locks = [entry_of(number, each) for number, each in enumerate(events) if each.kind in LOCKS]
    stretches = stretches_of(told, locks)
    first = number_in(asked, max(0, part.total - MOST_ROWS)) if part.is_whole else part.first
    shown_events = events[first : first + MOST_ROWS] if part.is_whole else events
    history = [entry_of(number, each) for number, each in enumerate(shown_events, first)]
    children, more_children = await _children(view, run_id, events)
    return view.page(
        "run.html",
        run=found,
        history=history,
        first=first,
        total=part.total,
        is_whole=part.is_whole,
        page=MOST_ROWS if part.is_whole else PART,
        rows_page=MOST_ROWS,
        drawing=draw(stretches, first=number_in(view.query.get("rows", ""), 0)),
        spent=[(WAITS[cast("SpanKind", kind)], seconds) for kind, seconds in told.seconds.items()],
        took=max(0.0, ((found.changed_at if found.has_ended else view.now) - found.started_at) / MICROSECONDS),
        children=children,
        more_children=more_children,
        reveals=view.access.reveals and view.query.get("values") == "shown",
        shown=shown,
        failure=failure_of(found),
        words=words_of,
        actions=actions_for(view, found),
        awaits=_awaited(found),
    )


async def _children(view: View, run_id: str, events: Sequence[HistoryEvent]) -> tuple[list[RunInfo], bool]:
    """Return the children that a history names, the last ones first: it was read already."""
    names = [id_of(run_id, event.id) for event in reversed(events) if event.kind == "child"]
    found: list[RunInfo] = []
    for name in names[:MOST_CHILDREN]:
        try:
            child = await find(view.engine.space, name)
        except RunNotFoundError:  # it was purged, or is not written yet
            continue
        found.append(info_of(name, child.header, child.state))
    return found, len(names) > MOST_CHILDREN


def _awaited(found: RunInfo) -> str:
    """Return the name of the signal that a run waits for; empty if it waits for none."""
    _, is_signal, name = found.waits_for.partition("the signal ")
    return name.strip("'\"") if is_signal and not found.has_ended else ""


def has_code(view: View, found: RunInfo) -> bool:
    """Return True if this process has the code of a run, so that the run can be asked something here."""
    return (found.workflow, found.version) in view.engine.runtime.workflows


def actions_for(view: View, found: RunInfo) -> list[str]:
    """Return what can be done to a run as it is."""
    asks = ["run.query"] if has_code(view, found) and view.access.reveals else []
    if not found.has_ended:
        retry = ["run.retry"] if found.status == "quarantined" else []
        return ["run.cancel", "run.signal", "run.update", *retry, *asks]
    return [*(["run.retry"] if found.status != "completed" else []), "run.restart", *asks, "run.purge"]


_WORDS: Final = {
    "began": "began",
    "tried": "attempt failed",
    "step": "step",
    "slept": "slept",
    "sleep": "sleeps until",
    "waits": "waits",
    "lock": "asks for a lock",
    "held": "holds the lock",
    "released": "released the lock",
    "child": "started a child",
    "child_done": "child ended",
    "went_on": "resumed",
    "lost": "lost a lock",
}


def words_of(kind: str) -> str:
    """Return what a kind of entry of a history is called."""
    return _WORDS.get(kind, kind.replace("_", " "))


# --- two runs beside each other ---------------------------------------------------------------------------------------


class Compared(Struct, frozen=True):
    """One operation in two runs.

    Attributes:
        kind: Which operation.
        id: Where in the code.
        one: The entry of the first run; None if it has none.
        other: That of the second.
        verdict: How they differ: ``same``, ``value``, ``outcome``, ``only first``, ``only second``.
    """

    kind: str
    id: str
    one: HistoryEntry | None
    other: HistoryEntry | None
    verdict: str


async def compare(view: View) -> Response:
    """Show two runs beside each other: what is the same, and where they went apart."""
    ids = [view.query.get("id", "").strip(), view.query.get("with", "").strip()]
    if not all(ids):
        raise PageError(400, "This address is not right", "It takes two runs.", "Open one, and compare it from there.")
    scope = view.engine.space
    found = [await view.engine.get(each) for each in ids]
    histories = [(await events_of(scope, RunKeys(scope, each))) for each in ids]
    rows = compared(histories[0][:MOST_COMPARED], histories[1][:MOST_COMPARED])
    differ = [row for row in rows if row.verdict != "same"]
    only = view.query.get("only", "") == "differences"
    listed = differ if only else rows
    first = number_in(view.query.get("from", ""), 0)
    return view.page(
        "compare.html",
        runs=found,
        rows=listed[first : first + MOST_ROWS],
        first=first,
        page=MOST_ROWS,
        total=len(listed),
        differ=len(differ),
        apart=next((row for row in rows if row.verdict != "same"), None),
        more=max(map(len, histories)) > MOST_COMPARED,
        only=only,
        same_input=found[0].input == found[1].input,
        same_result=found[0].result == found[1].result,
        reveals=view.access.reveals and view.query.get("values") == "shown",
        shown=shown,
        words=words_of,
    )


def compared(one: Sequence[HistoryEvent], other: Sequence[HistoryEvent]) -> list[Compared]:
    """Return the operations of two histories side by side, in the order of the first, then what only the second has."""

    def keyed(events: Sequence[HistoryEvent]) -> dict[tuple[str, str, int], tuple[int, HistoryEvent]]:
        seen: dict[tuple[str, str], int] = {}
        found: dict[tuple[str, str, int], tuple[int, HistoryEvent]] = {}
        for number, event in enumerate(events):
            own = event.kind, event.id
            seen[own] = seen.get(own, 0) + 1
            found[*own, seen[own]] = number, event
        return found

    left, right = keyed(one), keyed(other)
    rows: list[Compared] = []
    for key in [*left, *(key for key in right if key not in left)]:
        a, b = left.get(key), right.get(key)
        verdict = "same"
        if a is None or b is None:
            verdict = "only second" if a is None else "only first"
        elif (a[1].failure is None) != (b[1].failure is None):
            verdict = "outcome"
        elif a[1].kind in LOCKS:  # each acquisition has a fence and an entry of its own
            pass
        elif a[1].value != b[1].value or (
            a[1].failure is not None and b[1].failure is not None and a[1].failure.message != b[1].failure.message
        ):
            verdict = "value"
        entries = [None if each is None else entry_of(*each) for each in (a, b)]
        rows.append(Compared(key[0], key[1], entries[0], entries[1], verdict))
    return rows


# --- a run as a test --------------------------------------------------------------------------------------------------


async def as_test(view: View) -> Response:
    """Show a run as a test that replays its history against the code of today; or hand it out as a file."""
    if not view.access.reveals:
        raise ForbiddenError("Copy as a test: it has the values of the run")
    run_id = view.query.get("id", "")
    text, import_line = await _test_of(view, run_id)
    if view.query.get("as") == "file":
        name = f"test_{_identifier(run_id)}.py"
        headers = {"cache-control": "no-store", "content-disposition": f'attachment; filename="{name}"'}
        return Response(text, 200, headers, "text/x-python; charset=utf-8")
    return view.page("test.html", run_id=run_id, text=text if len(text) <= MOST_TEXT else "", import_line=import_line)


async def _test_of(view: View, run_id: str) -> tuple[str, str]:
    saved = (await read_saved(view.engine.space, run_id)).masked(masked)
    name, has_ended = _identifier(saved.header.workflow), saved.state.status in ("completed", "failed")
    code = view.engine.runtime.workflows.get((saved.header.workflow, saved.header.version))
    function = None if code is None else code.function
    importable = function is not None and function.__qualname__.isidentifier() and function.__module__ != "__main__"
    if function is not None and importable:
        name = function.__qualname__
        import_line = f"from {function.__module__} import {name}"
    else:
        import_line = f"from your_application import {name}  # the workflow {saved.header.workflow!a}"
    history = json.dumps(msgspec.json.decode(saved.as_json()), indent=1)  # in ASCII, as bytes in Python have to be
    ends = "\n    assert replayed.has_ended" if has_ended else "\n    assert not replayed.has_ended  # it was under way"
    text = f'''"""What the run {_words(run_id)} recorded still fits the code of its workflow."""

from __future__ import annotations

import asyncio

from standfast.testing.workflows import replay_history

{import_line}

# Copied from the dashboard at {moment(view.engine.runtime.now())}. What looks like a secret is masked.
HISTORY = rb"""
{history}
"""


def test_the_code_of_{name}_still_fits_what_{_identifier(run_id)}_recorded() -> None:
    """Nothing is executed: the code is replayed against the history."""
    replayed = asyncio.run(replay_history({name}, HISTORY))

    assert replayed.events == {len(saved.events)}{ends}
'''
    return text, import_line


def _identifier(text: str) -> str:
    words = "".join(each if each.isascii() and each.isalnum() else " " for each in text[:200]).split()
    found = "_".join(words).lower()[:60] or "run"
    return f"_{found}" if found[0].isdigit() else found


def _words(text: str) -> str:
    return one_line(text).encode("ascii", "replace").decode().replace("\\", "/").replace('"', "'")

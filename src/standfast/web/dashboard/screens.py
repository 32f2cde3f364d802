"""The screens: what each of them reads, and hands to its template. Every read is bounded, and nothing is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast, get_args

import msgspec

from standfast.audit import ACTIONS as AUDITED
from standfast.locks.inspect import explain
from standfast.locks.line_history import read_history as read_holds
from standfast.locks.survey import read_lines
from standfast.redaction import MASK, mask_text
from standfast.web.dashboard.access import PageError
from standfast.web.dashboard.diagrams import LOCKS, MOST_ROWS, draw, stretches_of
from standfast.web.dashboard.why import why
from standfast.workflows.queries import entry_of
from standfast.workflows.records import RunKeys, Status, events_of, find
from standfast.workflows.timeline import WAITS, SpanKind, timeline_of

if TYPE_CHECKING:
    from starlette.responses import Response

    from standfast.web.dashboard.pages import Screen, View
    from standfast.workflows.queries import HistoryEntry, RunInfo

PAGE: Final = 50
MOST_CHILDREN: Final = 20
MOST_SHOWN: Final = 20_000
"""How many characters of a value are shown."""

STATUSES: Final = cast("tuple[str, ...]", get_args(Status))
NEEDS: Final = ("failed", "quarantined", "timed_out")


# --- runs -------------------------------------------------------------------------------------------------------------


async def runs(view: View) -> Response:
    """Show runs, newest first, by what the address asks for."""
    query = view.query
    status, workflow, tag = query.get("status", ""), query.get("workflow", ""), query.get("tag", "")
    if status and status not in STATUSES:
        raise PageError(400, "This address is not right", "There is no such status.", f"Try {', '.join(STATUSES)}.")
    if found := query.get("id", ""):
        return await run(view, run_id=found)
    chosen: dict[str, Any] = {"workflow": workflow or None, "tag": tag or None}
    page = await view.engine.list(
        status=status or None, newest_first=True, limit=PAGE, after=query.get("after") or None, **chosen
    )
    counts = {each: await view.engine.count(status=each, **chosen) for each in STATUSES}
    return view.page(
        "runs.html", runs=page.runs, next=page.next, counts=counts, status=status, workflow=workflow, tag=tag
    )


async def run(view: View, run_id: str = "") -> Response:
    """Show one run: how it is, its timeline, its history, and what can be done to it."""
    run_id = run_id or view.query.get("id", "")
    found = await view.engine.get(run_id)
    scope = view.engine.space
    record, events = await find(scope, run_id), await events_of(scope, RunKeys(scope, run_id))
    told = timeline_of(run_id, record.header, record.state, events, view.engine.runtime.now())
    # A history may be long: of what is not shown only what its drawing needs is unpacked.
    locks = [entry_of(number, each) for number, each in enumerate(events) if each.kind in LOCKS]
    stretches = stretches_of(told, locks)
    first = _number(view.query.get("from", ""), max(0, len(events) - MOST_ROWS))
    history = [entry_of(number, each) for number, each in enumerate(events[first : first + MOST_ROWS], first)]
    children = await view.engine.list(parent=run_id, limit=MOST_CHILDREN)
    reveals = view.access.reveals and view.query.get("values") == "shown"
    return view.page(
        "run.html",
        run=found,
        history=history,
        first=first,
        total=len(events),
        page=MOST_ROWS,
        drawing=draw(stretches, first=_number(view.query.get("rows", ""), 0)),
        spent=[(WAITS[cast("SpanKind", kind)], seconds) for kind, seconds in told.seconds.items()],
        took=told.took,
        children=children,
        reveals=reveals,
        shown=_shown,
        failure=_failure(found),
        words=_words,
        actions=actions_for(found),
    )


def actions_for(found: RunInfo) -> list[str]:
    """Return what can be done to a run as it is."""
    if not found.has_ended:
        return ["run.cancel", "run.signal", *(["run.retry"] if found.status == "quarantined" else [])]
    return [*(["run.retry"] if found.status != "completed" else []), "run.restart"]


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else otherwise  # noqa: PLR2004 -- as many digits as a count may have


def _shown(value: object) -> str:
    """Return a value as JSON on several lines, bounded, without what looks like a secret in it."""
    text = msgspec.json.format(msgspec.json.encode(_masked(value)), indent=2).decode()
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}\n... ({len(text):,} characters)"


def _masked(value: object) -> object:
    match value:
        case str():
            return mask_text(value) if len(value) <= MOST_SHOWN else f"{mask_text(value)}..."
        case list() | tuple():
            return [_masked(item) for item in cast("list[object]", value)]
        case dict():
            items = cast("dict[str, object]", value).items()
            return {key: MASK if mask_text(f"{key}=x").endswith(f"={MASK}") else _masked(item) for key, item in items}
        case _:
            return value


def _failure(found: RunInfo) -> list[tuple[str, str, list[str]]]:
    """Return what a run raised, and what caused that: type, message, and the user's frames."""
    causes: list[tuple[str, str, list[str]]] = []
    failure = found.failure
    while failure is not None and len(causes) < 5:  # noqa: PLR2004 -- causes that are shown
        causes.append((failure.type, mask_text(failure.message), failure.trace.splitlines()))
        failure = failure.cause
    return causes


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
    "went_on": "went on",
    "lost": "lost a lock",
}


def _words(entry: HistoryEntry) -> str:
    return _WORDS.get(entry.kind, entry.kind.replace("_", " "))


# --- lines ------------------------------------------------------------------------------------------------------------


async def lines(view: View) -> Response:
    """Show the keys that are in use, by family."""
    prefix, waiting = view.query.get("prefix", ""), view.query.get("waiting", "") == "yes"
    after = tuple(view.query.getlist("after"))
    page = await read_lines(view.engine.space, prefix=prefix, waiting=waiting, after=after, limit=2 * PAGE)
    families: dict[str, list[object]] = {}
    for line in page.lines:
        families.setdefault(family_of(line.address), []).append(line)
    return view.page(
        "lines.html", families=families, prefix=prefix, waiting=waiting, next=page.last if page.more else ()
    )


def family_of(address: tuple[str, ...]) -> str:
    """Return under which heading a line is shown."""
    if not address[0].isdigit():
        return {"limit": "Limits of workflows", "request": "Requests", "schedule": "Schedules"}.get(
            address[0], address[0]
        )
    return address[1] or "Plain keys"


async def line(view: View) -> Response:
    """Show one line: who holds it, who waits in it, and who held it before."""
    address = address_in(view)
    told = await explain(view.engine.space, address, limit=100)
    past = await read_holds(view.engine.space, address)
    facts = {"line": told, "address": address, "past": past, "is_lock": address[0].isdigit()}
    return view.page("line.html", lease=view.engine.space.lease, **facts)


def address_in(view: View, *, given: list[str] | None = None) -> tuple[str, ...]:
    """Return the address of a line that a page is about."""
    address = tuple(view.query.getlist("at") if given is None else given)
    if len(address) < 3 or (address[0].isdigit() and int(address[0]) != len(address) - 2):  # noqa: PLR2004 -- kind, family, part
        raise PageError(404, "No such line", "The address names no line.", "Choose one from the list of lines.")
    return address


# --- the rest ---------------------------------------------------------------------------------------------------------


async def why_page(view: View) -> Response:
    """Show why a run or an entry of a line waits: one sentence, and a drawing of who waits for whom."""
    run_id, entry = view.query.get("run", ""), view.query.get("entry", "")
    address = address_in(view) if entry else ()
    told = await why(view, run_id=run_id, address=address, entry=entry)
    return view.page("why.html", told=told, run_id=run_id, address=address)


async def schedules(view: View) -> Response:
    """Show all schedules: when they fire, what they started, and what went wrong."""
    return view.page("schedules.html", schedules=(await view.engine.schedules.list())[:1_000])


async def limits(view: View) -> Response:
    """Show the limits of workflows and the rates in use."""
    page = await view.engine.limits(limit=500)
    rates = await view.engine.space.rates(limit=500)
    return view.page("limits.html", limits=page, rates=rates)


async def workers(view: View) -> Response:
    """Show the workers: where they run, how much, and what they can run."""
    return view.page("workers.html", workers=await view.engine.workers(limit=500))


async def audit(view: View) -> Response:
    """Show who did what, newest first."""
    query = view.query
    chosen = {name: query.get(name, "").strip() or None for name in ("action", "subject", "actor")}
    page = await view.engine.audit(**chosen, limit=PAGE, after=query.get("after") or None)
    return view.page("audit.html", page=page, known=AUDITED, **chosen)


def _link(view: View, kind: str, name: str) -> tuple[str, str]:
    """Return the page that shows what an example of something names that needs a person."""
    if kind.endswith("-runs"):
        return name, view.url("run", id=name)
    places = {"late-schedules": "schedules", "stopped-schedules": "schedules", "dead-workers": "workers"}
    return name, view.url(places.get(kind, "lines"), **({"prefix": name} if kind == "long-waits" else {}))


async def now(view: View) -> Response:
    """Show what needs a person, who works, and who waits longest."""
    engine = view.engine
    told = await engine.overview()
    alive = sum(worker.is_alive for worker in told.workers)
    concerns = [
        (each.kind, each.words, [_link(view, each.kind, name) for name in each.examples]) for each in told.concerns
    ]
    return view.page(
        "now.html",
        counts=told.runs,
        alive=alive,
        concerns=concerns,
        waits=told.lines[:8],
        store=told.store,
        ended=told.ended,
    )


SCREENS: Final[dict[str, Screen]] = {
    "": now,
    "runs": runs,
    "run": run,
    "lines": lines,
    "line": line,
    "why": why_page,
    "schedules": schedules,
    "limits": limits,
    "workers": workers,
    "audit": audit,
}

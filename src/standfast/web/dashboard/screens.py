"""The screens: what each of them reads, and hands to its template. Every read is bounded, and nothing is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.audit import ACTIONS as AUDITED
from standfast.locks.inspect import explain
from standfast.locks.line_history import read_history as read_holds
from standfast.locks.survey import read_lines
from standfast.web.dashboard.access import PageError
from standfast.web.dashboard.flow_pages import flows
from standfast.web.dashboard.run_pages import PAGE, as_test, compare, progress, run, runs
from standfast.web.dashboard.store_pages import now, store
from standfast.web.dashboard.why import why

if TYPE_CHECKING:
    from starlette.responses import Response

    from standfast.web.dashboard.pages import Screen, View

MOST_TICKS: Final = 50
"""Of how many schedules the next ticks are told."""

COLOURS: Final = 6
"""How many colours modes have; with more of them, two share one. Each is named beside it."""


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
    modes = sorted({each.mode for each in (*told.holders, *told.waiters) if each.mode})
    return view.page(
        "line.html",
        line=told,
        address=address,
        past=past,
        is_lock=address[0].isdigit(),
        lease=view.engine.space.lease,
        modes={mode: number % COLOURS for number, mode in enumerate(modes)},
        used=sum(each.weight for each in told.holders) + told.holding - len(told.holders),
        furthest=max((each.estimate or 0.0 for each in told.waiters), default=0.0),
    )


def address_in(view: View, *, given: list[str] | None = None) -> tuple[str, ...]:
    """Return the address of a line that a page is about."""
    address = tuple(view.query.getlist("at") if given is None else given)
    if len(address) < 3 or (address[0].isdigit() and int(address[0]) != len(address) - 2):  # noqa: PLR2004 -- kind, family, part
        raise PageError(404, "No such line", "The address names no line.", "Choose one from the list of lines.")
    return address


# --- the rest ---------------------------------------------------------------------------------------------------------


async def why_page(view: View) -> Response:
    """Show why a run or an entry of a line waits: one sentence, and a drawing of who waits for whom."""
    run_id, entry, request = (view.query.get(name, "") for name in ("run", "entry", "request"))
    address = () if run_id or request else address_in(view)
    told = await why(view, run_id=run_id, address=address, entry=entry, request=request)
    return view.page("why.html", told=told, run_id=run_id, address=address, request=request)


async def schedules(view: View) -> Response:
    """Show all schedules: when they fire, what they started, and what went wrong."""
    found = (await view.engine.schedules.list())[:1_000]
    ticks = {each.id: await view.engine.schedules.next_ticks(each.id, 3) for each in found[:MOST_TICKS]}
    return view.page("schedules.html", schedules=found, ticks=ticks)


async def limits(view: View) -> Response:
    """Show the limits of workflows and the rates in use."""
    page = await view.engine.limits(limit=500)
    rates = await view.engine.space.rates(limit=500)
    return view.page("limits.html", limits=page, rates=rates)


async def workers(view: View) -> Response:
    """Show the workers: where they run, how much, and what they can run."""
    found = await view.engine.workers(limit=500)
    alive = [each for each in found if each.is_alive]
    known = {each for worker in alive for each in worker.workflows}
    lacks = {worker.id: sorted(known.difference(worker.workflows)) for worker in alive if worker.is_whole}
    return view.page("workers.html", workers=found, lacks=lacks)


async def audit(view: View) -> Response:
    """Show who did what, newest first."""
    query = view.query
    chosen = {name: query.get(name, "").strip() or None for name in ("action", "subject", "actor")}
    page = await view.engine.audit(**chosen, limit=PAGE, after=query.get("after") or None)
    return view.page("audit.html", page=page, known=AUDITED, **chosen)


SCREENS: Final[dict[str, Screen]] = {
    "": now,
    "runs": runs,
    "run": run,
    "compare": compare,
    "test": as_test,
    "bulk": progress,
    "lines": lines,
    "line": line,
    "why": why_page,
    "schedules": schedules,
    "limits": limits,
    "workers": workers,
    "flows": flows,
    "store": store,
    "audit": audit,
}

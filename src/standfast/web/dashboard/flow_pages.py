"""The screen of flows: the policy of each action, its requests and how they ended, and the windows that are open."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from standfast.clock import seconds_between
from standfast.errors import RunNotFoundError
from standfast.flows.records import RequestKeys
from standfast.flows.request import RequestInfo
from standfast.flows.request_list import STATUSES, list_requests
from standfast.flows.view import look
from standfast.redaction import mask_text
from standfast.web.dashboard.access import PageError
from standfast.workflows.queries import info_of
from standfast.workflows.records import find

if TYPE_CHECKING:
    from starlette.responses import Response

    from standfast.space import Space
    from standfast.web.dashboard.pages import View

PAGE: Final = 50
MOST_COUNTED: Final = 300
"""Of how many of the latest requests the table of actions is made."""

MOST_WINDOWS: Final = 20
COLLECTING: Final = ("debounce", "batch")


class ActionRow(Struct):
    """What is known of an action.

    Attributes:
        flow: The kind of its flow.
        name: Its name.
        policy: The name of its policy; empty if it is not known here.
        words: The policy as it was declared, with its options.
        limits: Its limits, as they were declared.
        counts: How many of the latest requests are so.
    """

    flow: str
    name: str
    policy: str = ""
    words: str = ""
    limits: tuple[str, ...] = ()
    counts: Counter[str] = Counter()


class Window(Struct, frozen=True):
    """A burst or a batch that is open: it begins when its time is over."""

    request: RequestInfo
    left: float
    policy: str


async def flows(view: View) -> Response:
    """Show what actions there are, how their requests ended, and the requests that the address asks for."""
    query, tenant = view.query, view.access.principal.tenant
    space = (await view.dashboard.engine_of_app()).space
    status = query.get("status", "")
    if status and status not in STATUSES:
        raise PageError(400, "This address is not right", "There is no such status.", f"Try {', '.join(STATUSES)}.")
    chosen: dict[str, Any] = {name: query.get(name, "").strip() for name in ("flow", "action", "user")}
    wanted = {name: value for name, value in chosen.items() if value}
    page = await list_requests(
        space,
        tenant,
        status=(status,) if status else (),
        limit=PAGE,
        after=query.get("after") or None,
        **wanted,
    )
    latest = await list_requests(space, tenant, limit=MOST_COUNTED)
    rows = _declared(view)
    for each in latest.requests:
        row = rows.setdefault((each.flow, each.action), ActionRow(each.flow, each.action, counts=Counter()))
        row.counts[each.status] += 1
    records = {each.id: await _record(space, tenant, each) for each in page.requests[:PAGE]}
    for each in page.requests:
        known = rows.get((each.flow, each.action))
        if known is not None and not known.policy:
            known.policy = records[each.id]
    windows = await _windows(space, tenant, latest.requests)
    return view.page(
        "flows.html",
        rows=sorted(rows.values(), key=lambda row: (row.flow, row.name)),
        windows=windows,
        requests=page.requests,
        policies=records,
        next=page.next,
        counted=len(latest.requests),
        more=latest.next is not None,
        statuses=STATUSES,
        occurring=[each for each in STATUSES if any(row.counts[each] for row in rows.values())],
        status=status,
        chosen=chosen,
        waited=_waited,
        masked=mask_text,
    )


def _declared(view: View) -> dict[tuple[str, str], ActionRow]:
    """Return the actions of the flows that the dashboard was given."""
    found: dict[tuple[str, str], ActionRow] = {}
    for flow in view.dashboard.flows:
        for name, action in flow.actions.items():
            policy, limits = action.policy, tuple(map(repr, action.limits))
            found[flow.kind, name] = ActionRow(flow.kind, name, policy.name, repr(policy), limits, Counter())
    return found


async def _record(space: Space, tenant: str, request: RequestInfo) -> str:
    """Return the name of the policy by which a request was taken on."""
    keys = RequestKeys(space, tenant, request.id)
    seen = await space.read(keys.record)
    found = seen.get(keys.record)
    return "" if found is None else (await look(space, keys)).record.policy


async def _windows(space: Space, tenant: str, requests: tuple[RequestInfo, ...]) -> list[Window]:
    """Return the bursts and batches that are open, the one that ends first in front."""
    found: list[Window] = []
    for each in [each for each in requests if each.status == "waiting"][:100]:
        if len(found) == MOST_WINDOWS:
            break
        try:
            run = await find(space, each.id)
        except RunNotFoundError:  # it waits for its turn in the process of its caller
            continue
        info = info_of(each.id, run.header, run.state)
        if info.until is None or "events" not in info.waits_for:
            continue
        seen = await space.read(RequestKeys(space, tenant, each.id).record)
        policy = (await look(space, RequestKeys(space, tenant, each.id))).record.policy
        found.append(Window(each, max(0.0, seconds_between(seen.at, info.until)), policy))
    return sorted(found, key=lambda window: window.left)


def _waited(view: View, each: RequestInfo) -> tuple[float, float | None]:
    """Return for how long a request waited, and for how long it ran; None if it has not begun."""
    began = each.started_at or each.ended_at or view.now
    waited = max(0.0, (began - each.received_at) / 1_000_000)
    if not each.started_at:
        return waited, None
    return waited, max(0.0, ((each.ended_at or view.now) - each.started_at) / 1_000_000)

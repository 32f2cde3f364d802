"""The screen of flows: the policy of each action, its requests and how they ended, and the windows that are open."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from standfast.clock import seconds_between
from standfast.flows.request import RequestInfo
from standfast.flows.request_list import STATUSES, VERDICTS, count_requests, list_requests
from standfast.locks.inspect import length
from standfast.redaction import mask_text
from standfast.web.dashboard.access import PageError
from standfast.workflows.records import RunKeys, found_in

if TYPE_CHECKING:
    from starlette.responses import Response

    from standfast.policies import Value
    from standfast.space import Space
    from standfast.web.dashboard.pages import View

PAGE: Final = 50
MOST_COUNTED: Final = 300
"""How many of the latest requests the table of actions counts."""

MOST_WINDOWS: Final = 20
COLLECTING: Final = ("debounce", "batch")
VERDICT_WORDS: Final = {
    "run": "ran at once",
    "queued": "had to wait",
    "started": "started as a run",
    "collected": "collected",
}
"""What was decided about a request when it came, in words."""


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


async def flows(view: View) -> Response:
    """Show what actions there are, how their requests ended, and the requests that the address asks for."""
    query, tenant = view.query, view.access.principal.tenant
    space = (await view.dashboard.engine_of_app()).space
    chosen = {name: query.get(name, "").strip() for name in ("flow", "action", "user", "verdict", "status")}
    for name, known in (("status", STATUSES), ("verdict", VERDICTS)):
        if chosen[name] and chosen[name] not in known:
            words = f"There is no such {name}."
            raise PageError(400, "This address is not right", words, f"Try {', '.join(known)}.")
    wanted: dict[str, Any] = {name: value for name, value in chosen.items() if value and name != "status"}
    status = (chosen["status"],) if chosen["status"] else ()
    page = await list_requests(space, tenant, status=status, limit=PAGE, after=query.get("after") or None, **wanted)
    latest = await list_requests(space, tenant, limit=MOST_COUNTED)
    rows: dict[tuple[str, str], ActionRow] = {}
    for flow in view.dashboard.flows:
        for name, action in flow.actions.items():
            policy, limits = action.policy, tuple(map(repr, action.limits))
            rows[flow.kind, name] = ActionRow(flow.kind, name, policy.name, in_words(policy), limits, Counter())
    for each in latest.requests:
        row = rows.setdefault((each.flow, each.action), ActionRow(each.flow, each.action, counts=Counter()))
        row.counts[each.status] += 1
        row.policy = row.policy or each.policy
    verdicts = {each: await count_requests(space, tenant, verdict=each, most=MOST_COUNTED) for each in VERDICTS}
    return view.page(
        "flows.html",
        rows=sorted(rows.values(), key=lambda row: (row.flow, row.name)),
        windows=await _windows(space, latest.requests),
        requests=page.requests,
        next=page.next,
        counted=len(latest.requests),
        more=latest.next is not None,
        statuses=STATUSES,
        verdicts=verdicts,
        verdict_words=VERDICT_WORDS,
        occurring=[each for each in STATUSES if any(row.counts[each] for row in rows.values())],
        chosen=chosen,
        waited=_waited,
        masked=mask_text,
    )


def in_words(declared: Value) -> str:
    """Return the options of a policy or a limit as they were declared, without those that are not set."""
    told: list[str] = []
    for name, value in declared.options().items():
        if value is None or value is False:
            continue
        shown = length(value) if isinstance(value, float) else getattr(value, "__qualname__", str(value))
        told.append(f"{name.replace('_', ' ')} {shown}")
    return ", ".join(told)


async def _windows(space: Space, requests: tuple[RequestInfo, ...]) -> list[Window]:
    """Return the bursts and batches that are open, the first to end in front."""
    found: list[Window] = []
    for each in [each for each in requests if each.status == "waiting" and each.policy in COLLECTING][:MOST_WINDOWS]:
        keys = RunKeys(space, each.id)
        seen = await space.read(keys.header, keys.state)
        until = found_in(seen, keys).state.until if seen.get(keys.state) is not None else None
        if until is not None:
            found.append(Window(each, max(0.0, seconds_between(seen.at, until))))
    return sorted(found, key=lambda window: window.left)


def _waited(view: View, each: RequestInfo) -> tuple[float, float | None]:
    """Return for how long a request waited, and for how long it ran; None if it has not begun."""
    began = each.started_at or each.ended_at or view.now
    waited = max(0.0, (began - each.received_at) / 1_000_000)
    if not each.started_at:
        return waited, None
    return waited, max(0.0, ((each.ended_at or view.now) - each.started_at) / 1_000_000)

"""Bursts: requests that are collected before their action runs, for the policies debounce and batch.

The run of a burst is there from the first request on, and waits for its time. Then it takes its place in the line of
its key, and collects on until it has its turn: the commit that takes it up decides which requests are in it. So none is
lost, also if a worker dies at that very moment, and what comes while the action runs begins the next burst.
"""

from __future__ import annotations

import asyncio
import math
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct, structs

from standfast.clock import later
from standfast.codec import Codec
from standfast.errors import StoreBusyError
from standfast.flows.flow import workflow_name
from standfast.flows.idempotency import RacedError
from standfast.flows.records import KEPT, RequestKeys, StoredCall, tags_of
from standfast.flows.task import standings_of
from standfast.policies import Batch, Debounce
from standfast.stores.protocol import Put
from standfast.workflows.debounce import Bringing, BringingRefusedError, Plan, collect_event

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from standfast.clock import Instant
    from standfast.flows.flow import Action
    from standfast.flows.server import RequestServer
    from standfast.flows.task import Task
    from standfast.keys import RecordKey
    from standfast.policies import Policy
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Snapshot
    from standfast.workflows.debounce import Collected
    from standfast.workflows.definition import Workflow


# --- bursts: requests that are collected before their action runs, for the policies debounce and batch -------------

EVENT_TIME: Final = "event_time"
"""Where a transport says in the metadata of an arrival when the event happened."""

MOST_EVENTS: Final = 1_000
"""How many requests a debounced burst has at most: the next one begins another."""

TRIES: Final = 50


def plan_of(policy: Policy, workflow: Workflow[..., Any]) -> Plan:
    """Return how the requests of an action are collected."""
    if isinstance(policy, Batch):
        return Plan(workflow, policy.window, slides=False, size=policy.size)
    assert isinstance(policy, Debounce)  # noqa: S101 -- these two collect
    return Plan(workflow, policy.window, slides=True, most=policy.max_wait, size=MOST_EVENTS)


def time_of(metadata: Mapping[str, Any]) -> float | None:
    """Return when an event happened: its ``event_time``, if the transport knows it.

    It is seconds since 1970, or a text as RFC 3339 has it, with its offset. Anything else counts as not known.
    """
    given = metadata.get(EVENT_TIME)
    try:
        if isinstance(given, int | float) and not isinstance(given, bool):
            return float(given) if math.isfinite(given) else None
        moment = datetime.fromisoformat(given) if isinstance(given, str) else None
        return None if moment is None or moment.tzinfo is None else moment.timestamp()
    except (ValueError, OverflowError):
        return None


async def add(server: RequestServer, task: Task, workflow: Workflow[..., Any]) -> Collected:
    """Put a request where it belongs: into the burst that is being collected, or into a new one.

    Raises:
        RacedError: Another one with the same idempotency key came first.
    """
    policy, key = task.action.policy, _key_of(task)
    call = task.stored_call(time_of(task.arrival.metadata))
    packed = msgspec.json.encode(call)
    plan = plan_of(policy, workflow)
    if not (isinstance(policy, Debounce) and policy.edge == "leading"):
        return await _collect(server, task, plan, packed)
    for tried in range(TRIES):
        place = server.space.key("burst", plan.workflow.name, key)
        seen = await server.space.read(place)
        is_first = not seen.version(place)
        chosen = structs.replace(plan, size=1) if is_first else plan
        quiet = Put(place, b"1:{}", seen.version(place), expires_at=later(seen.at, policy.window))
        try:
            return await _collect(server, task, chosen, packed, quiet)
        except BringingRefusedError:
            await asyncio.sleep(0.001 * tried)
    raise StoreBusyError(
        f"the requests of {workflow_name(task.action)}", f"others came {TRIES} times while one was put down"
    )


async def _collect(server: RequestServer, task: Task, plan: Plan, packed: bytes, *more: Put) -> Collected:
    claim = task.claim
    keys = RequestKeys(server.space, task.arrival.tenant, task.id)

    def opening(at: Instant) -> Sequence[Change]:
        record = task.record(at, "waiting", durable=True, verdict="collected")
        return keys.first(record, at)

    def always(run_id: str, at: Instant) -> Sequence[Change]:
        return (*more, *(() if claim is None else (claim.put(run_id, at),)))

    bringing = Bringing(
        run_id=task.id,
        tags=tags_of(task.arrival.tenant),
        lines=standings_of(server, task),
        opening=opening,
        always=always,
    )
    try:
        return await collect_event(server.engine.runtime, plan, _key_of(task), packed, bringing)
    except BringingRefusedError as refused:
        if claim is not None and refused.key == claim.key:
            raise RacedError from None
        raise


def _key_of(task: Task) -> str:
    """Return the key of a burst as one text."""
    return msgspec.json.encode(task.address).decode()


# --- the order of events by their own times: an older one that comes late does not replace a newer one -------------
#
# Within a burst they are put in that order. One that comes after its burst has run begins another
# one: if all of that is older than what was run, running it would bring back an old state. So the time of the newest
# event is kept with the outcome of its run. That is so where only the last event of a burst counts; an action that is
# to see all of them sees the late ones, too.


class NewestRecord(Struct, frozen=True):
    """The newest event of a key: when it happened, in seconds, and the request that was run with it."""

    at: float
    request: str


NEWEST: Final[Codec[NewestRecord]] = Codec(NewestRecord, what="the newest event of a key")


def in_order(calls: Sequence[StoredCall]) -> list[StoredCall]:
    """Return calls in the order of their own times: one that was late does not count as newer than it is.

    One whose own time is not known is as new as the newest before it; so without any they stay in order of arrival.
    """
    newest, times = float("-inf"), list[float]()
    for call in calls:
        times.append(newest if call.at is None else call.at)
        newest = max(newest, times[-1])
    return [calls[place] for place in sorted(range(len(calls)), key=times.__getitem__)]


def newest_key(scope: Scope, action: Action[..., Any], call: StoredCall) -> RecordKey | None:
    """Return where the newest event is kept that an action was run with; None: its order does not count."""
    policy = action.policy
    if call.at is None or not isinstance(policy, Debounce) or policy.collapse != "last":
        return None
    return scope.key("newest", call.tenant, call.flow, call.action, msgspec.json.encode(call.address).decode())


async def run_with_newer(scope: Scope, key: RecordKey, at: float | None) -> str:
    """Return the request that was run with a newer event; empty: there was none."""
    record = (await scope.read(key)).get(key)
    newest = None if record is None else NEWEST.decode(record.value)
    return "" if newest is None or at is None or newest.at <= at else newest.request


def newest_put(key: RecordKey, at: float | None, request_id: str, seen: Snapshot) -> Put:
    """Return the change that keeps the time of an event which an action was run with, for as long as requests are."""
    record = NEWEST.encode_own(NewestRecord(at or 0.0, request_id))
    return Put(key, record, seen.version(key), expires_at=later(seen.at, KEPT))

"""What is told of a request, in a form that is safe to show: how it is, and why it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from standfast.clock import Instant
from standfast.flows.keying import label_of
from standfast.flows.request import Explanation, RequestInfo
from standfast.flows.viewing import QUARANTINED, problem_of, shown_problem
from standfast.workflows.storing.records import LIVES, RunKeys

if TYPE_CHECKING:
    from standfast.errors import StandfastError
    from standfast.flows.arbiters.protocol import Who
    from standfast.flows.records import RequestRecord
    from standfast.flows.serving import Server


def info_of(request_id: str, record: RequestRecord, explanation: Explanation | None = None) -> RequestInfo:
    """Return what a record tells, in a form that is safe to show."""
    is_good = record.status == "completed"
    problem = None if is_good or not record.has_ended else problem_of(request_id, record)
    failure = record.failure
    return RequestInfo(
        id=request_id,
        flow=record.flow,
        action=record.action,
        status=record.status,
        user=record.user,
        session=record.session,
        transport=record.transport or "local",
        received_at=record.received_at,
        started_at=record.started_at,
        ended_at=record.ended_at,
        attempt=record.attempt,
        explanation=explanation,
        result=msgspec.json.decode(record.result) if is_good and record.result is not UNSET else None,
        error="" if problem is None else shown_problem(record),
        error_type="" if problem is None else _type_of(problem, failure),
        error_status=0 if problem is None else getattr(problem, "status", 500),
        by=record.by,
        cancelled_by=record.cancelled_by,
        superseded=record.superseded,
        overlap=record.overlap,
    )


def status_of(request_id: str, record: RequestRecord) -> RequestInfo:
    """Return how a request is, and since when, for those of its tenant who may see no more."""
    return RequestInfo(
        id=request_id,
        flow="",
        action="",
        status=record.status,
        transport="",
        received_at=record.received_at,
        started_at=record.started_at,
        ended_at=record.ended_at,
    )


def _type_of(problem: StandfastError, failure: Any) -> str:  # noqa: ANN401 -- a Failure or None
    return type(problem).__name__ if failure is None else failure.type.rpartition(".")[2]


async def explain(server: Server, request_id: str, record: RequestRecord) -> Explanation | None:
    """Say why a request waits: who has its key, since when, and its place; None: it needs no turn."""
    if record.reason == QUARANTINED:
        key = label_of(record.address) if record.address else "its run"
        return Explanation(key=key, policy=record.policy, holder=request_id, holder_status="quarantined")
    at_a_limit = server.limits.explain(request_id)
    if at_a_limit is not None or not record.address:
        return at_a_limit
    queue = await server.arbiter.look(record.address)
    place, holder = queue.position(request_id), queue.holder
    own = holder is not None and holder.id == request_id
    doing = "" if holder is None or own else await _doing(server, holder)
    return Explanation(
        key=label_of(record.address),
        policy=record.policy,
        holder="" if holder is None or own else holder.id,
        holder_action="" if holder is None or own else holder.action,
        holder_status=doing,
        since=Instant(0) if holder is None else holder.since,
        position=None if not place else place - 1,
        waiting=queue.waiting,
    )


async def _doing(server: Server, holder: Who) -> str:
    """Say what the one does that has a key. A run keeps its place in the store also while nobody takes it up."""
    if not holder.is_durable or not server.arbiter.is_shared:
        return "running"
    key = RunKeys(server.space, holder.id).life
    life = (await server.space.read(key)).get(key)
    return "running" if life is None or LIVES.decode(life.value).status != "quarantined" else "quarantined"

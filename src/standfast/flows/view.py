"""How a request is: read from its record, from its run if it is durable, and from whether its server still lives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, structs

from standfast.clock import Instant
from standfast.errors import (
    QueueFullError,
    QueueTimeoutError,
    RequestCancelledError,
    RequestFailedError,
    RequestInterruptedError,
    RequestNotFoundError,
    RequestSupersededError,
    SessionMissingError,
    StepInterruptedError,
    TooManyRequestsError,
    WaitsForItselfError,
)
from standfast.flows.arbiter.protocol import SUPERSEDED_BY
from standfast.flows.records import REQUESTS, RequestKeys, RequestRecord, ended, tenant_in
from standfast.flows.request import RequestExplanation, RequestInfo
from standfast.locks.heartbeat import PRESENCES
from standfast.stores.protocol import Decision, Delete, Put
from standfast.workflows.failures import KnownErrors, add_trace, describe, name_of, restore
from standfast.workflows.limits import missed, ttl_of
from standfast.workflows.records import HEADERS, RUN_STATES, RunKeys, RunState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.errors import StandfastError
    from standfast.flows.request import Principal, Status
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot
    from standfast.workflows.records import Header


# --- who may see a request: who sent it, who has its session, who shares its run, operators and viewers of the
# tenant ---
#
# What a webhook or a schedule has sent by itself is no user's, unless a user has its session. An id is no credential:
# it is shown in refusals, so that a refused caller can follow the request that has the key, and gets into logs. Others
# of the tenant see how a request is and since when, and nothing of what is in it. To other tenants it is absent.
# Who has its session, and who shares its run, lies in the store: Visibility in handle.py looks there.

OPERATOR: Final = "operator"
"""The role that lets a principal see and cancel all requests of its tenant."""

VIEWER: Final = "viewer"
"""The role that lets a principal see all requests of its tenant, and cancel none but its own."""

Sight: TypeAlias = Literal["own", "contents", "status"]
"""What a principal may do with a request: all, follow it, or see how it is."""


def sees_all(principal: Principal) -> bool:
    """Return True if a principal may see all requests of its tenant, and who has sent them."""
    return not principal.roles.isdisjoint((OPERATOR, VIEWER))


def is_own(principal: Principal, record: RequestRecord) -> bool:
    """Return True if a principal has sent a request of its tenant, or may do with all of them as it likes.

    Callers that have no name are one user: any of them that knows the id.
    """
    return record.user == principal.user or OPERATOR in principal.roles


# --- who asked for a request to stop, as its record says it: by kind, and by name if it was a user with a name -----
#
# ========================  ==========================================================================================
# ``"user:ann"``            the user ``ann``, who has sent it or has its session; ``"user"`` without a name
# ``"operator:eve"``        a principal with the role of an operator, who has not sent it
# ``"operator"``            a person at the command line
# ``"caller"``              its caller went away, and its action says that it stops then
# ``"server"``              the server that ran it is stopping
# ``""``                    it was not said
# ========================  ==========================================================================================

CALLER: Final = "caller"
SERVER: Final = "server"


def asker_of(principal: Principal, sender: str) -> str:
    """Return who a principal is that asks for a request of a sender to stop."""
    is_operators = OPERATOR in principal.roles and principal.user != sender
    return _named(OPERATOR if is_operators else "user", principal.user)


def sender_of(user: str) -> str:
    """Return who has sent a request."""
    return _named("user", user)


def _named(kind: str, user: str) -> str:
    return f"{kind}:{user}" if user else kind


def kind_of(cancelled_by: str) -> str:
    """Return who it was without a name, for callers that only share the run of a request."""
    return cancelled_by.partition(":")[0]


async def note_asker(scope: Scope, keys: RequestKeys, who: str) -> None:
    """Write down who asks for a durable request to stop, before its run is told; the first one counts.

    It shows in the record of a request that ends cancelled, and in no other.
    """
    run = RunKeys(scope, keys.id)

    def decide(seen: Snapshot) -> Decision[None]:
        found, life = seen.get(keys.record), seen.get(run.state)
        if found is None or life is None or RUN_STATES.decode(life.value).cancel is not None:
            return Decision(None)
        record = REQUESTS.decode(found.value)
        if record.has_ended or record.cancelled_by == who:
            return Decision(None)
        put = Put(keys.record, REQUESTS.encode_own(structs.replace(record, cancelled_by=who)), found.version)
        return Decision(None, (put,))

    await scope.update((keys.record, run.state), decide)


async def note_operator(scope: Scope, run_id: str, tags: Iterable[str]) -> None:
    """Write down that an operator asks for a run to stop, if it is that of a request."""
    tenant = tenant_in(tags)
    if tenant is not None:
        await note_asker(scope, RequestKeys(scope, tenant, run_id), OPERATOR)


# --- how a request is: read from its record, from its run if it is durable, and from whether its server still lives
# ---

KNOWN: Final = KnownErrors()
"""The exceptions of Python and of Standfast, which is all that this module makes."""

_BY_FAILURE: Final[dict[str, Status]] = {
    name_of(StepInterruptedError): "interrupted",
    name_of(RequestInterruptedError): "interrupted",
    name_of(RequestSupersededError): "superseded",
    name_of(RequestCancelledError): "cancelled",
}


_TELLING: Final = (
    QueueFullError,
    QueueTimeoutError,
    RequestInterruptedError,
    RequestSupersededError,
    TooManyRequestsError,
    WaitsForItselfError,
)
"""The errors that say themselves how a request ended."""


_MISSING: Final = name_of(SessionMissingError)

QUARANTINED: Final = "it ended the servers that ran it, and waits for an operator to retry or cancel it"
"""Why a request does not go on whose run is quarantined."""


class RequestView(Struct, frozen=True):
    """A request as it was at one moment.

    Attributes:
        record: What is written of it; if it has ended, how.
        version: The version of that record.
        at: When, by the store's time.
        life: Its run, if it is durable and has one.
        is_derived: The record does not say yet how it has ended.
    """

    record: RequestRecord
    version: int
    at: Instant
    life: RunState | None = None
    is_derived: bool = False

    @property
    def status(self) -> Status:
        """How it is."""
        return self.record.status

    @property
    def has_ended(self) -> bool:
        """Whether it is over."""
        return self.record.has_ended


async def look(scope: Scope, keys: RequestKeys) -> RequestView:
    """Return how a request is.

    Raises:
        RequestNotFoundError: The tenant has no such request.
    """
    run = RunKeys(scope, keys.id)
    seen = await scope.read(keys.record, run.state, run.header)
    found = seen.get(keys.record)
    if found is None:
        raise RequestNotFoundError(keys.id)
    record = REQUESTS.decode(found.value)
    if record.has_ended:
        return RequestView(record, found.version, seen.at)
    if record.durable:
        return _of_run(record, found.version, seen, run)
    if record.owner and not await is_present(scope, record.owner):
        return await _interrupted(scope, keys, seen)
    return RequestView(record, found.version, seen.at)


async def _interrupted(scope: Scope, keys: RequestKeys, before: Snapshot) -> RequestView:
    """Return how a request is whose server is gone: it may have written the end just before it went."""
    seen = await scope.read(keys.record)
    found = seen.get(keys.record)
    if found is None:
        raise RequestNotFoundError(keys.id)
    record = REQUESTS.decode(found.value)
    if record.has_ended or found.version != before.version(keys.record):
        return RequestView(record, found.version, seen.at)
    failure = describe(RequestInterruptedError(keys.id), KNOWN)
    over = ended(record, "interrupted", seen.at, reason="its server went away", failure=failure)
    return RequestView(over, found.version, seen.at, is_derived=True)


async def is_present(scope: Scope, name: str) -> bool:
    """Return True if the process behind a presence is still taken for alive."""
    opening, _, number = name.rpartition(".")
    key = scope.key("presence", opening, number)
    record = (await scope.read(key)).get(key)
    return record is not None and not scope.store.is_dead(PRESENCES.decode(record.value).liveness_token)


async def is_over(scope: Scope, run_id: str, tags: Iterable[str]) -> bool:
    """Return True if a run is that of a request whose end is written down: nothing that the run does changes it."""
    tenant = tenant_in(tags)
    if tenant is None:
        return False
    key = RequestKeys(scope, tenant, run_id).record
    found = (await scope.read(key)).get(key)
    return found is not None and REQUESTS.decode(found.value).has_ended


async def settle(scope: Scope, keys: RequestKeys, view: RequestView) -> bool:
    """Write down how a request has ended, if its record does not say so yet. Doing it again changes nothing.

    False: the record has changed meanwhile. Another process has done it; or the request is alive after all.
    """
    if not view.is_derived or not view.has_ended:
        return True

    def decide(seen: Snapshot) -> Decision[bool]:
        if seen.version(keys.record) != view.version:
            return Decision(answer=False)
        counted = seen.version(keys.unfinished)
        changes = () if not counted else (Delete(keys.unfinished, counted),)
        return Decision(answer=True, changes=(*keys.end(view.record, view.version, seen), *changes))

    return (await scope.update((*keys.ending(view.record), keys.unfinished), decide)).answer


# --- durable requests -----------------------------------------------------------------------------------------------


def _of_run(record: RequestRecord, version: int, seen: Snapshot, run: RunKeys) -> RequestView:
    found, header = seen.get(run.state), seen.get(run.header)
    if found is None:
        over = ended(record, "cancelled", seen.at, reason="its run was removed")
        return RequestView(over, version, seen.at, is_derived=True)
    life = RUN_STATES.decode(found.value)
    if life.status == "quarantined":
        told = structs.replace(record, status="waiting", attempt=life.claims, reason=life.cancel or QUARANTINED)
        return RequestView(told, version, seen.at, life)
    if not life.has_ended:
        status: Status = "running" if life.claims else "waiting"
        began, reason = life.changed_at if life.claims else Instant(0), life.cancel or ""
        told = structs.replace(record, status=status, started_at=began, attempt=life.claims, reason=reason)
        return RequestView(told, version, seen.at, life)
    over = _ended_run(record, life, None if header is None else HEADERS.decode(header.value))
    return RequestView(over, version, seen.at, life, is_derived=True)


def _ended_run(record: RequestRecord, life: RunState, header: Header | None) -> RequestRecord:
    """Return the record of a request whose run ended without writing it: it never began, or was ended by force."""
    at, record = life.changed_at, structs.replace(record, attempt=life.claims)
    if life.status == "completed":
        return ended(record, "completed", at, result=b"null" if life.result is UNSET else bytes(life.result))
    if life.status == "failed":
        status = "failed" if life.failure is None else _BY_FAILURE.get(life.failure.type, "failed")
        return ended(record, status, at, failure=life.failure)
    line = None if header is None else missed(header, life)
    if header is not None and line is not None:
        late = QueueTimeoutError(line.label, ttl_of(header) or 0.0)
        return ended(record, "refused", at, reason=str(late), failure=describe(late, KNOWN))
    reason = life.cancel or "it was stopped"
    if reason.startswith(SUPERSEDED_BY):
        by = structs.replace(record, by=reason.removeprefix(SUPERSEDED_BY))
        return ended(by, "superseded", at, reason=reason)
    return ended(record, "cancelled", at, reason=reason)


# --- what its caller is told ----------------------------------------------------------------------------------------


def problem_of(request_id: str, record: RequestRecord, known: KnownErrors = KNOWN) -> StandfastError:
    """Return the exception that tells a caller why a request has no result."""
    cause = None if record.failure is None else restore(record.failure, known)
    was_stopped = record.status in ("refused", "superseded", "interrupted")
    if isinstance(cause, SessionMissingError) or (was_stopped and isinstance(cause, _TELLING)):
        return cause
    match record.status:
        case "cancelled":
            return RequestCancelledError(request_id, record.reason, record.cancelled_by)
        case "superseded":
            return RequestSupersededError(request_id, record.by)
        case "interrupted":
            return RequestInterruptedError(request_id)
        case _:
            told = record.reason if record.failure is None else f"{record.failure.type}: {record.failure.message}"
            problem = RequestFailedError(request_id, told)
            problem.__cause__ = cause
            add_trace(problem, "" if record.failure is None else record.failure.trace)
            return problem


def shown_problem(record: RequestRecord) -> str:
    """Return in words why a request has no result. What an action said in its exception is not for strangers."""
    if record.failure is None or record.reason:
        return record.reason
    if record.failure.type == _MISSING:
        return record.failure.message
    return f"the action raised {record.failure.type.rpartition('.')[2]}"


# --- what is told of a request, in a form that is safe to show: how it is, and why it waits ------------------------


def info_of(request_id: str, record: RequestRecord, explanation: RequestExplanation | None = None) -> RequestInfo:
    """Return what a record tells, in a form that is safe to show."""
    is_good = record.status == "completed"
    problem = None if is_good or not record.has_ended else problem_of(request_id, record)
    error_type = ""
    if problem is not None:
        failure = record.failure
        error_type = type(problem).__name__ if failure is None else failure.type.rpartition(".")[2]
    return RequestInfo(
        id=request_id,
        flow=record.flow,
        action=record.action,
        status=record.status,
        policy=record.policy,
        verdict=record.verdict,
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
        error_type=error_type,
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

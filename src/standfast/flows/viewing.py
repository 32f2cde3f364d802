"""How a request is: read from its record, from its run if it is durable, and from whether its server still lives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, Raw, Struct, structs

from standfast.clock import Instant, later
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
from standfast.flows.arbiters.protocol import SUPERSEDED_BY
from standfast.flows.call import tenant_in
from standfast.flows.records import REQUESTS, RequestKeys, RequestRecord
from standfast.locks.driving.presence import PRESENCES
from standfast.stores.protocol import Decision, Delete, Put
from standfast.workflows.limiting.waiting import missed, ttl_of
from standfast.workflows.storing.failures import KnownErrors, describe, name_of, restore
from standfast.workflows.storing.records import HEADERS, LIVES, Life, RunKeys
from standfast.workflows.storing.trace import add_trace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.errors import StandfastError
    from standfast.flows.request import Status
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot
    from standfast.workflows.storing.failures import Failure
    from standfast.workflows.storing.records import Header

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


class View(Struct, frozen=True):
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
    life: Life | None = None
    is_derived: bool = False

    @property
    def status(self) -> Status:
        """How it is."""
        return self.record.status

    @property
    def has_ended(self) -> bool:
        """Whether it is over."""
        return self.record.has_ended


async def look(scope: Scope, keys: RequestKeys) -> View:
    """Return how a request is.

    Raises:
        RequestNotFoundError: The tenant has no such request.
    """
    run = RunKeys(scope, keys.id)
    seen = await scope.read(keys.record, run.life, run.header)
    found = seen.get(keys.record)
    if found is None:
        raise RequestNotFoundError(keys.id)
    record = REQUESTS.decode(found.value)
    if record.has_ended:
        return View(record, found.version, seen.at)
    if record.durable:
        return _of_run(record, found.version, seen, run)
    if record.owner and not await is_present(scope, record.owner):
        return await _interrupted(scope, keys, seen)
    return View(record, found.version, seen.at)


async def _interrupted(scope: Scope, keys: RequestKeys, before: Snapshot) -> View:
    """Return how a request is whose server is gone: it may have written the end just before it went."""
    seen = await scope.read(keys.record)
    found = seen.get(keys.record)
    if found is None:
        raise RequestNotFoundError(keys.id)
    record = REQUESTS.decode(found.value)
    if record.has_ended or found.version != before.version(keys.record):
        return View(record, found.version, seen.at)
    failure = describe(RequestInterruptedError(keys.id), KNOWN)
    over = ended(record, "interrupted", seen.at, reason="its server went away", failure=failure)
    return View(over, found.version, seen.at, is_derived=True)


async def is_present(scope: Scope, name: str) -> bool:
    """Tell whether the process behind a presence is still taken for alive."""
    opening, _, number = name.rpartition(".")
    key = scope.key("presence", opening, number)
    record = (await scope.read(key)).get(key)
    return record is not None and not scope.store.is_severed(PRESENCES.decode(record.value).lifeline)


async def is_over(scope: Scope, run_id: str, tags: Iterable[str]) -> bool:
    """Tell whether a run is that of a request whose end is written down: nothing that the run does changes it."""
    tenant = tenant_in(tags)
    if tenant is None:
        return False
    key = RequestKeys(scope, tenant, run_id).record
    found = (await scope.read(key)).get(key)
    return found is not None and REQUESTS.decode(found.value).has_ended


def ended(
    record: RequestRecord,
    status: Status,
    at: Instant,
    *,
    reason: str = "",
    result: bytes | None = None,
    failure: Failure | None = None,
    cancelled_by: str = "",
) -> RequestRecord:
    """Return the record of a request that ends."""
    raw = UNSET if result is None else Raw(result)
    changes: dict[str, Any] = {"status": status, "ended_at": at, "reason": reason, "result": raw, "failure": failure}
    if cancelled_by or record.cancelled_by:
        changes["cancelled_by"] = cancelled_by or (record.cancelled_by if status == "cancelled" else "")
    return structs.replace(record, **changes)


def final_put(keys: RequestKeys, record: RequestRecord, version: int, at: Instant) -> Put:
    """Return the change that writes down how a request has ended; the record goes by itself after a while."""
    return Put(keys.record, REQUESTS.encode_own(record), version, expires_at=later(at, record.keep))


async def settle(scope: Scope, keys: RequestKeys, view: View) -> bool:
    """Write down how a request has ended, if its record does not say so yet. Doing it again changes nothing.

    False: the record has changed meanwhile. Somebody else has done it; or the request is alive after all.
    """
    if not view.is_derived or not view.has_ended:
        return True

    def decide(seen: Snapshot) -> Decision[bool]:
        if seen.version(keys.record) != view.version:
            return Decision(answer=False)
        counted = seen.version(keys.unfinished)
        changes = () if not counted else (Delete(keys.unfinished, counted),)
        return Decision(answer=True, changes=(final_put(keys, view.record, view.version, view.at), *changes))

    return (await scope.update((keys.record, keys.unfinished), decide)).answer


# --- durable requests -----------------------------------------------------------------------------------------------


def _of_run(record: RequestRecord, version: int, seen: Snapshot, run: RunKeys) -> View:
    found, header = seen.get(run.life), seen.get(run.header)
    if found is None:
        over = ended(record, "cancelled", seen.at, reason="its run was removed")
        return View(over, version, seen.at, is_derived=True)
    life = LIVES.decode(found.value)
    if not life.has_ended:
        return View(_unfinished(record, life), version, seen.at, life)
    over = _ended_run(record, life, None if header is None else HEADERS.decode(header.value))
    return View(over, version, seen.at, life, is_derived=True)


def _unfinished(record: RequestRecord, life: Life) -> RequestRecord:
    if life.status == "quarantined":
        return structs.replace(record, status="waiting", attempt=life.claims, reason=life.cancel or QUARANTINED)
    status: Status = "running" if life.claims else "waiting"
    began = life.changed_at if life.claims else Instant(0)
    return structs.replace(record, status=status, started_at=began, attempt=life.claims, reason=life.cancel or "")


def _ended_run(record: RequestRecord, life: Life, header: Header | None) -> RequestRecord:
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
    if isinstance(cause, SessionMissingError) or (isinstance(cause, _TELLING) and _is_told(record)):
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


def _is_told(record: RequestRecord) -> bool:
    """Tell whether what stopped the request says itself how it ended."""
    return record.status in ("refused", "superseded", "interrupted")


def shown_problem(record: RequestRecord) -> str:
    """Return in words why a request has no result. What an action said in its exception is not for strangers."""
    if record.failure is None or record.reason:
        return record.reason
    if record.failure.type == _MISSING:
        return record.failure.message
    return f"the action raised {record.failure.type.rpartition('.')[2]}"

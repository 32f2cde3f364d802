"""How a request ends that has no result, and writing that down once it has no turn any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import structs

from holdfast.errors import (
    HoldfastError,
    QueueFullError,
    QueueTimeoutError,
    RequestCancelledError,
    RequestInterruptedError,
    RequestSupersededError,
    TooManyRequestsError,
)
from holdfast.flows.arbiters.protocol import Beside
from holdfast.flows.calling import session_put
from holdfast.flows.idempotency import kept_until_end
from holdfast.flows.records import REQUESTS, session_key
from holdfast.flows.viewing import ended, final_put
from holdfast.workflows.storing.failures import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.clock import Instant
    from holdfast.flows.idempotency import Claim
    from holdfast.flows.records import RequestKeys, RequestRecord
    from holdfast.flows.serving import Server
    from holdfast.flows.session import Operation
    from holdfast.flows.tasks import Task
    from holdfast.stores.protocol import Change, Snapshot
    from holdfast.workflows.storing.failures import KnownErrors

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
"""Seconds between two tries to write the end down: doubled from the first to the longest."""


def ended_by(record: RequestRecord, problem: BaseException, at: Instant, known: KnownErrors) -> RequestRecord:
    """Return the record of a request that has ended because of a problem."""
    failure, reason = describe(problem, known), str(problem)
    match problem:
        case RequestSupersededError():
            by = structs.replace(record, by=problem.by)
            return ended(by, "superseded", at, reason=reason, failure=failure)
        case RequestCancelledError():
            return ended(record, "cancelled", at, reason=problem.reason)
        case RequestInterruptedError():
            return ended(record, "interrupted", at, reason=reason, failure=failure)
        case QueueTimeoutError() | QueueFullError() | TooManyRequestsError():
            return ended(record, "refused", at, reason=reason, failure=failure)
        case _:
            return ended(record, "failed", at, failure=failure)


async def to_the_end(writing: asyncio.Task[None]) -> asyncio.CancelledError | None:
    """Wait for what cannot be called back; return the cancellation that came too late for it."""
    late = None
    while not writing.done():
        try:
            await asyncio.wait({writing})
        except asyncio.CancelledError as cancelled:
            late = cancelled
    writing.result()
    return late


def last_of(
    server: Server,
    keys: RequestKeys,
    task: Task,
    record: RequestRecord,
    operations: tuple[Operation, ...],
    *,
    is_stored: bool,
) -> Beside | None:
    """Return what is written when a request ends that runs here: its record, its key, and its session's state."""
    if not is_stored and not operations:
        return None
    session, claim = session_key(server.space, keys.tenant, task.arrival.session), task.claim
    kept = server.tenants.limits.session_kept
    named = ((keys.record,) if is_stored else ()) + ((session,) if operations else ())

    def decide(_: int, seen: Snapshot) -> Sequence[Change]:
        changes: list[Change] = []
        if is_stored:
            found = seen.get(keys.record)
            if found is None:
                raise RequestInterruptedError(keys.id)
            if REQUESTS.decode(found.value).has_ended:
                return ()  # it was written, and the answer got lost
            changes.append(final_put(keys, record, found.version, seen.at))
            if claim is not None:
                changes += kept_until_end(claim.key, keys.id, record.keep, seen)
        if operations:
            changes.append(session_put(session, operations, seen, kept))
        return changes

    return Beside(named if claim is None else (*named, claim.key), decide)


async def write_end(
    server: Server, keys: RequestKeys, record: RequestRecord, claim: Claim | None = None
) -> RequestRecord:
    """Write the end of a request that has no turn any more, and return what is written then.

    While the store does not answer it is tried again. If this server closes before that, its end will tell.
    """
    there = [record]

    def decide(_: int, seen: Snapshot) -> Sequence[Change]:
        found = seen.get(keys.record)
        there[:] = [record if found is None else REQUESTS.decode(found.value)]
        if found is None or there[0].has_ended:
            return ()
        there[:] = [record]
        key = () if claim is None else kept_until_end(claim.key, keys.id, record.keep, seen)
        return (final_put(keys, record, found.version, seen.at), *key)

    named = (keys.record,) if claim is None else (keys.record, claim.key)
    pause = FIRST_PAUSE
    while True:
        try:
            await server.update(Beside(named, decide))
        except HoldfastError:
            if server.is_closing:
                return record
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            return there[0]

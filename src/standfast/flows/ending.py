"""How a request ends that has no result, and writing that down once it has no turn any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from msgspec import structs

from standfast.errors import (
    QueueFullError,
    QueueTimeoutError,
    RequestCancelledError,
    RequestInterruptedError,
    RequestSupersededError,
    StandfastError,
    TooManyRequestsError,
    WaitsForItselfError,
)
from standfast.flows.arbiters.protocol import Beside
from standfast.flows.idempotency import kept_until_end
from standfast.flows.records import REQUESTS
from standfast.flows.viewing import ended, final_put
from standfast.workflows.storing.failures import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.clock import Instant
    from standfast.flows.idempotency import Claim
    from standfast.flows.records import RequestKeys, RequestRecord
    from standfast.flows.serving import Server
    from standfast.stores.protocol import Change, Snapshot
    from standfast.workflows.storing.failures import KnownErrors

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
"""Seconds between two tries to write the end down: doubled from the first to the longest."""

PATIENCE: Final = 1.0
"""Seconds that a caller waits until it is written that its request has ended without a result."""


_CANCELLING: Final = (asyncio.CancelledError, GeneratorExit)


def raise_cancelling(problem: BaseException) -> None:
    """Raise what an action has raised if that is a cancellation: as it is, or in place of a group of nothing else."""
    if isinstance(problem, _CANCELLING):
        raise problem
    if is_cancelling(problem):
        raise asyncio.CancelledError from problem


def is_cancelling(problem: BaseException) -> bool:
    """Return True if what an action has raised is a cancellation, after which it can be awaited what is left to do."""
    if isinstance(problem, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", problem)
        return group.subgroup(_is_something_else) is None
    return isinstance(problem, asyncio.CancelledError)


def _is_something_else(problem: BaseException) -> bool:
    return not isinstance(problem, (*_CANCELLING, BaseExceptionGroup))  # what is in a group is asked for by itself


def is_exit(problem: BaseException) -> bool:
    """Tell whether a process is to end because of it: how its request ended is written, and then it is raised."""
    return isinstance(problem, SystemExit | KeyboardInterrupt)


def ended_by(record: RequestRecord, problem: BaseException, at: Instant, known: KnownErrors) -> RequestRecord:
    """Return the record of a request that has ended because of a problem."""
    failure, reason = describe(problem, known), str(problem)
    match problem:
        case RequestSupersededError():
            by = structs.replace(record, by=problem.by)
            return ended(by, "superseded", at, reason=reason, failure=failure)
        case RequestCancelledError():
            return ended(record, "cancelled", at, reason=problem.reason, cancelled_by=problem.cancelled_by)
        case RequestInterruptedError():
            return ended(record, "interrupted", at, reason=reason, failure=failure)
        case QueueTimeoutError() | QueueFullError() | TooManyRequestsError() | WaitsForItselfError():
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


async def write_end_in_time(
    server: Server, keys: RequestKeys, record: RequestRecord, claim: Claim | None
) -> RequestRecord:
    """Write the end of a request, however long that takes and whoever is cancelled; return what is written by then."""
    writing = server.own(write_late_end(server, keys, record, claim))
    await asyncio.wait({writing}, timeout=PATIENCE)
    return writing.result() if writing.done() else record


async def write_late_end(
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
        except StandfastError:
            if server.is_closing:
                return record
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            return there[0]

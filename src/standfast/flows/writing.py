"""What is written of a request whose caller waits: with its place, when it waits no longer, and with its end.

All of it is for the store's commits: pure functions of what lies there, which may run several times, on another thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.errors import RequestInterruptedError
from standfast.flows.arbiters.protocol import Beside
from standfast.flows.calling import session_put
from standfast.flows.ending import to_the_end
from standfast.flows.idempotency import kept_until_end
from standfast.flows.records import REQUESTS, RequestKeys, session_key
from standfast.flows.storage import Weighed
from standfast.flows.viewing import final_put
from standfast.stores.protocol import Check, Put

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from standfast.flows.arbiters.protocol import Turn
    from standfast.flows.records import RequestRecord
    from standfast.flows.request import Status
    from standfast.flows.serving import Server
    from standfast.flows.session import Operation
    from standfast.flows.tasks import Task
    from standfast.keys import RecordKey
    from standfast.stores.protocol import Change, Snapshot


def with_its_place(server: Server, task: Task, keys: RequestKeys, note: Callable[[RequestRecord], None]) -> Beside:
    """Return what is committed with the place of a request: its record, and its idempotency key.

    Args:
        server: Where it runs.
        task: The request.
        keys: Where its records lie.
        note: Told the record before it is written; from then on it may be there.
    """
    claim = task.claim

    def decide(position: int, seen: Snapshot) -> Sequence[Change]:
        if seen.version(keys.record):
            return ()  # it was written, and the answer got lost
        begins = {} if position else {"started_at": seen.at, "attempt": 1}
        status: Status = "waiting" if position else "running"
        record = task.record(seen.at, status, owner=server.owner, server=server.name, **begins)
        put = Put(keys.record, REQUESTS.encode_own(record))
        changes = (put, *(() if claim is None else claim.put_over(keys.id, seen)))
        note(record)
        return changes

    return Beside((keys.record, *(() if claim is None else (claim.key,))), decide)


def as_it_is_now(keys: RequestKeys, record: RequestRecord) -> Beside:
    """Return what is committed when one that had to wait runs, or one that had its turn has to wait for room."""

    def decide(_: int, seen: Snapshot) -> Sequence[Change]:
        found = seen.get(keys.record)
        if found is None:
            return ()
        if REQUESTS.decode(found.value).has_ended:  # others took this server for dead, and have said so
            raise RequestInterruptedError(keys.id)
        return (Put(keys.record, REQUESTS.encode_own(record), found.version),)

    return Beside((keys.record,), decide)


def with_its_end(
    server: Server, task: Task, keys: RequestKeys, record: RequestRecord | None, operations: tuple[Operation, ...]
) -> Beside:
    """Return what is committed with the end of a request: what was done to its session, and its record if it has one.

    With the record ends its idempotency key, after its window.

    It raises :class:`~standfast.errors.RequestInterruptedError` if the record is gone, or others have ended it.
    """
    session, claim = session_key(server.space, keys.tenant, task.arrival.session), task.claim
    kept = server.tenants.limits.session_kept
    named = (*(() if record is None else (keys.record,)), *((session,) if operations else ()))

    def decide(_: int, seen: Snapshot) -> Sequence[Change]:
        changes: list[Change] = []
        if record is not None:
            found = seen.get(keys.record)
            if found is None:
                raise RequestInterruptedError(keys.id)
            there = REQUESTS.decode(found.value)
            if (there.status, there.ended_at) == (record.status, record.ended_at):
                return ()  # it was written, and the answer got lost
            if there.has_ended:  # others took this server for dead, and have said so
                raise RequestInterruptedError(keys.id)
            changes.append(final_put(keys, record, found.version, seen.at))
            if claim is not None:
                changes += kept_until_end(claim.key, keys.id, record.keep, seen)
        if operations:
            changes.append(session_put(session, operations, seen, kept))
        return changes

    return Beside(named if claim is None else (*named, claim.key), decide)


async def write_end(
    server: Server, task: Task, turn: Turn | None, record: RequestRecord | None, operations: tuple[Operation, ...]
) -> asyncio.CancelledError | None:
    """Write down how a request ended and what it did to its session, in the commit that ends its turn.

    If nothing else would tell that this has happened, a cancellation comes too late, and is returned.

    Args:
        server: Where it runs.
        task: The request.
        turn: Its turn, if it has one.
        record: How it ended; None: it has no record.
        operations: What it did to its session.
    """
    keys = RequestKeys(server.space, task.arrival.tenant, task.id)
    weighed = Weighed(with_its_end(server, task, keys, record, operations))
    beside, late = weighed.beside, None
    if record is None:
        late = await to_the_end(server.own(server.update(beside) if turn is None else turn.finish(beside)))
    else:
        await (update_while_alive(server, task.id, beside) if turn is None else turn.finish(beside))
    server.tenants.storage.add(keys.tenant, weighed.grown)
    return late


async def update_while_alive(server: Server, request_id: str, beside: Beside) -> Mapping[RecordKey, int]:
    """Commit without a turn, only while this process is taken for alive."""
    guard = server.presence_key

    def decide(position: int, seen: Snapshot) -> Sequence[Change]:
        if not seen.version(guard):
            raise RequestInterruptedError(request_id)
        return (*beside.decide(position, seen), Check(guard, seen.version(guard)))

    return await server.update(Beside((*beside.keys, guard), decide))

"""The requests of a tenant as an operator sees them: list them, look at one, and ask one to stop.

An operator has the store, and need not have the code of the flows nor serve them. Only requests with a record are seen:
one that runs in the process of its caller, and needs no turn, leaves none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

from msgspec import Struct

from standfast.errors import InvalidArgumentError, RequestNotFoundError
from standfast.flows.records import CANCELS, REQUESTS, CancelRecord, RequestKeys
from standfast.flows.request import RequestInfo, Status
from standfast.flows.view import OPERATOR, info_of, look, note_asker, settle
from standfast.stores.protocol import Put, Wake

if TYPE_CHECKING:
    from collections.abc import Collection

    from standfast.flows.records import RequestRecord
    from standfast.scope import Scope
    from standfast.workflows.engine import Engine

PAGE: Final = 100
MOST_LISTED: Final = 1_000
MOST_PASSED: Final = 2_000
"""How many requests that are not meant a page passes over; then it ends, and the next one goes on from there."""

STATUSES: Final[tuple[str, ...]] = get_args(Status)


class RequestPage(Struct, frozen=True):
    """Some requests, the newest first, and where the next page begins, for ``after``; None: that was all.

    A page can have fewer requests than were asked for, or none, and yet a next one.
    """

    requests: tuple[RequestInfo, ...]
    next: str | None = None


async def list_requests(
    scope: Scope,
    tenant: str,
    *,
    status: Collection[str] = (),
    flow: str | None = None,
    action: str | None = None,
    user: str | None = None,
    limit: int = 100,
    after: str | None = None,
) -> RequestPage:
    """Return a page of the requests of a tenant, the newest first.

    Args:
        scope: The space that the application serves from.
        tenant: Whose: that of the principals who sent them.
        status: Only those that are so; all if none is named.
        flow: Only those of this flow.
        action: Only those of this action.
        user: Only those that this user has sent.
        limit: How many at most.
        after: Where the page before ended: its ``next``.
    """
    if type(limit) is not int or not 1 <= limit <= MOST_LISTED:
        raise InvalidArgumentError("limit", f"it must be a whole number from 1 to {MOST_LISTED:,}", ascii(limit)[:40])
    if unknown := set(status).difference(STATUSES):
        raise InvalidArgumentError("status", f"choose from {', '.join(STATUSES)}", ascii(min(unknown))[:60])
    root = scope.key("request", tenant)
    start, end = root.within()
    end = end if after is None else root.child(after)
    wanted = {"flow": flow, "action": action, "user": user}
    found: list[RequestInfo] = []
    passed = 0
    while True:
        page = await scope.scan(start, end, limit=scope.at_most(PAGE), reverse=True)
        for key, stored in page.records.items():
            request_id, record = key.parts[-1], REQUESTS.decode(stored.value)
            info = None
            if all(value is None or getattr(record, name) == value for name, value in wanted.items()):
                info = await _read(scope, RequestKeys(scope, tenant, request_id), record)
            if info is not None and (not status or info.status in status):
                found.append(info)
            else:
                passed += 1
            if len(found) == limit or passed == MOST_PASSED:
                return RequestPage(tuple(found), request_id)
        if page.more is None:
            return RequestPage(tuple(found))
        end = page.more


async def _read(scope: Scope, keys: RequestKeys, record: RequestRecord) -> RequestInfo | None:
    """Return how a request is; of one that has not ended, its run or its server has the last word."""
    if record.has_ended:
        return info_of(keys.id, record)
    try:
        return info_of(keys.id, (await look(scope, keys)).record)
    except RequestNotFoundError:  # it went meanwhile
        return None


async def read_request(scope: Scope, tenant: str, request_id: str) -> RequestInfo:
    """Return how a request of a tenant is.

    Raises:
        RequestNotFoundError: The tenant has none of that id, or not any more.
    """
    return info_of(request_id, (await look(scope, RequestKeys(scope, tenant, request_id))).record)


async def cancel_request(engine: Engine, tenant: str, request_id: str, reason: str) -> RequestInfo:
    """Ask a request of a tenant to stop, wherever it waits or runs, in the name of an operator; return how it is then.

    One that has ended is left as it is. One that is not durable is told by its server, a moment later.

    Raises:
        RequestNotFoundError: The tenant has none of that id, or not any more.
    """
    scope = engine.space
    keys = RequestKeys(scope, tenant, request_id)
    record = (await look(scope, keys)).record
    async with engine.acts("request.cancel", request_id, reason=reason) as told:
        if record.has_ended:
            told.outcome = "nothing"
        elif record.durable:
            await note_asker(scope, keys, OPERATOR)
            await engine.cancel(request_id, reason)
            await settle(scope, keys, await look(scope, keys))
        else:
            put = Put(keys.cancel, CANCELS.encode(CancelRecord(reason, OPERATOR)))
            await scope.commit(put, wake=(Wake(scope.key("server", record.server), keys.cancel),))
    return await read_request(scope, tenant, request_id)

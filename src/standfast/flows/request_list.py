"""The requests of a tenant as an operator sees them: list and count them, look at one, and ask one to stop.

An operator has the store, and need not have the code of the flows nor serve them. Only requests with a record are seen:
one that runs in the process of its caller, and needs no turn, leaves none.

The index of requests lies beside their records: one entry for each, whose key says whether it is open or how it ended,
its flow, its action, when it came, and, once it has ended, the verdict. It is written in the commits that move the
request, so a list costs what it shows. A durable request whose run was ended from outside is listed as open until a
server has written its end, which takes a few seconds (:class:`UnseenEnds`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, TypedDict, Unpack, final, get_args

from msgspec import Struct

from standfast.clock import MICROSECONDS, Instant, later
from standfast.errors import InvalidArgumentError, RequestNotFoundError
from standfast.flows.records import CANCELS, LISTED, OPEN, REQUESTS, CancelRecord, RequestKeys, listed_value, tenant_in
from standfast.flows.request import ENDED, RequestInfo, Status
from standfast.flows.view import OPERATOR, info_of, is_present, look, note_asker, settle
from standfast.stores.protocol import Conflict, Put, Wake
from standfast.workflows.lanes import (
    ALWAYS,
    BATCH,
    LAST,
    PAUSE,
    IndexLane,
    IndexMarker,
    LaneMerge,
    count_within,
    cursor_at,
    cursor_by_id,
    parts_below,
    position_of,
)
from standfast.workflows.records import HEADERS, RunKeys
from standfast.workflows.run_index import MOST_COUNTED, RunCount, oldest_ended, workflows_with

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from standfast.flows.records import RequestRecord
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.workflows.engine import Engine

PAGE: Final = 100
MOST_LISTED: Final = 1_000
MOST_PASSED: Final = 2_000
"""How many requests that are not meant a page passes over; then it ends, and the next one goes on from there."""

STATUSES: Final[tuple[str, ...]] = get_args(Status)
VERDICTS: Final = ("run", "queued", "started", "collected")
"""What can have been decided about a request that has a record."""

TRIES: Final = 20


class RequestPage(Struct, frozen=True):
    """Some requests, the newest first, and where the next page begins, for ``after``; None: that was all.

    A page can have fewer requests than were asked for, or none, and yet a next one.
    """

    requests: tuple[RequestInfo, ...]
    next: str | None = None


# --- which requests are meant ---------------------------------------------------------------------------------------


class RequestFilters(TypedDict, total=False):
    """Which requests are meant. All that is said must hold.

    Attributes:
        status: Those that are so; all if none is named.
        verdict: Those about which this was decided when they came: ``run``, ``queued``, ``started``, ``collected``.
        flow: Those of this flow.
        action: Those of this action.
        user: Those that this user has sent.
        received_after: Those that came at this time or later: a datetime with a zone.
        received_before: Those that came before this time.
    """

    status: Collection[str]
    verdict: str | None
    flow: str | None
    action: str | None
    user: str | None
    received_after: datetime | None
    received_before: datetime | None


class _Chosen(Struct, frozen=True, kw_only=True):
    """Filters that were checked."""

    status: frozenset[str] = frozenset()
    verdict: str | None = None
    flow: str | None = None
    action: str | None = None
    user: str | None = None
    times: tuple[Instant, Instant] = ALWAYS

    @property
    def states(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Among which entries of the index those are that can be meant: of open ones, and of those that have ended."""
        wanted = self.status or STATUSES
        is_open = any(status not in ENDED for status in wanted)
        return ((OPEN,) if is_open else ()), tuple(sorted(ENDED.intersection(wanted)))

    @property
    def is_indexed(self) -> bool:
        """Whether the index alone says which are meant."""
        may_be_open = not self.status or bool(self.status - ENDED)
        return self.user is None and (not may_be_open or (not self.status and self.verdict is None))

    def takes_entry(self, value: bytes) -> bool:
        """Return False if the entry of a request in the index says that another user has sent it."""
        return LISTED.decode(value).user in (None, self.user)

    def takes(self, record: RequestRecord) -> bool:
        """Return True if a request can be meant, whatever its status."""
        wanted = ((self.flow, record.flow), (self.action, record.action), (self.user, record.user))
        return (
            all(value is None or value == there for value, there in (*wanted, (self.verdict, record.verdict)))
            and self.times[0] <= record.received_at < self.times[1]
        )


def _chosen(filters: RequestFilters) -> _Chosen:
    status, verdict = frozenset(filters.get("status") or ()), filters.get("verdict")
    if unknown := status.difference(STATUSES):
        raise InvalidArgumentError("status", f"choose from {', '.join(STATUSES)}", ascii(min(unknown))[:60])
    if verdict is not None and verdict not in VERDICTS:
        raise InvalidArgumentError("verdict", f"choose from {', '.join(VERDICTS)}", ascii(verdict)[:60])
    first, end = _instant("received_after", filters), _instant("received_before", filters)
    times = (Instant(0) if first is None else first, LAST if end is None else end)
    names = {"flow": filters.get("flow"), "action": filters.get("action"), "user": filters.get("user")}
    return _Chosen(status=status, verdict=verdict, times=times, **names)


def _instant(what: str, filters: RequestFilters) -> Instant | None:
    at = filters.get(what)
    if at is None:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidArgumentError(what, "it must be a datetime with a time zone", f"{at!r:.100}")
    return Instant(max(0, int(at.timestamp() * MICROSECONDS)))


async def _lanes(scope: Scope, tenant: str, chosen: _Chosen, states: Iterable[str]) -> list[IndexLane]:
    """Return the lanes of requests in some states. What a filter does not name is found by one look each."""
    root = scope.key("requests", tenant)
    verdict, takes = chosen.verdict, None if chosen.user is None else chosen.takes_entry
    ended = await _below(scope, [root.child(state) for state in states if state != OPEN], chosen.flow, chosen.action)
    opened = await _below(scope, [root.child(state) for state in states if state == OPEN], chosen.flow, chosen.action)
    prefixes = [*await _below(scope, ended, verdict), *(lane.child("") for lane in opened)]
    return [IndexLane(prefix, chosen.times, takes) for prefix in prefixes]


async def _below(scope: Scope, lanes: list[RecordKey], *wanted: str | None) -> list[RecordKey]:
    for part in wanted:
        parts = (
            [[part]] * len(lanes)
            if part is not None
            else await asyncio.gather(*map(partial(parts_below, scope), lanes))
        )
        lanes = [lane.child(each) for lane, some in zip(lanes, parts, strict=True) for each in some]
    return lanes


# --- pages and counts -----------------------------------------------------------------------------------------------


async def list_requests(
    scope: Scope, tenant: str, *, limit: int = 100, after: str | None = None, **filters: Unpack[RequestFilters]
) -> RequestPage:
    """Return a page of the requests of a tenant, the newest first, at the cost of what is shown.

    With ``user``, those of others are passed over in the index, 50,000 at the most; whether a request waits or runs is
    looked up for each, 2,000 at the most. Then the page ends. While an older store is indexed, all filters do so.

    Args:
        scope: The space that the application serves from.
        tenant: Whose: that of the principals who sent them.
        limit: How many at most.
        after: Where the page before ended: its ``next``.
        filters: Which, see :class:`RequestFilters`.
    """
    if type(limit) is not int or not 1 <= limit <= MOST_LISTED:
        raise InvalidArgumentError("limit", f"it must be a whole number from 1 to {MOST_LISTED:,}", ascii(limit)[:40])
    chosen = _chosen(filters)
    position = None if after is None else position_of(after)
    if isinstance(position, str) or not await _marker(scope).is_complete():
        last = position[1] if isinstance(position, tuple) else position
        return await _list_by_id(scope, tenant, chosen, limit=limit, after=last)
    merge = LaneMerge(scope, newest_first=True, after=position)
    for states in chosen.states:  # one that ends meanwhile is met twice and not missed, because open ones come first
        await merge.open(await _lanes(scope, tenant, chosen, states), limit)
    found: dict[str, RequestInfo] = {}
    passed = 0
    while positions := await merge.take(min(BATCH, limit - len(found))):
        some = await _read(scope, tenant, [name for _, name in positions], chosen)
        found.update(some)
        passed += len(positions) - len(some)
        if len(found) >= limit or passed >= MOST_PASSED:
            return RequestPage(tuple(found.values()), cursor_at(positions[-1]))
        await asyncio.sleep(0)
    return RequestPage(tuple(found.values()), None if merge.stopped_at is None else cursor_at(merge.stopped_at))


async def _read(scope: Scope, tenant: str, names: Iterable[str], chosen: _Chosen) -> dict[str, RequestInfo]:
    """Read requests, and return those that are meant as they are now."""
    keys = [RequestKeys(scope, tenant, name) for name in dict.fromkeys(names)]
    most, found = scope.at_most(BATCH), dict[str, RequestInfo]()
    for first in range(0, len(keys), most):
        some = keys[first : first + most]
        seen = await scope.read(*(each.record for each in some))
        for each in some:
            stored = seen.get(each.record)
            info = None if stored is None else await _judged(scope, each, REQUESTS.decode(stored.value), chosen)
            if info is not None:
                found[each.id] = info
    return found


async def _judged(scope: Scope, keys: RequestKeys, record: RequestRecord, chosen: _Chosen) -> RequestInfo | None:
    """Return how a request is, if it is meant; of one that has not ended, its run or its server has the last word."""
    if not chosen.takes(record) or (chosen.status and record.has_ended and record.status not in chosen.status):
        return None
    if not record.has_ended:
        try:
            record = (await look(scope, keys)).record
        except RequestNotFoundError:  # it went meanwhile
            return None
    return info_of(keys.id, record) if not chosen.status or record.status in chosen.status else None


async def _list_by_id(scope: Scope, tenant: str, chosen: _Chosen, *, limit: int, after: str | None) -> RequestPage:
    """Return a page in the order of ids, while there is no index."""
    root = scope.key("request", tenant)
    start, end = root.within()
    end = end if after is None else root.child(after)
    found: list[RequestInfo] = []
    passed = 0
    while True:
        page = await scope.scan(start, end, limit=scope.at_most(PAGE), reverse=True)
        for key, stored in page.records.items():
            keys = RequestKeys(scope, tenant, key.parts[-1])
            info = await _judged(scope, keys, REQUESTS.decode(stored.value), chosen)
            if info is not None:
                found.append(info)
            else:
                passed += 1
            if len(found) == limit or passed == MOST_PASSED:
                return RequestPage(tuple(found), cursor_by_id(keys.id))
        if page.more is None:
            return RequestPage(tuple(found))
        end = page.more


async def count_requests(
    scope: Scope, tenant: str, *, most: int = MOST_COUNTED, **filters: Unpack[RequestFilters]
) -> RunCount:
    """Count the requests of a tenant, up to a bound.

    Args:
        scope: The space that the application serves from.
        tenant: Whose.
        most: Where counting stops.
        filters: Which, see :class:`RequestFilters`.
    """
    if type(most) is not int or most < 1:
        raise InvalidArgumentError("most", "it must be a whole number, at least 1", f"{most!r:.100}")
    chosen = _chosen(filters)
    if not chosen.is_indexed or not await _marker(scope).is_complete():
        page = await list_requests(scope, tenant, limit=min(most + 1, MOST_LISTED), **filters)
        counted = min(most, len(page.requests))
        return RunCount(counted, has_more=len(page.requests) > most or page.next is not None)
    counted = 0
    for lane in await _lanes(scope, tenant, chosen, sum(chosen.states, ())):
        counted += (await count_within(scope, lane, most + 1 - counted))[0]
        if counted > most:
            return RunCount(most, has_more=True)
    return RunCount(counted)


# --- stores that are older than the index ---------------------------------------------------------------------------


def _marker(scope: Scope) -> IndexMarker:
    return IndexMarker(scope, "requests", scope.key("request"))


async def begin_index(scope: Scope) -> None:
    """Say that the index of a store is complete, if the store has no requests yet."""
    await _marker(scope).begin()


async def index_existing(scope: Scope, *, pause: float = PAUSE, again: bool = False) -> int:
    """Index the requests that a store had before it had an index; see :meth:`IndexMarker.index_existing`."""

    async def index(key: RecordKey) -> bool:
        """List one request if it is not listed.

        Its record is written again in the same commit, unchanged: what moves the request at this moment looks again.
        """
        keys = RequestKeys(scope, *key.parts[-2:])
        for _ in range(TRIES):
            stored = (await scope.read(keys.record)).get(keys.record)
            if stored is None:
                return False
            record = REQUESTS.decode(stored.value)
            listed, value = keys.listed(record), listed_value(record)
            there = await scope.read(*listed)
            missing = [Put(each, value, expires_at=stored.expires_at) for each in listed if not there.version(each)]
            if not missing:
                return False
            same = Put(keys.record, stored.value, stored.version, expires_at=stored.expires_at)
            if not isinstance(await scope.commit(same, *missing), Conflict):
                return True
        return False

    return await _marker(scope).index_existing(index, pause=pause, again=again)


UNSEEN: Final = ("cancelled", "failed")
"""How runs end whose requests do not write that themselves."""

LAG: Final = 2.0
"""Seconds by which the ends of runs may come into the index out of order, by the clocks of several processes."""


@final
class UnseenEnds:
    """Writes down the ends of durable requests whose runs were ended from outside.

    A run that is cancelled, superseded or too late before it has begun writes nothing of its request itself. This reads
    the index of runs from where it was, so a round costs as much as has ended since then.

    Args:
        scope: Where the requests lie.
        workflows: The names of the workflows of all actions.
        since: From when on; what ended before is found when its run is swept.
    """

    def __init__(self, scope: Scope, workflows: Collection[str], since: Instant) -> None:
        self._scope, self._workflows, self._since = scope, workflows, since
        self._done: dict[str, Instant] = {}

    async def settle(self) -> int:
        """Write down what has ended since the last round; return how many those were."""
        settled, first = 0, Instant(max(0, later(self._since, -LAG)))
        self._done = {name: at for name, at in self._done.items() if at >= first}
        for status in UNSEEN:
            for name in set(await workflows_with(self._scope, status)).intersection(self._workflows):
                async for page in oldest_ended(self._scope, status, since=first, before=LAST, workflow=name):
                    new = [each for each in page if each.id not in self._done]
                    for start in range(0, len(new), BATCH):
                        settled += await self._settle([each.id for each in new[start : start + BATCH]])
                    self._done |= {each.id: each.ended_at for each in new}
        self._since = max(self._since, *self._done.values()) if self._done else self._since
        return settled

    async def _settle(self, names: list[str]) -> int:
        scope, keys = self._scope, list[RequestKeys]()
        headers = {name: RunKeys(scope, name).header for name in names}
        seen = await scope.read(*headers.values())
        for name, key in headers.items():
            header = seen.get(key)
            tenant = None if header is None else tenant_in(HEADERS.decode(header.value).tags)
            if tenant is not None:
                keys.append(RequestKeys(scope, tenant, name))
        there = await scope.read(*(each.unfinished for each in keys))
        unseen = [each for each in keys if there.version(each.unfinished)]
        for each in unseen:
            with suppress(RequestNotFoundError):
                await settle(scope, each, await look(scope, each))
        return len(unseen)


async def settle_interrupted(scope: Scope) -> int:
    """Write down the ends of requests whose servers died with them; return how many those were.

    It reads the requests of all tenants that are open.
    """
    settled, root = 0, scope.key("requests")
    for tenant in await parts_below(scope, root):
        merge, dead = LaneMerge(scope, newest_first=False), dict[str, bool]()
        await merge.open(await _lanes(scope, tenant, _Chosen(), (OPEN,)), BATCH)
        while positions := await merge.take(scope.at_most(BATCH)):
            keys = {each.record: each for each in (RequestKeys(scope, tenant, name) for _, name in positions)}
            for key, stored in (await scope.read(*keys)).records.items():
                record = REQUESTS.decode(stored.value)
                if record.durable or record.has_ended or not record.owner:
                    continue
                if record.owner not in dead:
                    dead[record.owner] = not await is_present(scope, record.owner)
                if dead[record.owner]:
                    with suppress(RequestNotFoundError):
                        settled += await settle(scope, keys[key], await look(scope, keys[key]))
            await asyncio.sleep(0)  # a store in this process answers at once: others go on meanwhile
    return settled


# --- one request ----------------------------------------------------------------------------------------------------


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

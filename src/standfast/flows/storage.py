"""How many bytes the store keeps of each tenant, and refusing what would add to too many.

Nothing is noted with each record. A process adds up what it writes of a tenant, and counts page by page what lies
there: when it first writes something of it, and again after a tenth of what was left. So what has expired, or was
purged, is free again at the next count, and nothing drifts, whichever process died meanwhile.

No request waits for a count. All counts of a process take turns, and pause after each page, so that they take up a
tenth of its time however many bytes there are. What comes until a count has ended is judged by the one before.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, final

from standfast.errors import TooManyBytesError
from standfast.flows.records import REQUESTS
from standfast.locks.entry import ExtraChanges
from standfast.stores.protocol import Put
from standfast.workflows.records import RunKeys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence

    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Record, Snapshot

KINDS: Final = ("request", "requests", "event", "session", "owner", "idempotency", "onced", "sharer", "newest")
"""The records that have the tenant in their keys; the runs of its durable requests are found by the first."""

SMALL: Final = 500
"""Bytes that the small records of a request or a session take up, about, until they are counted."""

SHARE: Final = 10
"""Which part of what is left a process writes before it counts again, and of its time that counting takes: a tenth."""

AGAIN: Final = 1.0
"""Seconds between two counts of one tenant, at least."""

SAID: Final = 60.0
"""After how many seconds a refused caller may try again: bytes get free when records expire, which takes a while."""

PAGE: Final = 100
PAGE_BYTES: Final = 1_000_000
"""How much a page has, about: it is cut to as many records as the ones before it let expect."""

REMEMBERED: Final = 10_000
"""How many tenants a process remembers."""

_COLLECTED: Final = ("debounce", "batch")
"""The policies whose requests lie in the inbox of a run, and then in its history."""


@final
class _TenantBytes:
    """What is known of one tenant: how much was counted, what was written here since then, and what is coming."""

    __slots__ = ("added", "at", "coming", "counted", "counting", "is_counted")

    def __init__(self) -> None:
        self.counted = self.added = self.coming = 0
        self.is_counted, self.at = False, float("-inf")
        self.counting: asyncio.Task[None] | None = None

    @property
    def total(self) -> int:
        """How many bytes there are, as far as this process knows."""
        return self.counted + self.added + self.coming


@final
class Storage:
    """How many bytes are kept of each tenant, as far as one process knows.

    Args:
        scope: Where they are kept.
        most: How many there may be of each; None: any number, and nothing is counted.
    """

    def __init__(self, scope: Scope, most: int | None) -> None:
        self._scope, self._most = scope, most
        self._tenants: Final[OrderedDict[str, _TenantBytes]] = OrderedDict()
        self._counting: Final[set[asyncio.Task[None]]] = set()
        self._turn: Final = asyncio.Lock()

    def check(self, tenant: str, size: int = 1) -> None:
        """Refuse what a tenant would have more, if that is too much.

        Raises:
            TooManyBytesError: It is.
        """
        if self._most is None:
            return
        known = self._of(tenant)
        if known.total + size > self._most:
            self._count_if_due(tenant, known)
            raise TooManyBytesError("bytes kept of the tenant", self._most, SAID, kept=known.total)

    @contextmanager
    def room_for(self, tenant: str, size: int) -> Generator[None]:
        """Have room for what is about to be written; it is kept unless there is an error.

        Raises:
            TooManyBytesError: There is none.
        """
        if self._most is None:
            yield
            return
        self.check(tenant, size)
        known = self._of(tenant)
        known.coming += size
        try:
            yield
        finally:
            known.coming -= size
        self.add(tenant, size)

    def add(self, tenant: str, size: int) -> None:
        """Count bytes that were written; a negative size counts bytes that are gone."""
        if self._most is None:
            return
        known = self._of(tenant)
        known.added += size
        if known.added * SHARE >= self._most - known.counted:
            self._count_if_due(tenant, known)

    def _of(self, tenant: str) -> _TenantBytes:
        known = self._tenants.get(tenant)
        if known is None:
            if len(self._tenants) >= REMEMBERED:
                self._tenants.popitem(last=False)
            known = self._tenants[tenant] = _TenantBytes()
        if not known.is_counted:
            self._count_if_due(tenant, known)
        return known

    def _count_if_due(self, tenant: str, known: _TenantBytes) -> None:
        """Count in a task of its own, unless that goes on or was done just now."""
        loop = asyncio.get_running_loop()
        if known.counting is not None or loop.time() - known.at < AGAIN:
            return

        def is_over(task: asyncio.Task[None]) -> None:
            known.counting, known.at = None, loop.time()
            self._counting.discard(task)
            if not task.cancelled():
                task.exception()  # what was counted before, and written here since then, still counts

        counting = known.counting = loop.create_task(self._count(tenant, known))
        self._counting.add(counting)
        counting.add_done_callback(is_over)

    async def _count(self, tenant: str, known: _TenantBytes) -> None:
        """Take over what the store says; what was written meanwhile may be in it or not, and counts besides."""
        before = known.added
        known.counted = await self.measure(tenant)
        known.added -= before
        known.is_counted = True

    async def measure(self, tenant: str) -> int:
        """Return how many bytes are kept of a tenant: keys and values, and what its durable requests were sent with."""
        found = 0
        for kind in KINDS:
            async for page in self._pages(*self._scope.key(kind, tenant).within()):
                found += _size_of(page)
                if kind == "request":
                    found += await self._size_of_runs(page)
        return found

    async def _size_of_runs(self, requests: Iterable[Record]) -> int:
        """Return how much lies in the runs of durable requests, as long as those are not purged."""
        found = 0
        headers: list[RecordKey] = []
        for request in requests:
            record = REQUESTS.decode(request.value)
            if not record.durable:
                continue
            keys = RunKeys(self._scope, request.key.parts[-1])
            headers.append(keys.header)
            if record.policy in _COLLECTED:
                for start, end in (keys.inbox(), keys.history()):
                    async for page in self._pages(start, end):
                        found += _size_of(page)
        for first in range(0, len(headers), SHARE):
            seen = await self._paced(partial(self._scope.read, *headers[first : first + SHARE]))
            found += _size_of(seen.records.values())
        return found

    async def _pages(self, start: RecordKey, end: RecordKey) -> AsyncIterator[Sequence[Record]]:
        """Read a range in pages."""
        limit, more = SHARE, start
        while True:
            seen = await self._paced(partial(self._scope.scan, more, end, limit=limit))
            page = tuple(seen.records.values())
            yield page
            if seen.more is None:
                return
            more, fit = seen.more, PAGE_BYTES * len(page) // max(1, _size_of(page))
            limit = max(1, min(fit, 2 * limit, PAGE))

    async def _paced(self, read: Callable[[], Awaitable[Snapshot]]) -> Snapshot:
        """Read something in turn with all that is read here, and pause for nine times as long as that took."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            began = loop.time()
            seen = await read()
            await asyncio.sleep((loop.time() - began) * (SHARE - 1))
        return seen

    async def aclose(self) -> None:
        """Stop counting."""
        counting = tuple(self._counting)
        for task in counting:
            task.cancel()
        await asyncio.gather(*counting, return_exceptions=True)


def _size_of(records: Iterable[Record]) -> int:
    return sum([len(bytes(each.key)) + len(each.value) for each in records])


@final
class WeighedChanges:
    """Changes that are committed, and how many bytes more are in the store then.

    Args:
        extra_changes: What decides about them.

    Attributes:
        extra_changes: The same, to be committed.
        grown: How many bytes more there are after the commit. Of several decisions, the last counts.
    """

    def __init__(self, extra_changes: ExtraChanges[int]) -> None:
        self._decide: Final = extra_changes.decide
        self.extra_changes: Final = ExtraChanges(extra_changes.keys, self._weigh)
        self.grown = 0

    def _weigh(self, position: int, seen: Snapshot) -> Sequence[Change]:
        changes, grown = self._decide(position, seen), 0
        for each in changes:
            if isinstance(each, Put):
                there = seen.get(each.key)
                grown += len(each.value) - (0 if there is None else len(there.value))
        self.grown = grown
        return changes

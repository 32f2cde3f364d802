"""Events of a request: told while it runs, numbered and written in batches, and followed until its end."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import msgspec
from msgspec import UNSET, Raw

from standfast.clock import later
from standfast.errors import RequestInterruptedError, StoreError
from standfast.flows.records import EVENTS, EventRecord, number_of
from standfast.flows.request import EmittedEvent
from standfast.flows.view import kind_of, look, shown_problem
from standfast.locks.entry import ExtraChanges
from standfast.stores.protocol import Put
from standfast.workflows.records import RunKeys
from standfast.workflows.values import PLAIN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from standfast.clock import Instant
    from standfast.flows.records import RequestKeys, RequestRecord
    from standfast.flows.view import RequestView, Sight
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot, Watch


# --- what a request tells on its way: numbered from 1, kept in order, and written in batches -----------------------

REMEMBERED: Final = 1_000
"""How many events of a request without a record are kept; then the oldest are forgotten."""

EVENT: Final = 100
"""Bytes that an event takes up besides what it tells."""

MOST_TOGETHER: Final = 40
"""How many events one commit writes."""

MOST_BYTES: Final = 1_000_000
TRIES: Final = 10
PAUSE: Final = 0.05
"""Seconds after the first try to write while the store does not answer; each further pause is longer by as much."""

PATIENCE: Final = 1.0
"""Seconds for which a request that is stopped waits until its last events are written."""

KEPT: Final = 86_400.0
"""Seconds for which events are kept."""


def packed_event(data: Any) -> bytes:  # noqa: ANN401 -- JSON-shaped data, and structs of it
    """Return what was told as JSON.

    Raises:
        EncodeError: It is not JSON-shaped. The message names the place, never the value.
    """
    is_plain = data is None or isinstance(data, str | int | float | list | dict)
    return PLAIN.pack(data if is_plain else msgspec.to_builtins(data))


@final
class EventMemory:
    """What a request without a record has told: kept by its process alone, as far as there is room.

    Attributes:
        last: The number of the latest event.
        is_closed: The request has ended; nothing is told any more.
    """

    __slots__ = ("_events", "_told", "_waiting", "is_closed", "last")

    def __init__(self) -> None:
        self._events: deque[EmittedEvent] | None = None  # most requests tell nothing
        self._waiting: Final[list[asyncio.Future[None]]] = []
        self.last = self._told = 0
        self.is_closed = False

    def emit(self, name: str, data: Any) -> None:  # noqa: ANN401 -- JSON-shaped data
        """Tell the followers. What a task tells that outlives its request is not kept: the end was told."""
        packed = packed_event(data)
        if self.is_closed:
            return
        if self._events is None:
            self._events = deque(maxlen=REMEMBERED)
        self.last += 1
        self._told += len(packed) + EVENT
        self._events.append(EmittedEvent(self.last, name, PLAIN.unpack(packed)))
        self._wake()

    def close(self) -> None:
        """Note that the request has ended."""
        self.is_closed = True
        self._wake()

    @property
    def weight(self) -> int:
        """How many bytes are kept, about."""
        return 0 if self._events is None else self._told * len(self._events) // self.last

    def after(self, number: int) -> list[EmittedEvent]:
        """Return what was told after an event, as far as it is kept."""
        if self._events is None or number >= self.last:
            return []
        forgotten = self.last - len(self._events)
        return list(islice(self._events, max(0, number - forgotten), None))

    async def beyond(self, number: int) -> None:
        """Wait until something was told after an event, or the request has ended."""
        while self.last <= number and not self.is_closed:
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(told)
            try:
                await told
            finally:
                self._waiting.remove(told)

    def _wake(self) -> None:
        for each in self._waiting:
            if not each.done():
                each.set_result(None)

    async def flush(self) -> None:
        """There is nothing to write."""


@final
class EventJournal:
    """What a request with a record tells: written as soon as it can be, what has come meanwhile together.

    Args:
        scope: Where.
        keys: Of the request.
        write: Commits changes, and refuses if the request has lost its turn, or the one who asks has.
        now: Returns the store's time, as near as this process can tell.
        kept: Told how many bytes more are in the store.
        last: The number of the latest event that lies there already.

    Attributes:
        last: The number of the latest event.
    """

    def __init__(
        self,
        scope: Scope,
        keys: RequestKeys,
        write: Callable[[ExtraChanges[int]], Awaitable[object]],
        now: Callable[[], Instant],
        kept: Callable[[int], None],
        last: int = 0,
    ) -> None:
        self._scope, self._keys, self._commit, self._now, self._kept = scope, keys, write, now, kept
        self._pending: list[tuple[RecordKey, bytes]] = []
        self._writing: asyncio.Task[None] | None = None
        self._problem: Exception | None = None
        self.last = last

    def emit(self, name: str, data: Any) -> None:  # noqa: ANN401 -- JSON-shaped data
        """Tell the followers. What a task tells that outlives its request is not kept: the end was told."""
        record = EVENTS.encode_own(EventRecord(name, self._now(), Raw(packed_event(data))))
        self.last += 1
        self._pending.append((self._keys.event(self.last), record))
        if self._writing is None:
            task = asyncio.get_running_loop().create_task(self._write())
            self._writing = None if task.done() else task  # an eager task may be over by now

    async def flush(self) -> None:
        """Wait until everything is written that was told so far; raise if it cannot be."""
        while self._writing is not None:
            await asyncio.shield(self._writing)
        if self._problem is not None:
            raise self._problem

    async def close(self) -> None:
        """Wait a moment until everything is written that was told so far, and write nothing after that.

        It is for a request that is stopped: whatever becomes of its events, its end is written next.
        """
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=PATIENCE)
        self._problem = self._problem or RequestInterruptedError(self._keys.id)

    async def _write(self) -> None:
        tried = 0
        try:
            while self._pending and self._problem is None:
                some = dict(self._cut())
                try:
                    await self._commit(ExtraChanges(tuple(some), partial(_puts, some)))
                except StoreError as problem:
                    tried += 1
                    if tried == TRIES:
                        self._problem = problem
                    await asyncio.sleep(PAUSE * tried)
                except Exception as problem:  # noqa: BLE001 -- the task that waits for it is told
                    self._problem = problem
                else:
                    del self._pending[: len(some)]
                    self._kept(sum(map(len, some.values())))
        finally:
            self._writing = None

    def _cut(self) -> list[tuple[RecordKey, bytes]]:
        some: list[tuple[RecordKey, bytes]] = []
        size = 0
        for key, value in self._pending[: min(MOST_TOGETHER, self._scope.at_most(100) // 2)]:
            size += len(value)
            if some and size > MOST_BYTES:
                break
            some.append((key, value))
        return some


def _puts(some: dict[RecordKey, bytes], _: int, seen: Snapshot) -> list[Put]:
    """Return what writes events, without those that were written when an answer got lost.

    Raises:
        RequestInterruptedError: Another process tells of the request by now.
    """
    for key, value in some.items():
        found = seen.get(key)
        if found is not None and found.value != value:
            raise RequestInterruptedError(key.parts[-2])
    until = later(seen.at, KEPT)
    return [Put(key, value, expires_at=until) for key, value in some.items() if not seen.version(key)]


async def last_number(scope: Scope, keys: RequestKeys) -> int:
    """Return the number of the latest event of a request; 0: it has told nothing."""
    seen = await scope.scan(*keys.events.within(), limit=1, reverse=True)
    return max((number_of(key) for key in seen.records), default=0)


# --- following a request: what it tells after a number, and then as it comes, until its end. Nothing twice, no gaps
# ---
#
# A follower keeps a cursor, the number of the last event that it has read, and looks for what comes after it before it
# waits. So it misses nothing, however slowly it reads.
#
# The end is an event too, the last one. It is not stored: its number is the one after the last that was told, and
# nothing is told after the end, so all callers get the same.

END: Final = "request.ended"
"""The name of the last event."""

RESTARTED: Final = "request.restarted"
"""The name of the event that comes first when the action is begun again: what it told before, it may tell anew."""

DROPPED: Final = "request.events_dropped"
"""The name of the event that stands for those that are gone."""

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at a request that is followed, if nothing tells earlier."""

PAGE: Final = 200
"""How many events are read at once."""


class EventSource(Protocol):
    """Where the events of one request are read.

    ``beyond`` is asked with how far a follower has read, and never waits if there is more by then: what is told, or
    ends, while a follower does something else cannot be missed.
    """

    async def end(self) -> RequestRecord | None:
        """Return how the request ended; None if it has not."""
        ...

    def after(self, number: int) -> AsyncIterator[EmittedEvent]:
        """Yield the events after a number that can be read now. All of them, if :meth:`end` returned before."""
        ...

    async def last(self) -> int:
        """Return the number of the latest event; 0 if there is none."""
        ...

    async def beyond(self, number: int) -> None:
        """Wait until there may be an event after a number, or the request has ended."""
        ...


async def follow(source: EventSource, after: int = 0, sight: Sight = "own") -> AsyncIterator[EmittedEvent]:
    """Yield what a request tells after an event, as it comes, and its end: the one loop behind all that follow.

    Events that are gone before they were read are told as one event, whose number is that of the last of them. Callers
    that may see the status only are told nothing but the end.

    Raises:
        RequestNotFoundError: The tenant has no such request.
    """
    read = 0
    while True:
        record = await source.end()  # before the events: all that was told before the end is there then
        if sight == "status":
            if record is not None:
                if not after:
                    yield EmittedEvent(1, END, {"status": record.status})
                return
            await source.beyond(await source.last())
            continue
        async for event in source.after(after):
            if event.number > after + 1:
                yield EmittedEvent(event.number - 1, DROPPED, {"count": event.number - 1 - after})
            after = read = event.number
            yield event
        if record is not None:
            last = max(read, await source.last())
            if after <= last:
                yield end_of(record, last + 1, is_own=sight == "own")
            return
        await source.beyond(after)


@final
class MemoryEventSource:
    """The events of a request that has no record: in the memory of the process that runs it.

    Args:
        memory: What it has told.
        record: Returns how it is.
    """

    def __init__(self, memory: EventMemory, record: Callable[[], RequestRecord]) -> None:
        self._memory, self._record = memory, record

    async def end(self) -> RequestRecord | None:
        """Return how it ended."""
        return self._record() if self._memory.is_closed else None

    async def after(self, number: int) -> AsyncIterator[EmittedEvent]:
        """Yield what is kept."""
        for event in self._memory.after(number):
            yield event

    async def last(self) -> int:
        """Return the number of the latest."""
        return self._memory.last

    async def beyond(self, number: int) -> None:
        """Wait for more."""
        await self._memory.beyond(number)


async def follow_stored(
    scope: Scope, keys: RequestKeys, after: int = 0, sight: Sight = "own"
) -> AsyncIterator[EmittedEvent]:
    """Yield what a request tells that lies in the store, wherever it runs; see :func:`follow`."""
    async with scope.watch(keys.events, keys.record, RunKeys(scope, keys.id).state) as watch:
        async for event in follow(StoredEventSource(scope, keys, watch), after, sight):
            yield event


@final
class StoredEventSource:
    """The events of a request that lie in the store.

    Args:
        scope: Where.
        keys: Of the request.
        watch: Keeps hints about them until they are asked for.
    """

    def __init__(self, scope: Scope, keys: RequestKeys, watch: Watch) -> None:
        self._scope, self._keys, self._watch = scope, keys, watch

    async def end(self) -> RequestRecord | None:
        """Return how it ended."""
        view = await look(self._scope, self._keys)
        return view.record if view.has_ended else None

    async def after(self, number: int) -> AsyncIterator[EmittedEvent]:
        """Yield what is written."""
        start, (_, end) = self._keys.event(number).successor(), self._keys.events.within()
        while True:
            page = await self._scope.scan(start, end, limit=PAGE)
            for key, record in page.records.items():
                told = EVENTS.decode(record.value)
                yield EmittedEvent(number_of(key), told.name, msgspec.json.decode(told.data))
            if page.more is None:
                return
            start = page.more

    async def last(self) -> int:
        """Return the number of the latest."""
        return await last_number(self._scope, self._keys)

    async def beyond(self, number: int) -> None:  # noqa: ARG002 -- a watch keeps what it hears while it is not awaited
        """Wait for a hint; it may have come before."""
        await self._watch.wait(LOOK_EVERY)


def end_of(record: RequestRecord, number: int, *, is_own: bool = True) -> EmittedEvent:
    """Return the last event of a request; without names, for callers that only share its run."""
    data: dict[str, Any] = {"status": record.status}
    if record.status == "completed":
        data["result"] = None if record.result is UNSET else msgspec.json.decode(record.result)
    elif problem := shown_problem(record):
        data["error"] = problem
    if record.by:
        data["by"] = record.by
    if record.cancelled_by:
        data["cancelledBy"] = record.cancelled_by if is_own else kind_of(record.cancelled_by)
    return EmittedEvent(number, END, data)


async def until_ended(scope: Scope, keys: RequestKeys) -> RequestView:
    """Return how a request is once it has ended, wherever it runs.

    Raises:
        RequestNotFoundError: The tenant has no such request.
    """
    async with scope.watch(keys.record, RunKeys(scope, keys.id).state) as watch:
        while not (view := await look(scope, keys)).has_ended:
            await watch.wait(LOOK_EVERY)
        return view

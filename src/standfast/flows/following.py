"""Following a request: what it tells after a number, and then as it comes, until its end. Nothing twice, no gaps.

A follower keeps a cursor, the number of the last event that it has read, and looks for what comes after it before it
waits. So it misses nothing, however slowly it reads.

The end is an event too, the last one. It is not stored: its number is the one after the last that was told, and nothing
is told after the end, so whoever asks gets the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, final

import msgspec
from msgspec import UNSET

from standfast.flows.cancelling import kind_of
from standfast.flows.emitting import last_number
from standfast.flows.records import EVENTS, number_of
from standfast.flows.request import Event
from standfast.flows.viewing import look, shown_problem
from standfast.workflows.storing.records import RunKeys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from standfast.flows.emitting import Memory
    from standfast.flows.records import RequestKeys, RequestRecord
    from standfast.flows.seeing import Sight
    from standfast.flows.viewing import View
    from standfast.scope import Scope
    from standfast.stores.protocol import Watch

END: Final = "request.ended"
"""The name of the last event."""

DROPPED: Final = "request.events_dropped"
"""The name of the event that stands for those that are gone."""

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at a request that is followed, if nothing tells earlier."""

PAGE: Final = 200
"""How many events are read at once."""


class Source(Protocol):
    """Where the events of one request are read.

    ``beyond`` is asked with how far a follower has read, and never waits if there is more by then: what is told, or
    ends, while a follower does something else cannot be missed.
    """

    async def end(self) -> RequestRecord | None:
        """Return how the request ended; None if it has not."""
        ...

    def after(self, number: int) -> AsyncIterator[Event]:
        """Yield the events after a number that can be read now. All of them, if :meth:`end` returned before."""
        ...

    async def last(self) -> int:
        """Return the number of the latest event; 0 if there is none."""
        ...

    async def beyond(self, number: int) -> None:
        """Wait until there may be an event after a number, or the request has ended."""
        ...


async def follow(source: Source, after: int = 0, sight: Sight = "own") -> AsyncIterator[Event]:
    """Yield what a request tells after an event, as it comes, and its end: the one loop behind all that follow.

    Events that are gone before they were read are told as one event, whose number is that of the last of them. To those
    who may see the status only, none is told but the end.

    Raises:
        RequestNotFoundError: The tenant has no such request.
    """
    read = 0
    while True:
        record = await source.end()  # before the events: all that was told before the end is there then
        if sight == "status":
            if record is not None:
                if not after:
                    yield Event(1, END, {"status": record.status})
                return
            await source.beyond(await source.last())
            continue
        async for event in source.after(after):
            if event.number > after + 1:
                yield Event(event.number - 1, DROPPED, {"count": event.number - 1 - after})
            after = read = event.number
            yield event
        if record is not None:
            last = max(read, await source.last())
            if after <= last:
                yield end_of(record, last + 1, is_own=sight == "own")
            return
        await source.beyond(after)


@final
class MemorySource:
    """The events of a request that has no record: in the memory of the process that runs it.

    Args:
        memory: What it has told.
        record: Returns how it is.
    """

    def __init__(self, memory: Memory, record: Callable[[], RequestRecord]) -> None:
        self._memory, self._record = memory, record

    async def end(self) -> RequestRecord | None:
        """Return how it ended."""
        return self._record() if self._memory.is_closed else None

    async def after(self, number: int) -> AsyncIterator[Event]:
        """Yield what is kept."""
        for event in self._memory.after(number):
            yield event

    async def last(self) -> int:
        """Return the number of the latest."""
        return self._memory.last

    async def beyond(self, number: int) -> None:
        """Wait for more."""
        await self._memory.beyond(number)


async def follow_stored(scope: Scope, keys: RequestKeys, after: int = 0, sight: Sight = "own") -> AsyncIterator[Event]:
    """Yield what a request tells that lies in the store, wherever it runs; see :func:`follow`."""
    async with scope.watch(keys.events, keys.record, RunKeys(scope, keys.id).life) as watch:
        async for event in follow(StoredSource(scope, keys, watch), after, sight):
            yield event


@final
class StoredSource:
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

    async def after(self, number: int) -> AsyncIterator[Event]:
        """Yield what is written."""
        start, (_, end) = self._keys.event(number).successor(), self._keys.events.within()
        while True:
            page = await self._scope.scan(start, end, limit=PAGE)
            for key, record in page.records.items():
                told = EVENTS.decode(record.value)
                yield Event(number_of(key), told.name, msgspec.json.decode(told.data))
            if page.more is None:
                return
            start = page.more

    async def last(self) -> int:
        """Return the number of the latest."""
        return await last_number(self._scope, self._keys)

    async def beyond(self, number: int) -> None:  # noqa: ARG002 -- a watch keeps what it hears while nobody waits
        """Wait for a hint; it may have come before."""
        await self._watch.wait(LOOK_EVERY)


def end_of(record: RequestRecord, number: int, *, is_own: bool = True) -> Event:
    """Return the last event of a request; to those who share its run only, nobody is named."""
    data: dict[str, Any] = {"status": record.status}
    if record.status == "completed":
        data["result"] = None if record.result is UNSET else msgspec.json.decode(record.result)
    elif problem := shown_problem(record):
        data["error"] = problem
    if record.by:
        data["by"] = record.by
    if record.cancelled_by:
        data["cancelledBy"] = record.cancelled_by if is_own else kind_of(record.cancelled_by)
    return Event(number, END, data)


async def until_ended(scope: Scope, keys: RequestKeys) -> View:
    """Return how a request is once it has ended, wherever it runs.

    Raises:
        RequestNotFoundError: The tenant has no such request.
    """
    async with scope.watch(keys.record, RunKeys(scope, keys.id).life) as watch:
        while not (view := await look(scope, keys)).has_ended:
            await watch.wait(LOOK_EVERY)
        return view

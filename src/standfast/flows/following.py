"""Following a request: what it tells after a number, and then as it comes, until its end. Nothing twice, no gaps.

The end is an event too, the last one. It is not stored: its number is the one after the last that was told, and nothing
is told after the end, so whoever asks gets the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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
    from standfast.flows.viewing import View
    from standfast.scope import Scope

END: Final = "request.ended"
"""The name of the last event."""

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at a request that is followed, if nothing tells earlier."""

PAGE: Final = 200
"""How many events are read at once."""


async def follow(scope: Scope, keys: RequestKeys, after: int = 0, *, is_own: bool = True) -> AsyncIterator[Event]:
    """Yield what a request tells after an event, as it comes, and its end.

    Raises:
        RequestNotFoundError: The tenant has no such request.
    """
    async with scope.watch(keys.events, keys.record, RunKeys(scope, keys.id).life) as watch:
        while True:
            view = await look(scope, keys)  # before the events: all that was told before the end is there then
            async for event in _stored(scope, keys, after):
                after = event.number
                yield event
            if view.has_ended:
                last = await last_number(scope, keys)
                if after <= last:
                    yield end_of(view.record, last + 1, is_own=is_own)
                return
            await watch.wait(LOOK_EVERY)


async def _stored(scope: Scope, keys: RequestKeys, after: int) -> AsyncIterator[Event]:
    start, (_, end) = keys.event(after).successor(), keys.events.within()
    while True:
        page = await scope.scan(start, end, limit=PAGE)
        for key, record in page.records.items():
            told = EVENTS.decode(record.value)
            yield Event(number_of(key), told.name, msgspec.json.decode(told.data))
        if page.more is None:
            return
        start = page.more


async def follow_memory(
    memory: Memory, after: int, ended: Callable[[], RequestRecord | None], *, is_own: bool = True
) -> AsyncIterator[Event]:
    """Yield what a request tells that has no record, and its end."""
    while True:
        record = ended()
        for event in memory.after(after):
            after = event.number
            yield event
        if record is not None:
            if after <= memory.last:
                yield end_of(record, memory.last + 1, is_own=is_own)
            return
        await memory.news()


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

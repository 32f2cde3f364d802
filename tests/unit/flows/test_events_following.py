"""Following a request by a cursor: what is gone is told, and nothing else is missing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.flows.events import REMEMBERED
from standfast.flows.records import RequestKeys
from standfast.stores.protocol import Delete
from tests.conformance.dispatch_stage import ANN, SOON, result

if TYPE_CHECKING:
    from standfast.flows.dispatcher import ArbiterKind
    from standfast.flows.request import EmittedEvent

MANY = REMEMBERED + 500


def telling() -> tuple[sf.Flow, asyncio.Event]:
    """Return a flow that tells more than is kept in memory when it is told to go on."""
    flow, go = sf.Flow("talk"), asyncio.Event()

    @flow.action
    async def tell(request: sf.Request, many: int) -> int:
        request.emit(0)
        await go.wait()
        for number in range(1, many):
            request.emit(number)
        return many

    return flow, go


def sent(many: int, **more: Any) -> sf.Call:
    """Return a request for that much."""
    return sf.Call(flow="talk", action="tell", inputs={"many": many}, principal=ANN, **more)


def shown(events: list[EmittedEvent]) -> list[tuple[int, str]]:
    """Return the events that are none of the action's."""
    return [(event.number, event.name) for event in events if event.name != "message"]


async def test_a_reader_that_is_too_slow_is_told_how_much_it_missed() -> None:
    """The number is that of the last event that is gone, so whoever comes back with it goes on behind it."""
    flow, go = telling()
    async with sf.Dispatcher("memory://", [flow]) as dispatcher, asyncio.timeout(SOON):
        handle = await dispatcher.dispatch(sent(MANY))
        events: list[EmittedEvent] = []
        async for event in handle.events():
            events.append(event)
            if event.number == 1:
                go.set()
                await result(handle)
        gap = MANY - REMEMBERED
        again = [event async for event in (await dispatcher.find(ANN, handle.id)).events(gap)]

    assert shown(events) == [(gap, "request.events_dropped"), (MANY + 1, "request.ended")]
    assert events[1].data == {"count": gap - 1}
    assert [event.number for event in events] == [1, gap, *range(gap + 1, MANY + 2)]
    assert shown(again) == [(MANY + 1, "request.ended")]
    assert [event.number for event in again] == [*range(gap + 1, MANY + 2)]


@pytest.mark.parametrize("gone", [[1, 2], [2], [1, 2, 3]])
async def test_events_that_are_gone_from_the_store_are_told_as_gone(gone: list[int]) -> None:
    """They are kept for a day, and a request may take longer."""
    flow, go = telling()
    async with sf.Dispatcher("memory://", [flow]) as dispatcher, asyncio.timeout(SOON):
        handle = await dispatcher.dispatch(sent(4, attended=False))
        go.set()
        await result(handle)
        space = dispatcher.engine.space
        keys = RequestKeys(space, "acme", handle.id)
        for number in gone:
            found = (await space.read(keys.event(number))).version(keys.event(number))
            await space.commit(Delete(keys.event(number), found))
        events = [event async for event in handle.events()]

    assert shown(events) == [(gone[-1], "request.events_dropped"), (5, "request.ended")]
    assert next(event.data for event in events if event.name != "message") == {"count": len(gone)}


@pytest.mark.parametrize("kind", ["shared", "local"])
@pytest.mark.parametrize("durable", [True, False])
async def test_what_was_told_before_a_request_is_cancelled_is_seen(kind: ArbiterKind, *, durable: bool) -> None:
    """Also if the cancellation comes in the same breath, and nothing comes after the end."""
    flow, told = sf.Flow("talk"), asyncio.Event()

    @flow.action(concurrency="queue")
    async def tell(request: sf.Request) -> None:
        for number in range(100):
            request.emit(number)
        told.set()
        await asyncio.Event().wait()

    async with sf.Dispatcher("memory://", [flow], arbiter=kind) as dispatcher, asyncio.timeout(SOON):
        asked = sf.Call(flow="talk", action="tell", principal=ANN, session="s", attended=not durable)
        handle = await dispatcher.dispatch(asked)
        await told.wait()
        await handle.cancel()
        events = [event async for event in handle.events()]
        again = [event async for event in handle.events()]

    assert [event.number for event in events] == [*range(1, 102)]
    assert events[-1].data["status"] == "cancelled"
    assert again == events


async def test_what_a_task_tells_that_outlives_its_request_changes_nothing() -> None:
    """The end is the last event, and stays it."""
    flow, tasks = sf.Flow("talk"), list[asyncio.Task[None]]()

    @flow.action
    async def tell(request: sf.Request) -> None:
        async def later() -> None:
            await over.wait()
            request.emit("late")

        request.emit("in time")
        tasks.append(asyncio.get_running_loop().create_task(later()))

    over = asyncio.Event()
    async with sf.Dispatcher("memory://", [flow]) as dispatcher, asyncio.timeout(SOON):
        handle = await dispatcher.dispatch(sf.Call(flow="talk", action="tell", principal=ANN))
        before = [event async for event in handle.events()]
        over.set()
        await tasks[0]
        after = [event async for event in handle.events()]

    assert [event.name for event in before] == ["message", "request.ended"]
    assert before == after

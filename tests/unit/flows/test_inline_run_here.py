"""Requests that are run by the task of their caller, which saves making one: nobody else sees a difference."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import (
    RequestCancelledError,
    RequestFailedError,
    RequestNotFoundError,
    RequestRejectedError,
    ResultTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.flows.handle import Handle

ANN = sf.Principal("acme", "ann")


class Desk:
    """A dispatcher with one action, whose requests wait until they may go on."""

    def __init__(self) -> None:
        self.flow = sf.Flow("desk")
        self.has_begun, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.tasks: list[asyncio.Task[object] | None] = []

        @self.flow.action(concurrency="reject")
        async def work(_request: sf.Request, wait: bool = False, fail: bool = False) -> str:  # noqa: FBT001, FBT002 -- inputs have names
            self.tasks.append(asyncio.current_task())
            self.has_begun.set()
            if wait:
                await self.may_go_on.wait()
            if fail:
                raise ValueError("no")
            return "done"

        @self.flow.action(on_disconnect="continue")
        async def stay(_request: sf.Request) -> str:
            self.tasks.append(asyncio.current_task())
            return "stayed"

        self.dispatcher = sf.Dispatcher("memory://", [self.flow], arbiter="local")

    async def send(self, action: str = "work", **inputs: bool) -> Handle:
        """Send a request that is to be run here."""
        sent = sf.Call(flow="desk", action=action, inputs=inputs, principal=ANN, session="s")
        return await self.dispatcher.dispatch(sent, here=True)

    async def waiting(self) -> tuple[Handle, asyncio.Task[object]]:
        """Return a request that has its turn, and the task that runs it."""
        handle = await self.send(wait=True)
        caller = asyncio.ensure_future(handle.result())
        await self.has_begun.wait()
        return handle, caller


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    """One that is open."""
    desk = Desk()
    async with desk.dispatcher:
        yield desk


async def test_the_task_of_the_caller_runs_it(desk: Desk) -> None:
    """It is known afterwards, as any other."""
    handle = await desk.send()

    assert await handle.result() == "done"
    assert desk.tasks == [asyncio.current_task()]
    assert (await desk.dispatcher.info(ANN, handle.id)).status == "completed"


async def test_what_goes_on_without_its_caller_is_run_by_a_task_of_its_own(desk: Desk) -> None:
    """Whoever waits for it may be cancelled."""
    assert await (await desk.send("stay")).result() == "stayed"
    assert desk.tasks != [asyncio.current_task()]


async def test_a_failure_is_told_as_always(desk: Desk) -> None:
    """With the error of the action as its cause."""
    with pytest.raises(RequestFailedError) as told:
        await (await desk.send(fail=True)).result()
    assert isinstance(told.value.__cause__, ValueError)


async def test_whoever_is_refused_hears_it_when_it_waits_and_leaves_nothing(desk: Desk) -> None:
    """It was never taken on, so nobody can follow it."""
    first, caller = await desk.waiting()
    second = await desk.send()
    with pytest.raises(RequestRejectedError) as told:
        await second.result()
    desk.may_go_on.set()

    assert told.value.request_id == first.id
    assert not second.is_taken_on
    with pytest.raises(RequestNotFoundError):
        await desk.dispatcher.find(ANN, second.id)
    assert await caller == "done"


async def test_a_caller_that_is_cancelled_takes_its_request_along(desk: Desk) -> None:
    """The place is free at once, and the caller ends as cancelled."""
    handle, caller = await desk.waiting()
    caller.cancel()
    await asyncio.wait({caller})

    assert caller.cancelled()
    info = await desk.dispatcher.info(ANN, handle.id)
    assert (info.status, info.error) == ("cancelled", "its caller went away")
    assert await (await desk.send()).result() == "done"


async def test_a_request_that_is_cancelled_does_not_take_its_caller_along(desk: Desk) -> None:
    """Its task can go on, and wait for other things."""
    handle = await desk.send(wait=True)

    async def call() -> str:
        with pytest.raises(RequestCancelledError, match="enough"):
            await handle.result()
        await asyncio.sleep(0)
        task = asyncio.current_task()
        return "alive" if task is not None and not task.cancelling() else "cancelled"

    caller = asyncio.ensure_future(call())
    await desk.has_begun.wait()
    await desk.dispatcher.cancel(ANN, handle.id, "enough")
    assert await caller == "alive"


@pytest.mark.parametrize("here", [True, False])
async def test_an_action_that_waits_for_what_others_have_cancelled_does_not_take_its_caller_along(here: bool) -> None:  # noqa: FBT001 -- it has a name
    """Nobody has cancelled the caller: it is told how the request ended, whoever runs that."""
    flow = sf.Flow("desk")

    @flow.action(concurrency="queue")
    async def work(_request: sf.Request) -> None:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone

    async with sf.Dispatcher("memory://", [flow], arbiter="local") as dispatcher:
        handle = await dispatcher.dispatch(sf.Call(flow="desk", action="work", session="s"), here=here)
        with pytest.raises(RequestCancelledError, match="it was cancelled"):
            await handle.packed()


async def test_a_request_and_its_caller_that_are_cancelled_together_both_end(desk: Desk) -> None:
    """In one tick of the loop."""
    handle, caller = await desk.waiting()
    await handle.cancel("enough")
    caller.cancel()
    await asyncio.wait({caller})

    assert caller.cancelled()
    assert (await desk.dispatcher.info(ANN, handle.id)).status == "cancelled"


async def test_a_limit_on_the_wait_is_no_limit_on_the_request(desk: Desk) -> None:
    """It goes on, and can be waited for again."""
    handle = await desk.send(wait=True)
    with pytest.raises(ResultTimeoutError):
        await handle.result(timeout=0.001)
    desk.may_go_on.set()

    assert await handle.result() == "done"


async def test_its_events_can_be_read_before_it_is_waited_for(desk: Desk) -> None:
    """Following it makes it run."""
    handle = await desk.send()
    assert [event.name async for event in handle.events()] == ["request.ended"]


async def test_closing_waits_for_it_and_then_interrupts_it(desk: Desk) -> None:
    """As it does for those that have a task of their own."""
    handle, caller = await desk.waiting()
    await desk.dispatcher.aclose(grace=0)

    assert isinstance(await asyncio.gather(caller, return_exceptions=True), list)
    assert handle.status == "interrupted"

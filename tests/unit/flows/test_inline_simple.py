"""Requests that whoever waits for them runs: taken on without awaiting anything, and seen by others like any other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import ArbiterUnavailableError, InvalidInputError, RequestCancelledError
from standfast.web.asgi import Rest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.flows.inline import InlineRequest

DESK = sf.Flow("desk")


class Pause:
    """Where requests wait until a test lets them go on."""

    here, may_go_on = asyncio.Event(), asyncio.Event()
    on_arrival: Any = None


@DESK.action
async def add(_request: sf.Request, number: int) -> int:
    """Answer at once."""
    return number + 1


@DESK.action(concurrency="queue")
async def wait(request: sf.Request) -> str:
    """Wait, after what a test wants to be done before."""
    if Pause.on_arrival is not None:
        Pause.on_arrival(request)
    Pause.here.set()
    await Pause.may_go_on.wait()
    return "waited"


@DESK.action(concurrency="join")
async def share(_request: sf.Request) -> None:
    """Share a run."""


@DESK.action(durable=True)
async def post(_request: sf.Request) -> None:
    """Go on whatever happens to the process."""


@DESK.action(on_disconnect="continue")
async def stay(_request: sf.Request) -> None:
    """Go on without the caller."""


@DESK.action(limits=[sf.Limit(1)])
async def narrow(_request: sf.Request) -> None:
    """Run one at a time."""


@DESK.action(concurrency=sf.Debounce("1s"))
async def gather(_request: sf.Request) -> None:
    """Run once for many."""


@pytest.fixture
async def desk() -> AsyncIterator[sf.Dispatcher]:
    """Serve the desk from the memory of this process."""
    Pause.here, Pause.may_go_on, Pause.on_arrival = asyncio.Event(), asyncio.Event(), None
    async with sf.Dispatcher("memory://", [DESK], arbiter="local") as dispatcher:
        yield dispatcher


def begun(desk: sf.Dispatcher, action: Any, **arrival: Any) -> InlineRequest | None:
    """Take a request on."""
    return desk.begin(action, sf.Call(flow="desk", action=action.name, **arrival))


async def in_steps(simple: InlineRequest) -> None:
    """Run a request as a transport does: what has to wait is prepared for it after its first step."""
    steps = simple.run_at_once().__await__()
    try:
        rest = Rest(steps, next(steps))
    except StopIteration:
        return
    simple.stay()
    await rest


@pytest.mark.parametrize("action", [share, post, stay, narrow, gather])
def test_what_needs_more_than_its_turn_is_dispatched(action: Any, desk: sf.Dispatcher) -> None:
    """A run to share, a record, room at a limit, a life without the caller, a burst."""
    assert begun(desk, action) is None


async def test_a_session_that_nobody_has_been_seen_with_is_dispatched(desk: sf.Dispatcher) -> None:
    """Whose it is has to be looked up in the store once."""
    arrival = sf.Call(flow="desk", action="add", inputs={"number": 1}, session="s-1", transport="http")
    assert desk.begin(add, arrival) is None
    await (await desk.dispatch(arrival)).result()
    assert desk.begin(add, arrival) is not None


async def test_what_needs_a_turn_in_the_store_is_dispatched() -> None:
    """A shared arbiter has to be asked; what needs no turn needs no arbiter."""
    async with sf.Dispatcher("memory://", [DESK], arbiter="shared") as desk:
        assert begun(desk, wait) is None
        assert begun(desk, add, inputs={"number": 1}) is not None


async def test_inputs_are_checked_before_a_request_is_taken_on(desk: sf.Dispatcher) -> None:
    """As for any other."""
    with pytest.raises(InvalidInputError):
        begun(desk, add, inputs={"number": "one"})


async def test_nobody_is_taken_on_by_a_server_that_closes() -> None:
    """Nor by one that has not opened."""
    desk = sf.Dispatcher("memory://", [DESK], arbiter="local")
    with pytest.raises(ArbiterUnavailableError):
        begun(desk, add, inputs={"number": 1})
    async with desk:
        assert begun(desk, add, inputs={"number": 1}) is not None
    with pytest.raises(ArbiterUnavailableError):
        begun(desk, add, inputs={"number": 1})


async def test_one_that_is_done_in_one_step_can_be_asked_about(desk: sf.Dispatcher) -> None:
    """Little is kept of it, and all that there is to know can be known from that."""
    simple = begun(desk, add, inputs={"number": 1}, session="s-1")
    assert simple is not None
    await in_steps(simple)
    assert simple.packed == b"2"
    found = await desk.find(sf.Principal(), simple.id)
    assert (await found.info()) == await simple.handle().info()
    assert (await found.result(), found.status, (await found.info()).session) == (2, "completed", "s-1")


async def test_one_that_waits_is_seen_and_stopped_by_others(desk: sf.Dispatcher) -> None:
    """From the moment on in which it waits."""
    simple = begun(desk, wait, session="s-1")
    assert simple is not None
    running = asyncio.ensure_future(in_steps(simple))
    await Pause.here.wait()
    found = await desk.find(sf.Principal(), simple.id)
    assert found.status == "running"
    await found.cancel("it is not needed")
    await running
    with pytest.raises(RequestCancelledError, match="it is not needed"):
        await simple.handle().packed()


async def test_one_that_is_stopped_in_its_first_step_ends_where_it_waits(desk: sf.Dispatcher) -> None:
    """Nobody but its own action can do that."""
    simple = begun(desk, wait, session="s-1")
    assert simple is not None
    Pause.on_arrival = lambda _: simple.stop("it has changed its mind")
    await asyncio.ensure_future(in_steps(simple))
    with pytest.raises(RequestCancelledError, match="changed its mind"):
        await simple.handle().packed()


async def test_a_caller_that_goes_away_takes_it_along(desk: sf.Dispatcher) -> None:
    """The task that runs it is the caller's own."""
    simple = begun(desk, wait, session="s-1")
    assert simple is not None
    running = asyncio.ensure_future(in_steps(simple))
    await Pause.here.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await simple.handle().info()).status == "cancelled"
    assert begun(desk, wait, session="s-1") is not None

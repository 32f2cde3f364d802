"""Who asked for a request to stop: its record, its status, its last event and its error say so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import RequestCancelledError, RequestInterruptedError
from standfast.flows.records import CANCELS, REQUESTS
from standfast.flows.view import note_asker, note_operator
from standfast.web.problems import shown_info
from tests.conformance.arbiter_visits import fresh_name
from tests.conformance.dispatch_stage import ANN, SOON, Stage, arrival, result

if TYPE_CHECKING:
    from standfast.flows.handle import Handle

EVE = sf.Principal("acme", "eve", frozenset({"operator"}))
NOBODY = sf.Principal("acme")
DURABLE = pytest.mark.parametrize("durable", [False, True], ids=["attended", "durable"])
ARBITERS = pytest.mark.parametrize("arbiter", ["local", "shared"])


async def told(handle: Handle) -> tuple[str, str, str]:
    """Return who is told to have cancelled a request: by its error, its status and its last event."""
    with pytest.raises(RequestCancelledError) as problem:
        await handle.result(SOON)
    shown = shown_info(await handle.info()).get("cancelledBy", "")
    events = [event async for event in handle.events()]
    return problem.value.cancelled_by, shown, events[-1].data.get("cancelledBy", "")


@ARBITERS
@DURABLE
@pytest.mark.parametrize("action", ["free", "queued", "waiting"])
@pytest.mark.parametrize(("who", "name"), [(ANN, "user:ann"), (EVE, "operator:eve")])
async def test_a_user_or_an_operator_is_named(who: Any, name: str, action: str, arbiter: Any, *, durable: bool) -> None:
    """Whether the request runs or waits for its turn, whatever kind it is."""
    stage = Stage()
    async with sf.Dispatcher("memory://", [stage.flow], arbiter=arbiter) as server:
        stage.hold("a", "b")
        if action == "waiting":
            await server.dispatch(arrival("queued", "a"))
        handle = await server.dispatch(arrival("free" if action == "free" else "queued", "b", durable=durable))
        if action != "waiting":
            await stage.until_begun("b")
        await server.cancel(who, handle.id)

        assert await told(handle) == (name, name, name)
        stage.release("a", "b")


@DURABLE
async def test_one_that_was_cancelled_says_how_often_it_was_begun(*, durable: bool) -> None:
    """What it has done by then may have to be cleaned up."""
    stage = Stage()
    async with sf.Dispatcher("memory://", [stage.flow]) as server:
        stage.hold("a")
        handle = await server.dispatch(arrival("queued", "a", durable=durable))
        await stage.until_begun("a")
        await handle.cancel()
        with pytest.raises(RequestCancelledError):
            await handle.result(SOON)
        assert (await handle.info()).attempt == 1


@DURABLE
@pytest.mark.parametrize("action", ["free", "queued"])
async def test_one_is_named_who_asks_another_server(action: str, *, durable: bool) -> None:
    """The server that runs the request is told who it was."""
    stage, url = Stage(), f"memory://{fresh_name()}"
    async with sf.Dispatcher(url, [stage.flow]) as one, sf.Dispatcher(url, [stage.flow]) as other:
        stage.hold("a")
        handle = await one.dispatch(arrival(action, "a", durable=durable, idempotency_key="k"))
        await stage.until_begun("a")
        found = await other.find(EVE, handle.id)
        await found.cancel("it takes too long")

        assert await told(found) == await told(handle) == ("operator:eve",) * 3
        assert (await found.info()).error == "it takes too long"


@ARBITERS
@DURABLE
async def test_those_who_have_no_name_are_told_as_some_user(arbiter: Any, *, durable: bool) -> None:
    """Nothing is made up."""
    stage = Stage()
    async with sf.Dispatcher("memory://", [stage.flow], arbiter=arbiter) as server:
        stage.hold("a")
        handle = await server.dispatch(arrival("free", "a", principal=NOBODY, session="", durable=durable))
        await stage.until_begun("a")
        await handle.cancel()
        assert await told(handle) == ("user",) * 3


@ARBITERS
@pytest.mark.parametrize("here", [False, True])
async def test_a_caller_that_went_away_is_told_as_such(arbiter: Any, here: bool) -> None:  # noqa: FBT001 -- it has a name
    """Nobody has asked for it."""
    stage = Stage()
    async with sf.Dispatcher("memory://", [stage.flow], arbiter=arbiter) as server:
        stage.hold("a")
        handle = await server.dispatch(arrival("free", "a"), here=here)
        caller = asyncio.ensure_future(handle.packed())
        await stage.until_begun("a")
        caller.cancel()
        await asyncio.wait({caller})
        assert await told(handle) == ("caller",) * 3


async def test_a_server_that_stops_is_told_as_such() -> None:
    """To whoever asks another one."""
    stage, url = Stage(), f"memory://{fresh_name()}"
    async with sf.Dispatcher(url, [stage.flow]) as other:
        async with sf.Dispatcher(url, [stage.flow]) as one:
            stage.hold("a")
            handle = await one.dispatch(arrival("queued", "a"))
            await stage.until_begun("a")
            await one.aclose(grace=0)
        found = await other.find(ANN, handle.id)
        with pytest.raises(RequestInterruptedError):
            await found.result(SOON)
        info = await found.info()
    assert (info.status, info.cancelled_by) == ("interrupted", "server")


@ARBITERS
async def test_whoever_shares_a_run_is_told_of_no_names(arbiter: Any) -> None:
    """Only of what kind it was."""
    stage, bob = Stage(), sf.Principal("acme", "bob")
    async with sf.Dispatcher("memory://", [stage.flow], arbiter=arbiter) as server:
        stage.hold("a")
        await server.dispatch(arrival("joined", "a"))
        await stage.until_begun("a")
        joining = await server.dispatch(arrival("joined", "b", principal=bob))
        await server.cancel(EVE, joining.id)
        found = await server.find(bob, joining.id)
        assert await told(joining) == await told(found) == ("operator",) * 3


async def test_whoever_shares_a_run_and_sends_their_request_again_is_told_of_no_names() -> None:
    """Their idempotency key stands for the request of another user then, which is not theirs all the same."""
    stage, bob = Stage(), sf.Principal("acme", "bob")
    asked = arrival("joined", "b", principal=bob, idempotency_key="k")
    async with sf.Dispatcher("memory://", [stage.flow]) as server:
        stage.hold("a")
        await server.dispatch(arrival("joined", "a"))
        await stage.until_begun("a")
        joining = await server.dispatch(asked)
        stage.release("a")
        await joining.result(SOON)
        again = await server.dispatch(asked)
        assert (again.id, again.is_replay, (await again.info()).user) == (joining.id, True, "")


@DURABLE
async def test_a_request_that_ends_well_all_the_same_was_cancelled_by_nobody(*, durable: bool) -> None:
    """Though somebody has asked for it."""
    stage = Stage()
    async with sf.Dispatcher("memory://", [stage.flow]) as server:
        stage.hold("a")
        handle = await server.dispatch(arrival("queued", "a", durable=durable))
        await stage.until_begun("a")
        if durable:
            await note_asker(server.engine.space, handle.keys, "user:ann")
        stage.release("a")
        assert await result(handle) == "did a"
        assert (await handle.info()).cancelled_by == ""


async def test_the_first_who_asks_is_named() -> None:
    """As it is the first reason that counts."""
    stage = Stage()
    async with sf.Dispatcher("memory://", [stage.flow]) as server:
        stage.hold("a")
        await server.dispatch(arrival("queued", "a"))
        handle = await server.dispatch(arrival("queued", "b", durable=True))
        for who in (ANN, EVE):
            await server.cancel(who, handle.id)
        assert await told(handle) == ("user:ann",) * 3
        stage.release("a")


async def test_an_operator_at_the_command_line_has_no_name() -> None:
    """It is noted of runs that are requests; of others there is nothing to note."""
    stage = Stage()
    async with sf.Dispatcher("memory://", [stage.flow]) as server:
        stage.hold("a")
        handle = await server.dispatch(arrival("queued", "a", durable=True))
        run = await server.engine.get(handle.id)
        for run_id, tags in ((handle.id, run.tags), ("another", ()), ("unknown", run.tags)):
            await note_operator(server.engine.space, run_id, tags)
        await server.engine.cancel(handle.id, "an operator asked for it")
        assert await told(handle) == ("operator",) * 3


def test_records_from_before_say_that_it_is_not_known() -> None:
    """They are read as they are."""
    old = b'1:{"flow":"f","action":"a","status":"cancelled","received_at":1,"ended_at":2,"reason":"it was asked to"}'
    assert REQUESTS.decode(old).cancelled_by == ""
    assert CANCELS.decode(b'1:{"reason":"it was asked to"}').cancelled_by == ""

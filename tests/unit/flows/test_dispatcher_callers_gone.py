"""Callers that go away while their requests are taken on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import (
    IdempotencyInFlightError,
    RequestCancelledError,
    RequestSharedError,
    StoreUnavailableError,
)
from standfast.flows import dispatcher as dispatch
from standfast.flows import handle as abandoning
from standfast.flows import handle as handles
from standfast.flows import server as serving
from standfast.flows.handle import is_shared
from standfast.flows.records import SESSIONS, session_key
from tests.conformance.dispatch_stage import SOON, Stage, arrival, result

if TYPE_CHECKING:
    from standfast.flows.dispatcher import ArbiterKind, Dispatcher
    from standfast.flows.request import Call


async def sent_again(dispatcher: Dispatcher, sent: Call) -> str:
    """Send a request until it is taken on, as a caller does that was told that it is in flight."""
    async with asyncio.timeout(SOON):
        while True:
            try:
                return str(await result(await dispatcher.dispatch(sent)))
            except IdempotencyInFlightError:
                await asyncio.sleep(0)


@pytest.mark.parametrize("action", ["queued", "restarted", "free"])
async def test_a_request_whose_caller_went_away_is_not_in_flight_for_ever(action: str) -> None:
    """Wherever it was cut off: sent again with the same idempotency key, it is run."""
    stage = Stage()
    async with sf.Dispatcher("memory://", [stage.flow]) as dispatcher:
        for steps in range(6):
            stage.hold(f"first {steps}")
            first = await dispatcher.dispatch(arrival("queued", f"first {steps}"))
            sent = arrival(action, f"{steps}", idempotency_key=f"{steps}")
            sending = asyncio.ensure_future(dispatcher.dispatch(sent))
            for _ in range(steps):
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            stage.release(f"first {steps}")
            await result(first)
            assert await sent_again(dispatcher, sent) == f"did {steps}"


@pytest.mark.parametrize("kind", ["shared", "local"])
async def test_an_action_that_does_not_stop_does_not_keep_its_server(
    kind: ArbiterKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a while; then the server closes without it."""
    monkeypatch.setattr(dispatch, "GRACE", 0.02)
    monkeypatch.setattr(serving, "PATIENCE", 0.02)
    flow, begun, enough = sf.Flow("stubborn"), asyncio.Event(), asyncio.Event()

    @flow.action
    async def go_on(request: sf.Request) -> None:
        del request
        begun.set()
        while not enough.is_set():
            with suppress(asyncio.CancelledError):
                await enough.wait()

    async with asyncio.timeout(SOON):
        async with sf.Dispatcher("memory://", [flow], arbiter=kind) as dispatcher:
            handle = await dispatcher.dispatch(sf.Call(flow="stubborn", action="go_on"))
            await begun.wait()
            await dispatcher.aclose(grace=0)
        enough.set()
        assert await handle.result() is None


@pytest.mark.parametrize("action", ["queued", "free"])
@pytest.mark.parametrize("kind", ["shared", "local"])
async def test_what_is_told_to_be_cancelled_has_done_nothing_to_its_session(kind: ArbiterKind, action: str) -> None:
    """And what is completed has: a cancellation that comes while that is committed comes too late."""
    stage, completed = Stage(), list[str]()
    async with sf.Dispatcher("memory://", [stage.flow], arbiter=kind) as dispatcher:
        for steps in range(20):
            handle = await dispatcher.dispatch(arrival(action, f"{steps}"))
            for _ in range(steps % 10):
                await asyncio.sleep(0)
            await handle.cancel()
            with suppress(RequestCancelledError):
                await result(handle)
                completed.append(f"{steps}")
        key = session_key(dispatcher.engine.space, "acme", "s-1")
        record = (await dispatcher.engine.space.read(key)).get(key)
    assert completed == ([] if record is None else SESSIONS.decode(record.value).state["names"])


class Away:
    """A store that does not answer for a while, where it is looked up who shares a run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.is_away, self._ask = 0, True, is_shared
        monkeypatch.setattr(handles, "is_shared", self._is_shared)
        monkeypatch.setattr(abandoning, "FIRST_PAUSE", 0.001)
        monkeypatch.setattr(abandoning, "LONGEST_PAUSE", 0.002)

    async def _is_shared(self, *given: Any) -> bool:
        self.asked += 1
        if self.is_away:
            raise StoreUnavailableError("the store", "it is away")
        return await self._ask(*given)

    async def until_asked(self, times: int) -> None:
        """Wait until it was asked so often."""
        async with asyncio.timeout(SOON):
            while self.asked < times:  # noqa: ASYNC110 -- nothing tells of it
                await asyncio.sleep(0)


@pytest.mark.parametrize("durable", [False, True], ids=["attended", "durable"])
async def test_a_request_whose_caller_went_away_while_the_store_was_away_is_stopped_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, durable: bool
) -> None:
    """It is tried again in the background, and logged once."""
    stage, away = Stage(), Away(monkeypatch)
    stage.hold("a")
    async with sf.Dispatcher("memory://", [stage.flow]) as server:
        handle = await server.dispatch(arrival("queued", "a", durable=durable))
        await stage.until_begun("a")
        handle.abandon()
        await away.until_asked(5)
        assert not handle.record.has_ended
        away.is_away = False
        with pytest.raises(RequestCancelledError) as problem:
            await result(handle)
    assert (problem.value.reason, problem.value.cancelled_by) == ("its caller went away", "caller")
    assert [each.message.partition(" ")[0] for each in caplog.records] == ["event=cancel-delayed"]


async def test_whoever_waits_for_a_durable_request_and_goes_away_is_heard_when_the_store_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the transport says that the request stops then."""
    stage, away = Stage(), Away(monkeypatch)
    stage.hold("a")
    async with sf.Dispatcher("memory://", [stage.flow]) as server:
        handle = await server.dispatch(arrival("kept", "a", on_disconnect="cancel"))
        caller = asyncio.ensure_future(handle.result())
        await stage.until_begun("a")
        caller.cancel()
        await away.until_asked(3)
        away.is_away = False
        with pytest.raises(RequestCancelledError):
            await result(handle)


async def test_a_request_that_ended_meanwhile_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not tried any longer."""
    stage, away = Stage(), Away(monkeypatch)
    stage.hold("a")
    async with sf.Dispatcher("memory://", [stage.flow]) as server:
        handle = await server.dispatch(arrival("queued", "a"))
        await stage.until_begun("a")
        trying = asyncio.ensure_future(abandoning.cancel_in_the_end(server._serving(), handle, "gone"))
        await away.until_asked(2)
        stage.release("a")
        assert await result(handle) == "did a"
        assert await asyncio.wait_for(trying, SOON)


async def test_a_run_that_others_share_goes_on_without_its_first_caller() -> None:
    """That is known at once, and not tried again."""
    stage, bob = Stage(), sf.Principal("acme", "bob")
    stage.hold("a")
    async with sf.Dispatcher("memory://", [stage.flow]) as server:
        handle = await server.dispatch(arrival("joined", "a"))
        joining = await server.dispatch(arrival("joined", "b", principal=bob))
        assert await abandoning.cancel_in_the_end(server._serving(), handle, "gone")
        with pytest.raises(RequestSharedError):
            await handle.cancel()
        stage.release("a")
        assert await result(joining) == "did a"


async def test_a_store_that_stays_away_is_left_alone_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is any, once the server closes."""
    stage, away = Stage(), Away(monkeypatch)
    monkeypatch.setattr(abandoning, "LONGEST", 0.01)
    stage.hold("a")
    async with sf.Dispatcher("memory://", [stage.flow]) as server:
        serving_it, handle = server._serving(), await server.dispatch(arrival("queued", "a"))
        assert not await abandoning.cancel_in_the_end(serving_it, handle, "gone")
        asked, serving_it.is_closing = away.asked, True
        assert not await abandoning.cancel_in_the_end(serving_it, handle, "gone")
        stage.release("a")
        await result(handle)
    assert away.asked == asked + 1

"""Callers that go away while their requests are taken on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import holdfast as hf
from holdfast.errors import IdempotencyInFlightError, RequestCancelledError
from holdfast.flows import dispatch, serving
from holdfast.flows.records import SESSIONS, session_key
from tests.conformance.dispatch_stage import SOON, Stage, arrival, result

if TYPE_CHECKING:
    from holdfast.flows.arrival import Arrival
    from holdfast.flows.dispatch import Dispatcher
    from holdfast.flows.opening import ArbiterKind


async def sent_again(dispatcher: Dispatcher, sent: Arrival) -> str:
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
    async with hf.Dispatcher("memory://", [stage.flow]) as dispatcher:
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
    flow, begun, enough = hf.Flow("stubborn"), asyncio.Event(), asyncio.Event()

    @flow.action
    async def go_on(request: hf.Request) -> None:
        del request
        begun.set()
        while not enough.is_set():
            with suppress(asyncio.CancelledError):
                await enough.wait()

    async with asyncio.timeout(SOON):
        async with hf.Dispatcher("memory://", [flow], arbiter=kind) as dispatcher:
            handle = await dispatcher.dispatch(hf.Arrival(flow="stubborn", action="go_on"))
            await begun.wait()
            await dispatcher.aclose(grace=0)
        enough.set()
        assert await handle.result() is None


@pytest.mark.parametrize("action", ["queued", "free"])
@pytest.mark.parametrize("kind", ["shared", "local"])
async def test_what_is_told_to_be_cancelled_has_done_nothing_to_its_session(kind: ArbiterKind, action: str) -> None:
    """And what is completed has: a cancellation that comes while that is committed comes too late."""
    stage, completed = Stage(), list[str]()
    async with hf.Dispatcher("memory://", [stage.flow], arbiter=kind) as dispatcher:
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

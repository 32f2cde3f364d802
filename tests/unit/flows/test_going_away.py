"""Callers that go away while their requests are taken on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import holdfast as hf
from holdfast.errors import IdempotencyInFlightError
from tests.conformance.dispatch_stage import SOON, Stage, arrival, result

if TYPE_CHECKING:
    from holdfast.flows.arrival import Arrival
    from holdfast.flows.dispatch import Dispatcher


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

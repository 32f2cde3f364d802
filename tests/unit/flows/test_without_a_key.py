"""A request that has no key collides with nothing, whatever its policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf

if TYPE_CHECKING:
    from holdfast.flows.policies import Policy

LONG = "1 hour"
POLICIES: list[Policy] = [
    hf.Queue(),
    hf.Reject(),
    hf.Debounce(LONG),
    hf.Debounce(LONG, key="user"),
    hf.Debounce(LONG, key=lambda _: None),
    hf.Restart(),
    hf.Join(),
    hf.Latest(),
]


async def result_of(flow: hf.Flow, action: str, **inputs: Any) -> Any:
    """Return what a request of nobody, in no session, comes to."""
    async with hf.Dispatcher("memory://", [flow]) as dispatcher:
        handle = await dispatcher.dispatch(hf.Arrival(flow=flow.kind, action=action, inputs=inputs))
        return await handle.result(timeout="10s")


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
async def test_a_request_without_a_key_runs_at_once(policy: Policy) -> None:
    """It waits for no window, and is put together with nobody."""
    flow = hf.Flow("flow", concurrency=policy)

    @flow.action
    async def double(request: hf.Request, number: int) -> int:
        assert len(request.inputs) == 1
        return 2 * number

    assert await result_of(flow, "double", number=4) == 8


async def test_a_request_without_a_key_is_a_batch_of_one() -> None:
    """The action gets a list all the same."""
    flow = hf.Flow("flow", concurrency=hf.Batch(100, LONG))

    @flow.action
    async def add(_request: hf.Request, numbers: list[int]) -> list[int]:
        return numbers

    assert await result_of(flow, "add", numbers=4) == [4]

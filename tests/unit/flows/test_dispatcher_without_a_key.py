"""A request that has no key collides with nothing, whatever its policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf

if TYPE_CHECKING:
    from standfast.policies import Policy

LONG = "1 hour"
POLICIES: list[Policy] = [
    sf.Queue(),
    sf.Reject(),
    sf.Debounce(LONG),
    sf.Debounce(LONG, key="user"),
    sf.Debounce(LONG, key=lambda _: None),
    sf.Restart(),
    sf.Join(),
    sf.Latest(),
]


async def result_of(flow: sf.Flow, action: str, **inputs: Any) -> Any:
    """Return what a request of nobody, in no session, comes to."""
    async with sf.Dispatcher("memory://", [flow]) as dispatcher:
        handle = await dispatcher.dispatch(sf.Call(flow=flow.kind, action=action, inputs=inputs))
        return await handle.result(timeout="10s")


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
async def test_a_request_without_a_key_runs_at_once(policy: Policy) -> None:
    """It waits for no window, and is put together with nobody."""
    flow = sf.Flow("flow", concurrency=policy)

    @flow.action
    async def double(request: sf.Request, number: int) -> int:
        assert len(request.inputs) == 1
        return 2 * number

    assert await result_of(flow, "double", number=4) == 8


async def test_a_request_without_a_key_is_a_batch_of_one() -> None:
    """The action gets a list all the same."""
    flow = sf.Flow("flow", concurrency=sf.Batch(100, LONG))

    @flow.action
    async def add(_request: sf.Request, numbers: list[int]) -> list[int]:
        return numbers

    assert await result_of(flow, "add", numbers=4) == [4]

"""How long an idempotency key stands for its request: as long as its action says, and no longer."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import IdempotencyInFlightError, IdempotencyMismatchError
from standfast.stores.group_commit import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.testing import VirtualClock
from tests.conformance.arbiter_visits import fresh_name
from tests.conformance.dispatch_stage import Stage, arrival

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SOON = 10.0
WINDOWS = {"short": 10.0, "usual": 3_600.0, "long": 86_400.0}
EACH = pytest.mark.parametrize("action", WINDOWS)


class Shop:
    """Actions that remember keys for a while each; what they return is how often they were called."""

    def __init__(self, dispatcher: sf.Dispatcher, clock: VirtualClock, *, attended: bool) -> None:
        self.dispatcher, self.clock, self._attended = dispatcher, clock, attended

    async def buy(self, action: str, item: str = "tea") -> tuple[bool, Any]:
        """Send the same key again; tell whether that was answered from memory, and what it came to."""
        sent = sf.Call(flow="shop", action=action, inputs={"item": item}, idempotency_key="k", attended=self._attended)
        handle = await self.dispatcher.dispatch(sent)
        return handle.is_replay, await handle.result(timeout=SOON)


@asynccontextmanager
async def opened(flow: sf.Flow, arbiter: Any, *, attended: bool) -> AsyncIterator[Shop]:
    """Serve a flow in time that passes as a test says."""
    clock = VirtualClock()
    space = sf.Space(GroupedStore(MemoryBackend(MemoryRecords(clock=clock))), clock=clock, lease="3000 days")
    async with space, sf.Dispatcher(space, [flow], arbiter=arbiter) as dispatcher:
        yield Shop(dispatcher, clock, attended=attended)


@pytest.fixture(params=["local", "shared"])
def arbiter(request: pytest.FixtureRequest) -> Any:
    """Who decides."""
    return request.param


@pytest.fixture(params=[True, False], ids=["attended", "durable"])
async def shop(request: pytest.FixtureRequest, arbiter: Any) -> AsyncIterator[Shop]:
    """A shop, whose callers wait or do not."""
    flow, calls = sf.Flow("shop"), list[str]()

    async def buy(_request: sf.Request, item: str) -> int:
        calls.append(item)
        return len(calls)

    for name, window in WINDOWS.items():
        flow.action(name=name, idempotency_window=window)(buy)
    async with opened(flow, arbiter, attended=request.param) as shop:
        yield shop


@EACH
async def test_a_key_is_remembered_for_the_window_of_its_action(shop: Shop, action: str) -> None:
    """However short or long that is: with the answer, and against other data."""
    assert await shop.buy(action) == (False, 1)
    shop.clock.advance(WINDOWS[action] - 1)
    assert await shop.buy(action) == (True, 1)
    with pytest.raises(IdempotencyMismatchError):
        await shop.buy(action, "milk")


@EACH
@pytest.mark.parametrize("item", ["tea", "milk"])
async def test_a_key_is_free_when_its_window_is_over(shop: Shop, action: str, item: str) -> None:
    """Then it is a new request, whatever it brings, and is remembered anew."""
    await shop.buy(action)
    shop.clock.advance(WINDOWS[action] + 1)
    assert await shop.buy(action, item) == (False, 2)
    shop.clock.advance(WINDOWS[action] - 1)
    assert await shop.buy(action, item) == (True, 2)


async def test_a_window_begins_when_the_request_has_ended(arbiter: Any) -> None:
    """While it runs, the key is in flight, for however long that takes."""
    flow, begun, may_end = sf.Flow("shop"), asyncio.Event(), asyncio.Event()

    @flow.action(idempotency_window="10s")
    async def buy(_request: sf.Request, item: str) -> str:
        begun.set()
        await may_end.wait()
        return item

    async with opened(flow, arbiter, attended=False) as shop:
        first = asyncio.ensure_future(shop.buy("buy"))
        await asyncio.wait_for(begun.wait(), SOON)
        shop.clock.advance(60)
        with pytest.raises(IdempotencyInFlightError):
            await shop.buy("buy")
        may_end.set()
        assert await first == (False, "tea")
        shop.clock.advance(9)
        assert await shop.buy("buy") == (True, "tea")


async def test_the_key_of_a_request_that_was_interrupted_is_for_the_same_request_only() -> None:
    """A part of it may have been done: another one with its key is refused, and the same one is run again."""
    stage, url = Stage(), f"memory://{fresh_name()}"
    async with sf.Dispatcher(url, [stage.flow]) as other:
        async with sf.Dispatcher(url, [stage.flow]) as one:
            stage.hold("a")
            await one.dispatch(arrival("free", "a", idempotency_key="k"))
            await stage.until_begun("a")
            await one.aclose(grace=0)
        with pytest.raises(IdempotencyMismatchError):
            await other.dispatch(arrival("free", "b", idempotency_key="k"))
        stage.release("a")
        assert (await other.dispatch(arrival("free", "a", idempotency_key="k"))).is_new

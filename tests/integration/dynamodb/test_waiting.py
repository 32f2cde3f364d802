"""Waiting without hints: patience is not renewed by what others do, and looking costs little."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import monotonic
from standfast.errors import HoldTimeoutError, LeaseTooShortError
from standfast.space import Space
from standfast.stores import Put
from standfast.stores.url import open_store
from tests.integration.dynamodb.conftest import Wire, server_of

if TYPE_CHECKING:
    from standfast.stores import GroupedStore


async def test_the_patience_of_a_waiter_is_not_renewed_by_the_holder(url: str, key: Any) -> None:
    """A holder whose records change all the time does not keep a waiter waiting beyond its own limit."""
    namespace = key().parts[0]
    async with (
        Space(await open_store(url), namespace=namespace, lease=2.0) as here,
        Space(await open_store(url), namespace=namespace) as there,
        here.mutex("k").hold(),
    ):
        started = monotonic()
        with pytest.raises(HoldTimeoutError):
            await asyncio.create_task(_pass(there, timeout=0.8), context=contextvars.Context())
        assert monotonic() - started < 5


async def test_a_waiter_of_another_process_gets_in_without_a_hint(url: str, key: Any) -> None:
    """It looks by itself."""
    namespace = key().parts[0]
    async with (
        Space(await open_store(url), namespace=namespace) as here,
        Space(await open_store(url), namespace=namespace) as there,
    ):
        async with here.mutex("k").hold():
            waiter = asyncio.create_task(_pass(there), context=contextvars.Context())
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await waiter


async def _pass(space: Space, **options: Any) -> None:
    async with space.mutex("k").hold(**options):
        pass


async def test_a_watch_hears_now_and_then_that_it_should_look(url: str, store: GroupedStore, key: Any) -> None:
    """What another handle wrote is noticed, if only by looking."""
    other = await open_store(url)
    async with store.watch(key("a")) as watch, contextlib.aclosing(other):
        await other.commit(Put(key("a"), b""))
        hint = await watch.wait(5)
    assert hint is not None
    assert not hint.complete


async def test_a_watch_alone_sends_nothing(store: GroupedStore, key: Any) -> None:
    """The mark that says when to look costs no request."""
    wire = Wire(server_of(store))
    async with store.watch(key("a")) as watch:
        for _ in range(3):
            await watch.wait(5)
    assert wire.sent == []


async def test_leases_are_at_least_ten_seconds(fresh_url: str) -> None:
    """Two processes may be a second apart in what they take for the time; the shortest lease makes that little."""
    store = await open_store(f"{fresh_url}&create=true")
    async with Space(store, namespace="n") as space:
        assert store.capabilities.shortest_lease == 10
        with pytest.raises(LeaseTooShortError):
            async with space.mutex("k").hold(lease=9):
                pytest.fail("that is too short")

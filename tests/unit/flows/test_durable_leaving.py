"""Requests that do not end when they are told to: servers close without them, and an overlap is told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.events import RequestsOverlap, RunLeftBehind
from standfast.workflows import worker
from tests.conformance.dispatch_stage import until_set

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.events import Event

SOON = 20.0


class Stubborn:
    """An action whose first call ends when the test says so, whatever happens to it."""

    def __init__(self, **options: Any) -> None:
        self.begun: list[str] = []
        self.told: list[Event] = []
        self.news = asyncio.Event()
        self.may_end = asyncio.Event()
        self.flow = sf.Flow("mule")

        @self.flow.action(**options)
        async def work(request: sf.Request) -> str:
            self.begun.append(request.id)
            self.news.set()
            if len(self.begun) == 1:
                await until_set(self.may_end)
            return f"call {len(self.begun)}"

    def hear(self, event: Event) -> None:
        """Be told what happens."""
        self.told.append(event)
        self.news.set()

    def server(self, url: str, **options: Any) -> sf.Dispatcher:
        """Return a server of it."""
        return sf.Dispatcher(sf.Engine(url, hooks=[self.hear]), [self.flow], **options)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something to become true."""
        async with asyncio.timeout(SOON):
            while not holds():
                self.news.clear()
                await self.news.wait()


@pytest.mark.parametrize("arbiter", ["shared", "local"])
async def test_a_server_closes_without_a_durable_request_that_ignores_its_cancellation(
    arbiter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the grace it is left and told of, and another server takes it over and ends it."""
    monkeypatch.setattr(worker, "GRACE", 0.05)
    monkeypatch.setattr(worker, "LAST", 0.05)
    mule = Stubborn(durable=True, concurrency="queue")
    url = f"memory://mule-{arbiter}"
    async with sf.open(url):  # what lies in memory is kept while servers come and go
        first = mule.server(url, arbiter=arbiter)
        await first.open()
        handle = await first.dispatch(sf.Call(flow="mule", action="work", session="s"))
        await mule.until(lambda: bool(mule.begun))
        async with asyncio.timeout(SOON):
            await first.aclose(grace=0)
        left = [event.run for event in mule.told if isinstance(event, RunLeftBehind)]

        async with mule.server(url, arbiter=arbiter) as second:
            found = await second.find(sf.Principal(), handle.id)
            assert await found.result(timeout=SOON) == "call 2"
        mule.may_end.set()
        assert left == [handle.id]


@pytest.mark.parametrize("durable", [False, True], ids=["attended", "durable"])
@pytest.mark.parametrize("arbiter", ["shared", "local"])
async def test_an_overlap_after_a_revoked_turn_is_told(arbiter: Any, *, durable: bool) -> None:
    """With the key, and with those that may still be at work."""
    mule = Stubborn(concurrency=sf.Restart(grace="10ms"), durable=durable)
    async with mule.server("memory://", arbiter=arbiter) as server:
        old = await server.dispatch(sf.Call(flow="mule", action="work", session="s"))
        await mule.until(lambda: bool(mule.begun))
        new = await server.dispatch(sf.Call(flow="mule", action="work", session="s"))
        await mule.until(lambda: any(isinstance(event, RequestsOverlap) for event in mule.told))
        mule.may_end.set()
        await new.result(timeout=SOON)
        info = await new.info()

    [told] = [event for event in mule.told if isinstance(event, RequestsOverlap)]
    assert (told.request, told.superseded, told.key) == (new.id, (old.id,), "session 's'")
    assert (told.action, info.overlap) == ("mule.work", True)


@pytest.mark.parametrize("server_waits_first", [True, False], ids=["let_end", "aclose"])
async def test_requests_and_their_durable_runs_share_one_grace(
    monkeypatch: pytest.MonkeyPatch, *, server_waits_first: bool
) -> None:
    """A server that waited for one kind does not wait as long for the other: who stops it waits for one grace."""
    stop, graces = worker.Worker.stop, list[float]()

    async def noted(self: worker.Worker, grace: float) -> None:
        graces.append(grace)
        await stop(self, grace)

    monkeypatch.setattr(worker.Worker, "stop", noted)
    flow, begun = sf.Flow("slow"), asyncio.Event()

    @flow.action(on_disconnect="continue")
    async def work(_: sf.Request) -> None:
        begun.set()
        await asyncio.Event().wait()

    server = sf.Dispatcher("memory://", [flow])
    for _ in range(2):  # opened again, it has all of its grace again
        await server.open()
        request = await server.dispatch(sf.Call(flow="slow", action="work"))
        await begun.wait()
        begun.clear()
        if server_waits_first:
            await server.let_end(grace=0.05)
        await server.aclose(grace=0.05)
        assert request.status == "interrupted"
    await server.open()
    await server.aclose(grace=50)
    first, second, third = graces[::2]  # each time once by the dispatcher, and once by its engine, when nothing is left
    assert (first, second) == (0.0, 0.0)
    assert third > 40

"""The screen of flows: policies, requests and how they ended, open windows, and why a request waits."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import standfast as sf
from standfast.flows.request_list import list_requests
from standfast.web.dashboard import Dashboard
from tests.unit.web.dashboard.opened import NASTY, Opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from standfast.flows.request import RequestInfo


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Opened, Callable[..., Awaitable[None]], asyncio.Event]]:
    """Serve a flow whose requests wait for an event, with a dashboard beside it."""
    chat, gate, tasks = sf.Flow("chat"), asyncio.Event(), list[asyncio.Task[object]]()

    @chat.action(concurrency=sf.Queue())
    async def ask(request: sf.Request, text: str) -> str:
        del request
        await gate.wait()
        return text

    @chat.action(concurrency=sf.Debounce("20s"))
    async def index(request: sf.Request, text: str) -> str:
        del request
        return text

    @chat.action(concurrency=sf.Restart())
    async def draw(request: sf.Request, text: str) -> str:
        del request
        await gate.wait()
        return text

    async with sf.Engine("memory://") as engine, sf.Dispatcher(engine, [chat]) as dispatcher:
        made = Opened(engine)
        made.dashboard = Dashboard(engine, authenticate=lambda _: made.who, access=lambda _: made.level, flows=[chat])
        made.http._transport.app = made.dashboard  # type: ignore[attr-defined]  # the client that is there

        async def send(action: str, becomes: str, tenant: str = "default", session: str = "s-1") -> None:
            call = sf.Call(
                flow="chat",
                action=action,
                inputs={"text": "x"},
                session=session,
                principal=sf.Principal(tenant, f"user{NASTY}"),
            )
            before = {each.id for each in await requests(made, tenant)}

            async def result() -> object:
                return await (await dispatcher.dispatch(call)).result()

            tasks.append(asyncio.create_task(result()))
            async with engine.space.watch(engine.space.key("request")) as watch:
                while not [
                    each for each in await requests(made, tenant) if each.id not in before and each.status == becomes
                ]:
                    await watch.wait(0.1)

        try:
            async with made.dashboard, made.http:
                yield made, send, gate
        finally:
            gate.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def requests(made: Opened, tenant: str = "default") -> tuple[RequestInfo, ...]:
    """Return the requests of a tenant."""
    return (await list_requests(made.engine.space, tenant)).requests


async def test_the_policy_of_each_action_is_shown_before_its_first_request() -> None:
    """With its options, as it was declared."""
    async with served() as (made, _, _gate):
        text = (await made.get("flows")).text
        assert "chat.ask" in text
        assert "window " in text
        assert '<span class="tag">restart</span>' in text


async def test_requests_are_listed_by_status_with_what_took_their_place() -> None:
    """One that was superseded names its successor, and names are never markup."""
    async with served() as (made, send, _gate):
        for action, becomes in (("ask", "running"), ("ask", "waiting"), ("draw", "running"), ("draw", "running")):
            await send(action, becomes, session=f"s-{action}")
        text = (await made.get("flows")).text
        assert "superseded" in text
        assert "&lt;img" in text
        assert "<img" not in text
        waiting = (await made.get("flows", status="waiting")).text
        assert waiting.count(">why?<") == 1
        assert "chat.draw<br>" not in waiting
        queued = (await made.get("flows", verdict="queued")).text
        assert "chat.ask<br>" in queued
        assert "chat.ask<br>" not in (await made.get("flows", verdict="collected")).text
        assert (await made.get("flows", status="tired")).status_code == 400
        assert (await made.get("flows", verdict="perhaps")).status_code == 400


async def test_a_window_of_debounce_counts_down() -> None:
    """It says in how many seconds the burst begins."""
    async with served() as (made, send, _gate):
        await send("index", "waiting")
        text = (await made.get("flows")).text
        assert "Open windows" in text
        assert 'data-left="19.' in text or 'data-left="20.' in text


async def test_why_a_request_waits_names_the_one_before_it() -> None:
    """Who waits for whom is followed over requests too."""
    async with served() as (made, send, _gate):
        await send("ask", "running")
        await send("ask", "waiting")
        found = {each.status: each for each in await requests(made)}
        text = (await made.get("why", request=found["waiting"].id)).text
        assert f"which is held by {found['running'].id[:15]}" in text
        assert (await made.get("why", request="no-such")).status_code == 404


async def test_a_request_is_cancelled_and_a_tenant_sees_its_own_only() -> None:
    """The requests of all tenants lie in the space of the application; each caller sees those of its own."""
    async with served() as (made, send, _gate):
        await send("ask", "running")
        await send("ask", "waiting")
        waiting = next(each for each in await requests(made) if each.status == "waiting")
        made.who = sf.Principal("acme", "eve")
        assert waiting.id[:15] not in (await made.get("flows")).text
        assert (await made.get("act/request.cancel", id=waiting.id)).status_code == 404
        assert (await made.get("why", request=waiting.id)).status_code == 404
        made.who = sf.Principal("default", "ann")
        assert (await made.act("request.cancel", id=waiting.id)).status_code == 303
        async with made.engine.space.watch(made.engine.space.key("request")) as watch:
            while {each.id: each.status for each in await requests(made)}[waiting.id] != "cancelled":
                await watch.wait(0.2)
        assert [each.action for each in (await made.engine.audit()).records] == ["request.cancel"]

"""Tenants of one application: what one has is, for another, not different from what nobody has."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest
from starlette.routing import Route

import standfast as sf
from standfast.errors import RequestNotFoundError
from tests.integration.serving.test_limits import HELLO, MCP
from tests.integration.webhooks.provider import SOON, client_of
from tests.unit.web.chat.chat_clients import Socket, Support

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx
    from starlette.requests import HTTPConnection

ABSENT: Final = "01a00000-0000-7000-8000-000000000000-0000000000000000"
PRIVATE: Final = "the secret of acme"
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

shop = sf.Flow("shop", concurrency=sf.Reject())


@shop.action
async def brief(request: sf.Request, text: str = "") -> str:
    """Be done soon."""
    request.emit(text)
    await asyncio.sleep(0)
    return request.id


@shop.action
async def stay(request: sf.Request, text: str = "") -> None:
    """Stay until somebody cancels it."""
    request.session.set("text", text)
    request.emit(text)
    await asyncio.Event().wait()


@shop.action(durable=True, concurrency="allow")
async def later(request: sf.Request, text: str = "") -> str:
    """Be recorded."""
    request.emit(text)
    return text


@shop.action(concurrency="allow")
async def known(request: sf.Request) -> str:
    """Return what the session knows."""
    found: str = await request.session.get("text", "nothing")
    return found


def tenant_of(connection: HTTPConnection) -> sf.Principal:
    """Everybody says who they are, and nobody lies; all tenants have a user of the same name."""
    return sf.Principal(connection.headers.get("x-user", "acme"), "ada")


@pytest.fixture(params=["shared", "local"])
async def app(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[sf.App]:
    """An application of several tenants."""
    arbiter: Literal["shared", "local"] = request.param
    support = Support()
    async with sf.App(
        f"sqlite:///{tmp_path}/store.db",
        flows=[shop, support.flow],
        chats=[sf.web.Chat(support.flow)],
        tools=[shop],
        arbiter=arbiter,
        authenticate=tenant_of,
        limits=sf.web.AppLimits(grace=0),
    ) as app:
        yield app
        support.go_on()


async def send(app: sf.App, method: str, path: str, tenant: str, **options: Any) -> httpx.Response:
    """Send something for a tenant, in a session and with a key that all tenants use."""
    headers = {"x-user": tenant, "Standfast-Session": "s"} | options.pop("headers", {})
    async with client_of(app) as client:
        return await client.request(method, path, headers=headers, **options)


async def requests_of(app: sf.App) -> dict[str, str]:
    """Let acme have one request that runs, one that was attended and has ended, and a durable one; return their ids."""
    ended = await send(app, "POST", "/flows/shop/brief", "acme", json={"text": PRIVATE})
    recorded = await send(app, "POST", "/flows/shop/later", "acme", json={"text": PRIVATE})
    handle = await app.dispatcher.dispatch(
        sf.Call(flow="shop", action="stay", inputs={"text": PRIVATE}, principal=sf.Principal("acme"), session="s")
    )
    return {"ended": ended.json(), "recorded": recorded.json()["requestId"], "running": handle.id}


def shape(answer: httpx.Response, request_id: str) -> tuple[int, str, dict[str, str]]:
    """Return all that an answer tells, but for the id that was asked for."""
    headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
    return answer.status_code, answer.text.replace(request_id, "..."), headers


async def test_a_request_of_another_tenant_looks_like_none_on_every_route(app: sf.App) -> None:
    """Every route that takes an id, by every method: the same status, headers and words as for an id that never was."""
    ids = await requests_of(app)
    paths = [each.path for each in app.routes if isinstance(each, Route) and "{id}" in each.path]
    assert sorted(paths) == ["/requests/{id}", "/requests/{id}/events"]
    for path in paths:
        for method in METHODS:
            none = shape(await send(app, method, path.format(id=ABSENT), "evil"), ABSENT)
            for request_id in ids.values():
                assert shape(await send(app, method, path.format(id=request_id), "evil"), request_id) == none
            assert none[0] in (404, 405)
    assert (await send(app, "GET", f"/requests/{ids['running']}", "acme")).json()["status"] == "running"


async def test_a_request_of_another_tenant_looks_like_none_to_every_method(app: sf.App) -> None:
    """Each method of a dispatcher and of an application that takes a principal and an id."""
    ids = await requests_of(app)
    methods = [
        getattr(thing, name)
        for thing in (app, app.dispatcher)
        for name in dir(type(thing))
        if not name.startswith("_") and callable(getattr(type(thing), name))
        if {"principal", "request_id"} <= inspect.signature(getattr(thing, name)).parameters.keys()
    ]
    assert {each.__name__ for each in methods} == {"find", "explain", "info", "cancel"}
    told = set[str]()
    for method in methods:
        for request_id in (*ids.values(), ABSENT):
            with pytest.raises(RequestNotFoundError) as missing:
                await method(sf.Principal("evil", "ada", frozenset({"operator"})), request_id)
            told.add(re.sub(re.escape(request_id), "...", str(missing.value)))
    assert len(told) == 1


async def test_keys_of_tenants_do_not_collide(app: sf.App) -> None:
    """The same session and the same idempotency key of another tenant: neither refused, nor replayed, nor told of."""
    ids, key = await requests_of(app), {"Idempotency-Key": "k"}
    ours = await send(app, "POST", "/flows/shop/later", "acme", json={"text": PRIVATE}, headers=key)
    theirs = await send(app, "POST", "/flows/shop/later", "evil", json={"text": "other"}, headers=key)
    free = await send(app, "POST", "/flows/shop/brief", "evil")
    taken = await send(app, "POST", "/flows/shop/brief", "acme")

    assert ours.json()["requestId"] != theirs.json()["requestId"]
    assert "idempotency-replayed" not in theirs.headers
    assert (free.status_code, taken.status_code, taken.json()["requestId"]) == (200, 409, ids["running"])


async def test_a_session_of_another_tenant_is_empty(app: sf.App) -> None:
    """Its state, its conversation over HTTP and the one over a socket: as if nobody had ever used it."""
    said = await send(app, "POST", "/chat/support/messages", "acme", json={"text": PRIVATE})
    own = said.json()["session"]
    theirs = await send(app, "POST", "/flows/shop/known", "evil", headers={"Standfast-Session": own})
    async with Socket(app, user="evil") as socket, asyncio.timeout(SOON):
        await socket.open(own)
        await socket.say("message", id="m1", text="hello")
        frames = await socket.frames_until("accepted")

    assert said.status_code == 202
    assert theirs.json() == "nothing"
    assert PRIVATE not in str(frames)


async def test_a_session_of_tools_of_another_tenant_looks_like_none(app: sf.App) -> None:
    """By every method that the protocol has."""
    opened = await send(app, "POST", "/mcp", "acme", json=HELLO, headers=MCP)
    own, told = opened.headers["mcp-session-id"], list[tuple[int, str]]()
    for session in (own, "0" * len(own)):
        for method in ("POST", "GET", "DELETE"):
            headers = MCP | {"Mcp-Session-Id": session}
            options = {"json": {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}} if method == "POST" else {}
            answer = await send(app, method, "/mcp", "evil", headers=headers, **options)
            told.append((answer.status_code, answer.text))
    assert told[:3] == told[3:]
    assert {status for status, _ in told} == {404}


async def test_nothing_of_a_tenant_is_in_the_description(app: sf.App) -> None:
    """It is the same for all."""
    await requests_of(app)
    ours, theirs = [await send(app, "GET", "/openapi.json", tenant) for tenant in ("acme", "evil")]
    assert ours.content == theirs.content
    assert PRIVATE not in ours.text


@pytest.mark.parametrize("prefer", [{}, {"Prefer": "respond-async"}])
async def test_whoever_is_refused_can_look_at_the_one_that_has_the_key(app: sf.App, prefer: dict[str, str]) -> None:
    """Also if it has ended in the meantime: the id that was named is never one that leads nowhere."""
    calls = [send(app, "POST", "/flows/shop/brief", "acme", headers=prefer) for _ in range(30)]
    answers = await asyncio.gather(*calls)
    refused = [answer.json()["requestId"] for answer in answers if answer.status_code == 409]
    looks = [await send(app, "GET", f"/requests/{each}", "acme") for each in refused]

    assert {answer.status_code for answer in answers} <= {200, 202, 409}
    assert refused
    assert {look.status_code for look in looks} == {200}

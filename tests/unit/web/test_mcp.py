"""Actions as tools, called by the official client."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

import standfast as sf
from standfast.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

desk = sf.Flow("desk")
moments: dict[str, asyncio.Event] = {}


@desk.action
async def greet(request: sf.Request, name: str) -> str:
    """Greet somebody."""
    request.emit({"at": "door"})
    return f"hello {name}"


@desk.action(concurrency=sf.Reject())
async def hold(request: sf.Request) -> None:
    """Keep the session until it is cancelled."""
    moments["held"].set()
    try:
        await asyncio.Event().wait()
    finally:
        moments[f"ended {request.id}"] = moments["ended"]
        moments["ended"].set()


@desk.action(roles=["clerk"])
async def stamp(request: sf.Request) -> str:
    """Stamp a form."""
    return request.user


@desk.action
async def fail(request: sf.Request) -> None:
    """Fail."""
    raise ValueError("canary", request.id)


TOKENS = {
    sf.web.token_digest("ada"): sf.Principal("acme", "ada"),
    sf.web.token_digest("bob"): sf.Principal("acme", "bob", frozenset({"clerk"})),
}


@contextlib.asynccontextmanager
async def served(**options: Any) -> AsyncIterator[sf.App]:
    """Serve the desk."""
    tokens = sf.web.BearerTokens(TOKENS)
    async with sf.App("memory://", flows=[desk], tools=[desk], authenticate=tokens, **options) as app:
        yield app


@contextlib.asynccontextmanager
async def client_of(app: sf.App, token: str = "ada", **headers: str) -> AsyncIterator[ClientSession]:  # noqa: S107 -- made up for the tests
    """Return the official client, signed in."""
    given = {"Authorization": f"Bearer {token}", **headers}
    transport = httpx2.ASGITransport(app=app)
    async with (
        httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=given) as http,
        streamable_http_client("http://localhost/mcp", http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        yield session


async def test_actions_are_tools() -> None:
    """With their descriptions and schemas; what needs a role is there for those who have it."""
    async with served() as app:
        async with client_of(app) as ada:
            tools = {tool.name: tool for tool in (await ada.list_tools()).tools}
        async with client_of(app, "bob") as bob:
            names = {tool.name for tool in (await bob.list_tools()).tools}
    assert set(tools) == {"desk__greet", "desk__hold", "desk__fail"}
    assert names == {*tools, "desk__stamp"}
    assert tools["desk__greet"].description == "Greet somebody."
    assert tools["desk__greet"].input_schema["required"] == ["name"]


async def test_a_tool_is_called() -> None:
    """Its result comes as text and as data."""
    async with served() as app, client_of(app) as ada:
        result = await ada.call_tool("desk__greet", {"name": "Bob"})
    assert result.structured_content == {"result": "hello Bob"}
    assert not result.is_error


async def test_a_model_is_told_what_was_wrong_with_its_arguments() -> None:
    """As a result that it can see; what an action raised is not shown."""
    async with served() as app, client_of(app) as ada:
        wrong = await ada.call_tool("desk__greet", {"name": 7})
        failed = await ada.call_tool("desk__fail", {})
    assert (wrong.is_error, failed.is_error) == (True, True)
    assert "name" in wrong.content[0].text  # type: ignore[union-attr] # it is text
    assert "canary" not in failed.content[0].text  # type: ignore[union-attr] # it is text


async def test_a_tool_that_one_may_not_use_is_not_there() -> None:
    """It looks like one that never was."""
    async with served() as app, client_of(app) as ada:
        for name in ("desk__stamp", "desk__nothing"):
            with pytest.raises(MCPError, match="there is no tool") as caught:
                await ada.call_tool(name, {})
            assert caught.value.code == -32_602


async def test_busy_is_a_proper_error_and_a_cancelled_call_lets_go() -> None:
    """With the id of the request that has the key; that one ends when its caller cancels it."""
    moments.update(held=asyncio.Event(), ended=asyncio.Event())
    async with served() as app, client_of(app, **{"Standfast-Session": "s-1"}) as ada:
        holding = asyncio.ensure_future(ada.call_tool("desk__hold", {}))
        await moments["held"].wait()
        with pytest.raises(MCPError) as caught:
            await ada.call_tool("desk__hold", {})
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        await moments["ended"].wait()
    assert caught.value.code == -32_000
    assert caught.value.data["type"] == "urn:standfast:request-rejected"
    assert f"ended {caught.value.data['requestId']}" in moments


async def test_whoever_waits_for_a_durable_tool_is_told_when_the_server_stops() -> None:
    """The call goes on without this server, so nobody is kept waiting for it here, nor cut off."""
    post, begun = sf.Flow("post"), asyncio.Event()

    @post.action(durable=True)
    async def ship(_request: sf.Request) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with (
        sf.App("memory://", flows=[post], tools=[post], limits=sf.web.AppLimits(grace=0)) as app,
        client_of(app, app.token) as ada,
    ):
        shipping = asyncio.ensure_future(ada.call_tool("post__ship", {}))
        await begun.wait()
        app.drain()
        with pytest.raises(MCPError, match=r"the request .* is accepted and continues: do not call again") as told:
            await asyncio.wait_for(shipping, 20)
    assert told.value.error.data["requestId"] in str(told.value)


async def test_events_are_progress() -> None:
    """If the caller wants to know."""
    heard: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        del progress, total
        heard.append(message)

    async with served() as app, client_of(app) as ada:
        await ada.call_tool("desk__greet", {"name": "Bob"}, progress_callback=hear)
    assert heard == ['{"at":"door"}']


async def test_without_credentials_there_is_nothing() -> None:
    """401, by the same door as everything else."""
    async with served() as app:
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            for method in ("GET", "POST", "DELETE"):
                assert (await http.request(method, "/mcp")).status_code == 401


async def test_a_session_belongs_to_who_opened_it() -> None:
    """Another principal cannot use it, even with its id."""
    async with served() as app:
        transport = httpx2.ASGITransport(app=app)
        accept = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
        opening = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=accept) as http:
            message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening}
            opened = await http.post("/mcp", json=message, headers={"Authorization": "Bearer ada"})
            session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            theirs = await http.post("/mcp", json=ping, headers=session | {"Authorization": "Bearer bob"})
            ours = await http.post("/mcp", json=ping, headers=session | {"Authorization": "Bearer ada"})
    assert (opened.status_code, theirs.status_code, ours.status_code) == (200, 404, 200)


def test_a_tool_has_to_be_of_the_application() -> None:
    """Otherwise it would lead nowhere."""
    with pytest.raises(DeclarationError):
        sf.App("memory://", flows=[], tools=[desk])

"""Tools without sessions: any process takes any message, by the older versions of the protocol and by the newest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

import standfast as sf
from tests.unit.web.clients import speaking
from tests.unit.web.test_mcp import TOKENS, desk, moments

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp, Receive, Scope, Send

OPENING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
WITHOUT_SESSIONS = sf.web.Site(tool_sessions=False)
ASKING = {"Accept": "application/json, text/event-stream", "Authorization": "Bearer ada"}


@contextlib.asynccontextmanager
async def two_servers(url: str) -> AsyncIterator[ASGIApp]:
    """Serve the desk twice on one store, without sessions; each message goes to the other server than the last."""
    async with contextlib.AsyncExitStack() as stack:
        options: dict[str, Any] = {"authenticate": sf.web.BearerTokens(TOKENS), "site": WITHOUT_SESSIONS}
        apps = [await stack.enter_async_context(sf.App(url, flows=[desk], tools=[desk], **options)) for _ in range(2)]
        turns = [0]

        async def balance(scope: Scope, receive: Receive, send: Send) -> None:
            turns[0] += 1
            await apps[turns[0] % 2](scope, receive, send)

        yield balance


@contextlib.asynccontextmanager
async def client_of(app: ASGIApp, era: str, **headers: str) -> AsyncIterator[Any]:
    """Return the official client of an older version, or of the newest."""
    given = {"Authorization": "Bearer ada", **headers}
    async with (
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://localhost", headers=given) as http,
        speaking(http, era) as client,
    ):
        yield client


@pytest.mark.parametrize("era", ["older", "newest"])
async def test_each_message_may_go_to_another_server(era: str, tmp_path: Any) -> None:
    """Tools are listed and called, and their events are told, whichever server a message gets to."""
    heard: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        del progress, total
        heard.append(message)

    async with two_servers(f"sqlite:///{tmp_path}/s.db") as app, client_of(app, era) as ada:
        names = {tool.name for tool in (await ada.list_tools()).tools}
        results = [
            await ada.call_tool("desk__greet", {"name": str(number)}, progress_callback=hear) for number in range(4)
        ]
    assert "desk__greet" in names
    assert [each.structured_content["result"] for each in results] == [f"hello {number}" for number in range(4)]
    assert heard == ['{"at":"door"}'] * 4


@pytest.mark.parametrize("era", ["older", "newest"])
async def test_a_client_that_hangs_up_cancels_its_call(era: str, tmp_path: Any) -> None:
    """Without sessions that is how a call is cancelled: no other message could find it."""
    moments.update(held=asyncio.Event(), ended=asyncio.Event())
    async with two_servers(f"sqlite:///{tmp_path}/s.db") as app:
        calling = asyncio.ensure_future(_hold(app, era))
        await asyncio.wait_for(moments["held"].wait(), 20)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        await asyncio.wait_for(moments["ended"].wait(), 20)


async def _hold(app: ASGIApp, era: str) -> None:
    async with client_of(app, era) as ada:
        await ada.call_tool("desk__hold", {})


async def test_no_session_is_given_out() -> None:
    """Also not to a client that asks for one, or brings one along."""
    options: dict[str, Any] = {"authenticate": sf.web.BearerTokens(TOKENS), "site": WITHOUT_SESSIONS}
    async with (
        sf.App("memory://", flows=[desk], tools=[desk], **options) as app,
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://localhost") as http,
    ):
        opened = await http.post("/mcp", json=OPENING, headers=ASKING)
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        stray = await http.post("/mcp", json=ping, headers=ASKING | {"Mcp-Session-Id": "0" * 32})
    assert (opened.status_code, stray.status_code) == (200, 200)
    assert "mcp-session-id" not in opened.headers


async def test_a_user_has_so_many_sessions_and_streams() -> None:
    """The next is 429 with its type; another user has its own."""
    limits = sf.web.AppLimits(user_streams=1)
    async with (
        sf.App("memory://", flows=[desk], tools=[desk], authenticate=sf.web.BearerTokens(TOKENS), limits=limits) as app,
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://localhost") as http,
    ):
        first = await http.post("/mcp", json=OPENING, headers=ASKING)
        second = await http.post("/mcp", json=OPENING, headers=ASKING)
        others = await http.post("/mcp", json=OPENING, headers=ASKING | {"Authorization": "Bearer bob"})
        session = {"Mcp-Session-Id": first.headers["mcp-session-id"]}
        closed = await http.delete("/mcp", headers=ASKING | session)
        third = await http.post("/mcp", json=OPENING, headers=ASKING)
    answers = (first, second, others, closed, third)
    assert [answer.status_code for answer in answers] == [200, 429, 200, 200, 200]
    assert second.json()["type"] == "urn:standfast:too-many-requests"
    assert "sessions of this user" in second.json()["detail"]


async def test_tools_whose_policy_arbitrates_nothing_are_named_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """Models name no session, so the default key does nothing for them; whoever reads the log is told what does."""
    shop = sf.Flow("shop")
    for name, policy in (("loose", sf.Queue()), ("tight", sf.Queue(key="user")), ("free", sf.Allow())):
        shop.action(name=name, concurrency=policy)(_do)
    caplog.set_level(logging.WARNING)
    async with sf.App("memory://", flows=[shop], tools=[shop]) as app:
        rows = {row[0]: row[2] for row in app.toolbox.rows()}
    [warning] = [record.getMessage() for record in caplog.records if "tools-without-a-key" in record.getMessage()]
    assert "shop__loose" in warning
    assert "shop__tight" not in warning
    assert "shop__free" not in warning
    assert rows["shop__loose"] == "nothing, unless the client names a session"
    assert (rows["shop__tight"], rows["shop__free"]) == ("user", "nothing")


async def _do(request: sf.Request) -> None:
    """Do nothing."""

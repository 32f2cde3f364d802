"""What is not there for somebody costs the same as what is not there at all: the clock tells nothing either."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

import standfast as sf
from standfast.flows.storage import Storage
from standfast.scope import Scope
from tests.integration.serving.test_limits import HELLO, MCP
from tests.integration.serving.test_tenants import ABSENT, requests_of, shop, tenant_of
from tests.integration.webhooks.provider import client_of
from tests.unit.web.chat.chat_clients import Support

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ASKED: Final = ("read", "scan", "commit", "commit_with", "update", "watch")
_counting: ContextVar[list[tuple[str, int]] | None] = ContextVar("counting", default=None)


@pytest.fixture(params=["shared", "local"])
async def app(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[sf.App]:
    """An application of several tenants, on a store whose every question is noted for whoever counts."""
    for name in ASKED:
        monkeypatch.setattr(Scope, name, noting(name, getattr(Scope, name)))
    monkeypatch.setattr(Storage, "_count", unnoted(Storage._count))
    arbiter: Literal["shared", "local"] = request.param
    url, support = f"sqlite:///{tmp_path}/store.db", Support()
    flows, chats = [shop, support.flow], [sf.web.Chat(support.flow)]
    async with sf.App(
        url,
        flows=flows,
        chats=chats,
        tools=[shop],
        arbiter=arbiter,
        authenticate=tenant_of,
        limits=sf.web.AppLimits(grace=0),
    ) as app:
        yield app
        support.go_on()


def noting(name: str, method: Any) -> Any:
    """Return a method of a store that notes what it is asked, for whoever asks through it."""

    def noted(self: Scope, *args: Any, **kwargs: Any) -> Any:
        counted = _counting.get()
        if counted is not None:
            counted.append((name, len(args[0]) if name == "update" else len(args)))
        return method(self, *args, **kwargs)

    return noted


def unnoted(method: Any) -> Any:
    """Return what counts the bytes of a tenant now and then, in a task of its own that nobody waits for, unnoted."""

    async def counting(*args: Any) -> None:
        _counting.set(None)
        await method(*args)

    return counting


async def asked(app: sf.App, method: str, path: str, tenant: str, **options: Any) -> tuple[int, list[tuple[str, int]]]:
    """Send something; return the status, and what the store was asked for it."""
    counted: list[tuple[str, int]] = []
    token = _counting.set(counted)
    try:
        async with client_of(app) as client, asyncio.timeout(20):
            headers = {"x-user": tenant} | options.pop("headers", {})
            answer = await client.request(method, path, headers=headers, **options)
    finally:
        _counting.reset(token)
    return answer.status_code, counted


@pytest.mark.parametrize(("method", "end"), [("GET", ""), ("DELETE", ""), ("GET", "/events")])
async def test_a_request_of_another_tenant_costs_as_much_as_none(app: sf.App, method: str, end: str) -> None:
    """The store is asked the same questions, in the same order, for one that runs, has ended, or never was."""
    ids = await requests_of(app)
    none = await asked(app, method, f"/requests/{ABSENT}{end}", "evil")
    assert none[0] == 404
    assert none[1], "it has to be looked for"
    for request_id in ids.values():
        assert await asked(app, method, f"/requests/{request_id}{end}", "evil") == none
    assert await asked(app, "GET", f"/requests/{ids['recorded']}", "acme") != none


async def test_a_session_of_another_tenant_costs_as_much_as_none(app: sf.App) -> None:
    """A conversation, and the state of a session."""
    session = "5" * 32
    said = {"json": {"text": "hello"}, "headers": {"Standfast-Session": session}}
    assert (await asked(app, "POST", "/chat/support/messages", "acme", **said))[0] == 202
    costs = []
    for number, tenant in enumerate(("evil", "other")):
        headers = {"Standfast-Session": session if tenant == "evil" else "6" * 32}
        costs.append(await asked(app, "POST", "/flows/shop/known", tenant, headers=headers))
        assert costs[number][0] == 200
    assert costs[0] == costs[1]


async def test_a_session_of_tools_of_another_tenant_costs_as_much_as_none(app: sf.App) -> None:
    """The store is not asked at all."""
    async with client_of(app) as client:
        opened = await client.post("/mcp", json=HELLO, headers=MCP | {"x-user": "acme"})
    own = opened.headers["mcp-session-id"]
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    for session in (own, "0" * len(own)):
        headers = MCP | {"Mcp-Session-Id": session}
        assert await asked(app, "POST", "/mcp", "evil", headers=headers, json=listing) == (404, [])

"""An application that takes access tokens: what its clients are told, and the official client of tools with a token."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import httpx
import httpx2
import pytest
from mcp.client.auth.utils import (
    build_protected_resource_metadata_discovery_urls,
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
)
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import ProtectedResourceMetadata
from starlette.applications import Starlette
from starlette.routing import Mount, Route

import standfast as sf
from tests.unit.web.issuer import ISSUER, token, tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp

WELL_KNOWN = "/.well-known/oauth-protected-resource"
desk = sf.Flow("desk")


@desk.action
async def whoami(request: sf.Request) -> list[str]:
    """Tell who asks, and all that an action can see of it."""
    seen = [repr(getattr(request, name)) for name in dir(request) if not name.startswith("_") and name != "session"]
    return [request.tenant, request.user, str(seen)]


@desk.action(roles=["clerk"])
async def stamp(request: sf.Request) -> str:
    """Stamp a form."""
    return request.user


@contextlib.asynccontextmanager
async def served(**options: Any) -> AsyncIterator[sf.App]:
    """Serve the desk."""
    async with sf.App("memory://", flows=[desk], tools=[desk], authenticate=tokens(**options)) as app:
        yield app


def client_of(app: ASGIApp, base: str = "http://localhost") -> httpx.AsyncClient:
    """Return a client from elsewhere."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app, client=("203.0.113.9", 1)), base_url=base)


@contextlib.asynccontextmanager
async def model_of(app: sf.App, text: str) -> AsyncIterator[ClientSession]:
    """Return the official client of tools with a token."""
    headers = {"Authorization": f"Bearer {text}"}
    async with (
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), headers=headers) as http,
        streamable_http_client("http://localhost/mcp", http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        yield session


async def test_a_client_of_tools_comes_with_a_token() -> None:
    """It sees what its scopes let it use; the tenant and the user are those of the token."""
    async with served() as app:
        async with model_of(app, token()) as ada:
            names = {tool.name for tool in (await ada.list_tools()).tools}
            who = await ada.call_tool("desk__whoami", {})
        async with model_of(app, token(sub="bob", scope="tools standfast:clerk")) as bob:
            stamped = await bob.call_tool("desk__stamp", {})
    assert names == {"desk__whoami"}
    assert who.structured_content is not None
    assert who.structured_content["result"][:2] == ["acme", "ada"]
    assert stamped.structured_content == {"result": "bob"}


async def test_an_action_never_sees_the_token() -> None:
    """So it cannot pass it on to anybody."""
    text = token()
    async with served() as app, model_of(app, text) as ada, client_of(app) as http:
        over_tools = await ada.call_tool("desk__whoami", {})
        over_http = await http.post("/flows/desk/whoami", headers={"Authorization": f"Bearer {text}"})
    assert over_http.status_code == 200
    assert not any(part in f"{over_tools}{over_http.text}" for part in text.split("."))


async def test_a_client_that_knows_nothing_finds_out_where_to_get_a_token() -> None:
    """As the official client does: from the challenge to the metadata, and to the authorization server."""
    async with (
        served() as app,
        client_of(app) as http,
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as raw,
    ):
        refused = await raw.post("http://localhost/mcp", json={})
        where = extract_resource_metadata_from_www_auth(refused)
        assert where is not None
        told = await http.get(where)
        others = [
            await http.get(url)
            for url in build_protected_resource_metadata_discovery_urls(None, "http://localhost/mcp")
        ]
    known = ProtectedResourceMetadata.model_validate_json(told.content)
    assert (refused.status_code, extract_scope_from_www_auth(refused)) == (401, "tools")
    assert (str(known.resource), str(known.authorization_servers[0])) == ("http://localhost/mcp", ISSUER)
    assert (known.scopes_supported, known.bearer_methods_supported) == (["tools"], ["header"])
    assert {answer.content for answer in others} == {told.content}
    assert told.headers["content-type"] == "application/json"


async def test_a_token_that_lacks_a_scope_is_403_and_one_that_does_not_hold_401() -> None:
    """With the challenge that RFC 6750 has for each."""
    async with served() as app, client_of(app) as http:
        answers = [
            await http.post("/flows/desk/whoami", headers={"Authorization": f"Bearer {text}"})
            for text in (token(scope="other"), token(iss="https://evil.example"))
        ]
    assert [answer.status_code for answer in answers] == [403, 401]
    assert [answer.json()["type"].rpartition(":")[2] for answer in answers] == ["forbidden", "authentication"]
    for answer, error in zip(answers, ("insufficient_scope", "invalid_token"), strict=True):
        where = "http://localhost/.well-known/oauth-protected-resource/mcp"
        assert (
            answer.headers["www-authenticate"] == f'Bearer error="{error}", scope="tools", resource_metadata="{where}"'
        )


async def test_every_route_but_the_metadata_needs_a_token() -> None:
    """Each address that is open is one in full."""
    async with served() as app, client_of(app) as http:
        paths = {route.path for route in app.routes if isinstance(route, Route)}
        opened = {WELL_KNOWN, f"{WELL_KNOWN}/mcp", "/health", "/health/live", "/health/ready"}
        for path in {*paths, f"{WELL_KNOWN}/", f"{WELL_KNOWN}/other", f"/x{WELL_KNOWN}"} - opened:
            assert (await http.get(path.replace("{", "").replace("}", ""))).status_code == 401, path
        for path in opened:
            assert (await http.get(path)).status_code == 200, path
            assert (await http.post(path)).status_code == 405, path


async def test_below_a_mount_the_challenge_leads_to_where_the_metadata_is() -> None:
    """The application around ours need not know anything of it."""
    authenticate = tokens(audience="https://api.example/flows/mcp")
    app = sf.App("memory://", flows=[desk], tools=[desk], authenticate=authenticate)
    host = Starlette(routes=[Mount("/flows", app)], lifespan=sf.web.lifespan(app))
    async with sf.web.lifespan(app)(host), client_of(host, "https://api.example") as http:
        refused = await http.post("/flows/mcp")
        where = refused.headers["www-authenticate"].partition('resource_metadata="')[2].rstrip('"')
        told = await http.get(where)
    assert where == f"https://api.example/flows{WELL_KNOWN}/mcp"
    assert told.json()["resource"] == "https://api.example/flows/mcp"


async def test_without_access_tokens_there_is_no_metadata() -> None:
    """Nobody is led anywhere."""
    bearer = sf.web.BearerTokens({sf.web.token_digest("t"): sf.Principal("acme", "ada")})
    async with sf.App("memory://", flows=[desk], authenticate=bearer) as app, client_of(app) as http:
        assert (await http.get(WELL_KNOWN)).status_code == 401


async def test_an_issuer_that_cannot_be_asked_is_503() -> None:
    """Nobody is let in unchecked, and the client is told to come again."""
    async with served(keys="https://127.0.0.1:1/keys") as app, client_of(app) as http:
        answer = await http.post("/flows/desk/whoami", headers={"Authorization": f"Bearer {token()}"})
    assert (answer.status_code, int(answer.headers["retry-after"]) >= 1) == (503, True)
    assert "127.0.0.1" not in answer.text


@pytest.mark.parametrize("session_of", ["ada", "bob"])
async def test_a_session_of_tools_is_bound_to_the_user_of_the_token(session_of: str) -> None:
    """A newer token of the same user goes on with it; one of somebody else does not, nor of another tenant."""
    accept = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
    opening = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    async with served() as app, client_of(app) as http:
        http.headers.update(accept)
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening}
        opened = await http.post("/mcp", json=message, headers=_bearer(sub=session_of))
        http.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        answers = [
            (await http.post("/mcp", json=ping, headers=_bearer(**who))).status_code
            for who in ({"sub": session_of, "jti": "newer"}, {"sub": "eve"}, {"sub": session_of, "org": "evil"})
        ]
    assert answers == [200, 404, 404]


def _bearer(**changed: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(**changed)}"}

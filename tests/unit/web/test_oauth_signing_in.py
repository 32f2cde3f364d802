"""The official client signs in by itself: it knows the address of the application, and nothing else."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Any, final
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import standfast as sf
from tests.unit.web.issuer import AUDIENCE, ISSUER, token, tokens

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

desk = sf.Flow("desk")


@desk.action
async def whoami(request: sf.Request) -> list[str]:
    """Tell who asks."""
    return [request.tenant, request.user]


@final
class Issuer:
    """An authorization server that lets Ada in, and whoever has her browser; it notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: dict[str, str] = {}
        routes = [
            Route("/.well-known/oauth-authorization-server", self._metadata),
            Route("/register", self._register, methods=["POST"]),
            Route("/token", self._token, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)

    async def _metadata(self, _: Request) -> JSONResponse:
        places = {f"{what}_endpoint": f"{ISSUER}/{path}" for what, path in PLACES.items()}
        return JSONResponse({"issuer": ISSUER, **places, "code_challenge_methods_supported": ["S256"]})

    async def _register(self, request: Request) -> JSONResponse:
        return JSONResponse({**await request.json(), "client_id": "model"}, 201)

    async def browse(self, url: str) -> None:
        """Do what a browser and Ada do."""
        self.asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}

    async def redirected(self) -> AuthorizationCodeResult:
        """Come back from there."""
        return AuthorizationCodeResult(code="a code", state=self.asked["state"])

    async def _token(self, request: Request) -> JSONResponse:
        form = await request.form()
        digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        assert urlsafe_b64encode(digest).rstrip(b"=").decode() == self.asked["code_challenge"]
        access = token(aud=form["resource"], scope=self.asked["scope"])
        return JSONResponse({"access_token": access, "token_type": "Bearer", "expires_in": 300})


PLACES = {"authorization": "authorize", "token": "token", "registration": "register"}


@final
class Kept:
    """What a client keeps."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        """Return the tokens."""
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep the tokens."""
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return what the client is to the issuer."""
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep that."""
        self.client = client_info


def network(app: ASGIApp, issuer: Issuer) -> ASGIApp:
    """Return both as one, by the name of the host.

    Without a socket an answer has to end before the client sees it, and the stream of a session has no end.
    """

    async def lead(scope: Scope, receive: Receive, send: Send) -> None:
        host = dict(scope["headers"])[b"host"].decode()
        if (scope["method"], scope["path"]) == ("GET", "/mcp"):
            await Response(None, 405)(scope, receive, send)
        else:
            await (issuer.app if host == urlsplit(ISSUER).netloc else app)(scope, receive, send)

    return lead


async def test_the_official_client_signs_in_and_calls_a_tool() -> None:
    """From a refusal to the metadata, the authorization server, a token for this application, and the tool."""
    issuer, kept = Issuer(), Kept()
    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl("http://localhost:9/back")])
    auth: Any = OAuthClientProvider(AUDIENCE, metadata, kept, issuer.browse, issuer.redirected)
    async with sf.App("memory://", flows=[desk], tools=[desk], authenticate=tokens()) as app:
        transport = httpx2.ASGITransport(app=network(app, issuer))
        async with (
            httpx2.AsyncClient(transport=transport, auth=auth) as http,
            streamable_http_client(AUDIENCE, http_client=http) as streams,
            ClientSession(streams[0], streams[1]) as ada,
        ):
            await ada.initialize()
            who = await ada.call_tool("desk__whoami", {})
    assert who.structured_content == {"result": ["acme", "ada"]}
    assert (issuer.asked["resource"], issuer.asked["scope"]) == (AUDIENCE, "tools")

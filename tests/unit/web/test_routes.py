"""Every way into an application with everything in it, whoever says who asks and wherever it is mounted."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route, WebSocketRoute

import standfast as sf
from standfast.web.signatures import StandardWebhooks
from tests.unit.web.issuer import tokens as oauth_tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.requests import HTTPConnection
    from starlette.types import ASGIApp

WELL_KNOWN = "/.well-known/oauth-protected-resource"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "PROPFIND")
CLOSED = {
    ("http", "/flows/{flow}/{action}"),
    ("http", "/requests/{id}"),
    ("http", "/requests/{id}/events"),
    ("websocket", "/chat/desk"),
    ("http", "/chat/desk"),
    ("http", "/chat/desk/"),
    ("http", "/chat/desk/chat.css"),
    ("http", "/chat/desk/chat.js"),
    ("http", "/chat/desk/icon.svg"),
    ("http", "/chat/desk/events"),
    ("http", "/chat/desk/messages"),
    ("http", "/mcp"),
    ("http", "/openapi.json"),
    ("http", "/metrics"),
    ("http", "/scale"),
}
"""Every route there is that needs credentials. Whoever adds one adds it here, or it is found to be open."""

OPEN = {"/health", "/health/live", "/health/ready", "/webhooks/letters", WELL_KNOWN, f"{WELL_KNOWN}/mcp"}
NEARLY = (
    *("/health/", "/healthz", "/HEALTH", "//health", "/x/health", "/health/x", "/./health", "/%68ealth", "/health;x"),
    *("/webhooks", "/webhooks/", "/webhooks/letters/", "/webhooks/letters/x", "/webhooks/other", "/Webhooks/letters"),
    *(f"{WELL_KNOWN}/", f"{WELL_KNOWN}/other", f"/x{WELL_KNOWN}", "/.well-known/", "/.well-known/openid-configuration"),
    *("", "/", "/nothing", "/flows", "/flows/desk/greet", "/flows/desk/greet/", "/flows/desk/nothing", "/requests/"),
)
"""Paths that only look like open ones, paths of actions, and paths of nothing."""

ran: list[str] = []
desk = sf.Flow("desk")


@desk.action
async def greet(request: sf.Request) -> str:
    """Greet."""
    ran.append(request.id)
    return request.user


@desk.action
async def respond(request: sf.Request, text: str) -> str:
    """Answer a message."""
    ran.append(request.id)
    return text


@desk.action
async def take(request: sf.Request, letter: dict[str, Any]) -> None:
    """Take a letter."""
    ran.append(f"{request.id} {letter}")


def nobody(_connection: HTTPConnection) -> None:
    """Know nobody."""


AUTHENTICATORS: dict[str, Any] = {
    "bearer": lambda: sf.web.BearerTokens({sf.web.token_digest("t"): sf.Principal("acme", "ada")}),
    "oauth": oauth_tokens,
    "function": lambda: nobody,
    "token": lambda: None,
}


def made(authenticate: str, **options: Any) -> sf.App:
    """Return an application with everything in it that has an address."""
    secret = base64.b64encode(b"a secret of the tests, long").decode()
    return sf.App(
        "memory://",
        flows=[desk],
        chats=[sf.web.Chat(desk, append=None)],
        tools=[desk],
        webhooks=[sf.web.Webhook("letters", StandardWebhooks(secret), take)],
        authenticate=AUTHENTICATORS[authenticate](),
        **options,
    )


def ways(app: sf.App) -> set[tuple[str, str]]:
    """Return the kinds of connections and the paths of all routes."""
    found = set[tuple[str, str]]()
    for route in app.routes:
        assert isinstance(route, Route | WebSocketRoute), "a kind of route that this test does not know"
        found.add(("websocket" if isinstance(route, WebSocketRoute) else "http", route.path))
    return found


@pytest.fixture(params=AUTHENTICATORS)
def authenticate(request: pytest.FixtureRequest) -> str:
    """Who says who asks."""
    name: str = request.param
    return name


@pytest.fixture(params=["", "/api"], ids=["at the root", "mounted"])
def below(request: pytest.FixtureRequest) -> str:
    """Where it is mounted."""
    where: str = request.param
    return where


@pytest.fixture
async def served(authenticate: str, below: str) -> AsyncIterator[ASGIApp]:
    """The application, open; nothing has run in the end."""
    ran.clear()
    async with made(authenticate) as app:
        yield Starlette(routes=[Mount(below, app)]) if below else app
    assert ran == []


async def told(app: ASGIApp, kind: str, path: str, method: str = "GET", headers: Any = ()) -> dict[str, Any]:
    """Ask for something from elsewhere; return the first thing that is said."""
    said: list[Any] = []
    coming = iter([{"type": f"{kind}.connect" if kind == "websocket" else "http.request", "body": b""}])

    async def receive() -> Any:
        return next(coming, {"type": f"{kind}.disconnect", "code": 1001})

    async def send(message: Any) -> None:
        said.append(message)

    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"api.example"), *headers],
        "client": ("203.0.113.9", 1),
        "extensions": {"websocket.http.response": {}},
        "subprotocols": [],
    }
    await app(scope, receive, send)
    first: dict[str, Any] = said[0]
    return first


def paths() -> Iterator[str]:
    """Yield paths of all closed routes, and of what only looks open."""
    yield from (re.sub(r"[{}]", "", path) for _, path in sorted(CLOSED))
    yield from NEARLY


def test_every_route_is_known_here(authenticate: str) -> None:
    """One that is added is either closed or open, and that is said in this file."""
    opened = OPEN if authenticate == "oauth" else {path for path in OPEN if not path.startswith(WELL_KNOWN)}
    assert ways(made(authenticate)) == CLOSED | {("http", path) for path in opened}


@pytest.mark.parametrize("method", METHODS)
async def test_no_path_answers_to_a_stranger(served: ASGIApp, below: str, method: str) -> None:
    """By any method, not even to say that there is nothing, or that it cannot be done."""
    for path in paths():
        if below and not path.startswith("/"):
            continue  # that is the host's own
        answer = await told(served, "http", below + path, method)
        assert answer["status"] == 401, (method, path)


async def test_no_path_accepts_the_websocket_of_a_stranger(served: ASGIApp, below: str) -> None:
    """Neither where there is one, nor elsewhere, nor where no credentials are needed otherwise."""
    for path in (*paths(), *OPEN):
        if below and not path.startswith("/"):
            continue
        answer = await told(served, "websocket", below + path)
        assert answer["type"] in ("websocket.http.response.start", "websocket.close"), path
        if path not in OPEN:
            assert answer.get("status") == 401, path


@pytest.mark.parametrize("credentials", ["Bearer wrong", "Bearer", "Basic dDp0", "bearer t2", "Bearer t\x00", ""])
async def test_credentials_that_do_not_hold_open_nothing(served: ASGIApp, below: str, credentials: str) -> None:
    """At no route, over HTTP or a WebSocket."""
    headers = [(b"authorization", credentials.encode())]
    for kind, path in sorted(CLOSED):
        answer = await told(served, kind, below + re.sub(r"[{}]", "", path), "GET", headers)
        assert answer.get("status") in (401, 429), (kind, path)  # guessing is slowed down


async def test_what_is_open_tells_a_stranger_nothing(served: ASGIApp, below: str, authenticate: str) -> None:
    """Health is a word, a delivery needs its signature, and where to get a token is for everybody to know."""
    health = await told(served, "http", f"{below}/health")
    delivery = await told(served, "http", f"{below}/webhooks/letters", "POST")
    metadata = await told(served, "http", f"{below}{WELL_KNOWN}")
    assert (health["status"], delivery["status"]) == (200, 401)
    assert metadata["status"] == (200 if authenticate == "oauth" else 401)


async def test_what_a_browser_asks_before_is_answered_without_letting_it_in(authenticate: str) -> None:
    """With origins, a preflight is about headers; the request itself still needs credentials."""
    ran.clear()
    async with made(authenticate, site=sf.web.Site(origins=["https://app.example"])) as app:
        origin = (b"origin", b"https://app.example")
        for path in paths():
            asked = [origin, (b"access-control-request-method", b"POST")]
            assert (await told(app, "http", path, "OPTIONS", asked))["status"] == 200
            assert (await told(app, "http", path, "POST", [origin]))["status"] == 401, path
    assert ran == []

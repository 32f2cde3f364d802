"""Applications as a whole: declared, opened, served and closed, on a real store."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route, WebSocketRoute

import standfast as sf
from standfast.errors import DeclarationError, NotTheSoleServerError
from standfast.web.signatures import Unsigned
from tests.unit.web.fakes import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp

shop = sf.Flow("shop", concurrency="queue")
seen: list[str] = []


@shop.action
async def buy(request: sf.Request, item: str) -> str:
    """Buy something."""
    request.emit({"item": item})
    return f"{item} for {request.user or 'somebody'}"


@shop.action(durable=True)
async def ship(request: sf.Request, parcel: dict[str, str]) -> str:
    """Ship something, whatever happens."""
    del request
    seen.append(parcel["to"])
    return parcel["to"]


def receiver(delivery: sf.web.webhooks.Delivery) -> str:
    """Return the session of a delivery."""
    return str(delivery.payload["to"])


@shop.action
async def note(request: sf.Request, text: str) -> None:
    """Keep something in the session."""
    request.session.append("notes", text)


@shop.action
async def fail(request: sf.Request) -> None:
    """Fail."""
    raise ValueError(request.id)


@shop.action(concurrency=sf.Reject())
async def hold(request: sf.Request) -> None:
    """Keep the key until somebody cancels it."""
    request.emit("held")
    await asyncio.Event().wait()


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store of our own."""
    return f"sqlite:///{tmp_path}/app.db"


@contextlib.asynccontextmanager
async def client_of(app: sf.App, host: ASGIApp | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client on this machine that has the token, of an application or of what it is mounted in."""
    transport = httpx.ASGITransport(app=host or app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=shown(app)) as client:
        yield client


@contextlib.asynccontextmanager
async def served(url: str, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the shop."""
    async with sf.App(url, flows=[shop], **options) as app, client_of(app) as client:
        yield client


@pytest.mark.parametrize("arbiter", ["shared", "local"])
async def test_an_action_is_called_over_http(url: str, arbiter: str) -> None:
    """From the declaration to the answer."""
    async with served(url, arbiter=arbiter) as client:
        answer = await client.post("/flows/shop/buy", json={"item": "tea"}, headers={"Standfast-Session": "s"})
        wrong = await client.post("/flows/shop/buy", json={"item": 7})
        extra = await client.post("/flows/shop/buy", json={"item": "tea", "canary": 1})
        nothing = await client.post(
            "/flows/shop/buy", content=b"not json", headers={"content-type": "application/json"}
        )
        failed = await client.post("/flows/shop/fail")
    assert (answer.status_code, answer.json()) == (200, "tea for somebody")
    assert [wrong.status_code, extra.status_code, nothing.status_code] == [422, 422, 422]
    assert failed.status_code == 500


async def test_a_durable_request_is_followed_to_its_end(url: str) -> None:
    """202 and an address; there is the status, and the events, and then nothing more."""
    async with served(url) as client:
        accepted = await client.post("/flows/shop/ship", json={"parcel": {"to": "Ada"}})
        events = await client.get(f"{accepted.headers['location']}/events")
        status = (await client.get(accepted.headers["location"])).json()
    assert accepted.status_code == 202
    assert '"status":"completed"' in events.text
    assert (status["status"], status["result"]) == ("completed", "Ada")


async def test_whoever_waits_for_a_durable_request_is_told_to_follow_it_when_the_server_stops(url: str) -> None:
    """It goes on without this server: its caller is neither kept waiting here nor cut off."""
    office, begun = sf.Flow("office"), asyncio.Event()

    @office.action(durable=True)
    async def tidy(_request: sf.Request) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with sf.App(url, flows=[office], limits=sf.web.AppLimits(grace=0)) as app, client_of(app) as client:
        waiting = asyncio.ensure_future(client.post("/flows/office/tidy", headers={"Prefer": "wait=60"}))
        await begun.wait()
        app.drain()
        answer = await asyncio.wait_for(waiting, 20)
    assert (answer.status_code, "location" in answer.headers) == (202, True)


async def test_a_repeated_key_replays_the_answer(url: str) -> None:
    """And another body under the same key is refused."""
    async with served(url) as client:
        key = {"Idempotency-Key": "k-1"}
        first = await client.post("/flows/shop/buy", json={"item": "tea"}, headers=key)
        again = await client.post("/flows/shop/buy", json={"item": "tea"}, headers=key)
        other = await client.post("/flows/shop/buy", json={"item": "milk"}, headers=key)
    assert (first.json(), again.json()) == ("tea for somebody", "tea for somebody")
    assert (first.headers["standfast-request"], again.headers.get("idempotency-replayed")) == (
        again.headers["standfast-request"],
        "true",
    )
    assert other.status_code == 422


@pytest.mark.parametrize("arbiter", ["shared", "local"])
async def test_a_taken_key_names_who_has_it(url: str, arbiter: str) -> None:
    """409 with the id of the other, which can be looked at and cancelled."""
    session = {"Standfast-Session": "s"}
    async with served(url, arbiter=arbiter) as client:
        holding = await client.post("/flows/shop/hold", headers=session | {"Prefer": "respond-async"})
        refused = await client.post("/flows/shop/hold", headers=session)
        holder = refused.json()["requestId"]
        await client.delete(f"/requests/{holder}")
        await client.get(f"/requests/{holder}/events")  # until it has ended
        status = (await client.get(f"/requests/{holder}")).json()["status"]
    assert (refused.status_code, holder) == (409, holding.json()["requestId"])
    assert status == "cancelled"


@pytest.mark.parametrize("prefer", ["", "respond-async, wait=10"])
async def test_a_call_without_the_session_that_it_needs_is_told_what_to_send(url: str, prefer: str) -> None:
    """422 in words, with the header; and the same where it is looked up. With a session, it is kept."""
    headers = {"Prefer": prefer} if prefer else {}
    async with served(url) as client:
        refused = await client.post("/flows/shop/note", json={"text": "a"}, headers=headers)
        shown = (await client.get(f"/requests/{refused.json()['requestId']}")).json()
        taken = await client.post("/flows/shop/note", json={"text": "a"}, headers=headers | {"Standfast-Session": "s"})
    told = refused.json()
    assert (refused.status_code, told["type"]) == (422, "urn:standfast:session-missing")
    assert "Standfast-Session" in told["detail"]
    assert "Standfast-Session" in told["next"]
    assert (shown["status"], shown["errorStatus"], "Standfast-Session" in shown["error"]) == ("failed", 422, True)
    assert taken.status_code == 200


async def test_a_webhook_is_run_once(url: str) -> None:
    """However often it is delivered: accepted, then duplicate."""
    seen.clear()
    webhook = sf.web.Webhook("parcels", Unsigned(), to=ship, session=receiver)
    async with served(url, webhooks=[webhook]) as client:
        answers = [
            await client.post("/webhooks/parcels", json={"to": "Bob"}, headers={"webhook-id": "1"}) for _ in range(3)
        ]
        await client.get(f"/requests/{answers[0].json()['requestId']}/events")
        late = await client.post("/webhooks/parcels", json={"to": "Bob"}, headers={"webhook-id": "1"})
    assert [answer.status_code for answer in [*answers, late]] == [202, 200, 200, 200]
    assert late.json() == {"status": "duplicate", "requestId": answers[0].json()["requestId"]}
    assert seen == ["Bob"]


@contextlib.asynccontextmanager
async def lived(app: ASGIApp) -> AsyncIterator[list[str]]:
    """Do what a server does around everything else; tell what the application says to that."""
    asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    said: asyncio.Queue[Any] = asyncio.Queue()
    living = asyncio.ensure_future(app({"type": "lifespan", "asgi": {}, "state": {}}, asked.get, said.put))
    asked.put_nowait({"type": "lifespan.startup"})
    told = [(await said.get())["type"]]
    yield told
    asked.put_nowait({"type": "lifespan.shutdown"})
    told.append((await said.get())["type"])
    await living


async def test_a_server_opens_and_closes_it(url: str) -> None:
    """As ASGI's lifespan says; before and after it serves nothing."""
    app = sf.App(url, flows=[shop])
    async with client_of(app) as client:
        assert (await client.post("/flows/shop/buy", json={"item": "tea"})).status_code == 503
        assert (await client.get("/health")).status_code == 503
        async with lived(app) as told:
            assert (await client.get("/health")).status_code == 200
            assert (await client.post("/flows/shop/buy", json={"item": "tea"})).status_code == 200
        assert (await client.post("/flows/shop/buy", json={"item": "tea"})).status_code == 503
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_it_can_be_mounted_in_another_application(url: str) -> None:
    """Which opens it with its own lifespan; addresses are those below the mount."""
    app = sf.App(url, flows=[shop])
    outer = Starlette(lifespan=sf.web.lifespan(app))
    outer.mount("/api", app)
    async with outer.router.lifespan_context(outer), client_of(app, outer) as client:
        answer = await client.post("/api/flows/shop/ship", json={"parcel": {"to": "Ada"}})
        assert answer.headers["location"].startswith("/api/requests/")
        assert (await client.get(answer.headers["location"])).status_code == 200
        assert (await client.get("/api/health")).status_code == 200


async def test_a_second_process_cannot_decide_in_memory_too(url: str) -> None:
    """With ``arbiter="local"`` one serves; the other refuses to start and says what to do."""
    async with sf.App(url, flows=[shop], arbiter="local"):
        with pytest.raises(NotTheSoleServerError, match="arbiter"):
            await sf.App(url, flows=[shop], arbiter="local").open()


async def test_pages_that_were_named_may_use_it_from_a_browser(url: str) -> None:
    """They are told so when they ask; others are not."""
    tokens = sf.web.BearerTokens({sf.web.token_digest("t"): sf.Principal("acme", "ada")})
    async with served(url, authenticate=tokens, site=sf.web.Site(origins=["https://app.example"])) as client:
        ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
        allowed = await client.options("/flows/shop/buy", headers=ask | {"Origin": "https://app.example"})
        refused = await client.options("/flows/shop/buy", headers=ask | {"Origin": "https://evil.example"})
        headers = {"Origin": "https://app.example", "Authorization": "Bearer t"}
        answer = await client.post("/flows/shop/buy", json={"item": "tea"}, headers=headers)
    assert (allowed.status_code, refused.status_code) == (200, 400)
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert answer.json() == "tea for ada"


@shop.action
async def append_message(request: sf.Request, text: str) -> None:
    """Keep a message."""


@shop.action
async def respond(request: sf.Request, text: str) -> str:
    """Answer a message."""
    del request
    return text


def _ways(routes: list[BaseRoute], above: str = "") -> list[tuple[str, str]]:
    """Return all ways into an application: the kind of connection, and a path that leads there."""
    ways: list[tuple[str, str]] = []
    for route in routes:
        path = above + getattr(route, "path", "")
        if isinstance(route, Mount):
            ways += [("http", f"{path}/x"), *_ways(list(route.routes), path)]
        else:
            assert isinstance(route, Route | WebSocketRoute), "a kind of route that this test does not know"
            ways.append(("websocket" if isinstance(route, WebSocketRoute) else "http", path))
    return [(kind, re.sub(r"[{}]|:path", "", path)) for kind, path in ways]


async def test_every_way_into_an_application_needs_credentials(url: str) -> None:
    """HTTP, WebSockets, streams, pages and tools: whatever there is, by whatever it is asked for."""
    tokens = sf.web.BearerTokens({sf.web.token_digest("t"): sf.Principal("acme", "ada")})
    chats, hooks = [sf.web.Chat(shop)], [sf.web.Webhook("parcels", Unsigned(), to=ship, session=receiver)]
    async with sf.App(url, flows=[shop], chats=chats, tools=[shop], webhooks=hooks, authenticate=tokens) as app:
        ways = _ways(app.routes)
        assert {kind for kind, _ in ways} == {"http", "websocket"}
        for kind, path in ways:
            if path in ("/health", "/health/live", "/health/ready", "/webhooks/parcels"):
                continue
            for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS") if kind == "http" else ("",):
                assert await _status(app, kind, path, method) == 401, (method, path)


async def _status(app: ASGIApp, kind: str, path: str, method: str) -> int:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    extensions: dict[str, Any] = {"websocket.http.response": {}}
    scope = {"type": kind, "method": method, "path": path, "query_string": b"", "headers": [], "extensions": extensions}
    await app(scope, receive, send)
    status: int = sent[0]["status"]
    return status


@pytest.mark.parametrize(
    "options",
    [
        {
            "webhooks": [
                sf.web.Webhook("a", Unsigned(), to=ship, session=receiver),
                sf.web.Webhook("a", Unsigned(), to=ship, session=receiver),
            ]
        },
        {"flows": [], "webhooks": [sf.web.Webhook("a", Unsigned(), to=ship, session=receiver)]},
        {"arbiter": "nobody"},
        {"flows": shop},
        *({name: 7} for name in ("webhooks", "chats", "tools", "schedules", "authenticate", "limits", "site")),
        *({name: [7]} for name in ("webhooks", "chats", "tools", "schedules")),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    """Before anything is opened, and the error names what cannot."""
    named = "webhook" if len(options) > 1 else next(iter(options))
    with pytest.raises(DeclarationError, match=named.rstrip("s")):
        sf.App("memory://", **({"flows": [shop]} | options))


@pytest.mark.parametrize("given", [7, [7], "shop.example"])
@pytest.mark.parametrize("name", ["hosts", "origins"])
def test_a_site_is_named_by_a_list_of_texts(name: str, given: Any) -> None:
    """One text alone would be taken for its letters, and serve none."""
    with pytest.raises(DeclarationError, match=name):
        sf.web.Site(**{name: given})


def test_what_an_engine_has_cannot_be_given_beside_it() -> None:
    """It would be said twice."""
    with pytest.raises(DeclarationError, match="workflows"):
        sf.App(sf.Engine("memory://"), flows=[shop], workflows=[sf.workflow(ship.function)])


def test_naming_it_needs_no_library_of_the_web() -> None:
    """``from standfast import *`` loads none; making one does."""
    code = "import sys; from standfast import *; print(bool({'starlette', 'uvicorn'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"

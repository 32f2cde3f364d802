"""Limits of a whole application: what is more is refused with a typed answer, and nothing of it stays."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, Literal, final

import pytest

import standfast as sf
from standfast.flows.arbiter.in_memory import LocalArbiter
from tests.integration.webhooks.provider import LETTER, NEW, SOON, client_of, signed
from tests.unit.web.chat.chat_clients import Socket, Support

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx

BODY, REQUESTS, STREAMS, WAITING = 1_000, 4, 2, 2
"""Those of requests and streams are what one user gets who is alone: nobody gets all."""

SESSION: Final = {"Standfast-Session": "s"}


@final
class Counter:
    """A flow whose requests stay until they are let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.begun = 0
        self.changed = asyncio.Condition()
        self.flow: Final = sf.Flow("counter")
        self.flow.action(name="queued", concurrency=sf.Queue(max_waiting=WAITING))(self._stay)
        self.flow.action(name="free")(self._stay)
        self.flow.action(name="late", concurrency=sf.Queue(timeout="10ms"))(self._stay)
        self.take = self.flow.action(name="take")(self._take)

    async def _stay(self, request: sf.Request) -> str:
        del request
        self.begun += 1
        async with self.changed:
            self.changed.notify_all()
        await self.let_go.wait()
        return "gone"

    async def _take(self, request: sf.Request, parcel: Any) -> None:
        del request, parcel

    async def until(self, begun: int) -> None:
        """Wait until so many have begun."""
        async with asyncio.timeout(SOON), self.changed:
            await self.changed.wait_for(lambda: self.begun >= begun)


@pytest.fixture
def counter() -> Counter:
    """What requests do."""
    return Counter()


MCP: Final = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
HELLO: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


@pytest.fixture(params=["shared", "local"])
async def app(counter: Counter, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[sf.App]:
    """An application with narrow limits; after each test nothing is left of it."""
    arbiter: Literal["shared", "local"] = request.param
    support = Support()
    webhook = sf.web.Webhook("letters", sf.web.webhooks.StandardWebhooks(NEW), counter.take)
    limits = sf.web.AppLimits(body=BODY, body_time="5s", requests=10, streams=4)
    before = asyncio.all_tasks()
    async with sf.App(
        f"sqlite:///{tmp_path}/store.db",
        flows=[counter.flow, support.flow],
        chats=[sf.web.Chat(support.flow)],
        tools=[counter.flow],
        webhooks=[webhook],
        arbiter=arbiter,
        limits=limits,
        authenticate=lambda _: sf.Principal("acme", "ada"),
    ) as app:
        yield app
        counter.let_go.set()
        await check_empty(app)
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert [each for each in left if "_shutdown_watcher" not in repr(each)] == []  # one of the library of tools, a loop


async def check_empty(app: sf.App) -> None:
    """Check that nobody stands in any line, and that no request runs."""
    arbiter = app.dispatcher.arbiter
    if isinstance(arbiter, LocalArbiter):
        assert arbiter.keys_in_use == 0
    assert [each.key async for each in app.space.lines() if each.kind == "request"] == []


def calls(app: sf.App, action: str, many: int, session: str = "s-{}") -> list[asyncio.Task[httpx.Response]]:
    """Send so many calls that are not answered yet."""
    return [
        asyncio.create_task(call(app, action, {"Standfast-Session": session.format(number)})) for number in range(many)
    ]


async def call(app: sf.App, action: str, headers: dict[str, str] | None = None) -> httpx.Response:
    """Call an action, and wait for the answer."""
    async with client_of(app) as client:
        return await client.post(f"/flows/counter/{action}", headers=headers)


def is_too_many(answer: httpx.Response) -> bool:
    """Tell whether an answer says that there are too many, and when to come again."""
    told = answer.json()
    return (
        answer.status_code == told["status"] == 429
        and int(answer.headers["retry-after"]) >= 1
        and told["type"] in ("urn:standfast:too-many-requests", "urn:standfast:queue-full")
    )


async def test_a_body_that_is_too_large_starts_nothing(app: sf.App, counter: Counter) -> None:
    """413 with its type, by every way in; what has the right size is taken."""
    body, headers = b'{"parcel":"%s"}' % (b"x" * BODY), {"content-type": "application/json"}
    async with client_of(app) as client:
        answers = [
            await client.post("/flows/counter/take", content=body, headers=headers),
            await client.post("/webhooks/letters", content=body, headers=signed(body)),
            await client.post("/chat/support/messages", content=b"x" * 1_000_000, headers=headers),
        ]
        fits = await client.post("/flows/counter/take", json={"parcel": "x" * 900})
    assert [answer.status_code for answer in answers] == [413, 413, 413]
    assert {answer.json()["type"] for answer in answers} == {"urn:standfast:body-too-large"}
    assert (fits.status_code, counter.begun) == (200, 0)


async def test_only_so_many_wait_for_one_key(app: sf.App, counter: Counter) -> None:
    """The next is told when to come again, and is taken when there is room; those who wait are all done."""
    first = calls(app, "queued", 1, "s")
    await counter.until(1)
    later = SESSION | {"Prefer": "respond-async"}
    waiting = [await call(app, "queued", later) for _ in range(WAITING)]
    refused = [await call(app, "queued", headers) for headers in (SESSION, later)]
    counter.let_go.set()
    await asyncio.gather(*first)
    async with client_of(app) as client:
        for each in waiting:
            await client.get(f"{each.headers['location']}/events")

    assert [answer.status_code for answer in waiting] == [202] * WAITING
    assert [is_too_many(answer) for answer in refused] == [True, True]
    assert counter.begun == 1 + WAITING
    assert (await call(app, "queued", SESSION)).status_code == 200


async def test_only_so_many_requests_are_open(app: sf.App, counter: Counter) -> None:
    """Whoever is refused is told so, and can come back when somebody has gone; deliveries have a room of their own."""
    open_ = calls(app, "free", REQUESTS)
    await counter.until(REQUESTS)
    async with client_of(app) as client:
        refused = await call(app, "free")
        delivered = await client.post("/webhooks/letters", content=LETTER, headers=signed(LETTER))
        looked_at = await client.get("/health")
    counter.let_go.set()
    answers = await asyncio.gather(*open_)

    assert (is_too_many(refused), refused.json()["share"]) == (True, "requests of this user")
    assert (delivered.status_code, looked_at.status_code) == (202, 200)
    assert ({answer.status_code for answer in answers}, counter.begun) == ({200}, REQUESTS)
    assert (await call(app, "free")).status_code == 200


async def test_those_who_wait_for_their_turn_are_counted_too(app: sf.App, counter: Counter) -> None:
    """One runs and two wait, of another session one runs: then it is full."""
    open_ = [*calls(app, "queued", 3, "s"), *calls(app, "free", 1)]
    await counter.until(2)
    refused = await call(app, "free")
    counter.let_go.set()

    assert is_too_many(refused)
    assert {answer.status_code for answer in await asyncio.gather(*open_)} == {200}


@contextlib.asynccontextmanager
async def stream(app: sf.App, path: str, method: str = "GET") -> AsyncIterator[list[dict[str, Any]]]:
    """Open a stream of events, and hang up at the end."""
    gone, heard, told = asyncio.Event(), asyncio.Event(), list[dict[str, Any]]()
    asked = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if asked:
            return asked.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        told.append(message)
        heard.set()

    headers = [(b"host", b"localhost"), (b"accept", b"text/event-stream"), (b"standfast-session", b"s")]
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b"", "client": None}
    task = asyncio.ensure_future(app(scope, receive, send))
    async with asyncio.timeout(SOON):
        await heard.wait()
        yield told
        gone.set()
        await task


async def test_only_so_many_streams_are_open_whatever_they_are(app: sf.App, counter: Counter) -> None:
    """Events, calls, chats and sockets are counted together; when one is closed the next is let in."""
    [running] = calls(app, "free", 1)
    await counter.until(1)
    async with stream(app, "/flows/counter/free", "POST"), stream(app, "/chat/support/events"):
        await counter.until(2)
        async with stream(app, "/flows/counter/free", "POST") as call_, stream(app, "/chat/support/events") as chat:
            refused = [call_[0]["status"], chat[0]["status"]]
        async with Socket(app) as socket:
            refused.append(socket.first["status"])
        begun = counter.begun
    async with stream(app, "/chat/support/events") as later, Socket(app) as socket:
        taken = [later[0]["status"], socket.first["type"]]
    counter.let_go.set()
    await running

    assert (refused, taken) == ([429, 429, 429], [200, "websocket.accept"])
    assert begun == 2  # the call that got no stream was not started


async def test_whoever_gives_up_leaves_no_place(app: sf.App, counter: Counter) -> None:
    """Neither one whose time is over nor one that hangs up: the next in line is not kept waiting."""
    first = calls(app, "queued", 1, "s")
    await counter.until(1)
    late = await call(app, "late", SESSION)
    async with stream(app, "/flows/counter/queued", "POST"):
        pass
    counter.let_go.set()
    await asyncio.gather(*first)

    assert (late.status_code, late.json()["type"], int(late.headers["retry-after"]) >= 1) == (
        503,
        "urn:standfast:queue-timeout",
        True,
    )
    assert counter.begun == 1


async def test_only_so_many_sessions_use_tools(app: sf.App) -> None:
    """The next is told when to come again, and a body that is too large is not read."""
    async with client_of(app) as client:
        large = await client.post("/mcp", content=b"x" * (BODY + 1), headers=MCP)
        answers = [await client.post("/mcp", json=HELLO, headers=MCP) for _ in range(STREAMS + 1)]
    assert [answer.status_code for answer in answers] == [*[200] * STREAMS, 429]
    assert is_too_many(answers[-1])
    assert large.status_code == 413


async def test_only_so_many_calls_of_tools_are_open(app: sf.App, counter: Counter) -> None:
    """Those that wait for their end are counted, and the next is refused like any other request."""
    async with client_of(app) as client:
        opened = await client.post("/mcp", json=HELLO, headers=MCP)
        own = MCP | {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        asked = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "counter__free", "arguments": {}}}
        calls_ = [
            asyncio.create_task(client.post("/mcp", json=asked | {"id": n}, headers=own)) for n in range(REQUESTS)
        ]
        await counter.until(REQUESTS)
        refused = await client.post("/mcp", json=asked | {"id": 99}, headers=own)
        counter.let_go.set()
        answers = await asyncio.gather(*calls_)
    assert is_too_many(refused)
    assert {answer.status_code for answer in answers} == {200}

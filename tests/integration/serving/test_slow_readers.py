"""Readers that do not read, over real sockets: they keep no place and no memory, and lose nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest
import uvicorn
import websockets

import standfast as sf
from standfast.cli import http_server as serve_listener
from tests.integration.webhooks.provider import SOON

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EVENTS, SIZE = 100, 20_000
SMALL: Final = 4_096
LIMITS: Final = sf.web.AppLimits(user_streams=1, patience="200ms", heartbeat="50ms")

talk = sf.Flow("talk", concurrency="allow")
released: dict[str, asyncio.Event] = {}


@talk.action(durable=True)
async def count(request: sf.Request) -> str:
    """Tell more than any buffer takes."""
    for number in range(EVENTS):
        request.emit(f"{number} " + "x" * SIZE)
    await released["count"].wait()
    return "done"


@talk.action(durable=True)
async def respond(request: sf.Request, text: str) -> str:
    """Likewise, in a chat."""
    for number in range(EVENTS):
        request.emit(f"{number} {text}" + "x" * SIZE)
    return "done"


@contextlib.asynccontextmanager
async def served(limits: sf.web.AppLimits = LIMITS) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    """Serve on a real socket with small buffers; return the server and its port."""
    released["count"] = asyncio.Event()
    chat = sf.web.Chat(talk, append=None, limits=sf.web.ChatLimits(patience="200ms"))
    options: dict[str, Any] = {"chats": [chat], "tools": [count], "authenticate": lambda _: sf.Principal("acme", "ada")}
    async with sf.App("memory://", flows=[talk], limits=limits, **options) as app:
        place = contextlib.ExitStack()
        listener = place.enter_context(serve_listener.on_port("127.0.0.1", 0, limits.patience))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_level="critical",
            http="httptools",
            ws="websockets-sansio",
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        serving = asyncio.ensure_future(server._serve([listener]))
        try:
            yield server, listener.getsockname()[1]
        finally:
            released["count"].set()
            server.should_exit = True
            await serving
            place.close()


def client(port: int) -> httpx.AsyncClient:
    """Return a client that reads."""
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=SOON)


async def begun(port: int) -> str:
    """Start a request; return its id."""
    async with client(port) as http:
        answer = await http.post("/flows/talk/count", headers={"Prefer": "respond-async"})
    return str(answer.json()["requestId"])


async def unread(port: int) -> socket.socket:
    """Return a connection that takes in next to nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    return connection


async def follow(port: int, request_id: str, last: int) -> list[int]:
    """Follow a request as soon as there is a place, to its end; return the numbers of the events.

    On a busy machine this reader may be taken for a slow one too: then it goes on.
    """
    numbers, is_ended = list[int](), False
    async with asyncio.timeout(SOON), client(port) as http:
        while not is_ended:
            headers = {"Last-Event-ID": str(numbers[-1] if numbers else last)}
            with contextlib.suppress(httpx.TransportError):
                async with http.stream("GET", f"/requests/{request_id}/events", headers=headers) as stream:
                    released["count"].set()
                    event = b""
                    async for piece in stream.aiter_bytes():
                        *whole, event = (event + piece).split(b"\n\n")
                        numbers += [int(each.partition(b"\n")[0][4:]) for each in whole if each.startswith(b"id: ")]
                        is_ended = is_ended or any(b"event: request.ended" in each for each in whole)
    return numbers


async def left(connection: socket.socket) -> bytes:
    """Return what is still to be read of a connection that was cut off."""
    loop, read = asyncio.get_running_loop(), b""
    with contextlib.suppress(OSError):
        while piece := await loop.sock_recv(connection, 65_536):
            read += piece
    connection.close()
    return read


async def until_gone(server: uvicorn.Server) -> None:
    """Wait until the server has got a connection, and then until it has none any more."""
    async with asyncio.timeout(SOON):
        for is_wanted in (True, False):
            while bool(server.server_state.connections) != is_wanted:  # noqa: ASYNC110 -- the server tells nobody
                await asyncio.sleep(0.01)


async def test_a_reader_of_events_that_does_not_read_is_let_go_and_loses_nothing() -> None:
    """Its place is free for the next, its connection is gone, and it goes on after the last event that it has read."""
    async with served() as (server, port):
        request_id = await begun(port)
        connection = await unread(port)
        asked = f"GET /requests/{request_id}/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
        await asyncio.get_running_loop().sock_sendall(connection, asked.encode())
        await until_gone(server)
        read = await asyncio.wait_for(left(connection), SOON)
        seen = [int(number) for number in re.findall(rb"id: (\d+)\nevent: [^\n]*\ndata: [^\n]*\n\n", read)]
        rest = await follow(port, request_id, seen[-1] if seen else 0)
    assert len(seen) < EVENTS
    assert [*seen, *rest] == list(range(1, EVENTS + 2))


def last_of(frames: list[dict[str, Any]]) -> str:
    """Return how far a client has read."""
    return next((frame["cursor"] for frame in reversed(frames) if "cursor" in frame), "")


async def test_a_chatter_that_does_not_read_is_let_go_and_loses_nothing() -> None:
    """The same over a WebSocket: it comes back with how far it has read."""
    frames: list[dict[str, Any]] = []
    async with served() as (server, port):
        address = f"ws://127.0.0.1:{port}/chat/talk"
        async with websockets.connect(address, sock=await unread(port), max_queue=1, close_timeout=0) as slow:
            await slow.send(json.dumps({"type": "open"}))
            hello = json.loads(await slow.recv())
            await slow.send(json.dumps({"type": "message", "id": "m1", "text": "hello"}))
            await until_gone(server)
            with contextlib.suppress(websockets.ConnectionClosed):
                while True:
                    frames.append(json.loads(await asyncio.wait_for(slow.recv(), SOON)))
        cut = len(frames)
        while not frames or frames[-1]["type"] != "ended":  # on a busy machine, the next is taken for a slow one too
            with contextlib.suppress(websockets.ConnectionClosed):
                async with websockets.connect(address, max_size=None) as quick:
                    await quick.send(
                        json.dumps({"type": "open", "session": hello["session"], "after": last_of(frames)})
                    )
                    while not frames or frames[-1]["type"] != "ended":
                        frames.append(json.loads(await asyncio.wait_for(quick.recv(), SOON)))
    numbers = [frame["number"] for frame in frames if frame["type"] == "event"]
    assert cut < EVENTS
    assert numbers == list(range(1, EVENTS + 1))


async def test_a_client_of_tools_that_does_not_read_keeps_nothing() -> None:
    """Its stream is cut off, and the next one finds a place."""
    limits = sf.web.AppLimits(requests=1, patience="200ms")
    async with served(limits) as (server, port), client(port) as http:
        call = {"name": "talk__count", "arguments": {}, "_meta": {"progressToken": 1, **MODERN}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
        headers = {**ASKING, "Mcp-Method": "tools/call", "Mcp-Name": "talk__count", "Content-Length": str(len(body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection = await unread(port)
        asked = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{lines}\r\n".encode() + body
        await asyncio.get_running_loop().sock_sendall(connection, asked)
        await until_gone(server)
        read = await asyncio.wait_for(left(connection), SOON)
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {"_meta": MODERN}}
        answer = await http.post("/mcp", json=listing, headers={**ASKING, "Mcp-Method": "tools/list"})
    assert 0 < read.count(b"notifications/progress") < EVENTS
    assert answer.status_code == 200, answer.text


MODERN: Final[dict[str, Any]] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}
ASKING: Final = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "MCP-Protocol-Version": "2026-07-28",
}


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system cannot cut off who does not read")
def test_what_waits_in_a_connection_goes_with_it() -> None:
    """Whatever is accepted is cut off by the system too, so that no buffer is kept for whoever never reads."""
    with (
        serve_listener.on_port("127.0.0.1", 0, 1.5) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1_500

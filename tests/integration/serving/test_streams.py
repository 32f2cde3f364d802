"""Streams of a real server, read by real clients: all of them see every event and the end."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any, Final

import httpx
import httpx2
import pytest
import websockets
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client

from tests.integration.cli.programs import SHOWN

if TYPE_CHECKING:
    from tests.integration.serving.conftest import Servers

APP: Final = "tests.integration.serving.stream_desk:app"
MANY: Final = 200
READERS: Final = 40
SOON: Final = 60.0
STREAM: Final = {"Accept": "text/event-stream"}


class Reader:
    """Reads a stream as a browser does; what it has read so far counts when it comes back."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.numbers: list[int] = []
        self.names: list[str] = []
        self.request = ""

    async def read(self, method: str, path: str, *, most: int = 10_000, pause_at: int = 0, **sent: Any) -> None:
        """Read so many events at most; stop reading for a while after one of them, if that is asked for."""
        headers = {**STREAM, **sent.pop("headers", {})}
        if self.numbers:
            headers["Last-Event-ID"] = str(self.numbers[-1])
        async with self._http.stream(method, path, headers=headers, **sent) as answer:
            assert answer.status_code in (200, 204), await answer.aread()
            self.request = answer.headers.get("Standfast-Request", self.request)
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    self.numbers.append(int(line[4:]))
                    most -= 1
                elif line.startswith("event: "):
                    self.names.append(line[7:])
                elif not line and self.numbers and self.numbers[-1] == pause_at:
                    await asyncio.sleep(1)  # this reader is slow: nothing waits for it
                elif not line and most <= 0:
                    return

    def check(self, many: int = MANY) -> None:
        """Check that each event was read once, in order, and then the end."""
        assert self.numbers == list(range(1, many + 2))
        assert [name for name in self.names if name != "stream.closed"][-1] == "request.ended"


def client(address: str) -> httpx.AsyncClient:
    """Return a client of a server."""
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=address, timeout=SOON, limits=limits, headers=SHOWN)


@pytest.mark.parametrize("action", ["burst", "queued"])
async def test_all_of_many_callers_read_all_of_their_streams(servers: Servers, action: str) -> None:
    """Bursts of events, with the end in the last of them; some of the callers stop reading on the way."""
    _, address = servers.start(app=APP)
    async with client(address) as http, asyncio.timeout(SOON):
        readers = [Reader(http) for _ in range(READERS)]
        await asyncio.gather(
            *(
                reader.read(
                    "POST",
                    f"/flows/talk/{action}",
                    json={"many": MANY},
                    headers={"Standfast-Session": f"s-{number}"},
                    pause_at=20 if number % 4 == 0 else 0,
                )
                for number, reader in enumerate(readers)
            )
        )
    for reader in readers:
        reader.check()


async def test_a_browser_that_is_cut_off_again_and_again_reads_all(servers: Servers) -> None:
    """It comes back with the number of the last event, as often as it takes, and stops when it is told to."""
    _, address = servers.start(app=APP)
    async with client(address) as http, asyncio.timeout(SOON):
        accepted = await http.post("/flows/talk/kept", json={"many": MANY})
        reader, path = Reader(http), f"{accepted.headers['Location']}/events"
        while "request.ended" not in reader.names:
            await reader.read("GET", path, most=30)
        after_the_end = await http.get(path, headers={"Last-Event-ID": str(reader.numbers[-1])})
    reader.check()
    assert after_the_end.status_code == 204


@pytest.mark.parametrize("tool", ["talk__burst", "talk__queued", "talk__kept"])
async def test_every_call_of_a_tool_with_progress_is_answered(servers: Servers, tool: str) -> None:
    """Ten at the same time, by the official client: each is told of every event, and gets its result."""
    _, address = servers.start(app=f"{APP}_with_tools")
    async with (
        httpx2.AsyncClient(headers=SHOWN, timeout=SOON) as http,
        streamable_http_client(f"{address}/mcp", http_client=http) as streams,
        ClientSession(streams[0], streams[1]) as session,
        asyncio.timeout(SOON),
    ):
        await session.initialize()

        async def called() -> tuple[object, list[float]]:
            told: list[float] = []

            async def hear(progress: float, total: float | None, message: str | None) -> None:
                del total, message
                told.append(progress)

            result = await session.call_tool(tool, {"many": 100}, progress_callback=hear)
            return result.structured_content, told

        answers = await asyncio.gather(*(called() for _ in range(10)))
    assert answers == [({"result": 100}, list(range(1, 101)))] * 10


async def test_the_open_stream_of_a_tool_session_holds_up_no_stop(servers: Servers) -> None:
    """Clients keep one open for as long as they live: it ends at once, as a stream ends."""
    one, address = servers.start("--grace", "50s", app=f"{APP}_with_tools")
    headers = {**SHOWN, "Accept": "application/json, text/event-stream"}
    who = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=SOON) as http, asyncio.timeout(SOON / 2):
        opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": who}
        opened = await http.post("/mcp", json=opening)
        session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
        async with http.stream("GET", "/mcp", headers=session) as stream:
            assert stream.status_code == 200
            one.send(signal.SIGTERM)
            await stream.aread()
        status, said = await asyncio.to_thread(one.end)
    assert (status, "Traceback" in said) == (0, False)


async def test_a_chat_over_a_socket_that_reads_slowly_hears_all(servers: Servers) -> None:
    """Every word of the answer, and its end."""
    _, address = servers.start(app=APP)
    place = f"{address.replace('http', 'ws')}/chat/talk"
    async with asyncio.timeout(SOON), websockets.connect(place, additional_headers=SHOWN) as socket:
        await socket.send(json.dumps({"type": "open"}))
        await socket.send(json.dumps({"type": "message", "id": "m", "text": str(MANY)}))
        numbers: list[int] = []
        while (frame := json.loads(await socket.recv()))["type"] != "ended":
            numbers += [frame["number"]] if frame["type"] == "event" else []
            if len(numbers) == 20:
                await asyncio.sleep(0.2)  # this reader is slow: nothing waits for it
    assert numbers == list(range(1, MANY + 1))


async def test_a_server_that_is_stopped_tells_those_who_follow(servers: Servers) -> None:
    """What runs in it ends first, and is told to its end; who follows another is told so, and goes on elsewhere."""
    (one, first), (_, second) = servers.start(app=APP), servers.start(app=APP)
    async with client(first) as http, client(second) as other, asyncio.timeout(SOON):
        accepted = await http.post("/flows/talk/kept", json={"many": MANY})
        path = f"{accepted.headers['Location']}/events"
        caller, follower = Reader(http), Reader(http)
        calling = asyncio.ensure_future(caller.read("POST", "/flows/talk/steady", json={"many": 100}))
        following = asyncio.ensure_future(follower.read("GET", path))
        while not (caller.numbers and follower.numbers):  # noqa: ASYNC110 -- another process tells
            await asyncio.sleep(0.01)
        one.process.send_signal(signal.SIGTERM)
        await asyncio.gather(calling, following)
        assert follower.names[-1] == "stream.closed"
        again = Reader(other)
        again.numbers, again.names = follower.numbers, follower.names
        await again.read("GET", path)
    caller.check(100)
    again.check()

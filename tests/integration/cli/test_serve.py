"""``standfast serve`` with real processes and real sockets: what it serves, how it is stopped, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.integration.cli.programs import SHOWN, answer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.conftest import Start
    from tests.integration.cli.programs import Program

pytestmark = pytest.mark.heavy  # many real processes: once, on the default interpreter

MODULE = """
import asyncio, gc, os, signal
import standfast as sf

shop = sf.Flow("shop", concurrency="queue")

@shop.action
async def buy(request: sf.Request, item: str) -> str:
    return item

@shop.action
async def frozen(request: sf.Request) -> int:
    return gc.get_freeze_count()

@shop.action(concurrency="allow")
async def wait(request: sf.Request) -> str:
    go_on = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, go_on.set)
    print("waiting", flush=True)
    try:
        await go_on.wait()
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        raise
    return "gone on"

@shop.action(durable=True)
async def count(request: sf.Request, upto: int) -> int:
    for n in range(upto):
        request.emit(n)
        await asyncio.sleep(0)
    return upto

store = os.environ["STANDFAST_STORE"]
app = sf.App(store, flows=[shop])
alone = sf.App(store, flows=[shop], arbiter="local")
tokens = sf.web.BearerTokens({sf.web.token_digest("t"): sf.Principal("acme", "ada")})
guarded = sf.App(store, flows=[shop], authenticate=tokens)
not_one = 7

def make():
    return app
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Where the module is."""
    (tmp_path / "web.py").write_text(MODULE)
    return str(tmp_path)


def serve(start: Start, folder: str, *options: str, name: str = "web:app") -> tuple[Program, str]:
    """Start a server; return it and its address."""
    program = start("serve", name, "--app-dir", folder, "--port", "0", *options)
    said = program.hear()
    found = re.search(r"at (http://\S+) \(process", said)
    assert found is not None, said
    return program, found[1]


async def test_a_server_serves_and_lets_requests_end_when_it_is_stopped(start: Start, folder: str) -> None:
    """What is under way is answered after the signal; then the process ends well."""
    program, address = serve(start, folder)
    async with httpx.AsyncClient(base_url=address, headers=SHOWN) as client:
        bought = await client.post("/flows/shop/buy", json={"item": "tea"})
        frozen = await client.post("/flows/shop/frozen")
        waiting = asyncio.ensure_future(client.post("/flows/shop/wait"))
        assert await asyncio.to_thread(program.hear) == "waiting"
        program.send(signal.SIGTERM)
        assert (await asyncio.to_thread(program.hear)).startswith("SIGTERM: letting requests end")
        program.send(signal.SIGUSR1)
        answered = await waiting
    assert (bought.status_code, bought.json(), "server" in bought.headers) == (200, "tea", False)
    assert (answered.status_code, answered.json()) == (200, "gone on")
    assert frozen.json() > 10_000  # what it has loaded is left out of garbage collections
    assert program.hear() == "stopped"
    assert program.end() == (0, "")


@pytest.mark.parametrize("name", ["web:app", "web:alone"])
async def test_whoever_waits_for_longer_than_the_grace_is_told_that_the_server_stops(
    start: Start, folder: str, name: str
) -> None:
    """Its request is told to stop and ends interrupted; nobody is cut off, and nothing is logged as an error."""
    program, address = serve(start, folder, "--grace", "50ms", name=name)
    async with httpx.AsyncClient(base_url=address, headers=SHOWN) as client:
        waiting = asyncio.ensure_future(client.post("/flows/shop/wait", json={}))
        assert await asyncio.to_thread(program.hear) == "waiting"
        program.send(signal.SIGTERM)
        answered = await waiting
    assert (answered.status_code, answered.json()["type"]) == (503, "urn:standfast:request-interrupted")
    assert answered.headers["Standfast-Request"]
    code, errors = program.end()
    assert code == 0
    assert errors.startswith("waiting up to 0.05 s for what is under way: ")
    assert len(errors.splitlines()) == 1


async def test_a_second_signal_ends_it_at_once(start: Start, folder: str) -> None:
    """Without waiting for anything; others go on when they notice."""
    program, address = serve(start, folder, "--grace", "60s")
    async with httpx.AsyncClient(base_url=address, headers=SHOWN) as client:
        waiting = asyncio.ensure_future(client.post("/flows/shop/wait"))
        assert await asyncio.to_thread(program.hear) == "waiting"
        program.send(signal.SIGTERM)
        assert (await asyncio.to_thread(program.hear)).startswith("SIGTERM")
        program.send(signal.SIGTERM)
        code, _ = await asyncio.to_thread(program.end)
        await asyncio.gather(waiting, return_exceptions=True)
    assert code == -signal.SIGTERM


async def test_a_caller_that_hangs_up_is_noticed(start: Start, folder: str) -> None:
    """Over a real connection: its request is cancelled."""
    program, address = serve(start, folder)
    async with httpx.AsyncClient(base_url=address, headers=SHOWN) as client:
        waiting = asyncio.ensure_future(client.post("/flows/shop/wait"))
        assert await asyncio.to_thread(program.hear) == "waiting"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert await asyncio.to_thread(program.hear) == "cancelled"


async def test_events_are_read_to_the_end_over_broken_connections(start: Start, folder: str) -> None:
    """Whoever comes back with the last number misses nothing and gets nothing twice."""
    _, address = serve(start, folder)
    seen: list[int] = []
    async with httpx.AsyncClient(base_url=address, headers=SHOWN) as client:
        accepted = await client.post("/flows/shop/count", json={"upto": 30})
        while True:
            last = {"Last-Event-ID": str(seen[-1])} if seen else {}
            async with client.stream("GET", f"{accepted.headers['location']}/events", headers=last) as stream:
                if stream.status_code == 204:
                    break
                before = len(seen)
                async for line in stream.aiter_lines():
                    if line.startswith("id: "):
                        seen.append(int(line[4:]))
                    if len(seen) == before + 7:
                        break
    assert seen == list(range(1, 32))


async def test_two_servers_share_one_line(start: Start, folder: str) -> None:
    """A request that one has taken is found, followed and cancelled by the other."""
    (_, one), (_, other) = serve(start, folder), serve(start, folder)
    async with (
        httpx.AsyncClient(base_url=one, headers=SHOWN) as here,
        httpx.AsyncClient(base_url=other, headers=SHOWN) as there,
    ):
        accepted = await here.post("/flows/shop/count", json={"upto": 3})
        events = await there.get(f"{accepted.headers['location']}/events")
        status = (await there.get(accepted.headers["location"])).json()
    assert (status["status"], status["result"]) == ("completed", 3)
    assert events.text.count("event: message") == 3


async def test_credentials_are_needed_where_the_application_says_so(start: Start, folder: str) -> None:
    """Then it may be served to others as well; a WebSocket is refused with 401 too."""
    _, address = serve(start, folder, "--host", "0.0.0.0", name="web:guarded")  # noqa: S104 -- that is what is tested
    address = address.replace("0.0.0.0", "127.0.0.1")  # noqa: S104 -- where we can reach it
    async with httpx.AsyncClient(base_url=address) as client:
        refused = await client.post("/flows/shop/buy", json={"item": "tea"})
        taken = await client.post("/flows/shop/buy", json={"item": "tea"}, headers={"Authorization": "Bearer t"})
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        websocket = await client.get("/chat/shop", headers=upgrade | {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="})
    assert (refused.status_code, taken.status_code, websocket.status_code) == (401, 200, 401)


def test_without_authentication_only_this_machine_is_served(folder: str, url: str) -> None:
    """It refuses to start, and says what to do."""
    code, said = answer(url, "serve", "web:app", "--app-dir", folder, "--host", "0.0.0.0", "--port", "0")  # noqa: S104 -- that is what is tested
    assert code == 4
    assert "without authentication" in said
    assert "sf.web.BearerTokens" in said


async def test_a_second_sole_server_refuses_to_start(start: Start, folder: str, url: str) -> None:
    """And names the fix."""
    serve(start, folder, name="web:alone")
    code, said = await asyncio.to_thread(answer, url, "serve", "web:alone", "--app-dir", folder, "--port", "0")
    assert code == 1
    assert 'leave out arbiter="local"' in said


def test_a_port_that_is_taken_is_named(folder: str, url: str) -> None:
    """Without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = answer(url, "serve", "web:app", "--app-dir", folder, "--port", str(port))
    assert code == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("web:not_one", "web:not_one is no app but of type int"),
        ("web:nothing", "the module web has no nothing"),
        ("nowhere:app", "there is no module nowhere"),
    ],
)
def test_what_is_no_application_is_refused(folder: str, url: str, name: str, words: str) -> None:
    """It says what is there instead."""
    code, said = answer(url, "serve", name, "--app-dir", folder)
    assert code == 4
    assert words in said


async def test_a_server_logs_json_if_it_is_told_to(start: Start, folder: str) -> None:
    """A flood without credentials is a few lines, each an object with the caller's address and without the token."""
    server = start("serve", "web:guarded", "--app-dir", folder, "--port", "0", "--log-format", "json")
    address = re.findall(r"http://\S+", server.hear())[0]
    async with httpx.AsyncClient() as client:
        for number in range(60):
            headers = {"Authorization": f"Bearer canary-{number}"}
            await client.post(f"{address}/flows/shop/buy", json={"item": "x"}, headers=headers)
    server.send(signal.SIGTERM)
    code, said = server.end()
    assert code == 0
    lines = [json.loads(line) for line in said.splitlines()]
    refused = [line for line in lines if line.get("event") == "credentials-refused"]
    assert 20 <= len(refused) <= 22
    assert {line["level"] for line in refused} == {"warning"}
    assert {line["address"] for line in refused} == {"127.0.0.1"}
    assert "canary" not in said

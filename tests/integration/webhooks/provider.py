"""A provider that signs its deliveries, and an office that takes them: two workers on one store."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, final

import httpx

import standfast as sf
from standfast.clock import MICROSECONDS, SYSTEM_CLOCK
from standfast.web.app import App
from standfast.web.signatures import StandardWebhooks
from tests.unit.web.fakes import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp

OLD, NEW, RETIRED = (base64.b64encode(text.encode() * 3).decode() for text in ("the old one", "the new one", "retired"))
JSON: Final = {"content-type": "application/json"}
LETTER: Final = b'{"type":"letter","to":"Ada"}'
SOON: Final = 20.0
"""Seconds that a healthy machine never takes."""


def signed(body: bytes, delivery: str = "msg_1", off: float = 0.0, secret: str = NEW) -> dict[str, str]:
    """Return the headers of a delivery that was signed a while ago, or is from ahead."""
    time = str(int(SYSTEM_CLOCK.wall() / MICROSECONDS + off))
    content = f"{delivery}.{time}.".encode() + body
    signature = base64.b64encode(hmac.new(base64.b64decode(secret), content, sha256).digest()).decode()
    return JSON | {"webhook-id": delivery, "webhook-timestamp": time, "webhook-signature": f"v1,{signature}"}


def room_of(arrival: sf.Call) -> str:
    """Return which room a parcel is for."""
    assert isinstance(arrival.inputs, Mapping)
    return str(arrival.inputs["parcel"]["room"])


@final
class Office:
    """What is done with deliveries; each kind of event goes to an action with a policy of its own."""

    def __init__(self) -> None:
        self.taken: Final[list[str]] = []
        self.held = asyncio.Event()
        self.let_go = asyncio.Event()
        self.flow: Final = sf.Flow("post")
        self._declare()

    def _declare(self) -> None:
        @self.flow.action
        async def letter(request: sf.Request, parcel: Any) -> None:
            del parcel
            self.taken.append(request.metadata["webhook"]["deliveryId"])

        @self.flow.action
        async def number(request: sf.Request, parcel: dict[str, int]) -> None:
            del request, parcel

        @self.flow.action(concurrency=sf.Reject(key=room_of))
        async def hold(request: sf.Request, parcel: dict[str, str]) -> None:
            del request, parcel
            self.held.set()
            await self.let_go.wait()

        @self.flow.action(concurrency=sf.Queue(key=room_of, max_waiting=1))
        async def wait(request: sf.Request, parcel: dict[str, str]) -> None:
            del request, parcel
            self.held.set()
            await self.let_go.wait()

        self.bound: dict[str, Any] = {"letter": letter, "number": number, "hold": hold, "wait": wait}

    def app(self, url: str, **options: Any) -> sf.App:
        """Return one worker."""
        verifier = StandardWebhooks({"new": NEW, "old": OLD})
        webhook = sf.web.Webhook("letters", verifier, self.bound, **options)
        return sf.App(url, flows=[self.flow], webhooks=[webhook])


@final
class Worker:
    """One worker, and a provider elsewhere that sends to it."""

    def __init__(self, app: sf.App) -> None:
        self.app: Final = app

    async def deliver(self, body: bytes = LETTER, headers: dict[str, str] | None = None) -> httpx.Response:
        """Send a delivery from elsewhere."""
        return await self.post("/webhooks/letters", body, signed(body) if headers is None else headers, "203.0.113.9")

    async def post(
        self, path: str, body: Any = b"", headers: dict[str, str] | None = None, address: str = "127.0.0.1"
    ) -> httpx.Response:
        """Send something from an address."""
        async with client_of(self.app, address) as client:
            return await client.post(path, content=body, headers=headers or JSON)

    async def ended(self, answer: httpx.Response) -> dict[str, Any]:
        """Wait until what was accepted has ended; return how it is."""
        place = f"/requests/{answer.json()['requestId']}"
        async with client_of(self.app) as client, asyncio.timeout(SOON):
            await client.get(f"{place}/events")
            status: dict[str, Any] = (await client.get(place)).json()
            return status


@contextlib.asynccontextmanager
async def client_of(app: ASGIApp, address: str = "127.0.0.1") -> AsyncIterator[httpx.AsyncClient]:
    """Return a client at an address; it shows the token if the application has no authentication."""
    transport = httpx.ASGITransport(app=app, client=(address, 4711))
    headers = shown(app) if isinstance(app, App) else {}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", timeout=SOON, headers=headers
    ) as client:
        yield client


def said(answer: httpx.Response) -> tuple[int, str]:
    """Return what a provider is told: the status, and the word."""
    return answer.status_code, answer.json().get("status", "")

"""A small HTTP server for probes, scrapes and autoscalers: ``--listen`` of ``standfast worker`` and ``serve``.

It answers GET at five addresses, one request for each connection, and needs no library of the web. It is meant for this
machine, or for a network of machines of one's own with a token.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from standfast.errors import DeclarationError
from standfast.telemetry.health import metrics_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from standfast.telemetry.health import Health, Readiness
    from standfast.workflows.engine import Engine

TOKEN: Final = "STANDFAST_METRICS_TOKEN"  # noqa: S105 -- the name of a variable, and no token
"""The variable with what callers send as ``Authorization: Bearer`` to read metrics."""

PORT: Final = 9464
"""Where it listens if nothing else is said: what OpenTelemetry's exporters use."""

MOST: Final = 32
"""How many connections are open at most. Others are closed at once."""

HEADER_BYTES: Final = 16_384
WITHIN: Final = 5.0
"""Seconds that a request has to arrive, and its answer to be read."""

LOCAL: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_WORDS: Final = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed"}
_WORDS_OF_503: Final = "Service Unavailable"
JSON: Final = "application/json"
MISSING: Final = 'there are no metrics here: pip install "standfast[metrics]"\n'


def place_of(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, ``:PORT`` or ``PORT``; without a host it is this machine.

    Raises:
        DeclarationError: It is none; or it can be reached from elsewhere, and there is no token.
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdigit() or int(port) > 65_535:  # noqa: PLR2004 -- the highest port
        raise DeclarationError("--listen", f"{text!r:.60} is no HOST:PORT")
    if host not in LOCAL and not os.environ.get(TOKEN):
        raise DeclarationError("--listen", f"{host} can be reached from elsewhere: set {TOKEN} to a secret first")
    return host, int(port)


class Probes(Protocol):
    """What is shown: of one engine, or of several processes together."""

    async def ready(self) -> Readiness:
        """Return whether work is taken."""
        ...

    async def scale(self) -> dict[str, Any]:
        """Return what an autoscaler needs to know."""
        ...

    async def metrics(self, accept: str) -> tuple[bytes, str] | None:
        """Return the metrics and their media type; None: there are none."""
        ...


@final
class EngineProbes:
    """What is shown of one engine.

    Args:
        engine: Whose metrics are shown.
        health: How it is.
    """

    def __init__(self, engine: Engine, health: Health) -> None:
        self._engine = engine
        self.ready: Final = health.ready
        self.scale: Final = health.scale

    async def metrics(self, accept: str) -> tuple[bytes, str] | None:
        """Return the metrics and their media type; None: it has none for Prometheus."""
        metrics = metrics_of(self._engine)
        return None if metrics is None else await metrics.text(accept)


@final
class ProbeListener:
    """Answers probes, scrapes and autoscalers.

    Args:
        probes: What is shown.
        token: What callers send to read metrics and ``/scale``; empty: any caller may read them.

    Attributes:
        address: Where it listens; empty before it does.
    """

    def __init__(self, probes: Probes, token: str = "") -> None:
        self._probes, self._token = probes, token
        self._open = 0
        self.address = ""

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncGenerator[None]:
        """Answer for the length of a block."""
        server = await asyncio.start_server(self._serve, host, port, limit=HEADER_BYTES)
        at, bound = server.sockets[0].getsockname()[:2]
        self.address = f"http://[{at}]:{bound}" if ":" in at else f"http://{at}:{bound}"
        try:
            yield
        finally:
            server.close()

    @contextlib.asynccontextmanager
    async def listening_in(self, path: str) -> AsyncGenerator[None]:
        """Answer at a socket of this machine for the length of a block; its folder says who may ask."""
        server = await asyncio.start_unix_server(self._serve, path, limit=HEADER_BYTES)
        self.address = path
        try:
            yield
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(WITHIN):
                if self._open <= MOST:
                    writer.write(await self._answer(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # it went away, is too slow, or speaks something else
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, request: bytes) -> bytes:
        first, *lines = request.decode("latin-1").split("\r\n")
        method, _, rest = first.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if not rest.endswith(("HTTP/1.1", "HTTP/1.0")):
            return _response(400, "this is no request\n")
        if method not in ("GET", "HEAD"):
            return _response(405, "only GET is answered here\n")
        answer = await self._at(path, headers)
        return answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == "HEAD" else answer

    async def _at(self, path: str, headers: dict[str, str]) -> bytes:
        if path == "/health/live":
            return _json(200, {"status": "ok"})
        if path in ("/health", "/health/ready"):
            readiness = await self._probes.ready()
            return _json(readiness.status, readiness.as_json())
        if path not in ("/metrics", "/scale"):
            return _response(404, "there are /metrics, /scale, /health/live and /health/ready\n")
        if not self._may_read(headers.get("authorization", "")):
            return _response(401, f"send Authorization: Bearer and what {TOKEN} says\n")
        if path == "/scale":
            told = await self._probes.scale()
            return _json(200 if "load" in told else 503, told)
        metrics = await self._probes.metrics(headers.get("accept", ""))
        return _response(503, MISSING) if metrics is None else _response(200, *metrics)

    def _may_read(self, authorization: str) -> bool:
        if not self._token:
            return True
        kind, _, shown = authorization.partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), self._token.encode())


def _json(status: int, data: dict[str, Any]) -> bytes:
    return _response(status, json.dumps(data) + "\n", JSON)


def _response(status: int, body: str | bytes, media_type: str = "text/plain; charset=utf-8") -> bytes:
    data = body.encode() if isinstance(body, str) else body
    head = (
        f"HTTP/1.1 {status} {_WORDS.get(status, _WORDS_OF_503)}\r\nContent-Type: {media_type}\r\n"
        f"Content-Length: {len(data)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + data


@contextlib.asynccontextmanager
async def listening_at(place: tuple[str, int] | str | None, probes: Probes) -> AsyncGenerator[ProbeListener | None]:
    """Listen at an address with the token of the environment, or at a unix socket without one; None: listen nowhere."""
    if place is None:
        yield None
    elif isinstance(place, str):
        listener = ProbeListener(probes)
        async with listener.listening_in(place):
            yield listener
    else:
        listener = ProbeListener(probes, os.environ.get(TOKEN, ""))
        async with listener.listening(*place):
            yield listener

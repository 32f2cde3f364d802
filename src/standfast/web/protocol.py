"""HTTP/1.1 and WebSockets at the edge: uvicorn's protocols, with bounds on what a client may send.

``standfast serve`` uses them. So can any uvicorn: ``uvicorn --http standfast.web.protocol:HttpProtocol ...``.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, cast, final

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from standfast.errors import FlowError, HttpError
from standfast.web.asgi import SECURITY
from standfast.web.edge import EDGE, Edge
from standfast.web.problems import MEDIA_TYPE, problem_of

if TYPE_CHECKING:
    import asyncio

    from uvicorn import Config
    from uvicorn._types import ASGISendEvent
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
    from uvicorn.server import ServerState


PIPELINED: Final = 32
"""How many requests a client may send before the first of them is answered."""

FRAMING: Final = 8
"""Bytes that a chunked body may have around each byte of it: the least chunk has six."""

_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})

DEFAULT: Final = Edge()
"""The edge of a server that was given none."""


@final
class HttpProtocol(HttpToolsProtocol):
    """One connection.

    Trailers, which follow a chunked body, are read and dropped: they were never looked at by what stands in between, so
    they must not pass for headers. A request that others may read in another way is refused.

    Args:
        config: Of uvicorn.
        server_state: Of uvicorn.
        app_state: Of uvicorn.
        _loop: The event loop.
        edge: What all connections share.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        edge: Edge = DEFAULT,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._edge: Final = edge
        self.timeout_keep_alive = edge.limits.idle  # type: ignore[assignment]  # it is handed to call_later
        self._at: Literal["start", "head", "body"] = "start"
        self._head_bytes = self._header_bytes = self._headers = 0
        self._body_bytes = self._framed_bytes = 0
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_counted = self._is_over = False

    # --- the connection ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn says
        """Count the connection, and start the timer for its first request."""
        super().connection_made(transport)
        try:
            self._edge.enter(self._peer)
        except HttpError as problem:
            self._refuse(problem)
            return
        self._is_counted = True
        self._wait_for_a_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count one less."""
        self._stop_timer()
        self.uncount()
        super().connection_lost(exc)

    def uncount(self) -> None:
        """Count one less, once."""
        if self._is_counted:
            self._is_counted = False
            self._edge.leave(self._peer)

    @property
    def _parser(self) -> httptools.HttpRequestParser:
        parser: Any = self.parser  # uvicorn drops it when the connection is lost, and nothing is read after that
        return cast("httptools.HttpRequestParser", parser)

    @property
    def _is_free(self) -> bool:
        """True if no request is under way; before the first there is none, whatever the types say."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete

    @property
    def _peer(self) -> str:
        return self.client[0] if self.client else ""

    def data_received(self, data: bytes) -> None:
        """Read what has come, with bounds on the headers."""
        if self._is_over:
            return
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except FlowError as problem:
            self._refuse(problem)
        except httptools.HttpParserUpgrade:
            self._stop_timer()
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self.cycle.response_complete:
                self._end()
            else:  # it is answered as if it had not asked for that; what comes after it cannot be read
                self._is_over, self.cycle.keep_alive = True, False
        except httptools.HttpParserError as problem:
            cause = problem.__context__
            self._refuse(
                cause if isinstance(cause, FlowError) else HttpError("malformed-request", "this is no HTTP/1.1")
            )
        else:
            self._look_at_the_time()

    def _feed(self, data: bytes) -> None:
        limit, parser = self._edge.limits.header_bytes, self._parser
        while data:
            if self._at == "body":
                self._framed_bytes += len(data)
                parser.feed_data(data)
                if self._is_in_body() and self._framed_bytes - FRAMING * self._body_bytes > limit:
                    raise HttpError(
                        "headers-too-large",
                        f"the headers have more than the {limit:,} bytes around a body that are taken here",
                    )
                return
            is_more, room = self._at == "head", limit - self._head_bytes
            piece, data = data[:room], data[room:]
            parser.feed_data(piece)
            if not self._is_in_body():
                # What began in this piece is counted from the next one on: it has no more than a piece.
                self._head_bytes = self._head_bytes + len(piece) if is_more else 0
                if self._head_bytes >= limit and self._at == "head":
                    raise HttpError(
                        "headers-too-large", f"the headers have more than the {limit:,} bytes that are taken here"
                    )

    def _is_in_body(self) -> bool:
        """Return where the parser is now: it changes while it is fed."""
        return self._at == "body"

    def _look_at_the_time(self) -> None:
        """Run a timer while we wait for the client, and none while the client waits for us."""
        if self._at == "body":
            if self._timer is None:
                self._since = self.loop.time()
                self._wait_for_the_body()
        elif self._timer is None and (self._at == "head" or self._is_free):
            self._wait_for_a_head()

    def _wait_for_a_head(self) -> None:
        self._timer = self.loop.call_later(self._edge.limits.header_time, self._head_is_late)

    def _head_is_late(self) -> None:
        self._timer = None
        if self._at == "head":
            self._refuse(
                HttpError("headers-too-slow", f"the headers did not arrive within {self._edge.limits.header_time:g} s")
            )
        else:  # nothing was asked, so there is nothing to answer
            self._edge.log.info("connection-silent", address=self._peer)
            self._end()

    def _wait_for_the_body(self) -> None:
        limits = self._edge.limits
        left = self._since + limits.body_time - self.loop.time()
        self._timer = self.loop.call_later(min(limits.body_grace, max(0.0, left)), self._look_at_the_body)

    def _look_at_the_body(self) -> None:
        self._timer = None
        limits, passed = self._edge.limits, self.loop.time() - self._since
        if self.flow.read_paused:  # it is us who do not read
            self._since = self.loop.time()
            self._body_bytes = self._framed_bytes = 0
        elif passed >= limits.body_time or self._body_bytes < limits.body_rate * passed:
            self._refuse(HttpError("body-too-slow", f"the body did not arrive within {passed:g} s"))
            return
        self._wait_for_the_body()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- the parser ----------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._at = "head"
        self._header_bytes = self._headers = self._body_bytes = self._framed_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of its first line."""
        self._header_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. What comes after the body is none."""
        if self._at != "head":
            return
        limits = self._edge.limits
        self._headers += 1
        self._header_bytes += len(name) + len(value)
        if self._headers > limits.headers:
            raise HttpError(
                "headers-too-large", f"the headers have more than the {limits.headers:,} headers that are taken here"
            )
        if self._header_bytes > limits.header_bytes:
            raise HttpError(
                "headers-too-large", f"the headers have more than the {limits.header_bytes:,} bytes that are taken here"
            )
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer it, unless another reader could take it for another request."""
        self._stop_timer()
        _check(self.headers, self._parser.get_http_version())
        if len(self.pipeline) >= PIPELINED:
            raise HttpError("malformed-request", "there are too many requests in a row")
        self._at, self._head_bytes = "body", 0
        self._edge.pass_on(cast("dict[str, Any]", self.scope))  # to uvicorn it has a few keys only
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of its body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the next one."""
        self._stop_timer()
        self._at = "start"
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over, and with it what is known about it."""
        self._stop_timer()
        self._is_over = True
        self.ws_protocol_class = partial(SocketProtocol, before=self)  # type: ignore[assignment]  # it is called only
        super().handle_websocket_upgrade()

    # --- the end -------------------------------------------------------------------------------------------------

    def _refuse(self, problem: FlowError) -> None:
        """Answer with the reason, if no other answer is under way, and close the connection."""
        self._edge.log.warning("connection-refused", address=self._peer, status=problem.status, problem=str(problem))
        # Another answer may be under way, or this one was given before the body was there.
        is_next = not (self.pipeline or self.cycle.response_started) if self._at == "body" else self._is_free
        if is_next and not self.transport.is_closing():
            self.transport.write(refusal(problem))
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._stop_timer()
        if not self._is_free:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


def refusal(problem: FlowError) -> bytes:
    """Return the answer that tells why a connection is closed, as it is sent."""
    facts = problem_of(problem)
    body = msgspec.json.encode(facts)
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"connection", b"close"),
        *SECURITY,
    ]
    if (after := facts.get("retryAfter")) is not None:
        headers.append((b"retry-after", b"%d" % max(1, round(after))))
    first = b"HTTP/1.1 %d %s\r\n" % (problem.status, HTTPStatus(problem.status).phrase.encode())
    return b"%s%s\r\n%s" % (first, b"".join(b"%s: %s\r\n" % pair for pair in headers), body)


def _check(headers: list[tuple[bytes, bytes]], version: str) -> None:
    """Refuse what two readers may take for two different requests; each of these was used to smuggle one past another.

    Raises:
        HttpError: It is one of those.
    """
    names = [name for name, _ in headers]
    if names.count(b"host") != 1 and (version == "1.1" or b"host" in names):
        raise HttpError("malformed-request", "there has to be one Host")
    framing = [(name, value) for name, value in headers if name in _FRAMING]
    if len(framing) > 1:
        raise HttpError("malformed-request", "the length of the body is said more than once")
    for name, value in framing:
        if name == b"content-length" and not value.isdigit():
            raise HttpError("malformed-request", "Content-Length is no number")
        if name == b"transfer-encoding" and (value.lower() != b"chunked" or version != "1.1"):
            raise HttpError("malformed-request", "Transfer-Encoding is chunked, in HTTP/1.1, or it is not taken")


@final
class SocketProtocol(WebSocketsSansIOProtocol):
    """A connection that has become a WebSocket. It is still counted, and comes from where its request came from.

    Args:
        config: Of uvicorn.
        server_state: Of uvicorn.
        app_state: Of uvicorn.
        before: What the connection was before.
    """

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], *, before: HttpProtocol
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._before: Final = before

    async def run_asgi(self) -> None:
        """Serve it."""
        asked, scope = cast("dict[str, Any]", self._before.scope), cast("dict[str, Any]", self.scope)
        scope |= {"client": asked["client"], EDGE: asked[EDGE]}
        if asked["scheme"] == "https":
            scope["scheme"] = "wss"
        await super().run_asgi()

    async def send(self, message: ASGISendEvent) -> None:
        """Pass a message on. A refusal is an answer, too: uvicorn takes it for a handshake that was forgotten."""
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Count one less."""
        self._before.uncount()
        super().connection_lost(exc)

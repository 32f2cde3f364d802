"""Serving tools: over streamable HTTP behind the application's door, and over stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS

from standfast.errors import AuthenticationError, EngineNotOpenError
from standfast.flows.shares import SAID, Shares
from standfast.transports.bodies import LARGE, read_body
from standfast.transports.gate import PRINCIPAL
from standfast.transports.headers import headers_of
from standfast.transports.mcp.calling import ToolCalls
from standfast.transports.mcp.sessions import Sessions
from standfast.transports.places import Places
from standfast.transports.spreading import spread
from standfast.transports.visitors import who_asks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcp.server.context import ServerRequestContext
    from starlette.types import Message, Receive, Scope, Send

    from standfast.flows.arrival import Principal
    from standfast.transports.limits import AppLimits
    from standfast.transports.mcp.tools import Toolbox
    from standfast.transports.seam import Dispatching

PATH: Final = "/mcp"
SESSION: Final = "mcp-session-id"
IDLE: Final = 1_800.0
"""Seconds after which a session that nobody uses is let go."""


def tool_server(
    name: str,
    toolbox: Toolbox,
    dispatching: Dispatching,
    who: Callable[[ServerRequestContext[Any, Any]], tuple[Principal, Mapping[str, str]]],
    closing: asyncio.Event,
) -> Server[Any]:
    """Return a server of the official library that has these tools."""
    calls = ToolCalls(toolbox, dispatching, who, closing)
    return Server(name, on_list_tools=calls.show, on_call_tool=calls.call)


@final
class ToolEndpoint:
    """The ASGI application behind ``/mcp``. Host, origin and credentials were checked by the door.

    A session of the protocol can be used by the principal who opened it, and by nobody else.

    Args:
        name: What the application is called.
        toolbox: The tools.
        dispatching: Where calls go.
        limits: Of the application.
        stops: Set when the application is about to close.
        has_sessions: Whether clients of older versions of the protocol get one. It lives in this process; without them,
            any process takes any message.
    """

    def __init__(
        self,
        name: str,
        toolbox: Toolbox,
        dispatching: Dispatching,
        limits: AppLimits,
        stops: asyncio.Event,
        *,
        has_sessions: bool = True,
    ) -> None:
        self._server: Final = tool_server(name, toolbox, dispatching, _who, stops)
        self._toolbox, self._limits, self._has_sessions = toolbox, limits, has_sessions
        self._open: Final = Shares(limits.requests, "requests for tools")
        self._streams: Final = Places(Shares(limits.streams, "streams"), "streams of this user", limits.user_streams)
        self._sessions: Final = Sessions(limits.user_streams, limits.streams, IDLE)
        self._manager: StreamableHTTPSessionManager | None = None
        self._closing = asyncio.Event()
        self._living: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take one message, or open the stream of a session."""
        manager, who = self._manager, who_asks(scope)
        if manager is None:
            raise EngineNotOpenError
        session, sessions = headers_of(scope).get(SESSION, ""), self._sessions
        is_opening = not session and self._has_sessions and _may_open_one(scope)
        exchange = Exchange(send, self._limits.patience, lambda given: sessions.opened(given, who))
        with (
            self._streams.of(who) if scope["method"] == "GET" else self._open.of(who[0], who),
            sessions.opening(who) if is_opening else sessions.used(session),
        ):
            if scope["method"] == "POST":  # the library would wait for the body for as long as it takes
                most = min(self._limits.body, LARGE)
                receive = _again(await read_body(headers_of(scope), receive, most, self._limits.body_time), receive)
            try:
                await manager.handle_request({**scope, "user": _as_user(scope[PRINCIPAL])}, receive, exchange)
            except Exception:
                if not exchange.is_slow:
                    raise
        if (scope["method"], exchange.status) == ("DELETE", HTTPStatus.OK):
            sessions.closed(session)

    async def open(self) -> None:
        """Begin to serve."""
        self._toolbox.tell_what_is_loose()
        self._closing.clear()
        ready = asyncio.Event()
        living = self._living = asyncio.ensure_future(self._live(ready))
        waiting = asyncio.ensure_future(ready.wait())
        await asyncio.wait({living, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if living.done():
            await living

    async def aclose(self) -> None:
        """End all sessions."""
        self._closing.set()
        if self._living is not None:
            await self._living
            self._living = None

    async def _live(self, ready: asyncio.Event) -> None:
        """Live in a task of its own: what the library opens has to be closed by the task that opened it."""
        manager = StreamableHTTPSessionManager(
            self._server,
            stateless=not self._has_sessions,
            session_idle_timeout=IDLE if self._has_sessions else None,
            max_sessions=self._limits.streams,
            max_request_body_size=min(self._limits.body, LARGE),  # the library reads JSON on the loop
        )
        async with manager.run():
            self._manager = manager
            ready.set()
            await self._closing.wait()
            self._manager = None


@final
class Exchange:
    """The way back to a client: notes what it is told, adds what the library leaves out, and waits for it so long only.

    Args:
        send: The way.
        patience: Seconds that a client may take to read.
        on_session: Told which session it was given.

    Attributes:
        status: What it was answered.
        is_slow: It did not read.
    """

    def __init__(self, send: Send, patience: float, on_session: Callable[[str], None]) -> None:
        self._send, self._patience, self._on_session = send, patience, on_session
        self.status, self.is_slow = 0, False

    async def __call__(self, message: Message) -> None:
        """Send one more piece.

        Raises:
            OSError: The client does not read. It comes again, and asks again.
        """
        if message["type"] == "http.response.start":
            self._note(message)
        try:
            async with asyncio.timeout(self._patience):
                await self._send(message)
        except TimeoutError:
            self.is_slow = True
            raise

    def _note(self, message: Message) -> None:
        headers: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
        self.status = message["status"]
        if self.status < HTTPStatus.BAD_REQUEST and (given := dict(headers).get(SESSION.encode())):
            self._on_session(given.decode())
        if self.status == HTTPStatus.SERVICE_UNAVAILABLE:  # the library says only that there are too many sessions
            message["headers"] = [*headers, (b"retry-after", b"%d" % max(1, round(spread(SAID))))]


def _again(body: bytes, receive: Receive) -> Receive:
    """Return what receives a body that was read already, and then what comes after it."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return whole.pop() if whole else await receive()

    return next_message


def _may_open_one(scope: Scope) -> bool:
    """Tell whether a message can be of a version of the protocol that has sessions."""
    version = headers_of(scope).get(MCP_PROTOCOL_VERSION_HEADER)
    return scope["method"] == "POST" and (version is None or version in HANDSHAKE_PROTOCOL_VERSIONS)


async def serve_stdio(name: str, toolbox: Toolbox, dispatching: Dispatching, principal: Principal) -> None:
    """Serve tools over stdin and stdout, to whoever has started this process, until stdin ends."""
    server = tool_server(name, toolbox, dispatching, lambda _context: (principal, {}), asyncio.Event())
    async with stdio_server() as (incoming, outgoing):
        with contextlib.suppress(asyncio.CancelledError):
            await server.run(incoming, outgoing, server.create_initialization_options())


def _who(context: ServerRequestContext[Any, Any]) -> tuple[Principal, Mapping[str, str]]:
    if context.request is None:
        raise AuthenticationError  # it came by no way that has credentials
    scope: Scope = context.request.scope
    return scope[PRINCIPAL], headers_of(scope)


def _as_user(principal: Principal) -> AuthenticatedUser:
    """Return the principal as the library knows users, so that it ties sessions to them."""
    name = msgspec.json.encode((principal.tenant, principal.user, sorted(principal.roles))).decode()
    return AuthenticatedUser(AccessToken(token="", client_id=name, scopes=[]))

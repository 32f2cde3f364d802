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

from holdfast.errors import AuthenticationError, EngineNotOpenError
from holdfast.transports.gate import PRINCIPAL
from holdfast.transports.headers import headers_of
from holdfast.transports.limits import SAID, Room
from holdfast.transports.mcp.calling import ToolCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcp.server.context import ServerRequestContext
    from starlette.types import Message, Receive, Scope, Send

    from holdfast.flows.arrival import Principal
    from holdfast.transports.limits import AppLimits
    from holdfast.transports.mcp.tools import Toolbox
    from holdfast.transports.seam import Dispatching

PATH: Final = "/mcp"


def tool_server(
    name: str,
    toolbox: Toolbox,
    dispatching: Dispatching,
    who: Callable[[ServerRequestContext[Any, Any]], tuple[Principal, Mapping[str, str]]],
) -> Server[Any]:
    """Return a server of the official library that has these tools."""
    calls = ToolCalls(toolbox, dispatching, who)
    return Server(name, on_list_tools=calls.show, on_call_tool=calls.call)


@final
class ToolEndpoint:
    """The ASGI application behind ``/mcp``. Host, origin and credentials were checked by the door.

    A session of the protocol can be used by the principal who opened it, and by nobody else.
    """

    def __init__(self, name: str, toolbox: Toolbox, dispatching: Dispatching, limits: AppLimits) -> None:
        self._server: Final = tool_server(name, toolbox, dispatching, _who)
        self._limits: Final = limits
        self._open: Final = Room("requests for tools", limits.requests)
        self._manager: StreamableHTTPSessionManager | None = None
        self._closing = asyncio.Event()
        self._living: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take one message, or open the stream of a session."""
        if self._manager is None:
            raise EngineNotOpenError
        principal: Principal = scope[PRINCIPAL]
        with self._open:
            await self._manager.handle_request({**scope, "user": _as_user(principal)}, receive, _telling_when(send))

    async def open(self) -> None:
        """Begin to serve."""
        self._closing.clear()
        ready = asyncio.Event()
        self._living = asyncio.ensure_future(self._live(ready))
        waiting = asyncio.ensure_future(ready.wait())
        await asyncio.wait({self._living, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._living.done():
            await self._living

    async def aclose(self) -> None:
        """End all sessions."""
        self._closing.set()
        if self._living is not None:
            await self._living
            self._living = None

    async def _live(self, ready: asyncio.Event) -> None:
        """Live in a task of its own: what the library opens has to be closed by the task that opened it."""
        manager = StreamableHTTPSessionManager(
            self._server, max_sessions=self._limits.streams, max_request_body_size=self._limits.body
        )
        async with manager.run():
            self._manager = manager
            ready.set()
            await self._closing.wait()
            self._manager = None


async def serve_stdio(name: str, toolbox: Toolbox, dispatching: Dispatching, principal: Principal) -> None:
    """Serve tools over stdin and stdout, to whoever has started this process, until stdin ends."""
    server = tool_server(name, toolbox, dispatching, lambda _context: (principal, {}))
    async with stdio_server() as (incoming, outgoing):
        with contextlib.suppress(asyncio.CancelledError):
            await server.run(incoming, outgoing, server.create_initialization_options())


def _telling_when(send: Send) -> Send:
    """Say when to come again where the library says only that there are too many sessions."""

    async def told(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
            message["headers"] = [*message.get("headers", ()), (b"retry-after", b"%d" % SAID)]
        await send(message)

    return told


def _who(context: ServerRequestContext[Any, Any]) -> tuple[Principal, Mapping[str, str]]:
    if context.request is None:
        raise AuthenticationError  # it came by no way that has credentials
    scope: Scope = context.request.scope
    return scope[PRINCIPAL], headers_of(scope)


def _as_user(principal: Principal) -> AuthenticatedUser:
    """Return the principal as the library knows users, so that it ties sessions to them."""
    name = msgspec.json.encode((principal.tenant, principal.user, sorted(principal.roles))).decode()
    return AuthenticatedUser(AccessToken(token="", client_id=name, scopes=[]))

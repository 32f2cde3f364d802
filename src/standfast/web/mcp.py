"""Tools for language models: their calls as requests, their sessions, and serving them over HTTP and stdio."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.types import CallToolResult, ListToolsResult, TextContent
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS

from standfast.clock import monotonic
from standfast.errors import (
    AuthenticationError,
    EngineNotOpenError,
    FlowError,
    InvalidInputError,
    RequestFailedError,
    StandfastError,
    TooManyRequestsError,
)
from standfast.flows.request import Call
from standfast.flows.shares import SAID, Shares, is_spent
from standfast.web.asgi import headers_of
from standfast.web.call import IDEMPOTENCY_KEY, LARGE, SESSION, read_body, unless_closing
from standfast.web.gate import PRINCIPAL, caller_in
from standfast.web.limits import OpenCounts, UserShares
from standfast.web.problems import problem_of, spread, status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from mcp.server.context import ServerRequestContext
    from mcp.types import CallToolRequestParams, PaginatedRequestParams
    from starlette.types import Message, Receive, Scope, Send

    from standfast.flows.flow import Action
    from standfast.flows.request import Principal
    from standfast.web.call import Dispatching, HandleLike
    from standfast.web.limits import AppLimits, Caller
    from standfast.web.tools import Toolbox


# --- calls of tools, as requests: what a model asks for is arbitrated like everything else -------------------------

BUSY: Final = -32_000
"""The JSON-RPC error of what is refused now and may be taken later."""

UNKNOWN: Final = -32_602
INTERNAL: Final = -32_603
CANCELLED: Final = "the caller cancelled the call"


@final
class ToolCalls:
    """Lists and calls tools.

    Args:
        toolbox: The tools.
        dispatching: Where calls go.
        who: Who calls, and with which headers.
        closing: Set when the server stops; a caller that waits for a durable request then is told to ask again.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        dispatching: Dispatching,
        who: Callable[[ServerRequestContext[Any, Any]], tuple[Principal, Mapping[str, str]]],
        closing: asyncio.Event,
    ) -> None:
        self._toolbox, self._dispatching, self._who, self._closing = toolbox, dispatching, who, closing

    async def show(
        self, context: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        """List the tools that the caller may use."""
        del params
        principal, _ = self._who(context)
        return ListToolsResult(tools=self._toolbox.shown_to(principal))

    async def call(self, context: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        """Call a tool, and wait for its end."""
        principal, headers = self._who(context)
        action = self._toolbox.find(params.name, principal)
        if action is None:
            raise MCPError(UNKNOWN, f"there is no tool {params.name!r:.100}")
        meta: Mapping[str, Any] = context.meta or {}
        try:
            arrival = Call(
                flow=action.flow,
                action=action.name,
                inputs=params.arguments or {},
                principal=principal,
                session=_text(meta.get("standfast/session")) or headers.get(SESSION.lower(), ""),
                transport="mcp",
                idempotency_key=_text(meta.get("standfast/idempotency-key"))
                or headers.get(IDEMPOTENCY_KEY.lower(), ""),
                attended=True,
            )
            handle = await self._dispatching.dispatch(arrival)
            following = self._followed(context, action, handle)
            if not (action.durable or action.policy.answers_first):
                return _result(await following)
            packed = await unless_closing(following, self._closing)
            if packed is None:
                said = f"this server is closing; the request {handle.id!r} is accepted and continues: do not call again"
                raise MCPError(BUSY, said, {"requestId": handle.id})
            return _result(packed)
        except InvalidInputError as problem:
            return _failed(str(problem))
        except RequestFailedError as problem:
            return _failed(f"the action failed (request {problem.request_id})")
        except StandfastError as problem:
            if isinstance(problem, FlowError):
                raise MCPError(BUSY, str(problem), problem_of(problem)) from problem
            code = BUSY if status_of(problem) == HTTPStatus.SERVICE_UNAVAILABLE else INTERNAL
            raise MCPError(code, "not now", problem_of(problem)) from problem

    async def _followed(
        self, context: ServerRequestContext[Any, Any], action: Action[..., Any], handle: HandleLike
    ) -> bytes:
        """Wait for the result; report events meanwhile if the caller asked for progress."""
        try:
            if context.meta is not None and context.meta.get("progress_token") is not None:
                async for event in handle.events():
                    if event.name != "request.ended":
                        message = msgspec.json.encode(event.data).decode()
                        await context.session.report_progress(event.number, message=message)
            return await handle.packed()
        except asyncio.CancelledError:
            if action.on_disconnect == "cancel" and handle.is_new:
                handle.abandon(CANCELLED)
            raise


def _text(given: object) -> str:
    return given if isinstance(given, str) else ""


def _result(packed: bytes) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=packed.decode())],
        structured_content={"result": msgspec.json.decode(packed)},
    )


def _failed(words: str) -> CallToolResult:
    """Return a failure that the model can see and react to."""
    return CallToolResult(content=[TextContent(type="text", text=words)], is_error=True)


# --- how many sessions of the protocol each user has open: none can take those of all others -----------------------

MANY: Final = 1_000
"""From this many sessions on, sessions that are no longer used are forgotten each time their number has doubled."""


@final
class _Session:
    __slots__ = ("busy", "used_at", "who")

    def __init__(self, who: Caller, now: float) -> None:
        self.who, self.used_at, self.busy = who, now, 0


@final
class Sessions:
    """What the messages show about sessions; the library has the sessions themselves.

    Args:
        most: How many one user may have.
        in_all: How many there may be. Tenants share them: one gets no more while as many are left to others.
        idle: Seconds after which the library lets go of a session that is not used.
        now: Seconds by some clock.
    """

    def __init__(self, most: int, in_all: int, idle: float, now: Callable[[], float] = monotonic) -> None:
        self._most, self._in_all, self._idle, self._now = most, in_all, idle, now
        self._known: Final[dict[str, _Session]] = {}
        self._opening: Final = OpenCounts()
        self._many = MANY

    @contextmanager
    def opening(self, who: Caller) -> Generator[None]:
        """Note that a user is about to open one.

        Raises:
            TooManyRequestsError: They have as many as there may be, or their tenant has its share.
        """
        if self._problem(who) is not None:
            self._forget()
            if (problem := self._problem(who)) is not None:
                raise problem
        with self._opening.one_more(who):
            yield

    def _problem(self, who: Caller) -> TooManyRequestsError | None:
        users = Counter(each.who for each in self._known.values()) + self._opening.all
        if users[who] >= self._most:  # clients that leave without a word keep theirs for long
            unused = [each.used_at for each in self._known.values() if each.who == who and not each.busy]
            until_one_ends = min(unused) + self._idle - self._now() if unused else SAID
            return TooManyRequestsError("sessions of this user", self._most, max(SAID, until_one_ends))
        tenants = sum(number for each, number in users.items() if each[0] == who[0])
        if is_spent(tenants, self._in_all - users.total()):
            return TooManyRequestsError("sessions of the tenant", tenants, SAID)
        return None

    def _forget(self) -> None:
        before = self._now() - self._idle
        for session in [name for name, each in self._known.items() if not each.busy and each.used_at < before]:
            del self._known[session]

    def opened(self, session: str, who: Caller) -> None:
        """Note that a user has one; the library names it in every answer."""
        if session not in self._known:
            self._known[session] = _Session(who, self._now())
            if len(self._known) > self._many:  # most clients leave without a word
                self._forget()
                self._many = max(MANY, 2 * len(self._known))

    def closed(self, session: str) -> None:
        """Note that one is gone."""
        self._known.pop(session, None)

    @contextmanager
    def used(self, session: str) -> Generator[None]:
        """Note that a message of one is under way."""
        known = self._known.get(session)
        if known is None:
            yield
            return
        known.busy += 1
        try:
            yield
        finally:
            known.busy -= 1
            known.used_at = self._now()


# --- serving tools: over streamable HTTP behind the application's gate, and over stdin and stdout ------------------

SESSION_HEADER: Final = "mcp-session-id"
IDLE: Final = 1_800.0
"""Seconds after which a session that is not used is let go."""


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
    """The ASGI application behind ``/mcp``. The gate has checked host, origin and credentials.

    A session of the protocol can be used by the principal who opened it, and by no other.

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
        self._stops: Final = stops
        self._toolbox, self._limits, self._has_sessions = toolbox, limits, has_sessions
        self._open: Final = Shares(limits.requests, "requests for tools")
        streams = Shares(limits.streams, "streams")
        self._streams: Final = UserShares(streams, "streams of this user", limits.user_streams)
        self._sessions: Final = Sessions(limits.user_streams, limits.streams, IDLE)
        self._manager: StreamableHTTPSessionManager | None = None
        self._closing = asyncio.Event()
        self._living: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take one message, or open the stream of a session."""
        manager, who = self._manager, caller_in(scope)
        if manager is None:
            raise EngineNotOpenError
        headers, sessions = headers_of(scope), self._sessions
        session, version = headers.get(SESSION_HEADER, ""), headers.get(MCP_PROTOCOL_VERSION_HEADER)
        can_open = scope["method"] == "POST" and (version is None or version in HANDSHAKE_PROTOCOL_VERSIONS)
        is_opening = not session and self._has_sessions and can_open
        exchange = Exchange(send, self._limits.patience, lambda given: sessions.opened(given, who))
        with (
            self._streams.of(who) if scope["method"] == "GET" else self._open.of(who[0], who),
            sessions.opening(who) if is_opening else sessions.used(session),
        ):
            if scope["method"] == "POST":  # the library would wait for the body for as long as it takes
                most = min(self._limits.body, LARGE)
                receive = _again(await read_body(headers, receive, most, self._limits.body_time), receive)
            elif scope["method"] == "GET":  # a stream, which the library leaves open for as long as the client does
                receive = _until(self._stops, receive)
            try:
                await manager.handle_request({**scope, "user": _as_user(scope[PRINCIPAL])}, receive, exchange)
                await exchange.finish()
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
    """The way back to a client: notes the answer, adds what the library leaves out, and bounds the wait.

    Args:
        send: Sends a message to the client.
        patience: Seconds that a client may take to read.
        on_session: Called with the session that the client was given.

    Attributes:
        status: What it was answered.
        is_slow: It did not read.
    """

    def __init__(self, send: Send, patience: float, on_session: Callable[[str], None]) -> None:
        self._send, self._patience, self._on_session = send, patience, on_session
        self.status, self.is_slow = 0, False
        self._is_open = False

    async def __call__(self, message: Message) -> None:
        """Send one more piece.

        Raises:
            OSError: The client does not read. It comes again, and asks again.
        """
        if message["type"] == "http.response.start":
            headers: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
            self.status = message["status"]
            if self.status < HTTPStatus.BAD_REQUEST and (given := dict(headers).get(SESSION_HEADER.encode())):
                self._on_session(given.decode())
            if self.status == HTTPStatus.SERVICE_UNAVAILABLE:  # the library says only that there are too many sessions
                message["headers"] = [*headers, (b"retry-after", b"%d" % max(1, round(spread(SAID))))]
        self._is_open = message["type"] == "http.response.start" or bool(message.get("more_body"))
        try:
            async with asyncio.timeout(self._patience):
                await self._send(message)
        except TimeoutError:
            self.is_slow = True
            raise

    async def finish(self) -> None:
        """End an answer that was begun and not ended: the library leaves a stream when its client is gone."""
        if self._is_open:
            await self({"type": "http.response.body", "body": b"", "more_body": False})


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that returns a body that was read already, and then what comes after it."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return whole.pop() if whole else await receive()

    return next_message


def _until(stops: asyncio.Event, receive: Receive) -> Receive:
    """Return a ``receive`` for which the client is gone when the application is about to close."""

    async def next_message() -> Message:
        return await unless_closing(_received(receive), stops) or {"type": "http.disconnect"}

    return next_message


async def _received(receive: Receive) -> Message:
    return await receive()


async def serve_stdio(name: str, toolbox: Toolbox, dispatching: Dispatching, principal: Principal) -> None:
    """Serve tools over stdin and stdout, to the program that has started this process, until stdin ends."""
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

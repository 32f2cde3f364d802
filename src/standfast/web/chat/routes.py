"""Where a chat is served: ``/chat/{flow}`` and what lies below it."""

from __future__ import annotations

from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Final, TypeAlias, final

from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from standfast.errors import ForbiddenError, HttpError, StandfastError
from standfast.web.call import SESSION, content_type, is_json, read_body
from standfast.web.chat.conversation import Serving
from standfast.web.chat.feed import (
    Feed,
    FeedCursor,
    accepted_body,
    checked_message,
    read_message,
)
from standfast.web.chat.socket import ROOM, Talk
from standfast.web.problems import as_json, problem_response
from standfast.web.sse import EventStream, closed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.types import Receive, Send
    from starlette.types import Scope as Asked
    from starlette.websockets import WebSocket

    from standfast.scope import Scope
    from standfast.web.call import Dispatching
    from standfast.web.chat import Chat
    from standfast.web.limits import AppLimits, AppShares

    Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


POLICY: Final = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""What the page may do: load from here, and talk to here. No script or style in it is its own."""

FILES: Final = {
    "": ("chat.html", "text/html"),
    "chat.css": ("chat.css", "text/css"),
    "chat.js": ("chat.js", "text/javascript"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}


def chat_routes(
    chats: Iterable[Chat],
    dispatching: Dispatching,
    *,
    space: Callable[[], Scope],
    limits: AppLimits,
    shares: AppShares,
    closing: asyncio.Event,
) -> list[BaseRoute]:
    """Return the routes of chats.

    Args:
        chats: What was declared.
        dispatching: Where requests go.
        space: Returns where conversations lie, while the application is open.
        limits: Of the application.
        shares: What is open in it.
        closing: Set when the application closes: connections are let go, and come back with how far they have read.
    """
    return [
        route
        for chat in chats
        for route in _routes(chat, Serving(chat, dispatching, space, limits, shares.streams, closing))
    ]


def _routes(chat: Chat, serving: Serving) -> list[BaseRoute]:
    path, http = f"/chat/{chat.flow}", OverHTTP(serving)

    async def talk(socket: WebSocket) -> None:
        await Talk(socket, serving).run()

    async def to_the_page(request: Request) -> Response:
        del request
        return RedirectResponse(f"{chat.flow}/", HTTPStatus.TEMPORARY_REDIRECT)

    routes: list[BaseRoute] = [
        WebSocketRoute(path, talk),
        Route(f"{path}/messages", http.post, methods=["POST"]),
        Route(f"{path}/events", http.follow, methods=["GET"]),
    ]
    if chat.page:
        routes += [Route(f"{path}/{name}", _file(*file)) for name, file in FILES.items()]
        routes.append(Route(path, to_the_page))
    return routes


@final
class OverHTTP:
    """The same conversation without a WebSocket: messages are posted, and what comes back is a stream of events."""

    def __init__(self, serving: Serving) -> None:
        self._serving: Final = serving

    async def post(self, request: Request) -> Response:
        """Take a message: ``{"text": ..., "id": ...}``. The answer says which request answers it, and the session."""
        serving, limits = self._serving, self._serving.limits
        try:
            serving.guests.write(serving.who(request))
            most = 6 * serving.chat.limits.message + ROOM
            body = await read_body(request.headers, request.receive, most, limits.body_time)
            if not is_json(content_type(request.headers)):
                raise HttpError("unsupported-body", "the body is not marked as JSON")
            said = checked_message(read_message(body), serving.chat.limits.message)
            party = await serving.party(request, request.headers.get(SESSION, ""))
            posted = await party.post(said.text, said.id)
        except StandfastError as problem:
            return problem_response(problem)
        told = {"session": party.session, **accepted_body(posted.message, posted.handle)}
        headers = {SESSION: party.session, "Cache-Control": "no-store"}
        return Response(as_json(told), HTTPStatus.ACCEPTED, headers, "application/json")

    async def follow(self, request: Request) -> Response:
        """Send the conversation after what the caller has read, and then as it goes on."""
        return _Stream(self._serving, request.headers)


@final
class _Stream(Response):
    """The conversation as a stream of events, counted while it is open."""

    def __init__(self, serving: Serving, headers: Headers) -> None:
        super().__init__()
        self._serving, self._asked = serving, headers

    async def __call__(self, scope: Asked, receive: Receive, send: Send) -> None:
        serving, connection = self._serving, HTTPConnection(scope)
        try:
            who = serving.who(connection)
            with serving.places.of(who), serving.guests.connected(who):
                party = await serving.party(connection, self._asked.get(SESSION, ""))
                seen = FeedCursor.read(self._asked.get("last-event-id", ""))
                async with Feed(party, seen) as feed:
                    chunks = _written(feed, {"session": party.session, "flow": party.chat.flow})
                    headers = {SESSION: party.session}
                    await EventStream(chunks, serving.limits, serving.closing, headers)(scope, receive, send)
        except StandfastError as problem:
            await problem_response(problem)(scope, receive, send)


async def _written(feed: Feed, hello: dict[str, str]) -> AsyncGenerator[bytes]:
    yield b"event: hello\ndata: %s\n\n" % as_json(hello)
    while True:
        try:
            body, cursor = await feed.next()
        except ForbiddenError as problem:  # the answer has begun: all that can be done is to end it, and say why
            yield closed(str(problem))
            return
        number = f"id: {cursor}\n".encode() if cursor else b""
        yield b"%sevent: %s\ndata: %s\n\n" % (number, body["type"].encode(), as_json(body))


def _file(name: str, kind: str) -> Endpoint:
    content = files("standfast.web.chat").joinpath("page", name).read_bytes()
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}

    async def show(request: Request) -> Response:
        del request
        return Response(content, 200, headers, kind)

    return show

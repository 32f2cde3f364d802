"""The one door of an application: whoever is not known does not get in, whatever they ask for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, final
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from standfast.errors import AuthenticationError, FlowError, WrongHostError, WrongOriginError
from standfast.transports.authentication import identify
from standfast.transports.headers import SECURITY, raw_headers
from standfast.transports.loopback import host_of, is_from_here
from standfast.transports.places import who_is
from standfast.transports.problems import problem_response
from standfast.transports.results import Result
from standfast.workflows.storing.failure_log import log_failure

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from standfast.flows.arrival import Principal
    from standfast.transports.authentication import Authenticate
    from standfast.transports.headers import RawHeaders
    from standfast.transports.straight import Straight

PRINCIPAL: Final = "standfast.principal"
"""Where an endpoint finds in the scope who asks."""

_NOT_GUARDED: Final = "without authentication, this application serves its own machine only; see authenticate="
_log: Final = logging.getLogger("standfast.transports")


@final
class Gate:
    """Lets in what comes to the right host, from a trusted page, with credentials that hold; refuses all the rest.

    It stands before the router, so a route cannot be forgotten. Without ``authenticate``, it lets in what comes from
    this machine.

    Args:
        app: What is behind it.
        authenticate: Says who asks.
        hosts: The names that the application is served under; ``*.example.com`` stands for all below it.
        origins: The pages besides its own that may use it.
        open_paths: The paths that take no credentials, each in full. They look after themselves.
        nobody: Who asks if there is no ``authenticate``.
        straight: Answers plain calls of actions, once they are let in; all else goes to ``app``.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticate: Authenticate | None,
        hosts: Collection[str],
        origins: Collection[str],
        open_paths: Collection[str],
        nobody: Principal,
        straight: Straight | None = None,
    ) -> None:
        self._app, self._authenticate, self._nobody, self._straight = app, authenticate, nobody, straight
        self._hosts: Final = frozenset(host.lower() for host in hosts if not host.startswith("*."))
        self._below: Final = tuple(host[1:].lower() for host in hosts if host.startswith("*."))
        self._origins: Final = frozenset(origin.rstrip("/").lower() for origin in origins)
        self._open_paths: Final = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request or WebSocket in, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers, straight = raw_headers(scope), self._straight
        answer: _Answer | None = None  # one that brings along what the door adds to others needs none
        try:
            if self._is_open(scope, headers):
                principal = self._nobody
            else:
                scope = {**scope}
                principal = await self._identified(scope)
            if straight is None or (action := straight.find(scope, headers)) is None:
                answer = _Answer(send)
                await self._app({**scope, PRINCIPAL: principal}, receive, answer)
                return
            who = who_is(principal, (scope.get("client") or ("",))[0])
            told = await straight.answer(action, principal, who, headers, receive)
            if not isinstance(told, Result):
                await told(scope, receive, _Answer(send))
                return
        except FlowError as problem:
            await (answer or _Answer(send)).refuse(problem, scope, receive)
        except Exception as problem:
            log_failure(_log, "a call", problem, path=scope["path"])
            if answer is not None and answer.has_begun:
                raise
            await (answer or _Answer(send)).refuse(problem, scope, receive)
        else:
            await send(told.start)
            await send(told.body)

    def _is_open(self, scope: Scope, headers: RawHeaders) -> bool:
        """Check the host and the origin; tell whether no credentials are needed."""
        if self._hosts or self._below:
            self._check_host(headers.get(b"host", b"").decode("latin-1"))
        if b"origin" in headers:
            self._check_origin(headers[b"origin"].decode("latin-1"), headers.get(b"host", b"").decode("latin-1"))
        if self._authenticate is None and is_from_here(scope, headers):
            return True
        if route_path(scope) in self._open_paths:
            return True
        if self._authenticate is None:
            raise AuthenticationError(_NOT_GUARDED)
        return False

    async def _identified(self, scope: Scope) -> Principal:
        assert self._authenticate is not None  # noqa: S101 -- otherwise it is open, or refused
        principal = await identify(self._authenticate, HTTPConnection(scope))
        if principal is None:
            raise AuthenticationError
        return principal

    def _check_host(self, header: str) -> None:
        host = host_of(header)
        if host not in self._hosts and not (self._below and host.endswith(self._below)):
            raise WrongHostError(host)

    def _check_origin(self, origin: str, host: str) -> None:
        if origin.lower() not in self._origins and _netloc(origin) != host.lower():
            raise WrongOriginError(origin)


def _netloc(origin: str) -> str | None:
    """Return the host and port of an origin; None: it has none, or is no origin at all."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


@final
class _Answer:
    """The way back to the caller: adds what browsers need to know to every answer, and knows whether it has begun."""

    __slots__ = ("_send", "has_begun")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self.has_begun = True
            headers = list(message.get("headers", ()))
            if not headers or headers[-1] is not SECURITY[-1]:  # most answers bring them along
                known = {name for name, _ in headers}
                headers.extend(pair for pair in SECURITY if pair[0] not in known)
            message["headers"] = headers
        elif message["type"] in ("websocket.accept", "websocket.close"):
            self.has_begun = True
        await self._send(message)

    async def refuse(self, problem: Exception, scope: Scope, receive: Receive) -> None:
        """Answer with a problem; a WebSocket that cannot be answered is closed."""
        if self.has_begun:
            return
        if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
            await problem_response(problem)(scope, receive, self)
        else:
            await self({"type": "websocket.close", "code": 1008, "reason": ""})


def route_path(scope: Scope) -> str:
    """Return the path below where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path

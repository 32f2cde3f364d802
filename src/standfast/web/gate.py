"""The gate of an application: it lets in requests with valid credentials, from a known host and page, and no others."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, final

from starlette.requests import HTTPConnection
from starlette.responses import Response

from standfast.errors import AuthenticationError, FlowError, HttpError
from standfast.exits import FAILURES, failure_of
from standfast.flows.request import Principal
from standfast.log_budget import LogBudget
from standfast.web.asgi import SECURITY, host_of, is_origin_of, raw_headers, route_path
from standfast.web.auth import OWNER, BearerTokens, OwnToken, identify
from standfast.web.call import Result
from standfast.web.edge import EDGE, PRIVATE
from standfast.web.limits import caller_of
from standfast.web.oauth import OAuthTokens
from standfast.web.problems import problem_response
from standfast.workflows.failures import log_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from standfast.web.asgi import RawHeaders
    from standfast.web.auth import Authenticate
    from standfast.web.fast_path import FastPath
    from standfast.web.limits import Caller


PRINCIPAL: Final = "standfast.principal"
"""The key of the scope under which an endpoint finds the caller."""

NOBODY: Final = Principal()
"""The caller at an address that takes no credentials."""

_NO_CREDENTIALS: Final = "credentials are needed"
_NO_TOKEN: Final = "this application has no authentication of its own, so its token is needed; see authenticate="  # noqa: S105 -- words for a caller, and no token
_FORBIDDEN: Final = frozenset({403, 421})
_LONGEST_PATH: Final = 200
_log: Final = logging.getLogger("standfast.web")


@final
class Gate:
    """Lets in requests to the right host, from a trusted page, with valid credentials; refuses all others.

    It stands before the router, so a route cannot be forgotten. Where a request comes from is no credential.

    Args:
        app: What is behind it.
        authenticate: Says who asks.
        hosts: The names that the application is served under; ``*.example.com`` stands for all below it.
        origins: The pages besides its own that may use it.
        open_paths: The paths that take no credentials, each in full. What serves them checks by itself.
        fast_path: Answers plain calls of actions, once they are let in; all else goes to ``app``.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticate: Authenticate,
        hosts: Collection[str],
        origins: Collection[str],
        open_paths: Collection[str],
        fast_path: FastPath | None = None,
    ) -> None:
        self._app, self._authenticate, self._fast_path = app, authenticate, fast_path
        self._refusals: Final = LogBudget(_log)
        self._own: Final = authenticate if isinstance(authenticate, OwnToken) else None
        # A function of the user's may rely on a header that a proxy sets, and deletes if a client has sent it.
        self._may_trust_headers: Final = not isinstance(authenticate, BearerTokens | OAuthTokens | OwnToken)
        self._hosts: Final = frozenset(host.lower() for host in hosts if not host.startswith("*."))
        self._below: Final = tuple(host[1:].lower() for host in hosts if host.startswith("*."))
        self._origins: Final = frozenset(origin.rstrip("/").lower() for origin in origins)
        self._open_paths: Final = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request or WebSocket in, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers, fast_path = raw_headers(scope), self._fast_path
        answer: _GuardedSend | None = None  # a result has all headers already, and needs none
        principal: Principal | Response | None = None
        try:
            self._check(headers)
            principal = self._known(scope, headers)
            if principal is None:
                scope = {**scope, "headers": list(scope["headers"])}  # nothing that comes later is a header
                principal = await self._identified(scope, headers)
            if isinstance(principal, Response):
                await principal(scope, receive, self._guarded(send, scope))
                return
            if fast_path is None or (action := fast_path.find(scope, headers)) is None:
                answer = self._guarded(send, scope, principal)
                await self._app({**scope, PRINCIPAL: principal}, receive, answer)
                return
            who = caller_of(principal, (scope.get("client") or ("",))[0])
            told = await fast_path.answer(action, principal, who, headers, receive)
            if not isinstance(told, Result):
                await told(scope, receive, self._guarded(send, scope, principal))
                return
        except FlowError as problem:
            await (answer or self._guarded(send, scope, principal)).refuse(problem, scope, receive)
        except FAILURES as raised:
            error = failure_of(raised)
            log_failure(_log, "a call", error, path=scope["path"])
            if answer is not None and answer.has_begun:
                raise error from error.__cause__
            await (answer or self._guarded(send, scope)).refuse(error, scope, receive)
        else:
            await send(told.start)
            await send(told.body)

    def _check(self, headers: RawHeaders) -> None:
        """Refuse a host that is none of ours, and a page that is not trusted."""
        if self._hosts or self._below:
            host = host_of(headers.get(b"host", b"").decode("latin-1"))
            if host not in self._hosts and not (self._below and host.endswith(self._below)):
                raise HttpError("wrong-host", f"{host!r:.100} is no host of this application")
        if b"origin" in headers:
            origin, own = headers[b"origin"].decode("latin-1"), headers.get(b"host", b"").decode("latin-1")
            if origin.lower() not in self._origins and not is_origin_of(origin, own):
                raise HttpError("wrong-origin", f"pages of {origin!r:.100} may not use this application")

    def _known(self, scope: Scope, headers: RawHeaders) -> Principal | Response | None:
        """Return who asks, or an answer, if that needs no function of the user; None if it does."""
        if route_path(scope) in self._open_paths:
            return NOBODY
        if self._own is None:
            return None
        if self._own.is_shown(headers) or scope.get(EDGE) == PRIVATE:
            return OWNER
        return self._own.greeting(scope)

    async def _identified(self, scope: Scope, headers: RawHeaders) -> Principal:
        if self._may_trust_headers and EDGE not in scope and b"transfer-encoding" in headers:
            raise HttpError("length-required", "a chunked body is not taken here")
        try:
            principal = await identify(self._authenticate, HTTPConnection(scope))
            if principal is None:
                raise AuthenticationError(_NO_TOKEN if self._own is not None else _NO_CREDENTIALS)
        except FlowError as problem:
            address = (scope.get("client") or ("",))[0]
            kind = "missing" if b"authorization" not in headers and b"cookie" not in headers else "refused"
            is_token = isinstance(problem, AuthenticationError) and problem.challenge  # which is logged with its reason
            if kind == "missing" or not is_token:
                self._refusals.warning(f"credentials-{kind}", address=address, status=problem.status)
            raise
        return principal

    def _guarded(self, send: Send, scope: Scope, principal: Principal | Response | None = None) -> _GuardedSend:
        """Return the way back to the caller of a request; an answer that forbids it is logged."""

        def note_forbidden(status: int) -> None:
            who = principal if isinstance(principal, Principal) else NOBODY
            facts = {"address": (scope.get("client") or ("",))[0], "path": scope["path"][:_LONGEST_PATH]}
            self._refusals.warning("request-forbidden", **facts, tenant=who.tenant, user=who.user, status=status)

        return _GuardedSend(send, note_forbidden)


@final
class _GuardedSend:
    """The way back to the caller: adds the security headers to every answer, and knows if it has begun."""

    __slots__ = ("_note_forbidden", "_send", "has_begun")

    def __init__(self, send: Send, note_forbidden: Callable[[int], None]) -> None:
        self._send, self._note_forbidden = send, note_forbidden
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self.has_begun = True
            if message["status"] in _FORBIDDEN:
                self._note_forbidden(message["status"])
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


def caller_in(scope: Scope) -> Caller:
    """Return who has sent a request, or has opened a WebSocket."""
    return caller_of(scope[PRINCIPAL], (scope.get("client") or ("",))[0])

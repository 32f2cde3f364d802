"""The one door of an application: whoever is not known does not get in, whatever they ask for."""

from __future__ import annotations

import hmac
import inspect
import logging
import re
import secrets
from collections import OrderedDict
from hashlib import sha256
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final, TypeAlias, cast, final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import Response

from standfast.clock import monotonic
from standfast.errors import (
    AuthenticationError,
    FlowError,
    InvalidFlowError,
    LengthRequiredError,
    TooManyRequestsError,
    WrongHostError,
    WrongOriginError,
)
from standfast.flows.request import Principal
from standfast.flows.view import OPERATOR
from standfast.web.asgi import SECURITY, host_of, raw_headers
from standfast.web.call import Result
from standfast.web.edge import EDGE, PRIVATE
from standfast.web.limits import who_is
from standfast.web.log_budget import LogBudget
from standfast.web.oauth import OAuthTokens
from standfast.web.problems import problem_response
from standfast.workflows.failures import log_failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from standfast.web.asgi import RawHeaders
    from standfast.web.fast_path import Straight
    from standfast.web.limits import Who


# --- who asks: credentials become a principal before anything else is read -----------------------------------------

Authenticate: TypeAlias = "Callable[[HTTPConnection], Principal | Awaitable[Principal | None] | None]"
"""Turns a request, or a WebSocket, into whoever sends it; ``None`` if that is not known. It never reads the body."""

MARK: Final = "sha256:"
"""What the digest of a token begins with."""

MINUTE: Final = 60.0
_MOST_ADDRESSES: Final = 10_000
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def new_token() -> str:
    """Return a new token: 256 random bits. Give it to the caller, and keep its digest only."""
    return f"sf_{secrets.token_urlsafe(32)}"


def token_digest(token: str) -> str:
    """Return what is kept of a token. A token is random, so a plain hash of it cannot be undone by trying."""
    return MARK + sha256(token.encode()).hexdigest()


@final
class BearerTokens:
    """Callers send ``Authorization: Bearer <token>``; only digests of the tokens are kept.

        authenticate=sf.BearerTokens({"sha256:9f86...": sf.Principal("acme", "ada", frozenset({"operator"}))})

    Args:
        tokens: Who has which token, by :func:`token_digest`.
        failures: How many tokens that nobody has are answered with 401 for one address in a minute; after that it is
            429. A token that holds is taken in any case, so nobody can lock others out.
    """

    def __init__(self, tokens: Mapping[str, Principal], *, failures: int = 20) -> None:
        for digest in tokens:
            if not _DIGEST.fullmatch(digest):
                raise InvalidFlowError("BearerTokens", "a token is named by its digest; make it with token_digest()")
        self._tokens: Final = [(digest.encode(), principal) for digest, principal in tokens.items()]
        self._failures: Final = _Failures(failures)

    def __repr__(self) -> str:
        return f"<BearerTokens of {len(self._tokens)}>"

    def __call__(self, connection: HTTPConnection) -> Principal | None:
        """Return whose token it is."""
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        digest = token_digest(token.strip()).encode()
        found = None
        for known, principal in self._tokens:  # all of them, so that the time it takes tells nothing
            if hmac.compare_digest(known, digest):
                found = principal
        if found is not None and scheme.lower() == "bearer":
            return found
        if token:
            self._failures.count(connection.client.host if connection.client else "")
        return None


@final
class _Failures:
    """Counts failures by address: so many in a minute, each forgotten on its own."""

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._since: Final[OrderedDict[str, tuple[float, float]]] = OrderedDict()

    def count(self, address: str) -> None:
        """Count one more; refuse if there are too many."""
        now = monotonic()
        level, at = self._since.pop(address, (0.0, now))
        level = max(0.0, level - (now - at) * self._most / MINUTE) + 1
        self._since[address] = (min(level, self._most + 1.0), now)
        if len(self._since) > _MOST_ADDRESSES:
            self._since.popitem(last=False)
        if level > self._most:
            raise TooManyRequestsError("failed attempts from this address", self._most, MINUTE / self._most)


async def identify(authenticate: Authenticate, connection: HTTPConnection) -> Principal | None:
    """Return who sends a request, whether the function that tells is async or not."""
    found = authenticate(connection)
    principal = cast("object", await found if inspect.isawaitable(found) else found)
    if principal is None or isinstance(principal, Principal):
        return principal
    raise InvalidFlowError("authenticate", f"it returned a {type(principal).__name__}, not a Principal or None")


# --- the token of an application that has no authentication of its own ---------------------------------------------
#
# Where a request comes from is no credential: any proxy on this machine sends its requests from this machine. So
# whoever uses such an application shows a token, which is made when it starts and is shown to whoever started it.

OWNER: Final = Principal(roles=frozenset({OPERATOR}))
"""Who has the token: whoever started the application, and so everything in it."""

SHORTEST: Final = 20
"""Characters that a token has at least: one that can be guessed is none."""

QUERY: Final = "token"
"""What it is called in an address."""


@final
class OwnToken:
    """Lets in whoever shows the token: as ``Authorization: Bearer``, or as the cookie that a browser gets for it.

    A browser that opens an address with ``?token=...`` gets the cookie, and is sent on to the address without it. The
    cookie is sent by pages of the same site only, and no script can read it.
    """

    def __init__(self) -> None:
        self.token = new_token()

    def __repr__(self) -> str:
        return "<OwnToken>"

    @property
    def token(self) -> str:
        """The token."""
        return self._token

    @token.setter
    def token(self, token: str) -> None:
        if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
            problem = f"it has {len(token)} characters; it needs at least {SHORTEST}, of ASCII and without spaces"
            raise InvalidFlowError("the token of the application", problem)
        self._token, self._header = token, f"Bearer {token}".encode()
        self._digests = BearerTokens({token_digest(token): OWNER})

    def is_shown(self, headers: RawHeaders) -> bool:
        """Return True if the token is in the header in which nearly all callers send it; others are looked at again."""
        return hmac.compare_digest(headers.get(b"authorization", b""), self._header)

    def __call__(self, connection: HTTPConnection) -> Principal | None:
        """Return the owner, if the token is the right one."""
        shown = self._cookie(connection)
        if shown and "authorization" not in connection.headers and hmac.compare_digest(shown, self._token.encode()):
            return OWNER
        return self._digests(connection)

    def _cookie(self, connection: HTTPConnection) -> bytes:
        given = connection.headers.get("cookie", "")
        if not given:
            return b""
        try:
            found = SimpleCookie(given).get(_cookie_name(connection.scope))
        except CookieError:
            return b""
        return found.value.encode() if found is not None else b""

    def greeting(self, scope: Scope) -> Response | None:
        """Return what a browser is sent that brings the token in the address; None: it brings none, or a wrong one."""
        if scope["type"] != "http" or scope["method"] != "GET" or b"token=" not in scope["query_string"]:
            return None
        given = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        shown = [value for name, value in given if name == QUERY]
        if len(shown) != 1 or not hmac.compare_digest(shown[0].encode(), self._token.encode()):
            return None
        rest = urlencode([pair for pair in given if pair[0] != QUERY])
        path = "/" + scope["raw_path"].decode("latin-1").lstrip("/")  # two slashes would lead to another host
        response = Response(None, HTTPStatus.SEE_OTHER, {"Location": f"{path}?{rest}" if rest else path})
        response.headers["Cache-Control"] = "no-store"
        is_safe = scope.get("scheme") == "https"
        response.set_cookie(_cookie_name(scope), self._token, httponly=True, samesite="strict", secure=is_safe)
        return response


def _cookie_name(scope: Scope) -> str:
    """Return the name of the cookie. Ports of a host share their cookies, so each has one of its own."""
    for name, value in scope["headers"]:
        if name == b"host":
            port = value.decode("latin-1").rpartition(":")[2]
            return f"standfast-token-{port}" if port.isascii() and port.isdigit() else "standfast-token"
    return "standfast-token"


# --- the one door of an application: whoever is not known does not get in, whatever they ask for -------------------

PRINCIPAL: Final = "standfast.principal"
"""Where an endpoint finds in the scope who asks."""

NOBODY: Final = Principal()
"""Who asks at an address that takes no credentials."""

_NO_CREDENTIALS: Final = "credentials are needed"
_NO_TOKEN: Final = "this application has no authentication of its own, so its token is needed; see authenticate="  # noqa: S105 -- words for a caller, and no token
_log: Final = logging.getLogger("standfast.web")


@final
class Gate:
    """Lets in what comes to the right host, from a trusted page, with credentials that hold; refuses all the rest.

    It stands before the router, so a route cannot be forgotten. Where a request comes from is no credential.

    Args:
        app: What is behind it.
        authenticate: Says who asks.
        hosts: The names that the application is served under; ``*.example.com`` stands for all below it.
        origins: The pages besides its own that may use it.
        open_paths: The paths that take no credentials, each in full. They look after themselves.
        straight: Answers plain calls of actions, once they are let in; all else goes to ``app``.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticate: Authenticate,
        hosts: Collection[str],
        origins: Collection[str],
        open_paths: Collection[str],
        straight: Straight | None = None,
    ) -> None:
        self._app, self._authenticate, self._straight = app, authenticate, straight
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
        headers, straight = raw_headers(scope), self._straight
        answer: _Answer | None = None  # one that brings along what the door adds to others needs none
        try:
            self._check(headers)
            principal = self._known(scope, headers)
            if principal is None:
                scope = {**scope, "headers": list(scope["headers"])}  # nothing that comes later is a header
                principal = await self._identified(scope, headers)
            if isinstance(principal, Response):
                await principal(scope, receive, _Answer(send))
                return
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

    def _check(self, headers: RawHeaders) -> None:
        """Refuse a host that is none of ours, and a page that is not trusted."""
        if self._hosts or self._below:
            self._check_host(headers.get(b"host", b"").decode("latin-1"))
        if b"origin" in headers:
            self._check_origin(headers[b"origin"].decode("latin-1"), headers.get(b"host", b"").decode("latin-1"))

    def _known(self, scope: Scope, headers: RawHeaders) -> Principal | Response | None:
        """Return who asks if that needs no function of the user; or the answer, or None if it does."""
        if route_path(scope) in self._open_paths:
            return NOBODY
        if self._own is None:
            return None
        if self._own.is_shown(headers) or scope.get(EDGE) == PRIVATE:
            return OWNER
        return self._own.greeting(scope)

    async def _identified(self, scope: Scope, headers: RawHeaders) -> Principal:
        if self._may_trust_headers and EDGE not in scope and b"transfer-encoding" in headers:
            raise LengthRequiredError
        try:
            principal = await identify(self._authenticate, HTTPConnection(scope))
            if principal is None:
                raise AuthenticationError(_NO_TOKEN if self._own is not None else _NO_CREDENTIALS)
        except FlowError as problem:
            address = (scope.get("client") or ("",))[0]
            kind = "missing" if b"authorization" not in headers and b"cookie" not in headers else "refused"
            self._refusals.warning(f"credentials-{kind}", address=address, status=problem.status)
            raise
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


# --- who has sent what a server hands over, as far as it is counted ------------------------------------------------


def who_asks(scope: Scope) -> Who:
    """Return who has sent a request, or has opened a WebSocket."""
    return who_is(scope[PRINCIPAL], (scope.get("client") or ("",))[0])

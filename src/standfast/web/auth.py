"""Credentials: who sends a request, by a bearer token or by the token of the application itself."""

from __future__ import annotations

import hmac
import inspect
import re
import secrets
from collections import OrderedDict
from hashlib import sha256
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final, TypeAlias, cast, final
from urllib.parse import parse_qsl, urlencode

from standfast.clock import monotonic
from standfast.errors import DeclarationError, TooManyRequestsError
from standfast.flows.request import Principal
from standfast.flows.view import OPERATOR

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import HTTPConnection
    from starlette.responses import Response
    from starlette.types import Scope

    from standfast.web.asgi import RawHeaders


# --- who asks: credentials become a principal before anything else is read -----------------------------------------

Authenticate: TypeAlias = "Callable[[HTTPConnection], Principal | Awaitable[Principal | None] | None]"
"""Turns a request, or a WebSocket, into the principal that sends it; ``None`` if unknown. It never reads the body."""

MARK: Final = "sha256:"
"""What the digest of a token begins with."""

MINUTE: Final = 60.0
_MOST_ADDRESSES: Final = 10_000
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def new_token() -> str:
    """Return a new token: 256 random bits. Give it to the caller, and keep its digest only."""
    return f"sf_{secrets.token_urlsafe(32)}"


def token_digest(token: str) -> str:
    """Return what is kept of a token. A token is random, so a plain hash of it cannot be reversed by guessing."""
    return MARK + sha256(token.encode()).hexdigest()


@final
class BearerTokens:
    """Callers send ``Authorization: Bearer <token>``; only digests of the tokens are kept.

        authenticate=sf.web.BearerTokens({"sha256:9f86...": sf.Principal("acme", "ada", frozenset({"operator"}))})

    Args:
        tokens: Who has which token, by :func:`token_digest`.
        failures: How many unknown tokens are answered with 401 for one address in a minute; after that it is
            429. A token that holds is taken in any case, so no caller can lock others out.
    """

    def __init__(self, tokens: Mapping[str, Principal], *, failures: int = 20) -> None:
        for digest in tokens:
            if not _DIGEST.fullmatch(digest):
                raise DeclarationError("BearerTokens", "a token is named by its digest; make it with token_digest()")
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
    """Counts failures by address: a number in a minute, each forgotten on its own."""

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
    """Return who sends a request; the function that says so may be async or not."""
    found = authenticate(connection)
    principal = cast("object", await found if inspect.isawaitable(found) else found)
    if principal is None or isinstance(principal, Principal):
        return principal
    raise DeclarationError("authenticate", f"it returned a {type(principal).__name__}, not a Principal or None")


# --- the token of an application that has no authentication of its own ---------------------------------------------
#
# Where a request comes from is no credential: any proxy on this machine sends its requests from this machine. So
# a user of such an application shows a token, which is made when it starts and is shown to the user who started it.

OWNER: Final = Principal(roles=frozenset({OPERATOR}))
"""Who has the token: the user who started the application, and so everything in it."""

SHORTEST: Final = 20
"""The fewest characters of a token: a short one could be guessed."""

QUERY: Final = "token"
"""What it is called in an address."""


@final
class OwnToken:
    """Lets in a caller that shows the token: as ``Authorization: Bearer``, or as the cookie that a browser gets for it.

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
            raise DeclarationError("the token of the application", problem)
        self._token, self._header = token, f"Bearer {token}".encode()
        self._digests = BearerTokens({token_digest(token): OWNER})

    def is_shown(self, headers: RawHeaders) -> bool:
        """Return True if the token is in the header where nearly all callers send it; others are checked again."""
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
        """Return the answer to a browser that has the token in its address; None: it has none, or a wrong one."""
        if scope["type"] != "http" or scope["method"] != "GET" or b"token=" not in scope["query_string"]:
            return None
        given = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        shown = [value for name, value in given if name == QUERY]
        if len(shown) != 1 or not hmac.compare_digest(shown[0].encode(), self._token.encode()):
            return None
        from starlette.responses import Response  # noqa: PLC0415 -- credentials can be declared without the extra

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

"""The token of an application that has no authentication of its own.

Where a request comes from is no credential: any proxy on this machine sends its requests from this machine. So whoever
uses such an application shows a token, which is made when it starts and is shown to whoever started it.
"""

from __future__ import annotations

import hmac
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final, final
from urllib.parse import parse_qsl, urlencode

from starlette.responses import Response

from standfast.errors import InvalidFlowError
from standfast.flows.arrival import Principal
from standfast.flows.seeing import OPERATOR
from standfast.transports.authentication import BearerTokens, new_token, token_digest

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.types import Scope

    from standfast.transports.headers import RawHeaders

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

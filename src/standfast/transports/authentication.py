"""Who asks: credentials become a principal before anything else is read."""

from __future__ import annotations

import hmac
import inspect
import re
import secrets
from collections import OrderedDict
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypeAlias, cast, final

from standfast.clock import monotonic
from standfast.errors import InvalidFlowError, TooManyRequestsError
from standfast.flows.arrival import Principal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import HTTPConnection

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

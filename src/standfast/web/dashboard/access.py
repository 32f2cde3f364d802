"""Who may see and do what in a dashboard, and the checks that every change passes."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast, final
from urllib.parse import parse_qsl, urlencode

from msgspec import Struct

from standfast.errors import DeclarationError, ForbiddenError
from standfast.flows.request import Principal
from standfast.flows.view import OPERATOR, VIEWER
from standfast.web.asgi import is_origin_of
from standfast.web.auth import QUERY, OwnToken, new_token

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.requests import HTTPConnection
    from starlette.responses import Response
    from starlette.types import Scope

REVEAL: Final = "values.reveal"
"""The right to see inputs, results and values of steps."""

ACTIONS: Final = {
    "run.cancel": "Cancel",
    "run.retry": "Retry",
    "run.restart": "Restart",
    "run.fork": "Fork from a step",
    "run.signal": "Send a signal",
    "run.update": "Send an update",
    "run.query": "Ask it",
    "run.purge": "Delete",
    "runs.cancel": "Cancel all of them",
    "runs.retry": "Retry all of them",
    "runs.purge": "Delete all of them",
    "runs.stop": "Stop this",
    "lock.release": "Evict the holder",
    "lock.withdraw": "Cancel the waiter",
    "lock.resize": "Resize",
    "schedule.pause": "Pause",
    "schedule.resume": "Resume",
    "schedule.trigger": "Start a run now",
    "schedule.backfill": "Make up for ticks",
    "limit.set": "Set the limit",
    "limit.clear": "Clear the limit",
    "rate.close": "Close for a while",
    "rate.open": "Open again",
    "request.cancel": "Cancel",
}
"""What can be done in a dashboard, and what its button says.

The names are those of the audit. What begins with ``runs.`` is done to many runs at once, and is a right of its own;
the audit has it as what is done to each. ``run.query`` changes nothing, and needs the right to see values too.
"""

Level: TypeAlias = "Literal['all', 'read'] | Collection[str] | None"
"""What a principal may do: all, read, some actions besides reading, or nothing."""

AccessOf: TypeAlias = Callable[[Principal], Level]


def default_access(principal: Principal) -> Level:
    """Let operators do everything, and viewers read."""
    if OPERATOR in principal.roles:
        return "all"
    return "read" if VIEWER in principal.roles else None


class PageError(Exception):
    """A page that cannot be shown, or a form that is refused; the words are for the user."""

    def __init__(self, status: int, heading: str, detail: str, advice: str = "") -> None:
        super().__init__(status, heading, detail, advice)
        self.status, self.heading, self.detail, self.advice = status, heading, detail, advice


class Access(Struct, frozen=True):
    """A caller of the dashboard, and what it may do.

    Attributes:
        principal: Who it is.
        actions: What it may do besides reading.
    """

    principal: Principal
    actions: frozenset[str]

    @property
    def reveals(self) -> bool:
        """Whether it may see values."""
        return REVEAL in self.actions

    def may(self, action: str) -> bool:
        """Return True if it may do this."""
        return action in self.actions


def access_of(principal: Principal, level: object) -> Access:
    """Return what a caller may do.

    Raises:
        ForbiddenError: Nothing.
        DeclarationError: The function that says so does not return a level.
    """
    known = frozenset({*ACTIONS, REVEAL})
    if level is None:
        raise ForbiddenError("the dashboard")
    if level in ("all", "read"):
        return Access(principal, known if level == "all" else frozenset())
    named = cast("Collection[str]", level)
    if isinstance(level, str) or not isinstance(level, Collection) or not known.issuperset(named):
        problem = f"it returned {level!r:.100}; it must be 'all', 'read', None or a set of {', '.join(sorted(known))}"
        raise DeclarationError("access", problem)
    return Access(principal, frozenset(named))


def form_token(secret: bytes, principal: Principal, action: str) -> str:
    """Return the token of a form that changes something: only a page that this caller was shown has it."""
    words = f"{principal.tenant}\0{principal.user}\0{action}".encode()
    return hmac.new(secret, words, sha256).hexdigest()


def is_own_form(headers: Headers, given: str, expected: str) -> bool:
    """Return True if a form was sent by one of our own pages: the browser says so, and it carries its token."""
    site = headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = headers.get("origin")
    if origin == "null" and site is not None:  # what browsers send for a page that tells others nothing about itself
        origin = None
    if origin is not None and not is_origin_of(origin, headers.get("host", "")):
        return False
    return hmac.compare_digest(given.encode(), expected.encode())


@final
class OneTimeToken:
    """Lets one browser in: the address that it opens first carries a token that is void afterwards.

    The browser keeps a cookie in its place. That is what ``standfast dashboard`` prints, as notebooks do.
    """

    def __init__(self, principal: Principal) -> None:
        self._session: Final = OwnToken()
        self._principal: Final = principal
        self.token = new_token()

    def __repr__(self) -> str:
        return "<OneTimeToken>"

    def __call__(self, connection: HTTPConnection) -> Principal | None:
        """Return who the browser belongs to, if its cookie is the right one."""
        return None if self._session(connection) is None else self._principal

    def greeting(self, scope: Scope) -> Response | None:
        """Return the answer to the first browser that has the token in its address; None: none, or a wrong one."""
        given = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        shown = [value for name, value in given if name == QUERY]
        if len(shown) != 1 or not self.token or not hmac.compare_digest(shown[0].encode(), self.token.encode()):
            return None
        rest = [pair for pair in given if pair[0] != QUERY]
        query = urlencode([*rest, (QUERY, self._session.token)]).encode()
        answer = self._session.greeting({**scope, "query_string": query})
        if answer is not None:
            self.token = ""
        return answer

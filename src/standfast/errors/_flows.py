"""Errors of flows: requests that are not run, and what became of those that were. Each has an HTTP status."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from standfast.errors._root import StandfastError

if TYPE_CHECKING:
    from collections.abc import Mapping


class FlowError(StandfastError):
    """The root of what goes wrong with flows and requests.

    Attributes:
        status: The HTTP status that says the same.
    """

    status: ClassVar[int] = 500


class UnknownActionError(FlowError, LookupError):
    """There is no such flow here, or it has no such action. Check the names, and that the app was given the flow."""

    status = 404
    flow: str
    action: str
    known: tuple[str, ...] = ()
    template = "there is no action {action!r} in a flow {flow!r}; there is {known}"


class InvalidInputError(FlowError, ValueError):
    """What was sent is not what is taken: inputs of the action, a name, a session, a key. Correct it and send it again.

    Nothing was written. The message names the place in the data, never the data itself.
    """

    status = 422
    where: str
    problem: str
    template = "{where}: {problem}"


class RequestKeyError(FlowError):
    """The function that gives an action's key failed. Nothing was written and nothing ran; fix the function.

    If it raised, that exception is the cause. It has to return text, or None where nothing is to be arbitrated.
    """

    where: str
    problem: str
    template = "{where}: the key function {problem}"


class RequestRejectedError(FlowError):
    """Another request has the key, and the action's policy is not to wait. Nothing of this one was kept.

    Follow the other by its id, or send this one again when it has ended.

    Attributes:
        since: Since when the other has the key, by the store's time.
        holder_is_durable: Whether the other goes on if its process dies. Only then is dropping this one safe.
    """

    status = 409
    key: str
    request_id: str
    since: int = 0
    holder_status: str = "running"
    holder_is_durable: bool = True
    template = "{key} is taken by the request {request_id!r} ({holder_status})"


class QueueFullError(FlowError):
    """Too many requests wait for the key already: this one was not added. Send it again after a while.

    Attributes:
        retry_after: After how many seconds it is worth trying again, as far as can be told.
        holder: The request that has the key, if that is known.
        since: Since when it has the key, by the store's time.
    """

    status = 429
    key: str
    waiting: int
    retry_after: float
    holder: str = ""
    since: int = 0

    def _text(self) -> str:
        held = self.holder and f" behind the request {self.holder!r}"
        return f"the line of {self.key} is full ({self.waiting} waiting{held}); try again in {self.retry_after:g} s"


class QueueTimeoutError(FlowError, TimeoutError):
    """The request's turn did not come in time. It never ran and has left the line; it may be sent again.

    Attributes:
        holder: The request that had the key then, if that is known.
        since: Since when it had the key, by the store's time.
    """

    status = 503
    key: str
    seconds: float
    holder: str = ""
    since: int = 0

    def _text(self) -> str:
        held = self.holder and f"; the request {self.holder!r} had it"
        return f"the turn at {self.key} did not come within {self.seconds:g} s{held}"


class WaitsForItselfError(FlowError):
    """The request would wait for a key or a limit that is held by one that waits for it, so neither could ever continue.

    The one that waits for it may have called it, or stand in a circle with others: each holds what the next one waits
    for. Call the function directly instead, give the inner action another key or limit, or do not wait for its result.
    """

    status = 409
    key: str
    request_id: str = ""
    template = "it would wait for {key}, which is held by one that waits for this request"


class ArbiterUnavailableError(FlowError):
    """Which request may run cannot be decided now, so this one was not run.

    The store does not answer, or this server is not open, or closing. Send the request again after a while.
    """

    status = 503
    problem: str
    template = "requests cannot be arbitrated now: {problem}"


class NotTheSoleServerError(FlowError, RuntimeError):
    """Another process serves this app already, and ``arbiter="local"`` is for one process only.

    Stop the other one first, or leave ``arbiter`` out: then any number of processes share the lines in the store.
    """

    status = 503
    app: str
    holder: str = ""

    def _text(self) -> str:
        held = f" ({self.holder})" if self.holder else ""
        return f'{self.app} is served by another process{held}; stop that one, or leave out arbiter="local"'


class TooManyRequestsError(FlowError):
    """A limit or a rate is reached, so the request was refused before anything was written. Try again after a while.

    Attributes:
        what: What is counted: ``"requests of chat.respond for user 'ann'"``.
        limit: How many there may be, or may come.
        retry_after: After how many seconds it is worth trying again.
        per: In how many seconds, if it is a rate; otherwise 0.
    """

    status = 429
    what: str
    limit: int
    retry_after: float
    per: float = 0.0

    def _text(self) -> str:
        reached = f"{self.limit} in {self.per:g} s" if self.per else f"{self.limit}, and it is reached"
        return f"the limit for {self.what} is {reached}; try again in {self.retry_after:.3g} s"


class TooManyQuarantinedError(TooManyRequestsError):
    """Too many durable requests of the tenant ended their servers: it gets no more for now, and none was taken on.

    They are quarantined, and stay so until an operator looks: find what they have in common, fix it, and resume each
    (``standfast runs retry``), or cancel it. Requests whose callers wait for them are not affected.
    """

    def _text(self) -> str:
        todo = "an operator has to retry or cancel them before more are taken on"
        return f"the limit for quarantined {self.what}, which ended their servers, is {self.limit}; {todo}"


class TooManyBytesError(TooManyRequestsError):
    """The store keeps as many bytes of the tenant as it may, so the request was refused before anything was written.

    They get fewer as requests, their events and sessions expire, and as ended runs are purged (``engine.purge(...)``).
    If the tenant needs more, raise ``sf.web.TenantLimits(bytes_kept=...)``. Requests that leave nothing in the store are not affected.

    Attributes:
        kept: How many bytes are kept, as far as the server knew that refused it.
    """

    kept: int = 0

    def _text(self) -> str:
        todo = "wait until some expire, purge ended runs, or raise TenantLimits(bytes_kept=...)"
        return f"the limit for {self.what} is {self.limit:,}, and there are {self.kept:,}; {todo}"


class RequestSharedError(FlowError):
    """Other users share the run of this request, so it is not one user's to cancel. Leave it, or ask an operator.

    Requests that a policy has put together are one run, which has one result for all of them.
    """

    status = 409
    request_id: str
    template = "the run of the request {request_id!r} is shared with other users, and continues for them"


class AuthenticationError(FlowError):
    """The caller is not known: it sent no credentials, or invalid ones. Sign in, and send the request again.

    If access tokens are taken here, get one from where the challenge leads. The log says why one is invalid.

    Attributes:
        challenge: What the answer says in ``WWW-Authenticate``.
    """

    status = 401
    problem: str = "credentials are needed"
    challenge: str = ""
    template = "{problem}"


class ForbiddenError(FlowError, PermissionError):
    """The caller is known, and may not do this. Ask a user who may, or one who can give what is needed.

    That is one of the roles that are named, or an access token with all of the scopes.

    Attributes:
        challenge: What the answer says in ``WWW-Authenticate`` if scopes are missing.
    """

    status = 403
    what: str
    roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    challenge: str = ""

    def _text(self) -> str:
        if self.scopes:
            return f"{self.what} needs an access token with the scopes {', '.join(map(repr, self.scopes))}"
        return f"{self.what} needs {' or '.join(map(repr, self.roles)) or 'a permission that is missing'}"


class SessionStateError(FlowError, ValueError):
    """What was done to a session's state does not fit what is there, so nothing of it was kept.

    An increment needs a number, an append a list, and all values have to be JSON-shaped. ``field`` says where.
    """

    status = 409
    field: str
    problem: str
    template = "the field {field!r} of the session {problem}"


class SessionMissingError(SessionStateError):
    """The action keeps something in a session, and the request belongs to none, so nothing of it was kept.

    Send it again with a session: over HTTP in the header Standfast-Session, of a tool as standfast/session in _meta, of a
    webhook or a schedule with session= where it is declared, from Python as session= of the arrival.
    """

    status = 422
    template = "the field {field!r} cannot be kept: {problem}"


class RequestSupersededError(FlowError):
    """A newer request of the same key took this one's place, as the action's policy says. Ask for the newer one's result.

    Attributes:
        by: The id of the newer request; empty if it is not known.
    """

    status = 409
    request_id: str
    by: str = ""

    def _text(self) -> str:
        return f"the request {self.request_id!r} was superseded{self.by and f' by {self.by!r}'}"


class RequestCancelledError(FlowError):
    """The request was cancelled before it had ended, so it has no result. Send it again if it is still wanted.

    Attributes:
        reason: Why, in words.
        cancelled_by: Who asked for it: ``"user:ann"``, ``"operator:eve"``, ``"operator"`` (at the command line),
            ``"caller"`` (it went away), ``"server"`` (it is stopping); empty if that is not known.
    """

    status = 409
    request_id: str
    reason: str = ""
    cancelled_by: str = ""

    def _text(self) -> str:
        return f"the request {self.request_id!r} was cancelled{self.reason and f': {self.reason}'}"


class RequestFailedError(FlowError):
    """The action raised. If the exception can be restored it is the cause; otherwise ``problem`` describes it."""

    request_id: str
    problem: str
    template = "the request {request_id!r} failed: {problem}"


class RequestInterruptedError(FlowError):
    """The server that ran the request went away before its end was recorded. It may have done part of its work.

    Send it again if doing that part twice is harmless; otherwise find out first what was done.
    """

    status = 503
    request_id: str
    template = "the request {request_id!r} was interrupted; how much of it was done is not known"


class RequestNotFoundError(FlowError, LookupError):
    """There is no request with that id for the caller: never, or not any more. Records are kept for an hour."""

    status = 404
    request_id: str
    template = "there is no request {request_id!r}"


class IdempotencyInFlightError(FlowError):
    """A request with the same idempotency key has not ended yet. Follow it by its id instead of sending it again."""

    status = 409
    request_id: str
    template = "the request {request_id!r} with the same idempotency key has not ended yet"


class IdempotencyMismatchError(FlowError, ValueError):
    """The idempotency key was used before, with another action or other data. Use a new key for a new request."""

    status = 422
    request_id: str
    template = "the request {request_id!r} has the same idempotency key and is another one"


class InputsTooLargeError(InvalidInputError):
    """A request brings more than can be recorded. Put the data where data is kept, and send where that is.

    Attributes:
        limit: The most bytes that there may be.
    """

    status = 413

    size: int = 0
    limit: int = 0


class HttpError(FlowError):
    """What came over HTTP was refused before a flow saw it. Nothing was started; ``advice`` says what to do next.

    Attributes:
        code: The name of the reason, as the answer has it in ``type``: ``"body-too-large"``.
        problem: What was wrong in this case.
        retry_after: After how many seconds it is worth trying again, if it is.
    """

    code: str
    problem: str
    retry_after: float = 1.0
    template = "{problem}"

    REASONS: ClassVar[Mapping[str, tuple[int, str, str]]] = MappingProxyType(
        {
            "body-too-large": (
                413,
                "The body of a request is larger than is taken here",
                "Send less, or raise the limit where the app is made.",
            ),
            "body-too-slow": (
                408,
                "The body of a request did not arrive in time, or broke off",
                "Send it again, in one go.",
            ),
            "headers-too-large": (
                431,
                "The headers of a request have more bytes, or are more, than is taken here",
                "Send less of them. standfast serve --header-bytes and --headers say how much is taken.",
            ),
            "headers-too-slow": (408, "The headers of a request did not arrive in time", "Send it again, in one go."),
            "invalid-header": (
                400,
                "A header of a request cannot be read",
                "Correct it, or leave it out; nothing was started.",
            ),
            "length-required": (
                411,
                "A chunked body came by a server that may show what follows it, the trailers, as headers",
                "Nothing was started. Send Content-Length. Or serve the application with standfast serve, or with uvicorn --http standfast.web.protocol:HttpProtocol: both keep trailers apart.",
            ),
            "malformed-request": (
                400,
                "What came is no request of HTTP/1.1, or one that others may read in another way",
                "Nothing was started.",
            ),
            "signing-keys-unavailable": (
                503,
                "The keys that access tokens are signed with cannot be read now, so no token can be checked",
                "Try again after a while. Why they cannot be read is in the log.",
            ),
            "too-many-connections": (
                503,
                "There are as many connections as the server takes, in all or from one address",
                "Try again after a while. standfast serve --connections and --connections-per-address say how many it takes. A proxy that brings the connections of many is named by --trust-proxy: then they are not counted as those of one address.",
            ),
            "unsupported-body": (
                415,
                "The body of a request is not of a kind that is taken here",
                "Send JSON, uncompressed, and say so in its headers.",
            ),
            "wrong-host": (
                421,
                "A request names a host that this application is not served under",
                'Nothing was started. Add it where the application is made: site=sf.web.Site(hosts=["api.example.com"]).',
            ),
            "wrong-origin": (
                403,
                "A request comes from a page that this application does not trust",
                'Nothing was started. Add it where the application is made: site=sf.web.Site(origins=["https://example.com"]).',
            ),
        }
    )
    """For each code its status, what happened, and what to do next."""

    def __init__(self, code: str, problem: str, retry_after: float = 1.0) -> None:
        StandfastError.__init__(self, code, problem, retry_after)
        self.__dict__["status"] = self.REASONS[code][0]  # of this case: of other errors it is the same in all

    @property
    def title(self) -> str:
        """What happened, in general."""
        return self.REASONS[self.code][1]

    @property
    def advice(self) -> str:
        """What to do next."""
        return self.REASONS[self.code][2]

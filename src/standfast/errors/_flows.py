"""Errors of flows: declarations that cannot work, and requests that are not run."""

from __future__ import annotations

from typing import ClassVar

from standfast.errors._root import StandfastError


class FlowError(StandfastError):
    """The root of what goes wrong with flows and requests.

    Attributes:
        status: The HTTP status that says the same.
    """

    status: ClassVar[int] = 500


class InvalidFlowError(FlowError, ValueError):
    """A flow, an action or a policy was declared in a way that cannot work. Nothing was written; fix the code."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where, self.problem = where, problem

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


class UnknownActionError(FlowError, LookupError):
    """There is no such flow here, or it has no such action. Check the names, and that the app was given the flow."""

    status = 404

    def __init__(self, flow: str, action: str, known: tuple[str, ...] = ()) -> None:
        super().__init__(flow, action, known)
        self.flow, self.action, self.known = flow, action, known

    def __str__(self) -> str:
        return f"there is no action {self.action!r} in a flow {self.flow!r}; there is {', '.join(self.known) or 'none'}"


class InvalidInputError(FlowError, ValueError):
    """What was sent is not what the action takes. Nothing was written; correct it and send it again.

    The message names the place in the data, never the data itself.
    """

    status = 422

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where, self.problem = where, problem

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


class InvalidArrivalError(FlowError, ValueError):
    """Who asks, for which session, or with which key cannot be written down. Nothing was; correct what is named."""

    status = 422

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(what, problem)
        self.what, self.problem = what, problem

    def __str__(self) -> str:
        return f"{self.what} {self.problem}"


class RequestKeyError(FlowError):
    """The function that gives an action's key failed. Nothing was written and nothing ran; fix the function.

    If it raised, that exception is the cause. It has to return text, or None where nothing is to be arbitrated.
    """

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where, self.problem = where, problem

    def __str__(self) -> str:
        return f"{self.where}: the key function {self.problem}"


class InvalidRequestKeyError(RequestKeyError, ValueError):
    """The key that follows from a request is text that cannot be one: empty, too long, or with control characters.

    Nothing was written and nothing ran. If the text comes from the caller's input, the caller has to correct it.
    """

    status = 422


class RequestRejectedError(FlowError):
    """Another request has the key, and the action's policy is not to wait. Nothing of this one was kept.

    Follow the other by its id, or send this one again when it has ended.

    Attributes:
        since: Since when the other has the key, by the store's time.
        holder_is_durable: Whether the other goes on if its process dies. Only then is dropping this one safe.
    """

    status = 409

    def __init__(
        self,
        key: str,
        request_id: str,
        since: int = 0,
        holder_status: str = "running",
        holder_is_durable: bool = True,  # noqa: FBT001, FBT002 -- pickled errors are restored by position
    ) -> None:
        super().__init__(key, request_id, since, holder_status, holder_is_durable)
        self.key, self.request_id, self.since, self.holder_status = key, request_id, since, holder_status
        self.holder_is_durable = holder_is_durable

    def __str__(self) -> str:
        return f"{self.key} is taken by the request {self.request_id!r} ({self.holder_status})"


class QueueFullError(FlowError):
    """So many requests wait for the key already that this one was not added. Send it again after a while.

    Attributes:
        retry_after: After how many seconds it is worth trying again, as far as can be told.
        holder: The request that has the key, if that is known.
        since: Since when it has the key, by the store's time.
    """

    status = 429

    def __init__(self, key: str, waiting: int, retry_after: float, holder: str = "", since: int = 0) -> None:
        super().__init__(key, waiting, retry_after, holder, since)
        self.key, self.waiting, self.retry_after, self.holder, self.since = key, waiting, retry_after, holder, since

    def __str__(self) -> str:
        held = self.holder and f" behind the request {self.holder!r}"
        return f"{self.waiting} requests wait for {self.key} already{held}; try again in {self.retry_after:g} s"


class QueueTimeoutError(FlowError, TimeoutError):
    """The request's turn did not come in time. It never ran and has left the line; it may be sent again.

    Attributes:
        holder: The request that had the key then, if that is known.
        since: Since when it had the key, by the store's time.
    """

    status = 503

    def __init__(self, key: str, seconds: float, holder: str = "", since: int = 0) -> None:
        super().__init__(key, seconds, holder, since)
        self.key, self.seconds, self.holder, self.since = key, seconds, holder, since

    def __str__(self) -> str:
        held = self.holder and f"; the request {self.holder!r} had it"
        return f"the turn at {self.key} did not come within {self.seconds:g} s{held}"


class WaitsForItselfError(FlowError):
    """The request would wait for a key or a limit that is held by one that waits for it, so neither could ever go on.

    The one that waits for it may have called it, or stand in a circle with others: each holds what the next one waits
    for. Call the function directly instead, give the inner action another key or limit, or do not wait for its result.
    """

    status = 409

    def __init__(self, key: str, request_id: str = "") -> None:
        super().__init__(key, request_id)
        self.key, self.request_id = key, request_id

    def __str__(self) -> str:
        return f"it would wait for {self.key}, which is held by one that waits for this request"


class ArbiterUnavailableError(FlowError):
    """Who may run cannot be decided now, because the store does not answer; so the request was not run. Try again."""

    status = 503

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"requests cannot be arbitrated now: {self.problem}"


class NotTheSoleServerError(FlowError, RuntimeError):
    """Another process serves this app already, and ``arbiter="local"`` is for one process only.

    Stop the other one first, or leave ``arbiter`` out: then any number of processes share the lines in the store.
    """

    status = 503

    def __init__(self, app: str, holder: str = "") -> None:
        super().__init__(app, holder)
        self.app, self.holder = app, holder

    def __str__(self) -> str:
        held = f" ({self.holder})" if self.holder else ""
        return f'{self.app} is served by another process{held}; stop that one, or leave out arbiter="local"'


class TooManyRequestsError(FlowError):
    """A limit of the app is reached, so the request was refused before anything was done. Try again after a while."""

    status = 429

    def __init__(self, what: str, limit: int, retry_after: float) -> None:
        super().__init__(what, limit, retry_after)
        self.what, self.limit, self.retry_after = what, limit, retry_after

    def __str__(self) -> str:
        return f"there are {self.limit} {self.what} already; try again in {self.retry_after:g} s"


class TooManyQuarantinedError(TooManyRequestsError):
    """So many durable requests of the tenant ended their servers that it gets no more for now; none was taken on.

    They are quarantined, and stay so until an operator looks: find what they have in common, mend it, and let each go on
    (``standfast runs retry``), or cancel it. Requests whose callers wait for them are not concerned.
    """

    def __str__(self) -> str:
        todo = "an operator has to retry or cancel them before more are taken on"
        return f"{self.limit} {self.what} ended their servers and are quarantined; {todo}"


class TooManyBytesError(TooManyRequestsError):
    """The store keeps as many bytes of the tenant as it may, so the request was refused before anything was written.

    They get fewer as requests, their events and sessions expire, and as ended runs are purged (``engine.purge(...)``).
    If the tenant needs more, raise ``sf.TenantLimits(bytes_kept=...)``. Requests that leave nothing in the store are not
    concerned.

    Attributes:
        kept: How many bytes are kept, as far as the server knew that refused it.
    """

    def __init__(self, what: str, limit: int, retry_after: float, kept: int) -> None:
        super().__init__(what, limit, retry_after)
        self.args = (what, limit, retry_after, kept)
        self.kept = kept

    def __str__(self) -> str:
        todo = "wait until some expire, purge ended runs, or raise TenantLimits(bytes_kept=...)"
        return f"there are {self.kept:,} {self.what} already, and {self.limit:,} is the limit; {todo}"


class RateExceededError(FlowError):
    """More requests came in a while than the action takes, so this one was refused before anything was written.

    Send it again when the time is over that the answer names.

    Attributes:
        what: What is counted: ``"requests of chat.respond for user 'ann'"``.
        limit: How many may come.
        per: In how many seconds.
        retry_after: After how many seconds the next one may come.
    """

    status = 429

    def __init__(self, what: str, limit: int, per: float, retry_after: float) -> None:
        super().__init__(what, limit, per, retry_after)
        self.what, self.limit, self.per, self.retry_after = what, limit, per, retry_after

    def __str__(self) -> str:
        return f"{self.limit} {self.what} may come in {self.per:g} s; try again in {self.retry_after:.3g} s"


class RequestSharedError(FlowError):
    """Other users share the run of this request, so it is not one user's to cancel. Leave it, or ask an operator.

    Requests that a policy has put together are one run, which has one result for all of them.
    """

    status = 409

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id

    def __str__(self) -> str:
        return f"the run of the request {self.request_id!r} is shared with other users, and goes on for them"


class AuthenticationError(FlowError):
    """Who asks is not known: there are no credentials, or they do not hold. Sign in, and send the request again."""

    status = 401

    def __init__(self, problem: str = "credentials are needed") -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


class ForbiddenError(FlowError, PermissionError):
    """Who asks is known, and may not do this. Somebody who may has to do it, or to give the role that is needed."""

    status = 403

    def __init__(self, what: str, roles: tuple[str, ...] = ()) -> None:
        super().__init__(what, roles)
        self.what, self.roles = what, roles

    def __str__(self) -> str:
        return f"{self.what} needs {' or '.join(map(repr, self.roles)) or 'a permission that is missing'}"


class SessionStateError(FlowError, ValueError):
    """What was done to a session's state does not fit what is there, so nothing of it was kept.

    An increment needs a number, an append a list, and all values have to be JSON-shaped. ``field`` says where.
    """

    status = 409

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field, self.problem = field, problem

    def __str__(self) -> str:
        return f"the field {self.field!r} of the session {self.problem}"


class SessionMissingError(SessionStateError):
    """The action keeps something in a session, and the request belongs to none, so nothing of it was kept.

    Send it again with a session: over HTTP in the header Standfast-Session, of a tool as standfast/session in _meta, of a
    webhook or a schedule with session= where it is declared, from Python as session= of the arrival.
    """

    status = 422

    def __str__(self) -> str:
        return f"the field {self.field!r} cannot be kept: {self.problem}"

"""Errors that tell what became of a request: of this one, or of the one that was sent with the same key."""

from __future__ import annotations

from standfast.errors._flows import FlowError


class RequestSupersededError(FlowError):
    """A newer request of the same key took this one's place, as the action's policy says. Ask for the newer one's result.

    Attributes:
        by: The id of the newer request; empty if it is not known.
    """

    status = 409

    def __init__(self, request_id: str, by: str = "") -> None:
        super().__init__(request_id, by)
        self.request_id, self.by = request_id, by

    def __str__(self) -> str:
        return f"the request {self.request_id!r} was superseded{self.by and f' by {self.by!r}'}"


class RequestCancelledError(FlowError):
    """The request was cancelled before it had ended, so it has no result. Send it again if it is still wanted.

    Attributes:
        reason: Why, in words.
        cancelled_by: Who asked for it: ``"user:ann"``, ``"operator:eve"``, ``"operator"`` (at the command line),
            ``"caller"`` (it went away), ``"server"`` (it is stopping); empty if that is not known.
    """

    status = 409
    cancelled_by = ""  # of those that were stored when it was not known

    def __init__(self, request_id: str, reason: str = "", cancelled_by: str = "") -> None:
        super().__init__(request_id, reason, cancelled_by)
        self.request_id, self.reason, self.cancelled_by = request_id, reason, cancelled_by

    def __str__(self) -> str:
        return f"the request {self.request_id!r} was cancelled{self.reason and f': {self.reason}'}"


class RequestFailedError(FlowError):
    """The action raised. If the exception can be restored it is the cause; otherwise ``problem`` describes it."""

    def __init__(self, request_id: str, problem: str) -> None:
        super().__init__(request_id, problem)
        self.request_id, self.problem = request_id, problem

    def __str__(self) -> str:
        return f"the request {self.request_id!r} failed: {self.problem}"


class RequestInterruptedError(FlowError):
    """The server that ran the request went away before its end was recorded. It may have done part of its work.

    Send it again if doing that part twice is harmless; otherwise find out first what was done.
    """

    status = 503

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id

    def __str__(self) -> str:
        return f"the request {self.request_id!r} was interrupted; how much of it was done is not known"


class RequestNotFoundError(FlowError, LookupError):
    """There is no request with that id for whoever asks: never, or not any more. Records are kept for an hour."""

    status = 404

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id

    def __str__(self) -> str:
        return f"there is no request {self.request_id!r}"


class IdempotencyInFlightError(FlowError):
    """A request with the same idempotency key has not ended yet. Follow it by its id instead of sending it again."""

    status = 409

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id

    def __str__(self) -> str:
        return f"the request {self.request_id!r} with the same idempotency key has not ended yet"


class IdempotencyMismatchError(FlowError, ValueError):
    """The idempotency key was used before, with another action or other data. Use a new key for a new request."""

    status = 422

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id

    def __str__(self) -> str:
        return f"the request {self.request_id!r} has the same idempotency key and is another one"

"""Errors of durable locks."""

from __future__ import annotations

from standfast.errors._root import StandfastError


class InvalidLockArgumentError(StandfastError, ValueError):
    """A lock was asked for something that makes no sense. Nothing was read or written; fix the call."""

    def __init__(self, what: str, given: str, problem: str) -> None:
        super().__init__(what, given, problem)
        self.what, self.given, self.problem = what, given, problem

    def __str__(self) -> str:
        return f"{self.given} cannot be the {self.what} of a lock: {self.problem}"


class LineFullError(StandfastError):
    """As many wait already as one record can hold. The caller was not enqueued; come back later, or shed the load.

    A lock of a space has no such limit: it keeps each waiter in a record of its own.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.limit:,} wait in this line already, which is all that its one record holds"


class TooHeavyError(StandfastError, ValueError):
    """More permits were asked for than there are, so waiting would never end. Ask for fewer, or raise the permits."""

    def __init__(self, key: str, weight: int, permits: int) -> None:
        super().__init__(key, weight, permits)
        self.key, self.weight, self.permits = key, weight, permits

    def __str__(self) -> str:
        return f"{self.weight} permits of {self.key} were asked for, and there are only {self.permits}"


class LeaseLostError(StandfastError):
    """The lock is no longer held: its lease lapsed, or it was taken away.

    What it protected may be in other hands. Stop writing; do not go on with the same hold. ``reason`` says what
    happened; a write that names the fence is refused from now on.
    """

    def __init__(self, key: str, fence: int, reason: str) -> None:
        super().__init__(key, fence, reason)
        self.key, self.fence, self.reason = key, fence, reason

    def __str__(self) -> str:
        return f"{self.key} is no longer held with fence {self.fence}: {self.reason}"


class WithdrawnError(StandfastError):
    """An operator took this waiter out of the line. Nothing is held and nobody waits.

    Find out why before asking again: a program that asks again at once defeats the operator.
    """

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"an operator took this waiter out of the line of {self.key}; find out why before asking again"


class LeaseTooShortError(StandfastError, ValueError):
    """The lease is too short to be kept: it would lapse before a renewal can be answered. Choose a longer one."""

    def __init__(self, lease: float, problem: str) -> None:
        super().__init__(lease, problem)
        self.lease, self.problem = lease, problem

    def __str__(self) -> str:
        return f"a lease of {self.lease:g} s is too short: {self.problem}; choose a longer one"


class LockKindError(StandfastError, TypeError):
    """The key is in use as another kind of lock. Nothing was taken; use another key, or the same kind everywhere."""

    def __init__(self, key: str, stored: str, asked: str) -> None:
        super().__init__(key, stored, asked)
        self.key, self.stored, self.asked = key, stored, asked

    def __str__(self) -> str:
        return f"{self.key} is in use as a {self.stored} and cannot be a {self.asked} at the same time"

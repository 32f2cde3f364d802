"""Errors of durable locks."""

from __future__ import annotations

from holdfast.errors._root import HoldfastError


class InvalidLockArgumentError(HoldfastError, ValueError):
    """A lock was asked for something that makes no sense. Nothing was read or written; fix the call."""

    def __init__(self, what: str, given: str, problem: str) -> None:
        super().__init__(what, given, problem)
        self.what, self.given, self.problem = what, given, problem

    def __str__(self) -> str:
        return f"{self.given} cannot be the {self.what} of a lock: {self.problem}"


class LineFullError(HoldfastError):
    """As many wait already as one record can hold. The caller was not enqueued; come back later, or shed the load.

    A lock of a space has no such limit: it keeps each waiter in a record of its own.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.limit:,} wait in this line already, which is all that its one record holds"


class TooHeavyError(HoldfastError, ValueError):
    """More permits were asked for than there are, so waiting would never end. Ask for fewer, or raise the permits."""

    def __init__(self, key: str, weight: int, permits: int) -> None:
        super().__init__(key, weight, permits)
        self.key, self.weight, self.permits = key, weight, permits

    def __str__(self) -> str:
        return f"{self.weight} permits of {self.key} were asked for, and there are only {self.permits}"

"""Errors of fence guards."""

from __future__ import annotations

from standfast.errors._root import StandfastError


class StaleFenceError(StandfastError):
    """The resource has seen a higher fence: the key has changed hands since this writer got it.

    Stop writing, roll back what belongs to the write, and do not retry with the same hold.
    """

    def __init__(self, resource: str, fence: int, highest: int) -> None:
        super().__init__(resource, fence, highest)
        self.resource, self.fence, self.highest = resource, fence, highest

    def __str__(self) -> str:
        return f"fence {self.fence} is stale at {self.resource!a}, which has seen {self.highest}; another holder writes now"


class InvalidFenceError(StandfastError, ValueError):
    """A number that cannot be a fence. Nothing was written; pass ``hold.fence`` as it is."""

    def __init__(self, given: str, problem: str) -> None:
        super().__init__(given, problem)
        self.given, self.problem = given, problem

    def __str__(self) -> str:
        return f"{self.given} cannot be a fence: {self.problem}"


class InvalidFenceGuardError(StandfastError, ValueError):
    """A fence guard was given a name that it cannot use. Nothing was written; fix the call."""

    def __init__(self, what: str, given: str, problem: str) -> None:
        super().__init__(what, given, problem)
        self.what, self.given, self.problem = what, given, problem

    def __str__(self) -> str:
        return f"{self.given} cannot be the {self.what} of a fence guard: {self.problem}"


class InvalidFenceHeaderError(StandfastError, ValueError):
    """A request came without a fence header that can be read. Refuse it, for example with status 400."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"the Standfast-Fence header {self.problem}; it looks like 'Standfast-Fence: invoice-7;42'"

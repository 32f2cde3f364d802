"""Errors of shared state, and of locks by hand on it."""

from __future__ import annotations

from standfast.errors._root import StandfastError


class AtomicStateConflictError(StandfastError):
    """Others kept changing the state while an async updater ran, and no try was left. Nothing was written.

    Try again later, allow more tries, or use a plain function as the updater: that cannot lose.
    """

    def __init__(self, state_key: str, attempts: int) -> None:
        super().__init__(state_key, attempts)
        self.state_key, self.attempts = state_key, attempts

    def __str__(self) -> str:
        return f"{self.state_key} was changed by others during each of {self.attempts} tries; nothing was written"


class StaleWriteError(StandfastError):
    """What a write depends on is no longer so: the state has another version, or the lock is in other hands.

    Nothing was written. Read again and decide anew; if it was a lock, stop: somebody else does the work now.
    """

    def __init__(self, state_key: str, guard_key: str, problem: str) -> None:
        super().__init__(state_key, guard_key, problem)
        self.state_key, self.guard_key, self.problem = state_key, guard_key, problem

    def __str__(self) -> str:
        return f"{self.state_key} was not written: {self.guard_key} {self.problem}"


class WrongStateTypeError(StandfastError, TypeError):
    """A state holds, or was given, something that the operation cannot work on. Nothing was written.

    Counting takes a number, merging a dict, appending and removing a list.
    """

    def __init__(self, state_key: str, operation: str, found: str) -> None:
        super().__init__(state_key, operation, found)
        self.state_key, self.operation, self.found = state_key, operation, found

    def __str__(self) -> str:
        return f"{self.operation} of {self.state_key} cannot work on {self.found}"


class InvalidStateArgumentError(StandfastError, ValueError):
    """A state was asked for something that makes no sense. Nothing was read or written; fix the call."""

    def __init__(self, what: str, given: str, problem: str) -> None:
        super().__init__(what, given, problem)
        self.what, self.given, self.problem = what, given, problem

    def __str__(self) -> str:
        return f"{self.given} cannot be the {self.what} of a state: {self.problem}"


class NotASlotError(StandfastError, TypeError):
    """A lock by hand was given something that cannot keep its record. Nothing was written.

    Give it an ``AtomicState``, a state handle of a workflow, or your own object with an awaitable ``transact``.
    """

    def __init__(self, given: str) -> None:
        super().__init__(given)
        self.given = given

    def __str__(self) -> str:
        return f"a lock by hand needs a slot with an awaitable transact(decide), got {self.given}"


class PermitsDisagreeError(StandfastError):
    """Two places use one semaphore with different numbers of permits, while somebody holds it or waits for it.

    The stored number stands; nothing was written. Make both places agree, then call ``resize`` once to change the
    number while the semaphore is in use.
    """

    def __init__(self, stored: int, given: int) -> None:
        super().__init__(stored, given)
        self.stored, self.given = stored, given

    def __str__(self) -> str:
        return f"this semaphore is in use with {self.stored} permits, and was asked for with {self.given}"

"""Errors of exclusion in one process."""

from __future__ import annotations

from standfast.errors._root import StandfastError


class UnknownModeError(StandfastError, ValueError):
    """The family does not declare this mode, or a mode is needed and none was given."""

    def __init__(self, family: str, mode: str | None, known: tuple[str, ...]) -> None:
        super().__init__(family, mode, known)
        self.family, self.mode, self.known = family, mode, known

    def __str__(self) -> str:
        if not self.known:
            return f"key family {self.family!r} declares no modes, so mode={self.mode!r} means nothing; drop it or declare modes=..."
        given = "no mode was given" if self.mode is None else f"mode {self.mode!r} is not declared"
        return f"{given} for key family {self.family!r}; choose one of {', '.join(map(repr, self.known))}"


class ReentryError(StandfastError, RuntimeError):
    """A task asked for a key that it already holds: waiting would never end.

    Take the key once, in the outermost function, and let the inner ones rely on it.
    """

    def __init__(self, key: str, taken: str, again: str) -> None:
        super().__init__(key, taken, again)
        self.key, self.taken, self.again = key, taken, again

    def __str__(self) -> str:
        return f"this task holds {self.key} since {self.taken} and asked for it again at {self.again}; take it once, in the outermost function"


class LockOrderError(StandfastError, RuntimeError):
    """A task took keys against the declared order. Take the key that comes first before the other one."""

    def __init__(self, held: str, held_at: str, wanted: str, wanted_at: str) -> None:
        super().__init__(held, held_at, wanted, wanted_at)
        self.held, self.held_at, self.wanted, self.wanted_at = held, held_at, wanted, wanted_at

    def __str__(self) -> str:
        return f"{self.wanted} must be taken before {self.held}, but {self.held} is held since {self.held_at} and {self.wanted} was asked for at {self.wanted_at}"


class WrongLoopError(StandfastError, RuntimeError):
    """An object was used from another event loop or thread than the one it belongs to.

    Make one such object for each event loop; to share between threads or processes, open a space on a store.
    """

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(what, problem)
        self.what, self.problem = what, problem

    def __str__(self) -> str:
        return f"{self.what} {self.problem}; make one for each event loop, or use a store to share between threads"


class HoldTimeoutError(StandfastError, TimeoutError):
    """The key did not become free in time. The caller no longer waits and holds nothing; try again later."""

    def __init__(self, key: str, timeout: float, holders: tuple[str, ...]) -> None:
        super().__init__(key, timeout, holders)
        self.key, self.timeout, self.holders = key, timeout, holders

    def __str__(self) -> str:
        by = ", ".join(self.holders) or "earlier waiters"
        return f"{self.key} did not become free within {self.timeout:g} s; held by {by}"


class WouldWaitError(StandfastError):
    """``try_hold`` found the key taken. Nothing is held and nobody waits; do something else or come back."""

    def __init__(self, key: str, holders: tuple[str, ...]) -> None:
        super().__init__(key, holders)
        self.key, self.holders = key, holders

    def __str__(self) -> str:
        return f"{self.key} is taken by {', '.join(self.holders) or 'earlier waiters'}"


class WaitCycleError(StandfastError, RuntimeError):
    """Waiting for the key would never end: its holder waits, perhaps through others, for this task.

    Take the keys in one order everywhere, and declare it: ``KeyFamily(..., after=(FIRST,))``. ``cycle`` names, in
    order, who holds what the one before waits for; the last is this task. Nothing was taken.
    """

    def __init__(self, key: str, wanted_at: str, cycle: tuple[str, ...]) -> None:
        super().__init__(key, wanted_at, cycle)
        self.key, self.wanted_at, self.cycle = key, wanted_at, cycle

    def __str__(self) -> str:
        return f"waiting for {self.key} at {self.wanted_at} would never end, as each waits for the next: {', '.join(self.cycle)}"


class HoldMisuseError(StandfastError, RuntimeError):
    """A hold was used as no ``async with`` block uses one. Call ``exclusion.hold(key)`` anew for each block."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(key, problem)
        self.key, self.problem = key, problem

    def __str__(self) -> str:
        return f"the hold of {self.key} {self.problem}; call exclusion.hold(...) anew for each block"


class NotAsyncError(StandfastError, TypeError):
    """Only a coroutine function can wait for a key: made with ``async def``, without ``yield``.

    Make it one, or use an ``async with`` block inside it or in its caller. ``@classmethod`` and ``@staticmethod`` stand
    above the hold.
    """

    def __init__(self, function: str) -> None:
        super().__init__(function)
        self.function = function

    def __str__(self) -> str:
        return (
            f"{self.function} cannot wait for a key, because it is not a coroutine function; make it an async def without"
            " yield, below any @classmethod or @staticmethod, or hold the key in a block"
        )


class InvalidAttemptsError(StandfastError, ValueError):
    """Attempts cannot be made as asked. Nothing was attempted and nothing is held; fix the call."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class RetryError(StandfastError):
    """An attempt asked to be made anew. It reaches the caller when no attempt was left."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number, self.reason = number, reason

    def __str__(self) -> str:
        return f"attempt {self.number} asked for another one: {self.reason}"


class StrayRetryError(StandfastError, RuntimeError):
    """A retry was asked of an attempt that is over, or asked for and never raised, so nobody would make it.

    Ask the attempt that is under way, and raise what it answers: ``raise attempt.retry()``.
    """

    def __init__(self, number: int, problem: str = "is over and cannot be made anew") -> None:
        super().__init__(number, problem)
        self.number, self.problem = number, problem

    def __str__(self) -> str:
        return f"attempt {self.number} {self.problem}; write raise attempt.retry(...), in the attempt that is under way"

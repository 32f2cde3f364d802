"""Errors of keys, locks and the state that they protect, in one process and on a store."""

from __future__ import annotations

from standfast.errors._root import StandfastError


class ReentryError(StandfastError, RuntimeError):
    """A task asked for a key that it already holds: waiting would never end.

    Take the key once, in the outermost function, and let the inner ones rely on it.
    """

    key: str
    taken: str
    again: str
    template = (
        "this task holds {key} since {taken} and asked for it again at {again}; take it once, in the outermost function"
    )


class LockOrderError(StandfastError, RuntimeError):
    """A task took keys against the declared order. Take the key that comes first before the other one."""

    held: str
    held_at: str
    wanted: str
    wanted_at: str
    template = "{wanted} must be taken before {held}, but {held} is held since {held_at} and {wanted} was asked for at {wanted_at}"


class HoldTimeoutError(StandfastError, TimeoutError):
    """The key did not become free in time. The caller no longer waits and holds nothing; try again later."""

    key: str
    timeout: float
    holders: tuple[str, ...]

    def _text(self) -> str:
        by = ", ".join(self.holders) or "earlier waiters"
        return f"{self.key} did not become free within {self.timeout:g} s; held by {by}"


class WouldWaitError(StandfastError):
    """``try_hold`` found the key taken. Nothing is held and nothing waits; do something else or try again later."""

    key: str
    holders: tuple[str, ...]

    def _text(self) -> str:
        return f"{self.key} is taken by {', '.join(self.holders) or 'earlier waiters'}"


class WaitCycleError(StandfastError, RuntimeError):
    """Waiting for the key would never end: its holder waits, perhaps through others, for this task.

    Take the keys in one order everywhere, and declare it: ``KeyFamily(..., after=(FIRST,))``. ``cycle`` names, in
    order, who holds what the one before waits for; the last is this task. Nothing was taken.
    """

    key: str
    wanted_at: str
    cycle: tuple[str, ...]
    template = "waiting for {key} at {wanted_at} would never end, as each waits for the next: {cycle}"


class RetryError(StandfastError):
    """An attempt asked for another one. It reaches the caller when no attempt was left."""

    number: int
    reason: str
    template = "attempt {number} asked for another one: {reason}"


class LineFullError(StandfastError):
    """As many wait already as one record can hold. The caller was not enqueued; come back later, or shed the load.

    A lock of a space has no such limit: it keeps each waiter in a record of its own.
    """

    limit: int
    template = "this line is full: its one record holds {limit:,} waiters"


class LockMismatchError(StandfastError, TypeError):
    """The key is in use as another kind of lock, with other permits, or at another rate. Nothing was taken.

    Use another key, or say the same everywhere. To change the permits of a semaphore in use, ``resize`` it once; to change
    the rate of a limiter, ``await limiter.change_rate()`` once.

    Attributes:
        stored: How it is in use.
        asked: How it was asked for.
    """

    key: str
    stored: str
    asked: str
    template = "{key} is in use: {stored}, not {asked}; say the same everywhere, or change it once for all"


class TooHeavyError(StandfastError, ValueError):
    """More permits were asked for than there are, so waiting would never end. Ask for fewer, or raise the permits."""

    key: str
    weight: int
    permits: int
    template = "{key} was asked for more permits ({weight}) than it has ({permits})"


class LeaseLostError(StandfastError):
    """The lock is no longer held: its lease lapsed, or it was taken away.

    What it protected may be in other hands. Stop writing; do not continue with the same hold. ``reason`` says what
    happened; a write that names the fence is refused from now on.
    """

    key: str
    fence: int
    reason: str
    template = "{key} is no longer held with fence {fence}: {reason}"


class WithdrawnError(StandfastError):
    """An operator took this waiter out of the line. Nothing is held and nothing waits.

    Find out why before asking again: a program that asks again at once defeats the operator.
    """

    key: str
    template = "an operator took this waiter out of the line of {key}; find out why before asking again"


class LeaseTooShortError(StandfastError, ValueError):
    """The lease is too short to be kept: it would lapse before a renewal can be answered. Choose a longer one."""

    lease: float
    problem: str
    template = "a lease of {lease:g} s is too short: {problem}; choose a longer one"


class RateTimeoutError(StandfastError, TimeoutError):
    """The turn did not come in time. The caller no longer waits and took nothing; try again later."""

    key: str
    timeout: float
    retry_after: float
    template = "the turn at {key} did not come within {timeout:g} s; it would have come {retry_after:.3g} s later"


class AtomicStateConflictError(StandfastError):
    """Others kept changing the state while an async updater ran, and no try was left. Nothing was written.

    Try again later, allow more tries, or use a plain function as the updater: that cannot lose.
    """

    state_key: str
    attempts: int
    template = "{state_key} was changed by others during every attempt ({attempts}); nothing was written"


class StaleWriteError(StandfastError):
    """What a write depends on has changed: the state has another version, or the lock is in other hands.

    Nothing was written. Read again and decide anew; if it was a lock, stop: another process does the work now.
    """

    state_key: str
    guard_key: str
    problem: str
    template = "{state_key} was not written: {guard_key} {problem}"


class StaleFenceError(StandfastError):
    """The resource has seen a higher fence: the key has changed hands since this writer got it.

    Stop writing, roll back what belongs to the write, and do not retry with the same hold.
    """

    resource: str
    fence: int
    highest: int
    template = "fence {fence} is stale at {resource!a}, which has seen {highest}; another holder writes now"


class RunHeldError(StandfastError):
    """Another activation executes this run. Nothing was taken; look at the run's state, or come back later.

    ``expires_at`` says, in microseconds of the store's time, when its lease ends unless it is renewed before; None: it
    was let go while this was found out, so trying again at once may succeed.
    """

    workflow: str
    run_id: str
    holder: str
    expires_at: int | None

    def _text(self) -> str:
        until = "until a moment ago" if self.expires_at is None else f"until {_shown(self.expires_at)}"
        return f"run {self.run_id!r} of {self.workflow!r} is held by {self.holder} {until}"


def _shown(instant: int) -> str:
    from datetime import UTC, datetime  # noqa: PLC0415 -- only needed to print it

    return datetime.fromtimestamp(instant / 1_000_000, UTC).isoformat(sep=" ", timespec="seconds")

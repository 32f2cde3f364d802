"""Errors of keys, locks and the state that they protect, in one process and on a store."""

from __future__ import annotations

from standfast.errors._root import StandfastError


class InvalidKeyError(StandfastError, ValueError):
    """A family name or a key part cannot be part of a key. Nothing was written; fix the value."""

    value: str
    problem: str
    template = "{value} cannot be part of a key: {problem}"


_HOW_TO_MAKE_A_KEY = (
    '; declare a family once at module level, FAMILY = KeyFamily("what-it-protects"), and make the key with FAMILY(...)'
)


class NotAKeyError(StandfastError, TypeError):
    """Something else was given where a key made by a family is wanted.

    Declare a family once, ``REPO = KeyFamily("repo")``, and make keys with it: ``REPO("/srv/repo")``.
    """

    given: str
    wanted: str = "Key"

    def _text(self) -> str:
        fix = "" if self.wanted != "Key" else _HOW_TO_MAKE_A_KEY
        return f"expected a {self.wanted}, got {self.given}{fix}"


class DuplicateFamilyError(StandfastError, ValueError):
    """Two places declare a key family of the same name, so their locks would collide.

    Rename one of them, or import the family from the place that declares it.
    """

    name: str
    first: str
    second: str

    def _text(self) -> str:
        if self.first == self.second:
            return f"key family {self.name!r} at {self.first} was declared again with other modes or order; restart the process"
        return f"key family {self.name!r} is declared at {self.first} and again at {self.second}; rename one or import the first"


class KeyTooLongError(InvalidKeyError):
    """A durable key is longer than every store can take.

    Shorten it: put a digest of the long part into the key (``hashlib.blake2b(text, digest_size=16).hexdigest()``)
    and the text itself into the record.
    """

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"a key of {length:,} bytes", f"at most {limit:,} are allowed")
        self.args = (length, limit)
        self.length, self.limit = length, limit

    def _text(self) -> str:
        return f"the key takes {self.length:,} bytes encoded, at most {self.limit:,} are allowed; put a digest of its long part into the key"


class UnknownModeError(StandfastError, ValueError):
    """The family does not declare this mode, or a mode is needed and none was given."""

    family: str
    mode: str | None
    known: tuple[str, ...]

    def _text(self) -> str:
        if not self.known:
            return f"key family {self.family!r} declares no modes, so mode={self.mode!r} means nothing; drop it or declare modes=..."
        given = "no mode was given" if self.mode is None else f"mode {self.mode!r} is not declared"
        return f"{given} for key family {self.family!r}; choose one of {', '.join(map(repr, self.known))}"


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


class WrongLoopError(StandfastError, RuntimeError):
    """An object was used from another event loop or thread than the one it belongs to.

    Make one such object for each event loop; to share between threads or processes, open a space on a store.
    """

    what: str
    problem: str
    template = "{what} {problem}; make one for each event loop, or use a store to share between threads"


class HoldTimeoutError(StandfastError, TimeoutError):
    """The key did not become free in time. The caller no longer waits and holds nothing; try again later."""

    key: str
    timeout: float
    holders: tuple[str, ...]

    def _text(self) -> str:
        by = ", ".join(self.holders) or "earlier waiters"
        return f"{self.key} did not become free within {self.timeout:g} s; held by {by}"


class WouldWaitError(StandfastError):
    """``try_hold`` found the key taken. Nothing is held and nobody waits; do something else or come back."""

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


class HoldMisuseError(StandfastError, RuntimeError):
    """A hold was used as no ``async with`` block uses one. Call ``exclusion.hold(key)`` anew for each block."""

    key: str
    problem: str
    template = "the hold of {key} {problem}; call exclusion.hold(...) anew for each block"


class NotAsyncError(StandfastError, TypeError):
    """Only a coroutine function can wait for a key: made with ``async def``, without ``yield``.

    Make it one, or use an ``async with`` block inside it or in its caller. ``@classmethod`` and ``@staticmethod`` stand
    above the hold.
    """

    function: str
    template = "{function} cannot wait for a key, because it is not a coroutine function; make it an async def without yield, below any @classmethod or @staticmethod, or hold the key in a block"


class InvalidAttemptsError(StandfastError, ValueError):
    """Attempts cannot be made as asked. Nothing was attempted and nothing is held; fix the call."""

    problem: str
    template = "{problem}"


class RetryError(StandfastError):
    """An attempt asked to be made anew. It reaches the caller when no attempt was left."""

    number: int
    reason: str
    template = "attempt {number} asked for another one: {reason}"


class StrayRetryError(StandfastError, RuntimeError):
    """A retry was asked of an attempt that is over, or asked for and never raised, so nobody would make it.

    Ask the attempt that is under way, and raise what it answers: ``raise attempt.retry()``.
    """

    number: int
    problem: str = "is over and cannot be made anew"
    template = "attempt {number} {problem}; write raise attempt.retry(...), in the attempt that is under way"


class InvalidLockArgumentError(StandfastError, ValueError):
    """A lock was asked for something that makes no sense. Nothing was read or written; fix the call."""

    what: str
    given: str
    problem: str
    template = "{given} cannot be the {what} of a lock: {problem}"


class LineFullError(StandfastError):
    """As many wait already as one record can hold. The caller was not enqueued; come back later, or shed the load.

    A lock of a space has no such limit: it keeps each waiter in a record of its own.
    """

    limit: int
    template = "{limit:,} wait in this line already, which is all that its one record holds"


class TooHeavyError(StandfastError, ValueError):
    """More permits were asked for than there are, so waiting would never end. Ask for fewer, or raise the permits."""

    key: str
    weight: int
    permits: int
    template = "{weight} permits of {key} were asked for, and there are only {permits}"


class LeaseLostError(StandfastError):
    """The lock is no longer held: its lease lapsed, or it was taken away.

    What it protected may be in other hands. Stop writing; do not go on with the same hold. ``reason`` says what
    happened; a write that names the fence is refused from now on.
    """

    key: str
    fence: int
    reason: str
    template = "{key} is no longer held with fence {fence}: {reason}"


class WithdrawnError(StandfastError):
    """An operator took this waiter out of the line. Nothing is held and nobody waits.

    Find out why before asking again: a program that asks again at once defeats the operator.
    """

    key: str
    template = "an operator took this waiter out of the line of {key}; find out why before asking again"


class LeaseTooShortError(StandfastError, ValueError):
    """The lease is too short to be kept: it would lapse before a renewal can be answered. Choose a longer one."""

    lease: float
    problem: str
    template = "a lease of {lease:g} s is too short: {problem}; choose a longer one"


class LockKindError(StandfastError, TypeError):
    """The key is in use as another kind of lock. Nothing was taken; use another key, or the same kind everywhere."""

    key: str
    stored: str
    asked: str
    template = "{key} is in use as a {stored} and cannot be a {asked} at the same time"


class InvalidRateError(StandfastError, ValueError):
    """A rate limiter was given something that makes no sense. Nothing was read or written; fix the call."""

    what: str
    given: str
    problem: str
    template = "{given} cannot be the {what} of a rate limiter: {problem}"


class CostTooHighError(StandfastError, ValueError):
    """More tokens were asked for than the bucket ever holds, so waiting would never end.

    Ask for fewer at a time, or give the limiter a larger capacity.
    """

    cost: int
    capacity: int
    template = "{cost:,} tokens were asked for, and the bucket never holds more than {capacity:,}"


class RateMismatchError(StandfastError):
    """Two sites use one rate limiter with different rates. Nothing was taken.

    Let all of them name the same capacity and interval. If the rate is meant to change, ``await
    limiter.change_rate()`` once; a limiter made with ``follow=True`` takes whatever rate is in use.
    """

    key: str
    capacity: int
    interval: float
    used_capacity: int
    used_interval: float

    def _text(self) -> str:
        used = f"capacity {self.used_capacity:,} and a token every {self.used_interval:g} s"
        return f"{self.key} is in use with {used}, not capacity {self.capacity:,} and a token every {self.interval:g} s; name the same rate everywhere, or change_rate()"


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
    template = "{state_key} was changed by others during each of {attempts} tries; nothing was written"


class StaleWriteError(StandfastError):
    """What a write depends on is no longer so: the state has another version, or the lock is in other hands.

    Nothing was written. Read again and decide anew; if it was a lock, stop: somebody else does the work now.
    """

    state_key: str
    guard_key: str
    problem: str
    template = "{state_key} was not written: {guard_key} {problem}"


class WrongStateTypeError(StandfastError, TypeError):
    """A state holds, or was given, something that the operation cannot work on. Nothing was written.

    Counting takes a number, merging a dict, appending and removing a list.
    """

    state_key: str
    operation: str
    found: str
    template = "{operation} of {state_key} cannot work on {found}"


class InvalidStateArgumentError(StandfastError, ValueError):
    """A state was asked for something that makes no sense. Nothing was read or written; fix the call."""

    what: str
    given: str
    problem: str
    template = "{given} cannot be the {what} of a state: {problem}"


class NotASlotError(StandfastError, TypeError):
    """A lock by hand was given something that cannot keep its record. Nothing was written.

    Give it an ``AtomicState``, a state handle of a workflow, or your own object with an awaitable ``transact``.
    """

    given: str
    template = "a lock by hand needs a slot with an awaitable transact(decide), got {given}"


class PermitsDisagreeError(StandfastError):
    """Two places use one semaphore with different numbers of permits, while somebody holds it or waits for it.

    The stored number stands; nothing was written. Make both places agree, then call ``resize`` once to change the
    number while the semaphore is in use.
    """

    stored: int
    given: int
    template = "this semaphore is in use with {stored} permits, and was asked for with {given}"


class StaleFenceError(StandfastError):
    """The resource has seen a higher fence: the key has changed hands since this writer got it.

    Stop writing, roll back what belongs to the write, and do not retry with the same hold.
    """

    resource: str
    fence: int
    highest: int
    template = "fence {fence} is stale at {resource!a}, which has seen {highest}; another holder writes now"


class InvalidFenceError(StandfastError, ValueError):
    """A number that cannot be a fence. Nothing was written; pass ``hold.fence`` as it is."""

    given: str
    problem: str
    template = "{given} cannot be a fence: {problem}"


class InvalidFenceGuardError(StandfastError, ValueError):
    """A fence guard was given a name that it cannot use. Nothing was written; fix the call."""

    what: str
    given: str
    problem: str
    template = "{given} cannot be the {what} of a fence guard: {problem}"


class InvalidFenceHeaderError(StandfastError, ValueError):
    """A request came without a fence header that can be read. Refuse it, for example with status 400."""

    problem: str
    template = "the Standfast-Fence header {problem}; it looks like 'Standfast-Fence: invoice-7;42'"


class RunHeldError(StandfastError):
    """Another activation drives this run. Nothing was taken; look at the run's state, or come back later.

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
    from datetime import UTC, datetime  # noqa: PLC0415 -- only whoever prints it needs it

    return datetime.fromtimestamp(instant / 1_000_000, UTC).isoformat(sep=" ", timespec="seconds")

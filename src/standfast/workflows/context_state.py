"""States of a workflow: shared ones in the store, changed once by each operation, and one that is private to a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, final, overload

from standfast.clock import later, seconds_between
from standfast.durations import optional_seconds
from standfast.errors import ArgumentTypeError, LineFullError, RateTimeoutError, SessionStateValidationError
from standfast.locks.rate_limiter import Pass, RateLimiter
from standfast.locks.state import LONGEST_KEY, MAX_RETRIES, Slots
from standfast.workflows import operations
from standfast.workflows.control import RunCancelled
from standfast.workflows.transactions import RecordedScope
from standfast.workflows.values import Typed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.keys import Key
    from standfast.locks.state import AtomicState
    from standfast.workflows.activation import Activation
    from standfast.workflows.replay import Branch
    from standfast.workflows.runtime import Runtime


# --- rate limiters in a workflow: tokens are taken once, and waiting for them costs nothing ------------------------

SHORTEST_PAUSE: Final = 0.01
FULL_PAUSE: Final = 30.0
"""Seconds until a run asks again that found no room in the line."""


@final
class ContextRateLimiter:
    """A rate limiter as a run uses it. Get it from ``ctx.rate_limiter``.

    >>> @sf.workflow
    ... async def greet(ctx: sf.Context, address: str) -> None:
    ...     async with ctx.rate_limiter("mails", interval="600ms", capacity=10):
    ...         await ctx.step(send_mail, address)

    It is the same limiter as ``space.rate_limiter`` of that key, with the same line in front of it.
    """

    __slots__ = ("_activation", "_find_branch", "_key", "_limiter")

    def __init__(
        self,
        activation: Activation,
        find_branch: Callable[[str], Branch],
        key: Key | str,
        *,
        interval: Duration,
        capacity: int,
        follow: bool,
    ) -> None:
        scope = RecordedScope(activation, find_branch, "rate_limiter", answers=Pass | bool)
        self._activation, self._find_branch, self._key = activation, find_branch, str(key)
        self._limiter: Final = RateLimiter(scope, key, capacity=capacity, interval=interval, follow=follow)

    def __repr__(self) -> str:
        return f"<ContextRateLimiter {self._limiter!r}>"

    async def try_acquire(self, cost: int = 1) -> Pass:
        """Take ``cost`` tokens if they are there and no caller is in front; answer at once; leave nothing behind."""
        return await self._limiter.try_acquire(cost)

    async def acquire(self, cost: int = 1, *, timeout: Duration | None = None) -> None:
        """Take ``cost`` tokens, sleeping in line for as long as it takes, or until ``timeout`` is over.

        Raises:
            RateTimeoutError: The turn did not come in time; nothing was taken.
            InvalidArgumentError: The bucket never holds that many tokens.
            LockMismatchError: The limiter is in use with another rate.
        """
        limit = optional_seconds(timeout, what="timeout")
        branch = self._find_branch("ctx.rate_limiter")
        waiter = f"{self._activation.keys.id}:{branch.next_id('rate_waiter')}"
        until = None if limit is None else later(await operations.now(self._activation, branch), limit)
        try:
            missed = await self._wait_in_line(branch, cost, waiter, until)
        except RunCancelled:
            await self._limiter.withdraw(waiter)
            raise
        if missed is not None:
            await self._limiter.withdraw(waiter)
            raise RateTimeoutError(self._key, limit or 0.0, missed)

    async def _wait_in_line(self, branch: Branch, cost: int, waiter: str, until: Instant | None) -> float | None:
        """Return None when the tokens are taken, or how long it would still take when the time is over."""
        while (pause := await self._pause(cost, waiter)) is not None:
            if until is not None and await operations.now(self._activation, branch) >= until:
                return pause
            await self._sleep(branch, pause, until)
        return None

    async def _pause(self, cost: int, waiter: str) -> float | None:
        """Ask for the tokens; return None if they are taken, or after how many seconds to ask again."""
        try:
            answer = await self._limiter.try_acquire(cost, waiter=waiter)
        except LineFullError:
            return FULL_PAUSE
        if answer.granted:
            return None
        return max(SHORTEST_PAUSE, min(answer.retry_after, answer.keep_within / 2))

    async def _sleep(self, branch: Branch, pause: float, until: Instant | None) -> None:
        def wakes_at(now: Instant) -> Instant:
            left = pause if until is None else min(pause, max(SHORTEST_PAUSE, seconds_between(now, until)))
            return later(now, left)

        await operations.sleep_until(self._activation, branch, wakes_at)

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *exc: object) -> None:
        """Give nothing back: a token is spent."""


# --- states of a workflow: shared ones in the store, changed once by each operation, and one that is private to a
# run ---

T = TypeVar("T")
Item = TypeVar("Item")
Number = TypeVar("Number", bound=float)

MOST_KEYS: Final = 256
MOST_BYTES: Final = 32 * 1024
"""How many session states a run has at most, and how many bytes of JSON they take together."""


@final
class ContextState:
    """The states of a run, as ``ctx.state``.

    >>> @sf.workflow
    ... async def visit(ctx: sf.Context) -> int:
    ...     return await ctx.state.workflow("visits", type=int, initial=0).increment()

    Each is an :class:`~standfast.locks.AtomicState`, and each call of one of its methods is an operation of the run:
    the change and the record of it are one commit, so that it happens once. When the run is replayed, the methods
    return what they returned. An updater runs again then, on what it saw: it must do nothing but compute.

    Locks by hand work on them, with ``ctx.sleep`` to wait:
    ``await DurableMutex().acquire(slot, ctx.run_id, sleep=ctx.sleep)``.
    """

    __slots__ = ("_execution", "_run", "_session", "_slots", "_workflow")

    def __init__(self, scope: RecordedScope, workflow: str, execution: str, run: str) -> None:
        self._slots: Final = Slots(scope)
        self._workflow, self._execution, self._run = workflow, execution, run
        self._session: Final[dict[str, bytes]] = {}

    @overload
    def workflow(
        self, key: str, *, type: type[T], initial: T | None = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[T]: ...
    @overload
    def workflow(
        self, key: str, *, type: object = Any, initial: object = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[Any]: ...

    def workflow(self, key: str, **options: Any) -> AtomicState[Any]:
        """Return a state that all runs of this workflow share. It stays until it is deleted.

        From outside it is ``engine.state.workflow(name, key)``.
        """
        return self._slots.workflow(self._workflow, key, **options)

    @overload
    def execution(
        self, key: str, *, type: type[T], initial: T | None = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[T]: ...
    @overload
    def execution(
        self, key: str, *, type: object = Any, initial: object = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[Any]: ...

    def execution(self, key: str, **options: Any) -> AtomicState[Any]:
        """Return a state that this run shares with its parents and children. It goes when the first run is purged."""
        return self._slots.execution(self._execution, key, **options)

    @overload
    def run(
        self, key: str, *, type: type[T], initial: T | None = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[T]: ...
    @overload
    def run(
        self, key: str, *, type: object = Any, initial: object = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[Any]: ...

    def run(self, key: str, **options: Any) -> AtomicState[Any]:
        """Return a state of this run alone, which others can look at. It goes when the run is purged."""
        return self._slots.run(self._run, key, **options)

    @overload
    def shared(
        self, key: str, *, type: type[T], initial: T | None = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[T]: ...
    @overload
    def shared(
        self, key: str, *, type: object = Any, initial: object = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[Any]: ...

    def shared(self, key: str, **options: Any) -> AtomicState[Any]:
        """Return a state that everyone in the space shares: what several workflows agree on."""
        return self._slots.shared(key, **options)

    @overload
    def session(self, key: str, *, type: type[T], initial: T | None = None) -> SessionState[T]: ...
    @overload
    def session(self, key: str, *, type: object = Any, initial: object = None) -> SessionState[Any]: ...

    def session(self, key: str, *, type: Any = Any, initial: Any = None) -> SessionState[Any]:  # noqa: A002 -- as the others
        """Return a state in the memory of this run: plain calls, nothing stored, the same again when it is replayed."""
        return SessionState(self._session, key, type, initial)


@final
class SessionState(Generic[T]):
    """A value that a run keeps for itself. Its code sets it, so replaying the code sets it again: nothing is stored.

    Get it from ``ctx.state.session(key)``. Values are copied on the way in and out. All of a run's together are at most
    256 keys and 32 kB of JSON.

    Raises:
        SessionStateValidationError: The key, or the value, is not allowed. Nothing has changed.
    """

    __slots__ = ("_initial", "_key", "_typed", "_values")

    def __init__(self, values: dict[str, bytes], key: str, of: Any, initial: T | None) -> None:  # noqa: ANN401 -- any type that can be stored
        if not isinstance(key, str) or not 1 <= len(key) <= LONGEST_KEY:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise SessionStateValidationError(repr(key)[:80], f"a key is text of 1 to {LONGEST_KEY} characters")
        self._values, self._key = values, key
        self._typed: Final[Typed[Any]] = Typed(of, f"the session state {key!r}")
        self._initial: Final = None if initial is None else self._typed.pack(initial)

    def __repr__(self) -> str:
        return f"<SessionState {self._key}>"

    def get(self) -> T | None:
        """Return the value: a copy that is yours. One that was never set, or was deleted, reads as ``initial``."""
        packed = self._values.get(self._key, self._initial)
        return None if packed is None else cast("T", self._typed.unpack(packed))

    def set(self, value: T) -> None:
        """Set the value."""
        packed = self._typed.pack(value)
        others = {key: each for key, each in self._values.items() if key != self._key}
        if len(others) >= MOST_KEYS:
            raise SessionStateValidationError(self._key, f"a run has at most {MOST_KEYS} of them")
        size = sum(len(key.encode("utf-8", "surrogatepass")) + len(each) for key, each in others.items())
        if size + len(self._key.encode("utf-8", "surrogatepass")) + len(packed) > MOST_BYTES:
            raise SessionStateValidationError(self._key, f"all of a run's take at most {MOST_BYTES:,} bytes together")
        self._values[self._key] = packed

    def delete(self) -> None:
        """Let it read as ``initial`` again."""
        self._values.pop(self._key, None)

    def update(self, updater: Callable[[T | None], T]) -> T:
        """Set what ``updater`` makes of the value, and return it."""
        self.set(updater(self.get()))
        return cast("T", self.get())

    def increment(self: SessionState[Number], by: Number | int = 1) -> Number:
        """Add ``by`` and return the sum. Nothing counts as 0."""
        value: Any = self.get() or 0
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._unfit("increment", value)
        return self.update(lambda _: cast("Number", value + by))

    def append(self: SessionState[list[Item]], *items: Item) -> list[Item]:
        """Add items at the end of a list, and return it all. Nothing counts as an empty list."""
        value: Any = self.get() or []
        if not isinstance(value, list):
            raise self._unfit("append", value)
        return self.update(lambda _: [*cast("list[Item]", value), *items])

    def merge(self: SessionState[dict[str, Item]], changes: Mapping[str, Item]) -> dict[str, Item]:
        """Set the entries of a dict that ``changes`` names, and return all. Nothing counts as an empty dict."""
        value: Any = self.get() or {}
        if not isinstance(value, dict):
            raise self._unfit("merge", value)
        return self.update(lambda _: {**cast("dict[str, Item]", value), **changes})

    def _unfit(self, operation: str, value: object) -> ArgumentTypeError:
        return ArgumentTypeError(f"a value that {operation} of {self._key} can work on", f"a {type(value).__name__}")


async def clear_execution(runtime: Runtime, root: str) -> int:
    """Remove every state of an execution, when its whole tree of runs is purged; return how many there were."""
    return await runtime.space.state.clear_execution(root)


async def clear_run(runtime: Runtime, run_id: str) -> int:
    """Remove every state of a run, when it is purged; return how many there were."""
    return await runtime.space.state.clear_run(run_id)

"""Rate limiters in a workflow: tokens are taken once, and waiting for them costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from standfast.clock import later, seconds_between
from standfast.durations import optional_seconds
from standfast.errors import LineFullError, RateTimeoutError
from standfast.locks.rates.bucket import Pass
from standfast.locks.rates.rate_limiter import RateLimiter
from standfast.workflows.context import operations
from standfast.workflows.context.recorded_scope import RecordedScope
from standfast.workflows.running.control import RunCancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.keys import Key
    from standfast.workflows.running.activation import Activation
    from standfast.workflows.running.branches import Branch

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
        """Take ``cost`` tokens if they are there and nobody is in front; answer at once, and leave nothing behind."""
        return await self._limiter.try_acquire(cost)

    async def acquire(self, cost: int = 1, *, timeout: Duration | None = None) -> None:
        """Take ``cost`` tokens, sleeping in line for as long as it takes, or until ``timeout`` is over.

        Raises:
            RateTimeoutError: The turn did not come in time; nothing was taken.
            CostTooHighError: The bucket never holds that many tokens.
            RateMismatchError: The limiter is in use with another rate.
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

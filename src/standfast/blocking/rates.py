"""The durable rate limiter for blocking code."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Generator

    from standfast.blocking._link import Bound
    from standfast.durations import Duration
    from standfast.locks import Pass, RateState
    from standfast.locks import RateLimiter as AsyncRateLimiter


@final
class RateLimiter:
    """A token bucket that all processes on a store share, with a line in front of it.

    Get it from ``space.rate_limiter``.

    >>> with sf.blocking.open("memory://") as space:
    ...     mails = space.rate_limiter("mails", capacity=2, interval="1 minute")
    ...     print([mails.try_acquire().granted for _ in range(3)])
    [True, True, False]
    """

    __slots__ = ("_limiter",)

    def __init__(self, limiter: Bound[AsyncRateLimiter]) -> None:
        self._limiter: Final = limiter

    def __repr__(self) -> str:
        return f"<blocking {self._limiter.now()[1]!r}>"

    def try_acquire(self, cost: int = 1, *, waiter: str | None = None) -> Pass:
        """Take ``cost`` tokens if they are there and nobody is in front; answer at once.

        With ``waiter`` the caller stands in line under that id and keeps its place by asking again within
        ``answer.keep_within`` seconds; one that is no longer interested calls :meth:`withdraw`.

        Raises:
            InvalidArgumentError: The bucket never holds that many tokens.
            LineFullError: 1,000 wait already.
            LockMismatchError: The limiter is in use with another rate.
        """
        return self._limiter.call(lambda limiter: limiter.try_acquire(cost, waiter=waiter))

    def acquire(self, cost: int = 1, *, timeout: Duration | None = None) -> None:
        """Take ``cost`` tokens, waiting in line for as long as it takes, or until ``timeout`` is over.

        Whoever is interrupted or runs out of time leaves the line before the exception is raised.

        Raises:
            RateTimeoutError: The turn did not come in time; nothing was taken.
            InvalidArgumentError: The bucket never holds that many tokens.
            LineFullError: 1,000 wait already.
            LockMismatchError: The limiter is in use with another rate.
        """
        self._limiter.call(lambda limiter: limiter.acquire(cost, timeout=timeout))

    @contextmanager
    def limited(self, cost: int = 1, *, timeout: Duration | None = None) -> Generator[None, None, None]:
        """Run a block when its turn has come: ``with limiter.limited():``. Leaving it gives nothing back."""
        self.acquire(cost, timeout=timeout)
        yield

    def withdraw(self, waiter: str) -> bool:
        """Leave the line. Tells whether the waiter stood in it until now; doing it twice is harmless."""
        return self._limiter.call(lambda limiter: limiter.withdraw(waiter))

    def close_for(self, length: Duration) -> None:
        """Let nobody pass for a while, as when the other side has answered "too many requests, retry after"."""
        self._limiter.call(lambda limiter: limiter.close_for(length))

    def open_again(self) -> None:
        """End a cool-down early."""
        self._limiter.call(lambda limiter: limiter.open_again())

    def change_rate(self) -> None:
        """Make this limiter's capacity and interval those in use; waiters keep their places."""
        self._limiter.call(lambda limiter: limiter.change_rate())

    def inspect(self) -> RateState:
        """Return the tokens, the cool-down and the line as they are now. Nothing is changed."""
        return self._limiter.call(lambda limiter: limiter.inspect())

"""Optimistic attempts under a key: exclusion in two layers.

Inside the process a key lets one task try at a time. Against other processes there is no lock, only the chance to
lose a race (a push that is refused, a version that has moved), and losing means to start over. The key makes that
cheap: tasks of one process never lose races against each other.
"""

from __future__ import annotations

import asyncio
import random
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar, final

from msgspec import Struct

from standfast.clock import monotonic
from standfast.durations import Duration, seconds
from standfast.errors import InvalidArgumentError, RetryError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager


T = TypeVar("T")

_MAX_DOUBLINGS: Final = 30


class Backoff(Struct, frozen=True):
    """How long to wait between attempts: a random part of a span that doubles, so that rivals drift apart."""

    first: Duration = "50ms"
    """The span after the first attempt. 0 means no delay at all."""
    longest: Duration = "2 seconds"
    """What the span grows to."""

    def __post_init__(self) -> None:
        """Refuse what is no duration."""
        seconds(self.first, what="first delay")
        seconds(self.longest, what="longest delay")

    def delay(self, number: int, chance: float) -> float:
        """Return the seconds to wait after attempt ``number``, given a random number from 0 to 1."""
        span = seconds(self.first) * 2.0 ** min(number - 1, _MAX_DOUBLINGS)
        return chance * min(span, seconds(self.longest))


@final
class Attempt:
    """One attempt: its number, and the way to ask for another."""

    __slots__ = ("asked", "elapsed", "is_over", "number")

    def __init__(self, number: int, elapsed: float) -> None:
        self.number: Final = number
        """Which attempt this is, from 1."""
        self.elapsed: Final = elapsed
        """The seconds from the beginning of the first attempt to that of this one."""
        self.asked: RetryError | None = None
        """The retry that was asked for."""
        self.is_over = False

    def retry(self, reason: str = "it was asked for") -> RetryError:
        """Return the error to raise in order to start over, where no conflict of its own is at hand.

            if copy.is_stale():
                raise attempt.retry("the copy is stale")

        Raises:
            UsageError: The attempt is over. :func:`attempt_under` raises it, too, for a retry that is asked for
                and never raised.
        """
        if self.is_over:
            raise _stray(self.number, "is over and cannot be made anew")
        self.asked = RetryError(self.number, reason)
        return self.asked

    def __repr__(self) -> str:
        return f"<Attempt {self.number}{' (over)' if self.is_over else ''}>"


async def attempt_under(
    hold: AbstractAsyncContextManager[object],
    work: Callable[[Attempt], Awaitable[T]],
    *,
    retry_on: type[Exception] | tuple[type[Exception], ...] = (),
    attempts: int | None = 5,
    backoff: Backoff = Backoff(),  # noqa: B008 -- it is frozen
    preflight: Callable[[], Awaitable[object]] | None = None,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    chance: Callable[[], float] = random.random,
) -> T:
    """Do ``work`` while holding a key, and start it over when it loses a race against another process.

        async def push(attempt: Attempt) -> str:
            with temporary_clone() as clone:
                change(clone)
                return clone.push()  # raises PushError when another process was faster

        commit = await attempt_under(exclusion.hold(REPO(path)), push, retry_on=PushError)

    The key is held from before ``preflight`` until after the last attempt, through all delays, and is freed in every
    outcome. Each attempt starts from nothing, so ``work`` must clean up after itself and change nothing outside that
    may not be changed twice.

    Args:
        hold: What to hold meanwhile: ``exclusion.hold(key)``, or any other async context manager.
        work: One attempt. What it returns is returned.
        retry_on: The errors that mean a lost race. Any other error ends the attempts at once.
        attempts: How many to make at most; None makes as many as it takes.
        backoff: How long to wait between attempts.
        preflight: Done once, under the same key, before the first attempt.
        sleep: Waits for the given seconds.
        chance: Gives random numbers from 0 to 1.

    Raises:
        Exception: What the last attempt raised, if that was the last one; for ``attempt.retry()`` a
            :class:`~standfast.errors.RetryError`.
        InvalidArgumentError: The arguments make no sense. Nothing was attempted.
    """
    conflicts = _conflicts(retry_on, attempts)
    async with hold:
        if preflight is not None:
            await preflight()
        started = monotonic()
        for number in count(1):
            attempt = Attempt(number, monotonic() - started)
            try:
                return _result(attempt, await work(attempt))
            except Exception as error:
                if number == attempts or not _is_lost(attempt, error, conflicts):
                    raise
            finally:
                attempt.is_over = True
            await sleep(backoff.delay(number, chance()))
    raise AssertionError  # pragma: no cover -- count() never ends


def _stray(number: int, problem: str) -> UsageError:
    return UsageError(f"attempt {number}", problem, "write raise attempt.retry(...) in the attempt that is under way")


def _result(attempt: Attempt, result: T) -> T:
    """Return ``result``, unless a retry was asked for and never raised: the work would be taken for done."""
    if attempt.asked is not None and attempt.asked.__traceback__ is None:
        raise _stray(attempt.number, "asked to be made anew but did not raise what retry() returned")
    return result


def _is_lost(attempt: Attempt, error: Exception, conflicts: tuple[type[Exception], ...]) -> bool:
    """Return True if ``error`` asks for another attempt; a retry that was asked of an outer attempt is not ours."""
    return error is attempt.asked if isinstance(error, RetryError) else isinstance(error, conflicts)


def _conflicts(
    retry_on: type[Exception] | tuple[type[Exception], ...], attempts: int | None
) -> tuple[type[Exception], ...]:
    """Return ``retry_on`` as a tuple; refuse what would never be made or would swallow a cancellation."""
    if attempts is not None and (type(attempts) is not int or attempts < 1):
        raise InvalidArgumentError("attempts", "it must be 1 or more, or None for no limit", repr(attempts))
    conflicts = retry_on if isinstance(retry_on, tuple) else (retry_on,)
    unfit = [kind for kind in conflicts if Exception not in getattr(kind, "__mro__", ())]
    if unfit:
        raise InvalidArgumentError("retry_on", "it must be a kind of Exception", repr(unfit[0]))
    return conflicts

"""The durable rate limiter: so many at once, one more every so often, in order of arrival, across processes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar, final

from msgspec import Struct

from standfast.clock import later, seconds_between
from standfast.codec import Codec
from standfast.durations import optional_seconds, seconds
from standfast.errors import RateMismatchError, RateTimeoutError, StoreError
from standfast.ids import new_id
from standfast.locks.driving.lines import PROBE_EVERY
from standfast.locks.rates import bucket as algebra
from standfast.locks.rates.bucket import Bucket, Pass
from standfast.stores.protocol import Decision, Delete, Put, Wake
from standfast.stores.proving import tied_lifeline

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.keys import Key, RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Record, Snapshot, Watch

T = TypeVar("T")

BUCKETS: Final[Codec[Bucket]] = Codec(Bucket, what="the bucket of a rate limiter")

_SHORTEST_PAUSE: Final = 0.001  # two clocks never agree exactly; asking a moment early must not become a busy loop
_UNHINTED: Final = 1.0  # a line that is late must not be asked by everybody in it


class WaitingForTokens(Struct, frozen=True, gc=False):
    """Who stands in line: its id, the tokens it wants, and the seconds until its turn and until it counts as gone."""

    id: str
    cost: int
    turn_in: float
    expires_in: float


class RateState(Struct, frozen=True):
    """A rate limiter as it is now.

    Attributes:
        capacity: The most tokens that the bucket holds.
        interval: Seconds in which a token is earned.
        tokens: How many are there now.
        closed_for: Seconds for which nobody passes, whatever tokens there are.
        waiters: Who stands in line, in order.
    """

    capacity: int
    interval: float
    tokens: int
    closed_for: float
    waiters: tuple[WaitingForTokens, ...]


@final
class RateLimiter:
    """A token bucket that all processes on a store share, with a line in front of it.

    >>> async with sf.open("memory://") as space:
    ...     mails = space.rate_limiter("mails", capacity=2, interval="1 minute")
    ...     for _ in range(3):
    ...         answer = await mails.try_acquire()
    ...         print(answer.granted, answer.position, round(answer.retry_after))
    True -1 0
    True -1 0
    False 0 60

    No window of time sees more than ``capacity + window / interval`` tokens spent, by the store's clock, whoever asks
    from wherever. There is no release. A caller that is cancelled when its tokens were just taken has spent them.

    Args:
        scope: The space that the limiter lives in.
        key: What is limited.
        capacity: How many may pass at once after a quiet time.
        interval: The time in which one more may pass: ``"600ms"`` is a hundred a minute.
        waiter_ttl: How long a waiter that does not ask again keeps its place; 30 s or four intervals if not told. A
            process that dies in :meth:`acquire` holds nobody up where the store sees it die (SQLite, PostgreSQL);
            elsewhere it holds up those behind it for that time and up to a third of it more.
        follow: Take the rate that is in use where it differs, instead of raising RateMismatchError; for the time of a
            roll-out.

    Raises:
        InvalidRateError: The capacity makes no sense.
        InvalidDurationError: The interval or the waiters' time to live makes no sense.
    """

    __slots__ = ("_follow", "_key", "_rate", "_record", "_scope", "_ttl")

    def __init__(
        self,
        scope: Scope,
        key: Key | str,
        *,
        capacity: int = 1,
        interval: Duration,
        waiter_ttl: Duration | None = None,
        follow: bool = False,
    ) -> None:
        self._scope: Final = scope
        self._key: Final = str(key)
        self._record: Final = scope.key_for("rate", key)
        self._rate: Final = algebra.check_rate(capacity, interval)
        self._ttl: Final = algebra.check_waiter_ttl(waiter_ttl, self._rate)
        self._follow: Final = follow

    def __repr__(self) -> str:
        return f"<RateLimiter {self._key}: {self._rate.capacity} at once, one every {self._rate.seconds:g} s>"

    # --- passing ------------------------------------------------------------------------------------------------

    async def try_acquire(self, cost: int = 1, *, waiter: str | None = None) -> Pass:
        """Take ``cost`` tokens if they are there and nobody is in front; answer at once.

        Without ``waiter`` a caller that was not granted leaves nothing behind. With it, the caller stands in line
        under that id and keeps its place by asking again within ``answer.keep_within`` seconds; one that is no longer
        interested calls :meth:`withdraw`.

        Raises:
            CostTooHighError: The bucket never holds that many tokens.
            LineFullError: 1,000 wait already.
            RateMismatchError: The limiter is in use with another rate.
        """
        return await self._update(lambda bucket, now: self._ask(bucket, cost, now, waiter))

    def _ask(
        self, bucket: Bucket, cost: int, now: Instant, waiter: str | None, lifeline: str = ""
    ) -> tuple[Bucket, Pass]:
        """Ask to pass, past waiters whose process has died: that one has cannot cease to be true."""
        severed = self._severed(each.lifeline for each in bucket.waiters)
        bucket = self._agreed(algebra.bury(bucket, severed, now) if severed else bucket)
        return algebra.ask(bucket, cost, now, waiter=waiter, ttl=self._ttl, lifeline=lifeline)

    def _severed(self, lifelines: Iterable[str]) -> frozenset[str]:
        return frozenset(each for each in {*lifelines} if each and self._scope.store.is_severed(each))

    async def acquire(self, cost: int = 1, *, timeout: Duration | None = None) -> None:
        """Take ``cost`` tokens, waiting in line for as long as it takes, or until ``timeout`` is over.

        A heavy request at the front is not passed by lighter ones. Whoever is cancelled or runs out of time leaves the
        line before the exception is raised.

        Raises:
            RateTimeoutError: The turn did not come in time; nothing was taken.
            CostTooHighError: The bucket never holds that many tokens.
            LineFullError: 1,000 wait already.
            RateMismatchError: The limiter is in use with another rate.
        """
        limit = optional_seconds(timeout, what="timeout")
        loop = asyncio.get_running_loop()
        deadline = float("inf") if limit is None else loop.time() + limit
        if await self.try_acquire(cost):
            return
        waiter, lifeline = new_id(), await tied_lifeline(self._scope.store)
        async with self._scope.watch(self._address(waiter)) as watch:
            try:
                missed = await self._wait_in_line(waiter, cost, lifeline, deadline, watch)
            except BaseException:
                await self._leave(waiter)
                raise
            if missed is not None:
                await self._leave(waiter)
                raise RateTimeoutError(self._key, limit or 0.0, missed.retry_after)

    async def _wait_in_line(self, waiter: str, cost: int, lifeline: str, deadline: float, watch: Watch) -> Pass | None:
        """Return None when the tokens are taken, or the last answer when the deadline has passed."""
        loop, in_front = asyncio.get_running_loop(), frozenset[str]()

        def ask(bucket: Bucket, now: Instant) -> tuple[Bucket, Pass]:
            nonlocal in_front
            after, answer = self._ask(bucket, cost, now, waiter, lifeline)
            in_front = frozenset(each.lifeline for each in after.waiters[: max(0, answer.position)] if each.lifeline)
            return after, answer

        while not (answer := await self._update(ask)):
            if (left := deadline - loop.time()) <= 0:
                return answer
            until = loop.time() + min(left, self._pause(answer))
            while (rest := until - loop.time()) > 0 and not self._severed(in_front):
                if await watch.wait(min(rest, PROBE_EVERY) if in_front else rest) is not None:
                    break
        return None

    def _pause(self, answer: Pass) -> float:
        """Return when to ask again unhinted. The first comes on time; the others are woken when they become first."""
        pause = answer.retry_after if answer.position == 0 else _UNHINTED + 2 * answer.retry_after
        return max(_SHORTEST_PAUSE, min(pause, self._ttl / 3))

    async def _leave(self, waiter: str) -> None:
        """Leave the line before anything else happens, however often the caller is cancelled meanwhile."""
        leaving = asyncio.ensure_future(self._withdraw_quietly(waiter))
        cancelled: asyncio.CancelledError | None = None
        while not leaving.done():
            try:
                await asyncio.wait((leaving,))
            except asyncio.CancelledError as again:
                cancelled = again
        if cancelled is not None:
            raise cancelled

    async def _withdraw_quietly(self, waiter: str) -> None:
        with suppress(StoreError):  # the store is in trouble or closed: the place lapses by itself
            await self.withdraw(waiter)

    @asynccontextmanager
    async def limited(self, cost: int = 1, *, timeout: Duration | None = None) -> AsyncGenerator[None, None]:
        """Run a block when its turn has come: ``async with limiter.limited():``. Leaving it gives nothing back."""
        await self.acquire(cost, timeout=timeout)
        yield

    async def withdraw(self, waiter: str) -> bool:
        """Leave the line. Tells whether the waiter stood in it until now; doing it twice is harmless."""
        return await self._update(lambda bucket, now: algebra.withdraw(bucket, waiter, now))

    # --- operating ----------------------------------------------------------------------------------------------

    async def close_for(self, length: Duration) -> None:
        """Let nobody pass for a while, as when the other side has answered "too many requests, retry after".

        Tokens are earned meanwhile, up to the capacity, and waiters keep their places. Of two closings the longer one
        counts.
        """
        pause = seconds(length, what="cool-down")
        await self._update(lambda bucket, now: (algebra.close(bucket, later(now, pause), now), None))

    async def open_again(self) -> None:
        """End a cool-down early."""
        await self._update(lambda bucket, now: (algebra.reopen(bucket, now), None))

    async def change_rate(self) -> None:
        """Make this limiter's capacity and interval those in use; waiters keep their places.

        From then on, limiters that were made with another rate raise RateMismatchError, unless they follow.
        """
        await self._update(lambda bucket, now: (algebra.change_rate(bucket, self._rate, now), None))

    async def inspect(self) -> RateState:
        """Return the tokens, the cool-down and the line as they are now. Nothing is changed."""
        seen = await self._scope.read(self._record)
        bucket = algebra.settle(self._found(seen.get(self._record), seen.at), seen.at)
        waiters = tuple(
            WaitingForTokens(
                each.id,
                each.cost,
                turn_in=seconds_between(seen.at, algebra.turn(bucket, place, each.cost, seen.at)),
                expires_in=seconds_between(seen.at, each.expires_at),
            )
            for place, each in enumerate(bucket.waiters)
        )
        closed_for = max(0.0, seconds_between(seen.at, bucket.closed_until))
        return RateState(bucket.rate.capacity, bucket.rate.seconds, bucket.tokens, closed_for, waiters)

    # --- the record ---------------------------------------------------------------------------------------------

    async def _update(self, change: Callable[[Bucket, Instant], tuple[Bucket, T]]) -> T:
        def decide(seen: Snapshot) -> Decision[T]:
            record = seen.get(self._record)
            before = self._found(record, seen.at)
            after, answer = change(before, seen.at)
            if _is_same(before, after, seen.at):
                return Decision(answer)
            after, called = algebra.call_first(before, after, seen.at)
            wake = () if called is None else (Wake(self._address(called)),)
            return Decision(answer, self._written(record, after, seen.at), wake=wake)

        return (await self._scope.update((self._record,), decide)).answer

    def _found(self, record: Record | None, now: Instant) -> Bucket:
        return algebra.full_bucket(self._rate, now) if record is None else BUCKETS.decode(record.value)

    def _written(self, record: Record | None, bucket: Bucket, now: Instant) -> tuple[Change, ...]:
        """Return the changes that keep a bucket until it is full and forgotten, so that none stays behind at rest."""
        expires_at = algebra.forgettable_at(bucket)
        if expires_at > now:
            version = 0 if record is None else record.version
            return (Put(self._record, BUCKETS.encode(bucket), version, expires_at),)
        return () if record is None else (Delete(self._record, record.version),)

    def _agreed(self, bucket: Bucket) -> Bucket:
        used, own = bucket.rate, self._rate
        if used != own and not self._follow:
            raise RateMismatchError(self._key, own.capacity, own.seconds, used.capacity, used.seconds)
        return bucket

    def _address(self, waiter: str) -> RecordKey:
        """Where a waiter is woken. Nothing is stored there."""
        return self._scope.key("rate-waiter", waiter)


def _is_same(before: Bucket, after: Bucket, now: Instant) -> bool:
    """Tell whether only time has passed, so that there is nothing to write."""
    return after.waiters == before.waiters and after == algebra.settle(before, now)

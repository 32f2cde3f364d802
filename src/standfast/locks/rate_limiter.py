"""The durable rate limiter: a number at once, one more every so often, in order of arrival, across processes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from msgspec import Struct, field
from msgspec.structs import replace

from standfast.audit import Audit
from standfast.clock import MICROSECONDS, SYSTEM_CLOCK, Instant, later, seconds_between
from standfast.codec import Codec
from standfast.durations import DAY, MAX_SECONDS, Duration, optional_seconds, seconds
from standfast.errors import (
    InvalidArgumentError,
    LineFullError,
    LockMismatchError,
    RateTimeoutError,
    StoreError,
)
from standfast.events import RateClosed, RateGranted, RateRefused
from standfast.ids import new_id
from standfast.locks.registry import PROBE_EVERY
from standfast.stores.liveness import visible_token
from standfast.stores.protocol import Decision, Delete, Put, Wake

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Iterable

    from standfast.audit import AuditedAction
    from standfast.events import LockEvent
    from standfast.keys import Key, RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Record, Snapshot, Watch


# --- A token bucket with a line in front of it, as one value: the pure part of the rate limiter --------------------
#
# A bucket holds up to ``capacity`` tokens and earns one every ``interval``. Who asks takes its cost at once if none
# is in front and the tokens are there; else it stands in line and asks again. Nothing is given back: a token spent is
# spent. Whatever happens, no window of time sees more than ``capacity + window / interval`` tokens spent.
#
# Each function takes a bucket and the present and returns the next bucket; none reads a clock. A bucket that is full,
# open and has no line is the same as none at all, so a store may forget it (:func:`forgettable_at`).

MAX_WAITERS: Final = 1_000
"""The most waiters that one record holds."""

WAITER_TTL: Final = 30.0
"""Seconds for which a waiter that does not ask again keeps its place, at least."""

MAX_ID_BYTES: Final = 128
"""The longest id of a waiter; a thousand of them still fit into a record."""

_NEVER_CLOSED: Final = Instant(0)


class RefillRate(Struct, frozen=True, gc=False):
    """How much may pass: up to ``capacity`` at once, and one more every ``interval`` microseconds."""

    capacity: int
    interval: int

    @property
    def seconds(self) -> float:
        """The seconds in which one token is earned."""
        return self.interval / MICROSECONDS


class BucketWaiter(Struct, frozen=True, gc=False, omit_defaults=True):
    """Who stands in line for how many tokens.

    ``expires_at`` is when its place is lost if it does not ask again; ``turn_at`` is when it was told to come.
    ``liveness_token`` is that of the process that waits, where others can see by it that the process has died.
    """

    id: str
    cost: int
    expires_at: Instant
    turn_at: Instant
    liveness_token: str = field(default="", name="lifeline")


class TokenBucket(Struct, frozen=True, omit_defaults=True):
    """The tokens that were there at ``filled_at``, and the line in front of them."""

    rate: RefillRate
    tokens: int
    filled_at: Instant
    closed_until: Instant = _NEVER_CLOSED
    waiters: tuple[BucketWaiter, ...] = ()


class Pass(Struct, frozen=True, gc=False):
    """What became of a request to pass; it is true if the tokens were taken.

    Attributes:
        granted: Whether the tokens are the caller's.
        position: -1 if granted; else how many are in front.
        retry_after: Seconds until the turn comes if everybody takes theirs; 0 if granted.
        keep_within: Seconds within which a waiter must ask again to keep its place; 0 if it has none.
    """

    granted: bool
    position: int = -1
    retry_after: float = 0.0
    keep_within: float = 0.0

    def __bool__(self) -> bool:
        return self.granted


# --- what is asked for ----------------------------------------------------------------------------------------------


def check_rate(capacity: int, interval: Duration) -> RefillRate:
    """Return a rate; refuse what cannot be one.

    Raises:
        InvalidArgumentError: The capacity is no whole number from 1, or filling the bucket would take over 100 years.
        InvalidArgumentError: The interval makes no sense, or is a bare number that looks like milliseconds.
    """
    length = seconds(interval, what="interval", minimum=1 / MICROSECONDS, maximum_bare=DAY)
    if type(capacity) is not int or capacity < 1:
        raise InvalidArgumentError(
            "the capacity of a rate limiter", "it must be a whole number, at least 1", _shown(capacity)
        )
    if capacity * length > MAX_SECONDS:
        raise InvalidArgumentError(
            "the capacity of a rate limiter", f"at {length:g} s a token it would never be full", f"{capacity:,}"
        )
    return RefillRate(capacity, round(length * MICROSECONDS))


def check_cost(cost: int, rate: RefillRate) -> int:
    """Return a number of tokens; refuse what cannot be one, and what the bucket never holds."""
    if type(cost) is not int or cost < 1:
        raise InvalidArgumentError("the cost of a rate limiter", "it must be a whole number, at least 1", _shown(cost))
    if cost > rate.capacity:
        raise InvalidArgumentError(
            "the cost of a rate limiter",
            f"the bucket never holds more than {rate.capacity:,}; ask for fewer tokens at a time",
            f"{cost:,}",
        )
    return cost


def check_waiter_ttl(value: Duration | None, rate: RefillRate) -> float:
    """Return how long a waiter that does not ask again keeps its place: 30 s or four intervals, if not told."""
    if value is None:
        return max(WAITER_TTL, 4 * rate.seconds)
    return seconds(value, what="waiter_ttl", minimum=1 / MICROSECONDS, maximum_bare=DAY)


def check_waiter(waiter: str) -> str:
    """Return the id of a waiter; refuse what cannot be one."""
    if type(waiter) is not str or not waiter.isprintable() or not 0 < len(waiter.encode()) <= MAX_ID_BYTES:
        problem = f"it must be printable text of 1 to {MAX_ID_BYTES} bytes"
        raise InvalidArgumentError("the waiter of a rate limiter", problem, _shown(waiter))
    return waiter


def _shown(value: object) -> str:
    return ascii(value)[:40] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


# --- the bucket -----------------------------------------------------------------------------------------------------


def full_bucket(rate: RefillRate, now: Instant) -> TokenBucket:
    """Return a bucket that was not used yet."""
    return TokenBucket(rate, rate.capacity, now)


def refill(bucket: TokenBucket, now: Instant) -> TokenBucket:
    """Add the tokens of every whole interval since the last one; the rest of the time counts towards the next.

    A full bucket earns nothing. A clock that has gone back is taken to stand still.
    """
    earned, rest = divmod(max(0, now - bucket.filled_at), bucket.rate.interval)
    if bucket.tokens + earned >= bucket.rate.capacity:
        return replace(bucket, tokens=bucket.rate.capacity, filled_at=_clamped(bucket, now))
    return replace(bucket, tokens=bucket.tokens + earned, filled_at=Instant(_clamped(bucket, now) - rest))


def settle(bucket: TokenBucket, now: Instant) -> TokenBucket:
    """Refill, and let go of every waiter whose time is over, or whose cost the bucket can no longer hold."""
    bucket, now = refill(bucket, now), _clamped(bucket, now)
    waiters = tuple(
        waiter for waiter in bucket.waiters if waiter.expires_at > now and waiter.cost <= bucket.rate.capacity
    )
    return bucket if len(waiters) == len(bucket.waiters) else replace(bucket, waiters=waiters)


def ask(
    bucket: TokenBucket, cost: int, now: Instant, *, waiter: str | None = None, ttl: float, liveness_token: str = ""
) -> tuple[TokenBucket, Pass]:
    """Take ``cost`` tokens if none is in front and they are there; else stand in line, or keep the place there.

    Without ``waiter`` the caller takes the tokens or leaves: it is told where it would stand, and keeps no place.
    ``liveness_token`` is that of a process whose death ends the waiter.

    Raises:
        LineFullError: 1,000 wait already.
        InvalidArgumentError: The bucket never holds that many tokens.
        InvalidArgumentError: The cost or the waiter's id makes no sense.
    """
    check_cost(cost, bucket.rate)
    now = _clamped(bucket, now)
    bucket = settle(bucket, now)
    waiters = bucket.waiters
    place = next((place for place, each in enumerate(waiters) if each.id == waiter), len(waiters))
    if place == 0 and cost <= bucket.tokens and bucket.closed_until <= now:
        others = tuple(each for each in waiters if each.id != waiter)
        return replace(bucket, tokens=bucket.tokens - cost, waiters=others), Pass(granted=True)
    turn_at = turn(bucket, place, cost, now)
    if turn_at <= now:  # those in front could go now and do not: each is given an interval
        turn_at = Instant(now + place * bucket.rate.interval)
    answer = Pass(granted=False, position=place, retry_after=seconds_between(now, turn_at))
    if waiter is None:
        return bucket, answer
    entry = BucketWaiter(check_waiter(waiter), cost, later(now, ttl), turn_at, liveness_token)
    if place >= MAX_WAITERS:
        raise LineFullError(MAX_WAITERS)
    return replace(bucket, waiters=(*waiters[:place], entry, *waiters[place + 1 :])), replace(answer, keep_within=ttl)


def withdraw(bucket: TokenBucket, waiter: str, now: Instant) -> tuple[TokenBucket, bool]:
    """Leave the line. Returns True if the waiter stood in it until now."""
    bucket = settle(bucket, now)
    others = tuple(each for each in bucket.waiters if each.id != waiter)
    return replace(bucket, waiters=others), len(others) < len(bucket.waiters)


def reclaim(bucket: TokenBucket, severed: Collection[str], now: Instant) -> TokenBucket:
    """Let go of every waiter of the processes with those file_locks."""
    bucket = settle(bucket, now)
    return replace(bucket, waiters=tuple(each for each in bucket.waiters if each.liveness_token not in severed))


def close(bucket: TokenBucket, until: Instant, now: Instant) -> TokenBucket:
    """Let none pass before ``until``. Waiters keep their places, and what closes it for longer stays."""
    bucket = settle(bucket, now)
    return replace(bucket, closed_until=max(bucket.closed_until, until))


def reopen(bucket: TokenBucket, now: Instant) -> TokenBucket:
    """Let them pass again, in order, as far as there are tokens."""
    return replace(settle(bucket, now), closed_until=_NEVER_CLOSED)


def change_rate(bucket: TokenBucket, rate: RefillRate, now: Instant) -> TokenBucket:
    """Go on at another rate. What is earned stays as far as it fits; a larger bucket is not filled at once."""
    bucket = settle(bucket, now)
    kept = min(bucket.tokens, rate.capacity)
    return settle(replace(bucket, rate=rate, tokens=kept, filled_at=_clamped(bucket, now)), now)


def call_first(before: TokenBucket, after: TokenBucket, now: Instant) -> tuple[TokenBucket, str | None]:
    """Return who should be woken: the first in line, if it has just moved up or its turn comes sooner than it was told.

    Only the first needs to be on time, so no other is woken, however long the line is.
    """
    if not after.waiters:
        return after, None
    first, *rest = after.waiters
    moved_up = before.waiters != () and before.waiters[0].id != first.id
    turn_at = turn(after, 0, first.cost, _clamped(after, now))
    if not moved_up and turn_at >= first.turn_at:
        return after, None
    return replace(after, waiters=(replace(first, turn_at=turn_at), *rest)), first.id


def turn(bucket: TokenBucket, place: int, cost: int, now: Instant) -> Instant:
    """Return when there are tokens for ``cost`` and for everybody in front, if the bucket is open by then."""
    opens_at = max(now, bucket.closed_until)
    bucket = refill(bucket, opens_at)
    missing = sum(waiter.cost for waiter in bucket.waiters[:place]) + cost - bucket.tokens
    return opens_at if missing <= 0 else Instant(bucket.filled_at + missing * bucket.rate.interval)


def forgettable_at(bucket: TokenBucket) -> Instant:
    """Return from when on the bucket says no more than none at all: full, open, and none in line."""
    full_at = Instant(bucket.filled_at + (bucket.rate.capacity - bucket.tokens) * bucket.rate.interval)
    return max(full_at, bucket.closed_until, *(waiter.expires_at for waiter in bucket.waiters))


def _clamped(bucket: TokenBucket, now: Instant) -> Instant:
    return max(now, bucket.filled_at)


# --- the durable rate limiter: a number at once, one more every so often, in order of arrival, across processes -----

T = TypeVar("T")

BUCKETS: Final[Codec[TokenBucket]] = Codec(TokenBucket, what="the bucket of a rate limiter")

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
        closed_for: Seconds for which none passes, whatever tokens there are.
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

    No window of time sees more than ``capacity + window / interval`` tokens spent, by the store's clock, from
    whichever process they are asked for. There is no release. A caller that is cancelled when its tokens were just
    taken has spent them.

    Args:
        scope: The space that the limiter lives in.
        key: What is limited.
        capacity: How many may pass at once after a quiet time.
        interval: The time in which one more may pass: ``"600ms"`` is a hundred a minute.
        waiter_ttl: How long a waiter that does not ask again keeps its place; 30 s or four intervals if not told. A
            process that dies in :meth:`acquire` holds none up where the store sees it die (SQLite, PostgreSQL);
            elsewhere it holds up those behind it for that time and up to a third of it more.
        follow: Take the rate that is in use where it differs, instead of raising LockMismatchError; for the time of a
            roll-out.
        family: What events call the kind of limiter, if the key is a text that was made; by default the key's family.
        audit: Where an operator's actions on it are recorded.

    Raises:
        InvalidArgumentError: The capacity makes no sense.
        InvalidArgumentError: The interval or the waiters' time to live makes no sense.
    """

    __slots__ = ("_audit", "_family", "_follow", "_key", "_rate", "_record", "_scope", "_ttl")

    def __init__(
        self,
        scope: Scope,
        key: Key | str,
        *,
        capacity: int = 1,
        interval: Duration,
        waiter_ttl: Duration | None = None,
        follow: bool = False,
        family: str = "",
        audit: Audit | None = None,
    ) -> None:
        self._scope: Final = scope
        self._audit: Final = audit
        self._key: Final = str(key)
        self._family: Final = family or ("" if isinstance(key, str) else key.family.name)
        self._record: Final = scope.key_for("rate", key)
        self._rate: Final = check_rate(capacity, interval)
        self._ttl: Final = check_waiter_ttl(waiter_ttl, self._rate)
        self._follow: Final = follow

    def __repr__(self) -> str:
        return f"<RateLimiter {self._key}: {self._rate.capacity} at once, one every {self._rate.seconds:g} s>"

    # --- passing ------------------------------------------------------------------------------------------------

    async def try_acquire(self, cost: int = 1, *, waiter: str | None = None) -> Pass:
        """Take ``cost`` tokens if they are there and none is in front; answer at once.

        Without ``waiter`` a caller that was not granted leaves nothing behind. With it, the caller stands in line
        under that id and keeps its place by asking again within ``answer.keep_within`` seconds; one that is no longer
        interested calls :meth:`withdraw`.

        Raises:
            InvalidArgumentError: The bucket never holds that many tokens.
            LineFullError: 1,000 wait already.
            LockMismatchError: The limiter is in use with another rate.
        """
        return await self._try(cost, waiter)

    async def _try(self, cost: int, waiter: str | None = None, *, tells_refusal: bool = True) -> Pass:
        is_asked = False

        def change(bucket: TokenBucket, now: Instant) -> tuple[TokenBucket, Pass]:
            nonlocal is_asked
            is_asked = True  # in a run that is replayed the answer is recorded, and was told when it was given
            return self._ask(bucket, cost, now, waiter)

        answer = await self._update(change)
        if is_asked and self._scope.hooks:
            if answer.granted:
                self._tell(RateGranted, cost=cost, waited=0.0 if waiter is None else None)
            elif waiter is None and tells_refusal:
                self._tell(RateRefused, cost=cost, waited=0.0, retry_after=answer.retry_after)
        return answer

    def _tell(self, kind: type[LockEvent], **facts: Any) -> None:  # noqa: ANN401 -- the fields of the event
        hooks = self._scope.hooks
        if hooks.want(kind):
            hooks.emit(kind(at=SYSTEM_CLOCK.wall(), key=self._key, family=self._family, kind="rate limiter", **facts))

    def _ask(
        self, bucket: TokenBucket, cost: int, now: Instant, waiter: str | None, liveness_token: str = ""
    ) -> tuple[TokenBucket, Pass]:
        """Ask to pass, past waiters whose process has died: that one has cannot cease to be true."""
        severed = self._severed(each.liveness_token for each in bucket.waiters)
        bucket = reclaim(bucket, severed, now) if severed else bucket
        used, own = bucket.rate, self._rate
        if used != own and not self._follow:
            raise LockMismatchError(
                self._key,
                f"capacity {used.capacity:,} and a token every {used.seconds:g} s",
                f"capacity {own.capacity:,} and a token every {own.seconds:g} s",
            )
        return ask(bucket, cost, now, waiter=waiter, ttl=self._ttl, liveness_token=liveness_token)

    def _severed(self, tokens: Iterable[str]) -> frozenset[str]:
        return frozenset(each for each in {*tokens} if each and self._scope.store.is_dead(each))

    async def acquire(self, cost: int = 1, *, timeout: Duration | None = None) -> None:
        """Take ``cost`` tokens, waiting in line for as long as it takes, or until ``timeout`` is over.

        A heavy request at the front is not passed by lighter ones. A caller that is cancelled or runs out of time
        leaves the line before the exception is raised.

        Raises:
            RateTimeoutError: The turn did not come in time; nothing was taken.
            InvalidArgumentError: The bucket never holds that many tokens.
            LineFullError: 1,000 wait already.
            LockMismatchError: The limiter is in use with another rate.
        """
        limit = optional_seconds(timeout, what="timeout")
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = float("inf") if limit is None else began + limit
        if await self._try(cost, tells_refusal=False):
            return
        waiter, liveness_token = new_id(), await visible_token(self._scope.store)
        async with self._scope.watch(self._address(waiter)) as watch:
            try:
                missed = await self._wait_in_line(waiter, cost, liveness_token, deadline, watch)
            except BaseException:
                await self._leave(waiter)
                raise
            if missed is None:
                self._tell(RateGranted, cost=cost, waited=loop.time() - began)
            else:
                self._tell(RateRefused, cost=cost, waited=loop.time() - began, retry_after=missed.retry_after)
                await self._leave(waiter)
                raise RateTimeoutError(self._key, limit or 0.0, missed.retry_after)

    async def _wait_in_line(
        self, waiter: str, cost: int, liveness_token: str, deadline: float, watch: Watch
    ) -> Pass | None:
        """Return None when the tokens are taken, or the last answer when the deadline has passed."""
        loop, in_front = asyncio.get_running_loop(), frozenset[str]()

        def ask(bucket: TokenBucket, now: Instant) -> tuple[TokenBucket, Pass]:
            nonlocal in_front
            after, answer = self._ask(bucket, cost, now, waiter, liveness_token)
            in_front = frozenset(
                each.liveness_token for each in after.waiters[: max(0, answer.position)] if each.liveness_token
            )
            return after, answer

        while not (answer := await self._update(ask)):
            if (left := deadline - loop.time()) <= 0:
                return answer
            # The first asks again on time; the others are woken when they become first.
            pause = answer.retry_after if answer.position == 0 else _UNHINTED + 2 * answer.retry_after
            until = loop.time() + min(left, max(_SHORTEST_PAUSE, min(pause, self._ttl / 3)))
            while (rest := until - loop.time()) > 0 and not self._severed(in_front):
                if await watch.wait(min(rest, PROBE_EVERY) if in_front else rest) is not None:
                    break
        return None

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
            await self._update(lambda bucket, now: withdraw(bucket, waiter, now))

    @asynccontextmanager
    async def limited(self, cost: int = 1, *, timeout: Duration | None = None) -> AsyncGenerator[None, None]:
        """Run a block when its turn has come: ``async with limiter.limited():``. Leaving it gives nothing back."""
        await self.acquire(cost, timeout=timeout)
        yield

    async def withdraw(self, waiter: str) -> bool:
        """Leave the line. Returns True if the waiter stood in it until now; doing it twice is harmless."""
        async with self._acts("rate.withdraw", entry=waiter) as told:
            stood = await self._update(lambda bucket, now: withdraw(bucket, waiter, now))
            told.outcome = "done" if stood else "nothing"
            return stood

    # --- operating ----------------------------------------------------------------------------------------------

    async def close_for(self, length: Duration) -> None:
        """Let none pass for a while, as when the other side has answered "too many requests, retry after".

        Tokens are earned meanwhile, up to the capacity, and waiters keep their places. Of two closings the longer one
        counts.
        """
        pause = seconds(length, what="cool-down")
        async with self._acts("rate.close", seconds=f"{pause:g}"):
            await self._update(lambda bucket, now: (close(bucket, later(now, pause), now), None))
        self._tell(RateClosed, seconds=pause)

    async def open_again(self) -> None:
        """End a cool-down early."""
        async with self._acts("rate.open"):
            await self._update(lambda bucket, now: (reopen(bucket, now), None))

    async def change_rate(self) -> None:
        """Make this limiter's capacity and interval those in use; waiters keep their places.

        From then on, limiters that were made with another rate raise LockMismatchError, unless they follow.
        """
        async with self._acts("rate.change", capacity=self._rate.capacity, interval=f"{self._rate.seconds:g}"):
            await self._update(lambda bucket, now: (change_rate(bucket, self._rate, now), None))

    def _acts(self, action: str, entry: str = "", **details: object) -> AuditedAction:
        audit = self._audit or Audit(self._scope)
        return audit.action(action, self._key, entry=entry, details=details)

    async def inspect(self) -> RateState:
        """Return the tokens, the cool-down and the line as they are now. Nothing is changed."""
        seen = await self._scope.read(self._record)
        bucket = settle(self._found(seen.get(self._record), seen.at), seen.at)
        waiters = tuple(
            WaitingForTokens(
                each.id,
                each.cost,
                turn_in=seconds_between(seen.at, turn(bucket, place, each.cost, seen.at)),
                expires_in=seconds_between(seen.at, each.expires_at),
            )
            for place, each in enumerate(bucket.waiters)
        )
        closed_for = max(0.0, seconds_between(seen.at, bucket.closed_until))
        return RateState(bucket.rate.capacity, bucket.rate.seconds, bucket.tokens, closed_for, waiters)

    # --- the record ---------------------------------------------------------------------------------------------

    async def _update(self, change: Callable[[TokenBucket, Instant], tuple[TokenBucket, T]]) -> T:
        def decide(seen: Snapshot) -> Decision[T]:
            record = seen.get(self._record)
            before = self._found(record, seen.at)
            after, answer = change(before, seen.at)
            if after.waiters == before.waiters and after == settle(before, seen.at):  # only time has passed
                return Decision(answer)
            after, called = call_first(before, after, seen.at)
            wake = () if called is None else (Wake(self._address(called)),)
            # It is kept until it is full and forgotten, so that none stays behind at rest.
            expires_at, version = forgettable_at(after), seen.version(self._record)
            changes: tuple[Change, ...] = () if record is None else (Delete(self._record, version),)
            if expires_at > seen.at:
                changes = (Put(self._record, BUCKETS.encode(after), version, expires_at),)
            return Decision(answer, changes, wake=wake)

        return (await self._scope.update((self._record,), decide)).answer

    def _found(self, record: Record | None, now: Instant) -> TokenBucket:
        return full_bucket(self._rate, now) if record is None else BUCKETS.decode(record.value)

    def _address(self, waiter: str) -> RecordKey:
        """Where a waiter is woken. Nothing is stored there."""
        return self._scope.key("rate-waiter", waiter)

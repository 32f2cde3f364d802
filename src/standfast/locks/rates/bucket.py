"""A token bucket with a line in front of it, as one value: the pure part of the rate limiter.

A bucket holds up to ``capacity`` tokens and earns one every ``interval``. Who asks takes its cost at once if nobody is
in front and the tokens are there; else it stands in line and asks again. Nothing is given back: a token spent is spent.
Whatever happens, no window of time sees more than ``capacity + window / interval`` tokens spent.

Each function takes a bucket and the present and returns the next bucket; none reads a clock. A bucket that is full,
open and has no line is the same as none at all, so a store may forget it (:func:`forgettable_at`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from standfast.clock import MICROSECONDS, Instant, later, seconds_between
from standfast.durations import DAY, MAX_SECONDS, Duration, seconds
from standfast.errors import CostTooHighError, InvalidRateError, LineFullError

if TYPE_CHECKING:
    from collections.abc import Collection

MAX_WAITERS: Final = 1_000
"""The most waiters that one record holds."""

WAITER_TTL: Final = 30.0
"""Seconds for which a waiter that does not ask again keeps its place, at least."""

MAX_ID_BYTES: Final = 128
"""The longest id of a waiter; a thousand of them still fit into a record."""

_NEVER_CLOSED: Final = Instant(0)


class Rate(Struct, frozen=True, gc=False):
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
    ``lifeline`` is that of the process that waits, where others can see by it that the process has died.
    """

    id: str
    cost: int
    expires_at: Instant
    turn_at: Instant
    lifeline: str = ""


class Bucket(Struct, frozen=True, omit_defaults=True):
    """The tokens that were there at ``filled_at``, and the line in front of them."""

    rate: Rate
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


def check_rate(capacity: int, interval: Duration) -> Rate:
    """Return a rate; refuse what cannot be one.

    Raises:
        InvalidRateError: The capacity is no whole number from 1, or filling the bucket would take over 100 years.
        InvalidDurationError: The interval makes no sense, or is a bare number that looks like milliseconds.
    """
    length = seconds(interval, what="interval", minimum=1 / MICROSECONDS, maximum_bare=DAY)
    if type(capacity) is not int or capacity < 1:
        raise InvalidRateError("capacity", _shown(capacity), "it must be a whole number, at least 1")
    if capacity * length > MAX_SECONDS:
        raise InvalidRateError("capacity", f"{capacity:,}", f"at {length:g} s a token it would never be full")
    return Rate(capacity, round(length * MICROSECONDS))


def check_cost(cost: int, rate: Rate) -> int:
    """Return a number of tokens; refuse what cannot be one, and what the bucket never holds."""
    if type(cost) is not int or cost < 1:
        raise InvalidRateError("cost", _shown(cost), "it must be a whole number, at least 1")
    if cost > rate.capacity:
        raise CostTooHighError(cost, rate.capacity)
    return cost


def check_waiter_ttl(value: Duration | None, rate: Rate) -> float:
    """Return how long a waiter that does not ask again keeps its place: 30 s or four intervals, if not told."""
    if value is None:
        return max(WAITER_TTL, 4 * rate.seconds)
    return seconds(value, what="waiter_ttl", minimum=1 / MICROSECONDS, maximum_bare=DAY)


def check_waiter(waiter: str) -> str:
    """Return the id of a waiter; refuse what cannot be one."""
    if type(waiter) is not str or not waiter.isprintable() or not 0 < len(waiter.encode()) <= MAX_ID_BYTES:
        problem = f"it must be printable text of 1 to {MAX_ID_BYTES} bytes"
        raise InvalidRateError("waiter", _shown(waiter), problem)
    return waiter


def _shown(value: object) -> str:
    return ascii(value)[:40] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


# --- the bucket -----------------------------------------------------------------------------------------------------


def full_bucket(rate: Rate, now: Instant) -> Bucket:
    """Return a bucket that nobody has used yet."""
    return Bucket(rate, rate.capacity, now)


def refill(bucket: Bucket, now: Instant) -> Bucket:
    """Add the tokens of every whole interval since the last one; the rest of the time counts towards the next.

    A full bucket earns nothing. A clock that has gone back is taken to stand still.
    """
    earned, rest = divmod(max(0, now - bucket.filled_at), bucket.rate.interval)
    if bucket.tokens + earned >= bucket.rate.capacity:
        return replace(bucket, tokens=bucket.rate.capacity, filled_at=_clamped(bucket, now))
    return replace(bucket, tokens=bucket.tokens + earned, filled_at=Instant(_clamped(bucket, now) - rest))


def settle(bucket: Bucket, now: Instant) -> Bucket:
    """Refill, and let go of every waiter whose time is over, or whose cost the bucket can no longer hold."""
    bucket, now = refill(bucket, now), _clamped(bucket, now)
    waiters = tuple(
        waiter for waiter in bucket.waiters if waiter.expires_at > now and waiter.cost <= bucket.rate.capacity
    )
    return bucket if len(waiters) == len(bucket.waiters) else replace(bucket, waiters=waiters)


def ask(
    bucket: Bucket, cost: int, now: Instant, *, waiter: str | None = None, ttl: float, lifeline: str = ""
) -> tuple[Bucket, Pass]:
    """Take ``cost`` tokens if nobody is in front and they are there; else stand in line, or keep the place there.

    Without ``waiter`` the caller takes the tokens or leaves: it is told where it would stand, and keeps no place.
    ``lifeline`` is that of a process whose death ends the waiter.

    Raises:
        LineFullError: 1,000 wait already.
        CostTooHighError: The bucket never holds that many tokens.
        InvalidRateError: The cost or the waiter's id makes no sense.
    """
    check_cost(cost, bucket.rate)
    now = _clamped(bucket, now)
    bucket = settle(bucket, now)
    place = _place_of(bucket, waiter)
    if place == 0 and cost <= bucket.tokens and bucket.closed_until <= now:
        return _take(bucket, cost, waiter), Pass(granted=True)
    turn_at = _told(bucket, place, cost, now)
    answer = Pass(granted=False, position=place, retry_after=seconds_between(now, turn_at))
    if waiter is None:
        return bucket, answer
    entry = BucketWaiter(check_waiter(waiter), cost, later(now, ttl), turn_at, lifeline)
    return _stand(bucket, place, entry), replace(answer, keep_within=ttl)


def withdraw(bucket: Bucket, waiter: str, now: Instant) -> tuple[Bucket, bool]:
    """Leave the line. Tells whether the waiter stood in it until now."""
    bucket = settle(bucket, now)
    others = tuple(each for each in bucket.waiters if each.id != waiter)
    return replace(bucket, waiters=others), len(others) < len(bucket.waiters)


def bury(bucket: Bucket, severed: Collection[str], now: Instant) -> Bucket:
    """Let go of every waiter of the processes with those lifelines."""
    bucket = settle(bucket, now)
    return replace(bucket, waiters=tuple(each for each in bucket.waiters if each.lifeline not in severed))


def close(bucket: Bucket, until: Instant, now: Instant) -> Bucket:
    """Let nobody pass before ``until``. Waiters keep their places, and what closes it for longer stays."""
    bucket = settle(bucket, now)
    return replace(bucket, closed_until=max(bucket.closed_until, until))


def reopen(bucket: Bucket, now: Instant) -> Bucket:
    """Let them pass again, in order, as far as there are tokens."""
    return replace(settle(bucket, now), closed_until=_NEVER_CLOSED)


def change_rate(bucket: Bucket, rate: Rate, now: Instant) -> Bucket:
    """Go on at another rate. What is earned stays as far as it fits; a larger bucket is not filled at once."""
    bucket = settle(bucket, now)
    kept = min(bucket.tokens, rate.capacity)
    return settle(replace(bucket, rate=rate, tokens=kept, filled_at=_clamped(bucket, now)), now)


def call_first(before: Bucket, after: Bucket, now: Instant) -> tuple[Bucket, str | None]:
    """Return who should be woken: the first in line, if it has just moved up or its turn comes sooner than it was told.

    Only the first needs to be on time, so nobody else is woken, however long the line is.
    """
    if not after.waiters:
        return after, None
    first, *rest = after.waiters
    moved_up = before.waiters != () and before.waiters[0].id != first.id
    turn_at = turn(after, 0, first.cost, _clamped(after, now))
    if not moved_up and turn_at >= first.turn_at:
        return after, None
    return replace(after, waiters=(replace(first, turn_at=turn_at), *rest)), first.id


def turn(bucket: Bucket, place: int, cost: int, now: Instant) -> Instant:
    """Return when there are tokens for ``cost`` and for everybody in front, if the bucket is open by then."""
    opens_at = max(now, bucket.closed_until)
    bucket = refill(bucket, opens_at)
    missing = sum(waiter.cost for waiter in bucket.waiters[:place]) + cost - bucket.tokens
    return opens_at if missing <= 0 else Instant(bucket.filled_at + missing * bucket.rate.interval)


def forgettable_at(bucket: Bucket) -> Instant:
    """Return from when on the bucket says no more than none at all: full, open, and nobody in line."""
    full_at = Instant(bucket.filled_at + (bucket.rate.capacity - bucket.tokens) * bucket.rate.interval)
    return max(full_at, bucket.closed_until, *(waiter.expires_at for waiter in bucket.waiters))


def _clamped(bucket: Bucket, now: Instant) -> Instant:
    return max(now, bucket.filled_at)


def _place_of(bucket: Bucket, waiter: str | None) -> int:
    found = (place for place, each in enumerate(bucket.waiters) if each.id == waiter)
    return next(found, len(bucket.waiters))


def _take(bucket: Bucket, cost: int, waiter: str | None) -> Bucket:
    others = tuple(each for each in bucket.waiters if each.id != waiter)
    return replace(bucket, tokens=bucket.tokens - cost, waiters=others)


def _told(bucket: Bucket, place: int, cost: int, now: Instant) -> Instant:
    """Return when to come again. Those in front who could go now and do not are given an interval each."""
    turn_at = turn(bucket, place, cost, now)
    return turn_at if turn_at > now else Instant(now + place * bucket.rate.interval)


def _stand(bucket: Bucket, place: int, entry: BucketWaiter) -> Bucket:
    if place >= MAX_WAITERS:
        raise LineFullError(MAX_WAITERS)
    return replace(bucket, waiters=(*bucket.waiters[:place], entry, *bucket.waiters[place + 1 :]))

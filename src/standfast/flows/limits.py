"""Limits of actions: how many requests run at a time, and how many come in a while. Each is a value, checked when made.

    @chat.action(limits=[sf.ActionLimit(20), sf.ActionLimit(2, key="user"), sf.Rate(60, "1 minute", key="user")])

A policy says what happens when two requests of one key meet; a limit says how much of an action there is at all. The
place in the line of the policy's key is taken first, then the limits in the order of their declaration: so the order of
a session stays as it was, and whoever waits for a limit holds up its own key only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

from standfast.durations import optional_seconds
from standfast.errors import InvalidArrivalError, InvalidFlowError, InvalidRateError
from standfast.flows.arrival import check_priority
from standfast.flows.options import checked_choice, checked_count, checked_key, length
from standfast.flows.values import Value
from standfast.locks.algebra.line import MOST_HOLDERS
from standfast.locks.rates.bucket import check_rate

if TYPE_CHECKING:
    from standfast.durations import Duration
    from standfast.flows.options import Key

OnLimit: TypeAlias = Literal["queue", "reject"]
"""What happens to a request that finds no room: it waits for it, or is refused."""

MOST_QUEUED: Final = 10_000
LARGEST_RATE: Final = 1_000_000
SAID: Final = 1.0
"""After how many seconds one that found no room may try again, since nobody knows how long requests run."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", re.ASCII)


@final
class ActionLimit(Value):
    """At most so many requests of an action run at a time: in all, or for each value of a key.

    It counts over all workers if the arbiter is shared, and attended and durable requests together.

    Args:
        max: How many; 400 at most.
        key: What they are counted by: ``"tenant"``, ``"user"``, ``"session"``, or a function of the arrival, all of
            them within a tenant; ``"none"`` (the default): all requests of all tenants together. Callers without a
            name, and requests without a session, count as one. A function that returns None exempts the request.
        on_limit: What happens to a request that finds no room. ``"queue"`` (the default): it waits.
            ``"reject"``: it is refused with :class:`~standfast.errors.TooManyRequestsError` (429); not with policies
            under which it may have waited for its turn before.
        max_queued: With ``"queue"``: how many may wait for this limit in one process before the next is refused with
            :class:`~standfast.errors.QueueFullError` (429). None: as many as the app takes on.
        ttl: With ``"queue"``: how long one waits whose caller waits for it. After that it has left, never ran, and ends
            with :class:`~standfast.errors.QueueTimeoutError` (503). None: as long as it takes. A durable request waits
            for as long as its policy lets it wait in all, see ``sf.Queue(timeout=...)``.
        name: Limits of one name count together, whichever actions of the app they belong to. They must be alike.

    Raises:
        InvalidFlowError: It cannot be meant; the error says why.
    """

    __slots__ = ("key", "max", "max_queued", "name", "on_limit", "ttl")

    def __init__(
        self,
        max: int,  # noqa: A002 -- the word that users know
        *,
        key: Key = "none",
        on_limit: OnLimit = "queue",
        max_queued: int | None = None,
        ttl: Duration | None = "30s",
        name: str = "",
    ) -> None:
        where = "ActionLimit"
        self.max: Final = checked_count(where, "max", max, MOST_HOLDERS)
        self.key: Final = checked_key(where, key)
        self.on_limit: Final = checked_choice(where, "on_limit", on_limit, OnLimit)
        if on_limit == "reject" and max_queued is not None:
            raise InvalidFlowError(where, "max_queued belongs to on_limit='queue'")
        most = None if max_queued is None else checked_count(where, "max_queued", max_queued, MOST_QUEUED)
        self.max_queued: Final = most
        self.ttl: Final = optional_seconds(ttl, what=f"the ttl of {where}")
        self.name: Final = _checked_name(where, name)

    @property
    def waits(self) -> bool:
        """Whether a request waits that finds no room."""
        return self.on_limit == "queue"


@final
class Rate(Value):
    """So many requests of an action in a while: in all, or for each value of a key. What is more is refused.

    It is refused with :class:`~standfast.errors.RateExceededError` (429), which says when to come again, before
    anything is written. It is the token bucket of :class:`~standfast.locks.rates.rate_limiter.RateLimiter`: ``burst``
    requests at once after a quiet time, and one more every ``per / max``. Whatever is let through has counted, also if
    the policy refuses it then. A request that is answered by its idempotency key does not count, nor does a tick of a
    schedule.

    Args:
        max: How many.
        per: In how long: ``sf.Rate(60, "1 minute")``.
        key: What they are counted by, see :class:`ActionLimit`.
        burst: How many at once after a quiet time; by default ``max``.
        name: Rates of one name count together, whichever actions of the app they belong to. They must be alike.

    Raises:
        InvalidFlowError: It cannot be meant; the error says why.
    """

    __slots__ = ("burst", "key", "max", "name", "per")

    def __init__(
        self,
        max: int,  # noqa: A002 -- the word that users know
        per: Duration,
        *,
        key: Key = "none",
        burst: int | None = None,
        name: str = "",
    ) -> None:
        self.max: Final = checked_count("Rate", "max", max, LARGEST_RATE)
        self.per: Final = length("Rate", "per", per)
        self.key: Final = checked_key("Rate", key)
        self.burst: Final = self.max if burst is None else checked_count("Rate", "burst", burst, LARGEST_RATE)
        self.name: Final = _checked_name("Rate", name)
        try:
            check_rate(self.burst, self.interval)
        except InvalidRateError as error:
            raise InvalidFlowError("Rate", str(error)) from None

    @property
    def interval(self) -> timedelta:
        """The time in which one more may come."""
        return timedelta(seconds=self.per / self.max)


LimitOfAction: TypeAlias = ActionLimit | Rate
"""What can be declared in the ``limits`` of an action."""


def checked_limits(where: str, given: LimitOfAction | Iterable[LimitOfAction]) -> tuple[LimitOfAction, ...]:
    """Return the limits of an action; refuse what is none, and two that count the same."""
    limits = tuple(given) if isinstance(given, Iterable) else (given,)
    counted: dict[tuple[object, ...], LimitOfAction] = {}
    for each in limits:
        if not isinstance(each, ActionLimit | Rate):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise InvalidFlowError(where, f"{each!r:.60} is no limit; there are sf.ActionLimit(...) and sf.Rate(...)")
        if counted.setdefault((type(each), each.name, kind_of(each)), each) is not each:
            problem = f"two limits count {kind_of(each)!r}: {counted[type(each), each.name, kind_of(each)]} and {each}"
            raise InvalidFlowError(where, f"{problem}; leave one of them out, or give one a name=")
    return limits


def checked_priority(where: str, given: int) -> int:
    """Return a priority: a small whole number."""
    try:
        check_priority(given)
    except InvalidArrivalError as error:
        raise InvalidFlowError(where, str(error)) from None
    return given


def check_alike(limits: Iterable[tuple[str, LimitOfAction]]) -> None:
    """Refuse limits of one name that are not alike; each comes with its place."""
    known: dict[tuple[type, str], tuple[str, LimitOfAction]] = {}
    for where, limit in limits:
        if not limit.name:
            continue
        first, other = known.setdefault((type(limit), limit.name), (where, limit))
        if other != limit:
            problem = f"its limit {limit.name!r} is {limit}, and that of {first} is {other}"
            raise InvalidFlowError(where, f"{problem}; limits of one name must be alike")


def kind_of(limit: LimitOfAction) -> str:
    """Return by what a limit counts."""
    return limit.key if isinstance(limit.key, str) else "custom"


def _checked_name(where: str, name: str) -> str:
    if not isinstance(name, str) or (name and not _NAME.fullmatch(name)):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        problem = "a name must be 1 to 64 letters, digits, _ . or -, and begin with a letter"
        raise InvalidFlowError(where, f"name is {name!a:.80}; {problem}")
    return name

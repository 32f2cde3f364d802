"""How much an application takes on: its limits, the streams that are open, and checks of what it was given."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, final

from standfast.durations import seconds
from standfast.errors import DeclarationError, TooManyRequestsError
from standfast.flows.shares import SAID, Shares
from standfast.flows.tenants import TenantLimits

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from standfast.durations import Duration
    from standfast.flows.request import Principal


# --- checks of the kind of what an application was given: a wrong one is refused where it is declared --------------

T = TypeVar("T")

APP: Final = "App"
"""How errors call the place."""


def texts(name: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return several texts. A single text is refused: it would be read as its letters."""
    if isinstance(given, str):
        raise DeclarationError(APP, f"{name} is one text; give a list of them: {name}=[{given!r:.60}]")
    found = several(name, given, str, f"{name}=['...']")
    return tuple(found)


def several(name: str, given: Iterable[T], kind: type[T] | tuple[type[T], ...], example: str) -> tuple[T, ...]:
    """Return several of a kind."""
    try:
        found = tuple(given)
    except TypeError:
        raise DeclarationError(APP, f"{name} is {given!r:.60}; give a list: {example}") from None
    for each in found:
        if not isinstance(each, kind):
            raise DeclarationError(APP, f"{each!r:.60} cannot be one of {name}; write {example}")
    return found


def one(name: str, given: T | None, kind: type[T], example: str) -> T | None:
    """Return one of a kind, or nothing."""
    if given is not None and not isinstance(given, kind):
        raise DeclarationError(APP, f"{name} is {given!r:.60}; write {example}")
    return given


def function(name: str, given: T, example: str) -> T:
    """Return a function, or nothing."""
    if given is not None and not callable(given):
        raise DeclarationError(APP, f"{name} is {given!r:.60}; it must be a function, such as {example}")
    return given


def whole_number(where: str, what: str, given: int, most: int | None = None) -> int:
    """Return a number from 1 on, and up to ``most``; errors call the place ``where``."""
    if type(given) is not int or given < 1 or (most is not None and given > most):
        allowed = ", at least 1" if most is None else f" from 1 to {most:,}"
        raise DeclarationError(where, f"{what} is {given!r:.60}; it must be a whole number{allowed}")
    return given


# --- how many streams are open, in all and of one user: none can take the places of all others ---------------------

Caller: TypeAlias = tuple[str, str, str]
"""The tenant, the user, and the address of a user who has no name."""


def caller_of(principal: Principal, address: str) -> Caller:
    """Return what is counted as one user: a user without a name is identified by the address."""
    return (principal.tenant, principal.user, "" if principal.user else address)


@final
class OpenCounts:
    """How many of something each user has open; a user who has none takes no memory."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: Final[dict[Caller, int]] = {}

    @property
    def all(self) -> Counter[Caller]:
        """How many each of them has open."""
        return Counter(self._open)

    def of(self, who: Caller) -> int:
        """Return how many a user has open."""
        return self._open.get(who, 0)

    @contextmanager
    def one_more(self, who: Caller) -> Generator[None]:
        """Count one of a user while it is open."""
        self._open[who] = self.of(who) + 1
        try:
            yield
        finally:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]


@final
class UserShares:
    """Counts what is open in all, and of each user.

    Args:
        shares: How all of them are shared.
        what: What they are called in a refusal.
        most: How many one user may have.
    """

    def __init__(self, shares: Shares, what: str, most: int) -> None:
        self._shares, self._what, self._most = shares, what, most
        self._open: Final = OpenCounts()

    @contextmanager
    def of(self, who: Caller) -> Generator[None]:
        """Count one of a user while it is open.

        Raises:
            TooManyRequestsError: There are as many as there may be, in all, of the tenant or of this user.
        """
        if self._open.of(who) >= self._most:
            raise TooManyRequestsError(self._what, self._most, SAID)
        with self._shares.of(who[0], who), self._open.one_more(who):
            yield


# --- what an application takes on at most. Whatever is more is refused with a typed error, before anything is done -


GRACE: Final = 10.0
"""Seconds that requests under way have to end."""


@final
class AppLimits:
    """How much an application takes on.

    Args:
        body: Bytes of one body.
        body_time: How long a body may take to arrive.
        requests: How many calls are open at the same time, those that wait for their turn included. Tenants and their
            users share them: a tenant gets no more while as many are left to others, nor does a user of what its
            tenant may still get. So a tenant that is alone has half of them, and its only user a third.
        deliveries: How many deliveries of webhooks are open at the same time, shared in the same way by webhooks and
            the addresses that they come from.
        streams: How many streams of events and WebSockets are open at the same time, shared as requests are.
        wait: How long a caller waits at most that asked for it with ``Prefer: wait=``.
        heartbeat: How often a stream is told that it is still alive.
        user_streams: How many of those one user may have open; a user without a name is told apart by the address.
        patience: How long a reader of a stream may take to read what it is sent. One that takes longer is let go, and
            can go on after what it has read.
        tenants: What each tenant may have at most.
        grace: How long requests under way have to end when the application closes.
    """

    __slots__ = (
        *("body", "body_time", "deliveries", "grace", "heartbeat", "patience", "requests", "streams", "tenants"),
        *("user_streams", "wait"),
    )

    def __init__(  # noqa: PLR0913 -- all of them by name, and none is needed
        self,
        *,
        body: int = 1_048_576,
        body_time: Duration = "10s",
        requests: int = 1_000,
        deliveries: int = 1_000,
        streams: int = 1_000,
        wait: Duration = "60s",
        heartbeat: Duration = "15s",
        user_streams: int = 100,
        patience: Duration = "30s",
        tenants: TenantLimits | None = None,
        grace: Duration = GRACE,
    ) -> None:
        count = partial(whole_number, "AppLimits")
        self.grace: Final = seconds(grace, what="grace")
        self.body: Final = count("body", body)
        self.requests: Final = count("requests", requests)
        self.deliveries: Final = count("deliveries", deliveries)
        self.streams: Final = count("streams", streams)
        self.body_time: Final = seconds(body_time, what="body_time", minimum=0.001)
        self.wait: Final = seconds(wait, what="wait")
        self.tenants: Final = tenants or TenantLimits()
        self.heartbeat: Final = seconds(heartbeat, what="heartbeat", minimum=0.001)
        self.user_streams: Final = count("user_streams", user_streams)
        self.patience: Final = seconds(patience, what="patience", minimum=0.001)


@final
class AppShares:
    """What is open in an application: calls and streams, shared by tenants and their users, and deliveries.

    Deliveries have a share of their own, since any client can open one: it is read before its signature is checked.
    """

    __slots__ = ("deliveries", "requests", "streams")

    def __init__(self, limits: AppLimits) -> None:
        self.requests: Final = Shares(limits.requests, "requests")
        self.deliveries: Final = Shares(limits.deliveries, "deliveries", "this webhook", "this address")
        self.streams: Final = UserShares(Shares(limits.streams, "streams"), "streams of this user", limits.user_streams)

"""What durable locks tell."""

from __future__ import annotations

from typing import ClassVar

from standfast.events._event import Event, Level
from standfast.events._stores import StoreEvent


class PresenceNotRenewed(StoreEvent, frozen=True, kw_only=True):
    """A heartbeat failed. It is tried again; what this process holds is safe for another ``left`` seconds."""

    level: ClassVar[Level] = "warning"

    presence: str
    problem: str
    left: float


class SlowRoundTrip(StoreEvent, frozen=True, kw_only=True):
    """One answer of the store took so much of a lease that it was asked again. Nothing is lost.

    A few are no harm: a new connection, a failover, a pause of the machine. If most are so slow, choose a longer lease.
    """

    level: ClassVar[Level] = "warning"

    seconds: float
    lease: float


class PresenceLost(StoreEvent, frozen=True, kw_only=True):
    """This process can no longer rely on being taken for alive. What it held with that presence is lost."""

    level: ClassVar[Level] = "error"

    presence: str


class LockEvent(Event, frozen=True, kw_only=True):
    """The root of what durable locks tell. ``key`` is the lock's."""

    key: str


class LeaseLost(LockEvent, frozen=True, kw_only=True):
    """A hold ended before its time. Its body is cancelled, or told."""

    level: ClassVar[Level] = "error"

    fence: int
    reason: str


class ReleaseDelayed(LockEvent, frozen=True, kw_only=True):
    """A lock could not be given back, because the store did not answer. It is tried again until it does."""

    level: ClassVar[Level] = "warning"

    problem: str


class Requeued(LockEvent, frozen=True, kw_only=True):
    """A waiter had lost its place, because its process was not heard of for a whole lease, and joined at the end."""

    level: ClassVar[Level] = "warning"


class PermitsDisagree(LockEvent, frozen=True, kw_only=True):
    """This call site says another number of permits than the line has. The line's counts while it is in use."""

    level: ClassVar[Level] = "warning"

    stored: int | None
    asked: int | None


class EntriesFell(LockEvent, frozen=True, kw_only=True):
    """Holders or waiters were dropped, because their processes are gone."""

    level: ClassVar[Level] = "warning"

    presences: tuple[str, ...]

"""What an application takes on at most. Whatever is more is refused with a typed error, before anything is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from standfast.durations import seconds
from standfast.errors import InvalidFlowError
from standfast.flows.shares import Shares
from standfast.flows.tenants import TenantLimits
from standfast.transports.places import Places

if TYPE_CHECKING:
    from standfast.durations import Duration


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
    """

    __slots__ = (
        *("body", "body_time", "deliveries", "heartbeat", "patience", "requests", "streams", "tenants"),
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
    ) -> None:
        self.body: Final = _count("body", body)
        self.requests: Final = _count("requests", requests)
        self.deliveries: Final = _count("deliveries", deliveries)
        self.streams: Final = _count("streams", streams)
        self.body_time: Final = seconds(body_time, what="body_time", minimum=0.001)
        self.wait: Final = seconds(wait, what="wait")
        self.tenants: Final = tenants or TenantLimits()
        self.heartbeat: Final = seconds(heartbeat, what="heartbeat", minimum=0.001)
        self.user_streams: Final = _count("user_streams", user_streams)
        self.patience: Final = seconds(patience, what="patience", minimum=0.001)


@final
class Rooms:
    """What is open in an application: calls and streams, shared by tenants and their users; and deliveries apart.

    Deliveries have a room of their own, since a stranger can open one: it is read before it is known who has signed it.
    """

    __slots__ = ("deliveries", "requests", "streams")

    def __init__(self, limits: AppLimits) -> None:
        self.requests: Final = Shares(limits.requests, "requests")
        self.deliveries: Final = Shares(limits.deliveries, "deliveries", "this webhook", "this address")
        self.streams: Final = Places(Shares(limits.streams, "streams"), "streams of this user", limits.user_streams)


def _count(what: str, given: int) -> int:
    if type(given) is not int or given < 1:
        raise InvalidFlowError("AppLimits", f"{what} is {given!r:.60}; it must be a whole number, at least 1")
    return given

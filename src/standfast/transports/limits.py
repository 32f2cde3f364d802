"""What an application takes on at most. Whatever is more is refused with a typed error, before anything is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn, final

from standfast.durations import seconds
from standfast.errors import InvalidFlowError, TooManyRequestsError
from standfast.flows.tenants import TenantLimits
from standfast.transports.places import Places

if TYPE_CHECKING:
    from types import TracebackType

    from standfast.durations import Duration

SAID: Final = 1.0
"""After how many seconds somebody who came too many may try again."""


@final
class AppLimits:
    """How much an application takes on.

    Args:
        body: Bytes of one body.
        body_time: How long a body may take to arrive.
        requests: How many calls and deliveries are open at the same time, those that wait for their turn included.
        streams: How many streams of events and WebSockets are open at the same time.
        wait: How long a caller waits at most that asked for it with ``Prefer: wait=``.
        heartbeat: How often a stream is told that it is still alive.
        user_streams: How many of those one user may have open; a user without a name is told apart by the address.
        patience: How long a reader of a stream may take to read what it is sent. One that takes longer is let go, and
            can go on after what it has read.
        tenants: What each tenant may have at most.
    """

    __slots__ = ("body", "body_time", "heartbeat", "patience", "requests", "streams", "tenants", "user_streams", "wait")

    def __init__(  # noqa: PLR0913 -- all of them by name, and none is needed
        self,
        *,
        body: int = 1_048_576,
        body_time: Duration = "10s",
        requests: int = 1_000,
        streams: int = 1_000,
        wait: Duration = "60s",
        heartbeat: Duration = "15s",
        user_streams: int = 100,
        patience: Duration = "30s",
        tenants: TenantLimits | None = None,
    ) -> None:
        self.body: Final = _count("body", body)
        self.requests: Final = _count("requests", requests)
        self.streams: Final = _count("streams", streams)
        self.body_time: Final = seconds(body_time, what="body_time", minimum=0.001)
        self.wait: Final = seconds(wait, what="wait")
        self.tenants: Final = tenants or TenantLimits()
        self.heartbeat: Final = seconds(heartbeat, what="heartbeat", minimum=0.001)
        self.user_streams: Final = _count("user_streams", user_streams)
        self.patience: Final = seconds(patience, what="patience", minimum=0.001)


@final
class Room:
    """Counts what is open, and lets in no more than a number."""

    __slots__ = ("_what", "most", "open")

    def __init__(self, what: str, most: int) -> None:
        self._what, self.most = what, most
        self.open = 0

    def refuse(self) -> NoReturn:
        """Raise that there is no room."""
        raise TooManyRequestsError(self._what, self.most, SAID)

    def __enter__(self) -> None:
        if self.open >= self.most:
            self.refuse()
        self.open += 1

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open -= 1


@final
class Rooms:
    """What is open in an application, whatever it came by."""

    __slots__ = ("requests", "streams")

    def __init__(self, limits: AppLimits) -> None:
        self.requests: Final = Room("requests", limits.requests)
        self.streams: Final = Places(Room("streams", limits.streams), "streams of this user", limits.user_streams)


def _count(what: str, given: int) -> int:
    if type(given) is not int or given < 1:
        raise InvalidFlowError("AppLimits", f"{what} is {given!r:.60}; it must be a whole number, at least 1")
    return given

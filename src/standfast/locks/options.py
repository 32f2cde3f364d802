"""How a lock is taken and held: the options that every kind of lock has, and their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

from standfast.durations import DAY, optional_seconds, seconds
from standfast.errors import InvalidLockArgumentError, LeaseTooShortError

if TYPE_CHECKING:
    from standfast.durations import Duration
    from standfast.locks.driving.hold import OnLost
    from standfast.stores.protocol import Capabilities

DEFAULT_LEASE: Final = 30.0
"""Seconds after which others take over from a process that is not heard of any more."""

LONGEST_NOTE: Final = 200
LONGEST_OWNER: Final = 200
LONGEST_MODE: Final = 50
"""In bytes. With these, the record that all holders of a key share never gets too large to be written."""


class HoldOptions(TypedDict, total=False):
    """How a lock is taken and held; the same for every kind of lock.

    Attributes:
        timeout: How long to wait at most; by default for as long as it takes.
        lease: How long others wait for this process if it is not heard of any more; by default the space's. It is
            renewed by itself: it limits neither the wait nor the hold.
        max_hold: After how long the lock is taken away, however alive the holder is.
        on_lost: What happens to the body if the lock is lost: ``"cancel"`` (the default) cancels it and raises
            :class:`~standfast.errors.LeaseLostError`; ``"tell"`` only sets ``hold.lost``.
        owner: For whom, in the eyes of deadlock detection; by default the current task.
        note: A few words for people who look at the line.
    """

    timeout: Duration | None
    lease: Duration | None
    max_hold: Duration | None
    on_lost: OnLost
    owner: str | None
    note: str


KNOWN: Final = frozenset(HoldOptions.__annotations__)


def check_lease(lease: Duration, limits: Capabilities) -> float:
    """Return a lease in seconds; refuse what cannot be kept on this store, or cannot be meant."""
    length = seconds(lease, what="lease", maximum_bare=DAY)
    if length < limits.shortest_lease:
        raise LeaseTooShortError(length, f"on {limits.backend} the shortest is {limits.shortest_lease:g} s")
    return length


def check_heartbeat(heartbeat: Duration | None, lease: float) -> float | None:
    """Return how often a presence is renewed, in seconds; None: three times in a lease."""
    every = optional_seconds(heartbeat, what="heartbeat")
    if every is not None and (every <= 0 or every > lease / 2):
        problem = f"it must be at most half of the lease of {lease:g} s, so that one that is lost can be made up for"
        raise InvalidLockArgumentError("heartbeat", f"{every:g} s", problem)
    return every


def check_text(value: str | None, what: str, longest: int) -> str:
    """Return a short text; refuse anything else."""
    if value is None:
        return ""
    if not isinstance(value, str) or not value.isprintable() or len(value.encode()) > longest:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        shown = ascii(value)[:60]
        raise InvalidLockArgumentError(what, shown, f"it must be printable, and at most {longest} bytes in UTF-8")
    return value

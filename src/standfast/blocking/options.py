"""How a lock is taken and held by blocking code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, cast

from standfast.blocking._owner import owner_of_thread
from standfast.errors import InvalidArgumentError

if TYPE_CHECKING:
    from standfast.durations import Duration
    from standfast.locks import HoldOptions as AsyncHoldOptions

OnLost: TypeAlias = Literal["raise", "tell"]
"""What becomes of a hold that is lost: leaving the block raises, or ``hold.lost`` is all that tells."""


class HoldOptions(TypedDict, total=False):
    """How a lock is taken and held; the same for every kind of lock.

    Attributes:
        timeout: How long to wait at most; by default for as long as it takes.
        lease: How long others wait for this process if it is not heard of any more; by default the space's. It is
            renewed by itself: it limits neither the wait nor the hold.
        max_hold: After how long the lock is taken away, however alive the holder is.
        on_lost: A thread cannot be cancelled, so a body whose lock is lost runs on; call ``hold.check()`` where it
            matters. By default (``"raise"``) leaving the block raises :class:`~standfast.errors.LeaseLostError`;
            ``"tell"`` leaves it at ``hold.lost``.
        owner: For whom, in the eyes of deadlock detection; by default the current thread.
        note: A few words for people who look at the line.
    """

    timeout: Duration | None
    lease: Duration | None
    max_hold: Duration | None
    on_lost: OnLost
    owner: str | None
    note: str


def as_async(options: HoldOptions) -> AsyncHoldOptions:
    """Return the options for the async lock, with the current thread as the owner if nobody else is named."""
    given = dict(cast("dict[str, Any]", options))
    on_lost = given.pop("on_lost", "raise")
    if on_lost not in ("raise", "tell"):
        problem = "a thread cannot be cancelled; choose 'raise' or 'tell'"
        raise InvalidArgumentError("the on_lost of a lock", problem, ascii(on_lost)[:40])
    # What "cancel" would cancel is the call that took the lock, which is over by then. Leaving raises.
    given["on_lost"] = "cancel" if on_lost == "raise" else "tell"
    if given.get("owner") is None:
        given["owner"] = owner_of_thread()
    return cast("AsyncHoldOptions", given)

"""A whole lock as one value, and how to read it from whatever a slot holds.

Nothing, and what has no lists of holders and waiters, is an empty lock. A waiter that cannot be read is left out: it
loses its place. A holder that cannot be read is refused, and so is a value that is something else: to take either for a
free lock would let two in. Other shapes are read: a waiter that is a bare text, a holder without a fence, and records
with ``holderId``, ``leaseExpiresAt`` and ``expiresAt``, whose times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from msgspec import Struct

from standfast.clock import Instant
from standfast.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterable

MILLISECOND: Final = 1_000
"""In microseconds."""

MAX_EXACT: Final = 2**53 - 1
"""The largest number that every store, and JSON, keeps exact. No fence and no instant is larger."""


KNOWN: Final = frozenset({"holders", "waiters", "fence", "permits"})
"""What a lock may have."""

_WAY_OUT: Final = "if nobody holds it, set the slot to initial_lock_record()"


class LockHolder(Struct, frozen=True, gc=False):
    """Who has a permit, until when, and with which fence. Fence 0: from before there were fences."""

    holder_id: str
    lease_expires_at: Instant
    fence: int = 0


class LockWaiter(Struct, frozen=True, gc=False):
    """Who waits, and until when it counts as alive. None: from before waiters expired; the next change sets it."""

    holder_id: str
    expires_at: Instant | None = None


class LockRecord(Struct, frozen=True):
    """A whole lock: its holders, its waiters in order, and the last fence that was given out.

    ``permits`` is the number that those who use it have agreed on. None: from before it was kept, or never said.
    ``lapsed`` are waiters that lost their place because they did not ask in time, to be told so when they do.
    """

    holders: tuple[LockHolder, ...] = ()
    waiters: tuple[LockWaiter, ...] = ()
    fence: int = 0
    permits: int | None = None
    lapsed: tuple[str, ...] = ()

    def is_in_use(self, at: Instant) -> bool:
        """Tell whether anyone holds or waits at ``at``."""
        held = any(holder.lease_expires_at > at for holder in self.holders)
        return held or any(waiter.expires_at is None or waiter.expires_at > at for waiter in self.waiters)

    def holds(self, holder_id: str, at: Instant, fence: int | None = None) -> bool:
        """Tell whether that id holds at ``at``, and if a fence is given, by that very grant."""
        return any(
            each.holder_id == holder_id and each.lease_expires_at > at and fence in (None, each.fence)
            for each in self.holders
        )


def read_lock_record(value: object) -> LockRecord:
    """Return the lock that ``value`` stands for: a :class:`LockRecord`, the same as JSON-shaped data, or none.

    Raises:
        DecodeError: It may be a lock that is held, and cannot be read.
    """
    _refuse_another(value)
    holders: dict[str, LockHolder] = {}
    for holder in filter(None, map(_holder, _items(value, "holders"))):
        twin = holders.get(holder.holder_id)
        if twin is None or twin.lease_expires_at < holder.lease_expires_at:
            holders[holder.holder_id] = holder
    waiters: dict[str, LockWaiter] = {}
    for waiter in filter(None, map(_waiter, _items(value, "waiters"))):
        if waiter.holder_id not in holders:
            waiters.setdefault(waiter.holder_id, waiter)
    fence = max(_fence(value), *(holder.fence for holder in holders.values()), 0)
    lapsed = tuple(each for each in _items(value, "lapsed") if isinstance(each, str))
    return LockRecord(tuple(holders.values()), tuple(waiters.values()), fence, _permits(value), lapsed)


def _refuse_another(value: object) -> None:
    """Refuse data that has nothing of a lock: to write one over it would lose it."""
    names = {*cast("Mapping[object, object]", value)} if isinstance(value, Mapping) else set[object]()
    if names and not names & KNOWN:
        shown = ", ".join(sorted(ascii(name)[:30] for name in names)[:5])
        raise DecodeError(f"the slot holds something that is no lock, with {shown}; {_WAY_OUT}")


def _holder(value: object) -> LockHolder | None:
    if not value or isinstance(value, int | float):  # says nothing about anybody
        return None
    holder_id, ends_at = _id(value), _end(value, "lease_expires_at", "leaseExpiresAt")
    if not isinstance(holder_id, str) or not holder_id or ends_at is None:
        raise DecodeError(
            f"a holder of the lock is {ascii(value)[:100]}, which names no holder with an end; {_WAY_OUT}"
        )
    return LockHolder(holder_id, ends_at, _fence(value))


def _waiter(value: object) -> LockWaiter | None:
    if isinstance(value, str):
        return LockWaiter(value) if value else None
    holder_id, ends_at = _id(value), _end(value, "expires_at", "expiresAt")
    has_end = _field(value, "expires_at") is not None or _field(value, "expiresAt") is not None
    if not isinstance(holder_id, str) or not holder_id or (ends_at is None and has_end):
        return None
    return LockWaiter(holder_id, ends_at)


def _id(value: object) -> object:
    return _field(value, "holder_id") or _field(value, "holderId")


def _end(value: object, name: str, in_milliseconds: str) -> Instant | None:
    end = _instant(_field(value, name))
    if end is not None or (other := _instant(_field(value, in_milliseconds))) is None:
        return end
    return _instant(other * MILLISECOND)


def _items(value: object, name: str) -> Iterable[object]:
    items = _field(value, name)
    return cast("Iterable[object]", items) if isinstance(items, list | tuple) else ()


def _field(value: object, name: str) -> object:
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value).get(name)
    return getattr(value, name, None) if isinstance(value, LockRecord | LockHolder | LockWaiter) else None


def _instant(value: object) -> Instant | None:
    """Return an instant; some stores give whole numbers back as floats."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_EXACT:
        return None
    return Instant(int(value))


def _fence(value: object) -> int:
    fence = _instant(_field(value, "fence"))
    return max(0, fence or 0)


def _permits(value: object) -> int | None:
    permits = _instant(_field(value, "permits"))
    return permits if permits is not None and permits >= 1 else None

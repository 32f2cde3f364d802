"""A whole lock in one record, driven by hand: for any slot that changes as a whole or not at all.

Each function takes what the slot holds and returns what it should hold, with an answer. Put that in one atomic update
of the slot and it is a lock; the functions read no clock and keep no state:

    record, place = try_acquire(slot, "order-7", now=now, lease="30s", version=version)
    if place.acquired:
        write(..., fence=place.fence)

It is the same algebra as every other lock's (:mod:`standfast.locks.line`): waiters poll, the one at the front
takes the permit. What the slot holds may be anything: what cannot be read is repaired, and fences still only grow, if
``version`` is the version of the slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from msgspec import Struct

from standfast.clock import Instant, later
from standfast.durations import DAY, seconds
from standfast.errors import DecodeError, InvalidArgumentError, LineFullError
from standfast.locks import line as algebra
from standfast.locks.line import Entry, Granted, Holder, Line, Rules, Until, Waiter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.durations import Duration


# --- A whole lock as one value, and how to read it from whatever a slot holds --------------------------------------
#
# Nothing, and what has no lists of holders and waiters, is an empty lock. A waiter that cannot be read is left out: it
# loses its place. A holder that cannot be read is refused, and so is a value that is something else: to take either for
# a free lock would let two in. Other shapes are read: a waiter that is a bare text, a holder without a fence, and
# records with ``holderId``, ``leaseExpiresAt`` and ``expiresAt``, whose times are in milliseconds.

MILLISECOND: Final = 1_000
"""In microseconds."""

MAX_EXACT: Final = 2**53 - 1
"""The largest number that every store, and JSON, keeps exact. No fence and no instant is larger."""


KNOWN: Final = frozenset({"holders", "waiters", "fence", "permits"})
"""What a lock may have."""

_WAY_OUT: Final = "if it is not held, set the slot to initial_lock_record()"


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

    ``permits`` is the number that its users have agreed on. None: from before it was kept, or never said.
    ``lapsed`` are waiters that lost their place because they did not ask in time, to be told so when they do.
    """

    holders: tuple[LockHolder, ...] = ()
    waiters: tuple[LockWaiter, ...] = ()
    fence: int = 0
    permits: int | None = None
    lapsed: tuple[str, ...] = ()

    def is_in_use(self, at: Instant) -> bool:
        """Return True if anyone holds or waits at ``at``."""
        held = any(holder.lease_expires_at > at for holder in self.holders)
        return held or any(waiter.expires_at is None or waiter.expires_at > at for waiter in self.waiters)

    def holds(self, holder_id: str, at: Instant, fence: int | None = None) -> bool:
        """Return True if that id holds at ``at``, and if a fence is given, by that very grant."""
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
    fence = max(_read_fence(value), *(holder.fence for holder in holders.values()), 0)
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
    return LockHolder(holder_id, ends_at, _read_fence(value))


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


def _read_fence(value: object) -> int:
    fence = _instant(_field(value, "fence"))
    return max(0, fence or 0)


def _permits(value: object) -> int | None:
    permits = _instant(_field(value, "permits"))
    return permits if permits is not None and permits >= 1 else None


# --- A whole lock in one record, driven by hand: for any slot that changes as a whole or not at all ----------------

MAX_WAITERS: Final = 1_000
"""The most waiters that one record holds."""

WAITER_TTL: Final = 30.0
"""Seconds after which a waiter that does not ask again has left, at least."""

MAX_LAPSED: Final = 100
"""How many waiters that lost their place are remembered."""

SHORTEST: Final = 0.000_001
"""The shortest lease in seconds: the resolution of an instant."""


class LockPosition(Struct, frozen=True, gc=False):
    """What became of an attempt to acquire.

    Attributes:
        acquired: Whether the caller holds a permit.
        position: -1 for a holder; else its place in the line, 0 being next.
        fence: What a guarded write names; 0 while waiting.
        requeued: The caller had a place and lost it: it did not ask again within ``waiter_ttl``. It asks too rarely.
    """

    acquired: bool
    position: int
    fence: int = 0
    requeued: bool = False


class Renewal(Struct, frozen=True):
    """What became of an attempt to renew; it is true if the lease was extended.

    Attributes:
        renewed: Whether the caller holds, until ``lease_expires_at``.
        fence: The fence of its hold, which renewing does not change; 0 if it was not renewed.
        lease_expires_at: When the lease ends now, if it was renewed.
        free: The lease is over, a permit is free, and none waits for it: acquiring again would succeed.
        taken_by: The lease is over, and these hold all permits now. Empty also if waiters are about to.
    """

    renewed: bool
    fence: int = 0
    lease_expires_at: Instant | None = None
    free: bool = False
    taken_by: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.renewed


def initial_lock_record() -> LockRecord:
    """Return a lock that is not held, and that none waits for."""
    return LockRecord()


def try_acquire(
    record: object,
    holder_id: str,
    *,
    now: Instant,
    lease: Duration,
    permits: int = 1,
    waiter_ttl: Duration | None = None,
    version: int = 0,
) -> tuple[LockRecord, LockPosition]:
    """Take a permit if one is free and none is in front; else stand in line, or keep the place there.

    A holder that asks again renews its lease. A waiter that asks again stays alive for another ``waiter_ttl``.

    Args:
        record: What the slot holds.
        holder_id: Who asks; unique to this acquisition, or a later one inherits the hold.
        now: The present, by the store's clock.
        lease: How long the permit lasts from now, if it is not renewed.
        permits: How many may hold at once.
        waiter_ttl: How long a waiter that does not ask again keeps its place; by default the lease, at least 30 s.
        version: The version of the slot, so that a fence grows even if the record was lost.

    Raises:
        LineFullError: 1,000 wait already.
        InvalidArgumentError: The lease or the waiters' time to live makes no sense. Another argument makes no sense.
    """
    _check(holder_id, now, permits)
    length = check_lease(lease)
    ttl = max(WAITER_TTL, length) if waiter_ttl is None else check_lease(waiter_ttl, "waiter_ttl")
    table = _LockTable(record, now, permits, version, ttl)
    requeued = holder_id in table.lapsed
    line, answer = algebra.enter(table.line, _entry(holder_id, later(now, length)), now)
    if isinstance(answer, Granted):
        found = table.record(line)
        fence = _fence(found, holder_id)
        return found, LockPosition(acquired=True, position=-1, fence=fence, requeued=requeued)
    if len(line.waiters) > max(MAX_WAITERS, len(table.line.waiters)):
        raise LineFullError(MAX_WAITERS)
    # Waiting, it lives by its own time: asking again changes nothing else.
    line, _ = algebra.enter(line, _entry(holder_id, later(now, ttl)), now)
    place = next(place for place, waiter in enumerate(line.waiters) if waiter.entry.id == holder_id)
    return table.record(line), LockPosition(acquired=False, position=place, requeued=requeued)


def renew(
    record: object,
    holder_id: str,
    *,
    now: Instant,
    lease: Duration,
    permits: int = 1,
    fence: int | None = None,
    version: int = 0,
) -> tuple[LockRecord, Renewal]:
    """Extend a lease to ``lease`` from now. A lease that is over stays over, even if the permit was not taken.

    Never enqueues the caller. With ``fence``, only that very hold is renewed.
    """
    _check(holder_id, now, permits)
    ends_at = later(now, check_lease(lease))
    table = _LockTable(record, now, permits, version)
    if table.holds(holder_id, fence):
        line, _ = algebra.renew(table.line, holder_id, Until(ends_at))
        found = table.record(line)
        return found, Renewal(renewed=True, fence=_fence(found, holder_id), lease_expires_at=ends_at)
    open_to_all = table.line.rules.admit(table.line.holders, _entry(holder_id, ends_at))
    taken_by = () if open_to_all else tuple(holder.entry.id for holder in table.line.holders)
    return table.record(), Renewal(renewed=False, free=open_to_all and not table.line.waiters, taken_by=taken_by)


def release(
    record: object, holder_id: str, *, now: Instant, fence: int | None = None, version: int = 0
) -> tuple[LockRecord, bool]:
    """Give the permit back, and the place in the line. Returns True if the caller held until now.

    Doing it twice is harmless, and no other entry is touched. With ``fence``, only that very hold is released: a late
    release does not free a successor that goes by the same id.
    """
    _check(holder_id, now)
    table = _LockTable(record, now, 1, version)
    if fence is not None and not table.holds(holder_id, fence):
        return table.record(), False
    table.forget(holder_id)
    return table.record(algebra.leave(table.line, holder_id)), table.holds(holder_id)


def withdraw(record: object, holder_id: str, *, now: Instant, version: int = 0) -> tuple[LockRecord, bool]:
    """Leave the line without touching a hold. Returns True if the caller waited until now."""
    _check(holder_id, now)
    table = _LockTable(record, now, 1, version)
    table.forget(holder_id)
    if table.line.waiter(holder_id) is None:
        return table.record(), False
    return table.record(algebra.leave(table.line, holder_id)), True


def force_release(record: object, holder_id: str, *, now: Instant, version: int = 0) -> tuple[LockRecord, bool]:
    """Evict a holder or a waiter, for an operator. The fence moves on, so that what a holder still writes is old."""
    _check(holder_id, now)
    table = _LockTable(record, now, 1, version)
    if not table.holds(holder_id):
        return withdraw(record, holder_id, now=now, version=version)
    table.move_fence()
    return table.record(algebra.leave(table.line, holder_id)), True


def inspect(record: object) -> LockRecord | None:
    """Return what a slot holds as a record, exactly as it lies there, or None if it holds nothing.

    Nothing is swept: it may show leases that are over.
    """
    return None if record is None else read_lock_record(record)


def check_lease(value: Duration, what: str = "lease") -> float:
    """Return a lease in seconds; refuse what cannot be one."""
    return seconds(value, what=what, minimum=SHORTEST, maximum_bare=DAY)


def check_permits(permits: int) -> int:
    """Return a number of permits; refuse what cannot be one."""
    if type(permits) is not int or permits < 1:
        raise InvalidArgumentError("the permits of a lock", "it must be a whole number, at least 1", _shown(permits))
    return permits


def _check(holder_id: str, now: Instant, permits: int = 1) -> None:
    check_permits(permits)
    if type(holder_id) is not str or not holder_id:
        raise InvalidArgumentError("the holder id of a lock", "it must be a text that is not empty", _shown(holder_id))
    if type(now) is not int:
        raise InvalidArgumentError("the time of a lock", "it must be an Instant: whole microseconds", _shown(now))


def _shown(value: object) -> str:
    return ascii(value)[:40] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


def _entry(holder_id: str, until: Instant) -> Entry:
    return Entry(holder_id, holder_id, Until(until), Instant(0), woken=False)


def _fence(record: LockRecord, holder_id: str) -> int:
    return next(holder.fence for holder in record.holders if holder.holder_id == holder_id)


def _until(entry: Entry) -> Instant:
    return entry.anchor.at if isinstance(entry.anchor, Until) else Instant(0)


class _LockTable:
    """A record as a line, swept, and the way back."""

    __slots__ = ("_fence", "_fences", "_given", "_permits", "lapsed", "line")

    def __init__(self, record: object, now: Instant, permits: int, version: int, ttl: float = WAITER_TTL) -> None:
        found = read_lock_record(record)
        self.line: Final = algebra.sweep(
            _as_line(found, permits, now, later(now, ttl)), now, lambda entry: _until(entry) > now
        )
        waiting = {waiter.entry.id for waiter in self.line.waiters}
        swept = (waiter.holder_id for waiter in found.waiters if waiter.holder_id not in waiting)
        self.lapsed = tuple(dict.fromkeys((*found.lapsed, *swept)))[-MAX_LAPSED:]
        self._given: Final = max(found.fence, version)
        self._fence = found.fence
        self._permits: Final = found.permits
        stored = {holder.holder_id: holder.fence for holder in found.holders}
        # One who lapsed and comes back is a newcomer, so only those that still hold keep their fence.
        self._fences: Final = {holder.entry.id: stored[holder.entry.id] for holder in self.line.holders}
        for holder_id in [holder_id for holder_id, fence in self._fences.items() if not fence]:
            self._fences[holder_id] = self.move_fence()

    def holds(self, holder_id: str, fence: int | None = None) -> bool:
        """Return True if that id holds now, and if a fence is given, by that very grant."""
        return holder_id in self._fences and (fence is None or self._fences[holder_id] == fence)

    def forget(self, holder_id: str) -> None:
        """Tell that id nothing any more: it has left."""
        self.lapsed = tuple(each for each in self.lapsed if each != holder_id)

    def move_fence(self) -> int:
        """Return a fence that is larger than every one before."""
        self._fence = max(self._fence, self._given) + 1
        if self._fence > MAX_EXACT:
            raise InvalidArgumentError(
                "the fence of a lock", "it is larger than every store can keep", _shown(self._fence)
            )
        return self._fence

    def record(self, line: Line | None = None) -> LockRecord:
        """Return the line as a record. A holder that has just got a permit gets the next fence."""
        line = self.line if line is None else line
        holders = tuple(
            LockHolder(each.entry.id, _until(each.entry), self._fences.get(each.entry.id) or self.move_fence())
            for each in line.holders
        )
        waiters = tuple(LockWaiter(each.entry.id, _until(each.entry)) for each in line.waiters)
        present = {*(each.entry.id for each in line.holders), *(each.entry.id for each in line.waiters)}
        # Who comes back to an empty line has nothing to be told: the permit is its own.
        lapsed = tuple(each for each in self.lapsed if each not in present) if present else ()
        return LockRecord(holders, waiters, self._fence, self._permits, lapsed)


def _as_line(record: LockRecord, permits: int, now: Instant, fresh: Instant) -> Line:
    """Return a record as a line. Waiters without an end get a fresh one."""
    holders = tuple(
        Holder(_entry(holder.holder_id, holder.lease_expires_at), slot, now)
        for slot, holder in enumerate(record.holders)
    )
    waiters = tuple(
        Waiter(_entry(waiter.holder_id, fresh if waiter.expires_at is None else waiter.expires_at), ticket)
        for ticket, waiter in enumerate(record.waiters)
    )
    return Line(Rules(permits), holders, waiters, len(waiters))

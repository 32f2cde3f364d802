"""What is known of a line, for people and for programs: the same answer in Python, as JSON and as text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from standfast.clock import MICROSECONDS, Instant, later
from standfast.locks.algebra.stored import MAX_EXACT, LockHolder, LockRecord, LockWaiter

if TYPE_CHECKING:
    from collections.abc import Iterator


class ExplainedEntry(Struct, frozen=True, kw_only=True):
    """Somebody in a line, holding or waiting.

    Attributes:
        entry: The id of the acquisition, by which an operator turns it out.
        owner: For whom it is.
        note: What its owner says about it.
        mode: In which mode; empty for locks without modes.
        weight: How many permits it takes.
        is_alive: Whether its process is still heard of. One that is not falls as soon as anybody waits for it.
        process: The number of its process; None if nothing is known of it any more.
        host: The machine that it runs on.
        program: What runs there.
        since: When it joined the line or, for a holder, was granted, by the store's time.
        run: The run that it is for, and lives as long as: it needs no process. None if it is for no run.
    """

    entry: str
    owner: str
    note: str
    mode: str
    weight: int
    is_alive: bool
    process: int | None
    host: str
    program: str
    since: Instant
    run: str | None = None


class ExplainedHolder(ExplainedEntry, frozen=True, kw_only=True):
    """Somebody who holds.

    Attributes:
        held_for: For how many seconds.
        lease_left: How many seconds from now it falls if its process is not heard of again; None if it is dead, or does
            not live by a lease.
        ends_at: When it is taken away, however alive it is; None if there is no such limit.
        fence: Its fence; None if it changed hands while it was looked at.
        slot: Which of the permits' slots it has.
        entered_at: When it joined the line.
    """

    held_for: float
    lease_left: float | None
    ends_at: Instant | None
    fence: int | None
    slot: int
    entered_at: Instant = Instant(0)

    def falls_at(self, now: Instant) -> Instant:
        """Return when it falls by itself, as far as that is known: at once if it is dead."""
        if not self.is_alive:
            return now
        lease = [] if self.lease_left is None else [later(now, self.lease_left)]
        limit = [] if self.ends_at is None else [self.ends_at]
        return min(*lease, *limit, Instant(MAX_EXACT))


class ExplainedWaiter(ExplainedEntry, frozen=True, kw_only=True):
    """Somebody who waits.

    Attributes:
        place: How many are in front of it: 0 is next.
        ticket: Its number in the line.
        waited: For how many seconds.
        estimate: In how many seconds it is likely to hold; None if there is nothing to tell it from, or it is dead.
    """

    place: int
    ticket: int
    waited: float
    estimate: float | None


class Explanation(Struct, frozen=True, kw_only=True):
    """Who holds a key, who waits for it, and how long that may take. Get it from ``await lock.explain()``.

    It was read and nothing was changed: the dead are shown as dead, not dropped. All instants are the store's.

    Attributes:
        key: The key, as shown to people.
        family: The family of the key; empty for plain text.
        parts: The parts of the key.
        at: When this was so.
        kind: As what it is in use: mutex, semaphore, mode lock; empty if nobody holds it or waits for it.
        permits: How many there are; None for no limit, or if it is not in use.
        is_pinned: Whether an operator has set the permits, with ``resize``.
        alone: Modes that are held by one at a time.
        holders: Who holds it.
        waiters: Who waits for it, from the front, as many as were asked for.
        waiting: How many wait. If :attr:`more` is true, the most there can be.
        more: Whether there are more waiters than are listed.
        pace: How many seconds a hold took lately; 0 if none has ended since the line began.
        estimate: In how many seconds a newcomer would be likely to hold. It is an estimate: everybody is taken to hold
            for as long as others did lately. None if there is nothing to tell it from. On a lock with modes the
            newcomer is one that shares with nobody.
    """

    key: str
    family: str
    parts: tuple[str, ...]
    at: Instant
    kind: str = ""
    permits: int | None = None
    is_pinned: bool = False
    alone: tuple[str, ...] = ()
    holders: tuple[ExplainedHolder, ...] = ()
    waiters: tuple[ExplainedWaiter, ...] = ()
    waiting: int = 0
    more: bool = False
    pace: float = 0.0
    estimate: float | None = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON-shaped data: what ``standfast locks explain --json`` prints."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    def as_record(self) -> LockRecord:
        """Return the same as a whole lock in one record, as a lock by hand is kept, by the ids of the entries."""
        holders = tuple(LockHolder(each.entry, each.falls_at(self.at), each.fence or 0) for each in self.holders)
        waiters = tuple(LockWaiter(each.entry) for each in self.waiters)
        return LockRecord(holders, waiters, max((each.fence for each in holders), default=0), self.permits)

    def as_text(self) -> str:
        """Return it as text for people, on several lines: what ``standfast locks explain`` prints."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if not self.kind:
            yield f"{one_line(self.key)} is free: nobody holds it and nobody waits for it"
            return
        yield f"{one_line(self.key)} is a {self.kind}{self._permits()}: {len(self.holders)} holding, {self._waiting()}"
        if self.pace:
            yield f"a hold took {length(self.pace)} lately"
        yield self._newcomer()
        for holder in self.holders:
            yield from _holder_lines(holder)
        for waiter in self.waiters:
            yield from _waiter_lines(waiter)
        if self.more:
            yield f"and up to {self.waiting - len(self.waiters):,} more waiting"

    def _permits(self) -> str:
        if self.kind != "semaphore":
            return ""
        return f" of {self.permits} permits{' (set by an operator)' if self.is_pinned else ''}"

    def _waiting(self) -> str:
        return f"{'up to ' if self.more else ''}{self.waiting:,} waiting"

    def _newcomer(self) -> str:
        if self.estimate is None:
            return "how long a newcomer would wait is not known yet"
        if not self.estimate:
            return "a newcomer would not have to wait"
        return f"a newcomer would wait for about {length(self.estimate)}"


class LineSummary(Struct, frozen=True, kw_only=True):
    """A line that is in use, in short. Get them from ``space.lines()``.

    Attributes:
        key: The key, as shown to people.
        family: The family of the key; empty for plain text.
        parts: The parts of the key.
        at: When this was so.
        kind: As what it is in use.
        permits: How many there are; None for no limit.
        is_pinned: Whether an operator has set the permits.
        holders: How many hold it, dead ones included.
        waiting: How many wait for it at the most.
        held_for: For how many seconds the one who holds it longest has done so; None if nobody holds it.
    """

    key: str
    family: str
    parts: tuple[str, ...]
    at: Instant
    kind: str
    permits: int | None
    is_pinned: bool
    holders: int
    waiting: int
    held_for: float | None

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON-shaped data: what ``standfast locks list --json`` prints of it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def _holder_lines(holder: ExplainedHolder) -> Iterator[str]:
    yield f"holding: {_who(holder)}"
    fence = "in transit" if holder.fence is None else str(holder.fence)
    yield f"  for {length(holder.held_for)}, since {moment(holder.since)}, fence {fence}, slot {holder.slot}"
    yield from _life_lines(holder)
    if holder.lease_left is not None:
        yield f"  lease: {length(holder.lease_left)} left if it is not renewed"
    if holder.ends_at is not None:
        yield f"  taken away at {moment(holder.ends_at)}"


def _waiter_lines(waiter: ExplainedWaiter) -> Iterator[str]:
    place = "next" if waiter.place == 0 else f"{waiter.place:,} in front"
    estimate = "" if waiter.estimate is None else f", likely to hold in {length(waiter.estimate)}"
    yield f"waiting, {place}: {_who(waiter)}"
    yield f"  for {length(waiter.waited)}, since {moment(waiter.since)}, ticket {waiter.ticket}{estimate}"
    yield from _life_lines(waiter)


def _who(entry: ExplainedEntry) -> str:
    mode = f", mode {one_line(entry.mode)}" if entry.mode else ""
    weight = f", {entry.weight} permits" if entry.weight > 1 else ""
    run = "" if entry.run is None else f"run {one_line(entry.run)}"
    owner = one_line(entry.owner) if not run else "" if entry.owner == entry.run else f" ({one_line(entry.owner)})"
    return f"{run}{owner}{mode}{weight}"


def _life_lines(entry: ExplainedEntry) -> Iterator[str]:
    if entry.note:
        yield f"  note: {one_line(entry.note)}"
    if entry.process is not None:
        yield f"  process {entry.process} on {one_line(entry.host)}: {one_line(entry.program)}"
    if not entry.is_alive:
        yield "  dead: it is not heard of any more, and is dropped as soon as anybody waits for it"
    yield f"  entry {one_line(entry.entry)}"


def one_line(text: str) -> str:
    """Return a text from a store as a terminal may show it: on one line, without control characters."""
    return text if text.isprintable() else ascii(text)


def length(seconds: float) -> str:
    """Return a length of time as people write it, roughly."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for limit, size, unit in ((100, 1, "s"), (6_000, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86_400:,.0f} days"


def moment(instant: Instant) -> str:
    """Return an instant as people read it, in UTC."""
    try:
        return datetime.fromtimestamp(instant / MICROSECONDS, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):  # nobody's clock says so, but a record may
        return f"instant {instant}"

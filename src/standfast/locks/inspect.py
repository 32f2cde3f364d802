"""Looking at lines without touching them: who holds, who waits, and which lines there are.

Nothing is written, and no entry is dropped: a look at a live store leaves no trace in it.
"""

from __future__ import annotations

import heapq
import shlex
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct, structs

from standfast.clock import MICROSECONDS, Instant, later, seconds_between
from standfast.errors import InvalidArgumentError
from standfast.keys import RecordKey
from standfast.locks.heartbeat import PRESENCES, PresenceRecord
from standfast.locks.line import OUT_OF_SIGHT, Entry, Holder, OfPresence, Until, Waiter, has_fallen
from standfast.locks.line_history import HISTORIES, PastHold
from standfast.locks.line_records import (
    GRANTS,
    HEADS,
    HELD,
    WAITERS,
    Head,
    LineKeys,
    head_at,
    is_slotted,
    presences_of,
    run_of,
)
from standfast.locks.lock_record import MAX_EXACT, LockHolder, LockRecord, LockWaiter
from standfast.locks.mutex_line import SLOT, holder_in, is_mutex, queued_in
from standfast.locks.slot_line import grants_in, pace_in
from standfast.stores.protocol import Record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Container, Iterable, Iterator, Sequence

    from standfast.codec import Codec
    from standfast.locks.line import Rules
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot


# --- what is known of a line, for people and for programs: the same answer in Python, as JSON and as text ----------


class ExplainedEntry(Struct, frozen=True, kw_only=True):
    """An entry in a line, holding or waiting.

    Attributes:
        entry: The id of the acquisition, by which an operator evicts it.
        owner: For whom it is.
        note: What its owner says about it.
        mode: In which mode; empty for locks without modes.
        weight: How many permits it takes.
        is_alive: Whether its process is still heard of. One that is not falls as soon as another waits for it.
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
    """An entry that holds.

    Attributes:
        held_for: For how many seconds.
        lease_left: How many seconds from now it falls if its process is not heard of again; None if it is dead, or does
            not live by a lease.
        ends_at: When it is taken away, however alive it is; None if there is no such limit.
        fence: Its fence; None if it changed hands while it was looked at.
        slot: Which of the permits' slots it has; None if its line only counts it.
        entered_at: When it joined the line.
    """

    held_for: float
    lease_left: float | None
    ends_at: Instant | None
    fence: int | None
    slot: int | None
    entered_at: Instant = Instant(0)

    def falls_at(self, now: Instant) -> Instant:
        """Return when it falls by itself, as far as that is known: at once if it is dead."""
        if not self.is_alive:
            return now
        lease = [] if self.lease_left is None else [later(now, self.lease_left)]
        limit = [] if self.ends_at is None else [self.ends_at]
        return min(*lease, *limit, Instant(MAX_EXACT))


class ExplainedWaiter(ExplainedEntry, frozen=True, kw_only=True):
    """An entry that waits.

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
        kind: As what it is in use: mutex, semaphore, mode lock; empty if it is not in use.
        permits: How many there are; None for no limit, or if it is not in use.
        is_pinned: Whether an operator has set the permits, with ``resize``.
        alone: Modes that are held by one at a time.
        holders: Who holds it; of very many, some hundred.
        waiters: Who waits for it, from the front, as many as were asked for.
        waiting: How many wait. If :attr:`more` is true, the most there can be.
        more: Whether there are more waiters than are listed.
        pace: How many seconds a hold took lately; 0 if none has ended since the line began.
        estimate: In how many seconds a newcomer would be likely to hold. It is an estimate: each is taken to hold
            for as long as others did lately. None if there is nothing to tell it from. On a lock with modes the
            newcomer is one that shares with none.
        history: Who held it before, newest first: those whose hold ended by death, eviction or expiry; and those that
            released it, if the key's family asks for that (``sf.KeyFamily(..., history=20)``).
        reverts_at: When the permits end that an operator has set; None: when they are cleared.
        holding: How many hold it, also if not all of them are listed.
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
    history: tuple[PastHold, ...] = ()
    reverts_at: Instant | None = None
    holding: int = 0

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
            yield f"{one_line(self.key)} is free: it is not held, and none waits for it"
            yield from self._past_lines()
            return
        permits = f" of {self.permits} permits{' (set by an operator)' if self.is_pinned else ''}"
        kind = f"{self.kind}{permits if self.kind == 'semaphore' else ''}"
        waiting = f"{'up to ' if self.more else ''}{self.waiting:,} waiting"
        yield f"{one_line(self.key)} is a {kind}: {self.holding:,} holding, {waiting}"
        if self.pace:
            yield f"a hold took {length(self.pace)} lately"
        yield self._newcomer()
        for holder in self.holders:
            yield from _holder_lines(holder)
        if self.holding > len(self.holders):
            yield f"and {self.holding - len(self.holders):,} more holding"
        for waiter in self.waiters:
            yield from _waiter_lines(waiter)
        if self.more:
            yield f"and up to {self.waiting - len(self.waiters):,} more waiting"
        yield from self._past_lines()

    def _past_lines(self) -> Iterator[str]:
        for past in self.history[:SHOWN]:
            mode = f", mode {one_line(past.mode)}" if past.mode else ""
            yield f"held before: {one_line(past.owner)}{mode}, {past.end}"
            yield f"  for {length(past.held_for)}, until {moment(past.ended_at)}, fence {past.fence}"

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
        held_for: For how many seconds the one who holds it longest has done so, of those that its line lists; None if
            it lists none.
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
    slot = "" if holder.slot is None else f", slot {holder.slot}"
    yield f"  for {length(holder.held_for)}, since {moment(holder.since)}, fence {fence}{slot}"
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
        yield "  dead: its presence is over; it is dropped as soon as another entry waits"
    yield f"  entry {one_line(entry.entry)}"


def counted(count: int, noun: str) -> str:
    """Return a number of things in words: ``"1 run"``, ``"2,000 runs"``."""
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def one_line(text: str) -> str:
    """Return a text from a store as a terminal may show it: on one line, without control characters."""
    return text if text.isprintable() else ascii(text)


def arguments_of(*words: str) -> tuple[str, ...]:
    """Return what a command takes besides options, told apart from these if one of the words looks like one."""
    return ("--", *words) if any(word.startswith("-") for word in words) else words


def command_line(*words: str) -> str:
    """Return a command of ours as it can be typed in a shell, whatever the words contain; on one line.

    Words that begin with a dash and are no options have to come from :func:`arguments_of`.
    """
    return " ".join(map(_typed, ("standfast", *words)))


def _typed(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word))}'"  # what bash, zsh and newer other shells read


def _escaped(character: str) -> str:
    if character.isprintable():
        return f"\\{character}" if character in "\\'" else character
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x80 else f"\\U{number:08x}"  # noqa: PLR2004 -- the end of ASCII


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
    except (OverflowError, ValueError, OSError):  # no clock says so, but a record may
        return f"instant {instant}"


# --- when waiters are likely to hold: a pure guess from how long holds took lately ---------------------------------

_NOW: Final = Instant(0)
_MODE_OF_ITS_OWN: Final = "\0"


def newcomer(rules: Rules, kind: str) -> Entry:
    """Return an entry that has not come yet: with one permit, and where there are modes, sharing with none."""
    mode = (*rules.alone, _MODE_OF_ITS_OWN)[0] if kind == "mode lock" else ""
    return Entry("", "", Until(_NOW), _NOW, mode=mode)


def remaining(pace: float, held_for: float, left: float | None) -> float:
    """Return for how long a holder is likely to go on: until it has held as long as others did lately."""
    likely = max(0.0, pace - held_for) if pace else inf
    return likely if left is None else min(likely, max(0.0, left))


def forecast(
    rules: Rules, holders: Iterable[tuple[float, Holder]], waiters: Iterable[Entry], pace: float
) -> Iterator[float | None]:
    """Yield for each waiter in how many seconds it is likely to hold; None if that cannot be told.

    Args:
        rules: What may be held together.
        holders: Who holds, each with the seconds that it will go on.
        waiters: Who waits, in order. None passes another.
        pace: How long a hold takes; 0 if that is not known.
    """
    ends = [(end, number, holder) for number, (end, holder) in enumerate(holders)]
    heapq.heapify(ends)
    time, number = 0.0, len(ends)
    for entry in waiters:
        if not rules.ever_admit(entry):
            yield None
            continue
        while not rules.admit((holder for _, _, holder in ends), entry):
            time = max(time, heapq.heappop(ends)[0])
        number += 1
        takes = min(pace or inf, entry.max_hold or inf)
        heapq.heappush(ends, (time + takes, number, Holder(entry, number, _NOW)))
        yield None if time == inf else time


# --- looking at lines without touching them: who holds, who waits, and which lines there are -----------------------

SHOWN: Final = 5
"""How many past holds the text of an explanation shows."""

LISTED: Final = 100
"""How many waiters are listed, if nothing else is asked for."""

MOST_LISTED: Final = 1_000
"""The most that can be listed: the estimates of many who share take long to work out."""

PAGE: Final = 100
"""The most records that are read at once."""

COUNTED: Final = 500
"""The most waiters that are counted in one round trip."""

MOST_COUNTED: Final = 10_000
"""The most waiters for a mutex that are counted."""

TRIES: Final = 4
"""How often a line that moves while it is read is read again; the last time it is shown as it was seen."""


async def explain(scope: Scope, address: tuple[str, ...], *, limit: int = LISTED) -> Explanation:
    """Say who holds the line at an address and who waits in it."""
    keys, listed = LineKeys(scope, address), _checked_limit(limit)
    seen = await _look(scope, keys, listed)
    for _ in range(TRIES - 1):
        if seen.is_whole:
            break
        seen = await _look(scope, keys, listed)
    return _explained(scope, keys, seen)


async def lines(scope: Scope) -> AsyncIterator[LineSummary]:
    """Yield every line that is in use, in the order of their keys."""
    start: RecordKey | None
    start, end = scope.key("line").within()
    while start is not None:
        page = await scope.scan(start, end, limit=PAGE)
        for line in await lines_at(scope, page.records.values(), page.at):
            oldest = min((holder.granted_at for holder in line.holders), default=None)
            yield LineSummary(
                key=line.keys.name,
                family=line.keys.address[1],
                parts=line.keys.address[2:],
                at=page.at,
                kind=line.head.kind,
                permits=line.head.rules.permits,
                is_pinned=line.head.pinned,
                holders=line.held,
                waiting=line.waiting,
                held_for=None if oldest is None else seconds_between(oldest, page.at),
            )
        start = page.more


class FoundLine(Struct, frozen=True):
    """A line in use: its head, who holds it, how many wait at the most, and the first of them."""

    keys: LineKeys
    head: Head
    holders: tuple[Holder, ...]
    waiting: int
    first: Waiter | None

    @property
    def held(self) -> int:
        """How many hold it, those included that it only counts."""
        return len(self.holders) + self.head.unseen


async def lines_at(scope: Scope, heads: Iterable[Record], at: Instant) -> list[FoundLine]:
    """Read the lines that heads were found of at an instant, in a few round trips for all of them together."""
    found = [(LineKeys.of_head(scope, each.key), head_at(HEADS.decode(each.value), at)) for each in heads]
    wanted: dict[RecordKey, RecordKey] = {}
    slots: dict[RecordKey, list[RecordKey]] = {}
    for keys, head in found:
        if is_mutex(head):
            wanted[keys.head] = keys.grant(SLOT)
        elif is_slotted(head):
            slots[keys.head] = [*map(keys.grant, range(0 if head.pinned else head.rules.permits or 0))]
        elif head.next_ticket > head.front:
            wanted[keys.head] = keys.ticket(head.front)
    records, _ = await _read_all(scope, [*wanted.values(), *(key for some in slots.values() for key in some)])
    queues = await _queues(scope, [_queue_keys(keys, head) for keys, head in found if _has_queue(head)])
    lines: list[FoundLine] = []
    for keys, head in found:
        record = records.get(wanted[keys.head]) if keys.head in wanted else None
        if _has_queue(head):
            queue = queues[keys.head]
            first = queued_in(_queue_keys(keys, head), queue[0]) if queue else None
            held = [] if record is None else [record]
            if is_slotted(head):
                held = [records[key] for key in slots[keys.head] if key in records]
                if head.pinned:  # some may hold more than there are by now
                    held = [*(await grants_in(scope, keys)).values()]
            lines.append(FoundLine(keys, head, tuple(map(holder_in, held)), len(queue), first))
            continue
        if record is None and keys.head in wanted:  # the first one has left meanwhile, or out of turn
            rest = await scope.scan(*keys.tickets_from(head.front), limit=1)
            record = next(iter(rest.records.values()), None)
        first = None if record is None else WAITERS.decode(record.value)
        waiting = 0 if first is None else head.next_ticket - first.ticket
        lines.append(FoundLine(keys, head, head.holders, waiting, first))
    return lines


def _has_queue(head: Head) -> bool:
    """Return True if waiters have numbers that the store has drawn, and holders are where their grants are."""
    return is_mutex(head) or is_slotted(head)


def _queue_keys(keys: LineKeys, head: Head) -> LineKeys:
    """Return the keys of a line by which its waiters are found."""
    return keys.with_slots() if is_slotted(head) else keys


async def _queues(scope: Scope, lines: Sequence[LineKeys]) -> dict[RecordKey, list[Record]]:
    """Return the waiters of lines, of each as many as are counted. Most have none: those cost nothing."""
    queues: dict[RecordKey, list[Record]] = {keys.head: [] for keys in lines}
    rest = sorted(lines, key=lambda keys: keys.queue)
    while rest:
        page = await scope.scan(rest[0].queue, rest[-1].queue.within()[1], limit=COUNTED)
        place = 0
        for record in page.records.values():  # in the order of the lines
            while place + 1 < len(rest) and rest[place + 1].queue <= record.key:
                place += 1
            if record.key.startswith(rest[place].queue):
                queues[rest[place].head].append(record)
        if page.more is None:
            break
        last = next(reversed(page.records))
        rest = [keys for keys in rest if keys.queue > last]  # behind the one that was counted last
    return queues


async def front_waits(scope: Scope, *, most: int) -> AsyncIterator[tuple[str, int, float]]:
    """Yield the family of each line with waiters, how many there are at the most, and for how long the first waits.

    Of at most ``most`` lines, those without waiters included: it is for a look that must not cost much.
    """
    start: RecordKey | None
    start, end = scope.key("line").within()
    size = scope.at_most(PAGE)
    while start is not None and most > 0:
        page = await scope.scan(start, end, limit=size)
        start, most = page.more, most - len(page.records)
        for found in await lines_at(scope, page.records.values(), page.at):
            if found.first is not None:
                waited = max(0.0, seconds_between(found.first.entry.entered_at, page.at))
                yield found.keys.address[1], found.waiting, waited


async def held_of(scope: Scope, keys: LineKeys, counted: Container[str], most: int | None) -> list[Holder]:
    """Return the holders that a line only counts, in the order of their ids, ``most`` of them; None: all.

    ``counted`` are the presences that the line counts: holders of others have fallen.
    """
    found: list[Holder] = []
    start: RecordKey | None
    start, end = keys.all_held()
    while start is not None and (most is None or len(found) < most):
        page = await scope.scan(start, end, limit=PAGE if most is None else min(PAGE, most - len(found)))
        held = [HELD.decode(record.value) for record in page.records.values()]
        found += [each for each in held if not has_fallen(each, counted)]
        start = page.more
    return found


async def holders_in(scope: Scope, address: tuple[str, ...]) -> tuple[Holder, ...]:
    """Return the entries that hold the line at an address."""
    keys = LineKeys(scope, address)
    seen = await scope.read(keys.head, keys.grant(SLOT))
    return await holders_of(scope, keys, seen)


async def holders_of(scope: Scope, keys: LineKeys, seen: Snapshot) -> tuple[Holder, ...]:
    """Return who holds a line, by its head and its first grant, but for those that it only counts."""
    record, grant = seen.get(keys.head), seen.get(keys.grant(SLOT))
    head = None if record is None else HEADS.decode(record.value)
    if head is not None and is_slotted(head):
        return tuple(map(holder_in, (await grants_in(scope, keys)).values()))
    if head is None or not is_mutex(head):
        return () if head is None else head.holders
    return () if grant is None else (holder_in(grant),)


async def waiting_in(scope: Scope, address: tuple[str, ...]) -> list[Entry]:
    """Return all entries that wait in the line at an address, from the front."""
    return [waiter.entry async for waiter in waiters_of(scope, LineKeys(scope, address), None)]


async def count_waiting(scope: Scope, address: tuple[str, ...], most: int) -> int:
    """Count the entries that wait in the counted line at an address, up to a number."""
    return await _count(scope, *LineKeys(scope, address).tickets_from(0), most)


async def _count(scope: Scope, start: RecordKey, end: RecordKey, most: int) -> int:
    found = 0
    while found < most:
        page = await scope.scan(start, end, limit=min(COUNTED, most - found))
        found += len(page.records)
        if page.more is None:
            break
        start = page.more
    return found


async def find_waiter(scope: Scope, keys: LineKeys, entry_id: str) -> Waiter | None:
    """Return a waiter by its entry's id, however far back it is; None if it does not wait."""
    async for waiter in waiters_of(scope, keys, None):
        if waiter.entry.id == entry_id:
            return waiter
    return None


async def stored_records(scope: Scope, address: tuple[str, ...], *, limit: int = LISTED) -> list[dict[str, Any]]:
    """Return the records of a line as they are stored: its head, grants, presences and the first waiters."""
    keys = LineKeys(scope, address)
    seen = await _look(scope, keys, _checked_limit(limit))
    if seen.head is not None and _has_queue(seen.head):
        of_queue = _queue_keys(keys, seen.head)
        queue = await scope.scan(*of_queue.queue.within(), limit=max(1, len(seen.waiters))) if seen.waiters else None
        return [_shown(record) for record in (*seen.records.values(), *(queue.records.values() if queue else ()))]
    wanted = [*seen.records, *(keys.ticket(waiter.ticket) for waiter in seen.waiters)]
    records, _ = await _read_all(scope, wanted)
    return [_shown(record) for record in records.values()]


def _checked_limit(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MOST_LISTED:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidArgumentError(
            "the limit of a lock", f"it is a number from 0 to {MOST_LISTED:,}", ascii(limit)[:40]
        )
    return limit


def _value(kind: str, record: Record) -> object:
    if kind in ("queue", "queued") or (kind == "grant" and record.value[:2].isdigit()):  # begins with a time
        return holder_in(record)
    codecs: dict[str, Codec[Any]] = {
        "line": HEADS,
        "grant": GRANTS,
        "presence": PRESENCES,
        "ticket": WAITERS,
        "held": HELD,
        "past": HISTORIES,
    }
    return codecs[kind].decode(record.value)


def _shown(record: Record) -> dict[str, Any]:
    _, _, kind, *parts = record.key.parts
    return {
        "record": kind,
        "parts": parts,
        "version": record.version,
        "expires_at": record.expires_at,
        "value": msgspec.to_builtins(_value(kind, record)),
    }


# --- reading -----------------------------------------------------------------------------------------------------


class _LineRead(Struct, frozen=True):
    """What was read of a line. ``is_whole``: nothing changed meanwhile, so that all of it was so at once."""

    at: Instant
    head: Head | None = None
    holders: tuple[Holder, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    more: bool = False
    rest: int = 0
    records: dict[RecordKey, Record] = {}
    is_whole: bool = True


async def _look(scope: Scope, keys: LineKeys, limit: int) -> _LineRead:
    first = await scope.read(keys.head, keys.past, keys.grant(SLOT))
    found = first.get(keys.head)
    if found is None:
        past = {key: record for key, record in first.records.items() if key == keys.past}
        return _LineRead(first.at, records=past)
    head, holders = head_at(HEADS.decode(found.value), first.at), await holders_of(scope, keys, first)
    if head.unseen:
        holders = (*holders, *await held_of(scope, keys, head.unseen_of, LISTED))
    waiters = [waiter async for waiter in waiters_of(scope, keys, head, limit + 1)]
    shown = tuple(waiters[:limit])
    entries = [*(holder.entry for holder in holders), *(waiter.entry for waiter in shown)]
    grants = [keys.grant_of(holder) for holder in holders]
    wanted = [keys.head, keys.past, *grants, *(keys.presence(name) for name in sorted(presences_of(entries)))]
    records, at = await _read_all(scope, wanted)
    held = [keys.head, *grants] if is_mutex(head) else [keys.head]
    is_whole = all((records[key].version if key in records else 0) == first.version(key) for key in held)
    if is_slotted(head):
        head = structs.replace(head, pace=pace_in([records[key] for key in grants if key in records]))
        now = [holder_in(records[key]) if key in records else None for key in grants]
        is_whole = is_whole and now == [*holders]
    more = len(waiters) > limit
    if _has_queue(head):
        rest = await _count(scope, *_queue_keys(keys, head).queue.within(), MOST_COUNTED) - len(shown) if more else 0
    else:
        rest = max(0, head.next_ticket - shown[-1].ticket - 1) if shown else head.next_ticket - head.front
    return _LineRead(at, head, holders, shown, more, rest, records, is_whole)


async def _read_all(scope: Scope, keys: Sequence[RecordKey]) -> tuple[dict[RecordKey, Record], Instant]:
    """Read any number of records; beyond what one read takes they are not one snapshot."""
    records: dict[RecordKey, Record] = {}
    at = Instant(0)
    page = scope.at_most(PAGE)
    for start in range(0, len(keys), page):
        seen = await scope.read(*keys[start : start + page])
        records |= seen.records
        at = seen.at
    return records, at


async def waiters_of(
    scope: Scope, keys: LineKeys, head: Head | None, limit: int | None = None
) -> AsyncIterator[Waiter]:
    """Yield the waiters of a line with that head, from the front, page by page; None: whatever line it is."""
    counted, queue = keys.tickets_from(0 if head is None else head.front), keys.queue.within()
    slotted = keys.with_slots()
    queued = slotted.queue.within()
    given = 0
    wanted = queue if head is None or is_mutex(head) else queued if is_slotted(head) else counted
    for first, end in (counted, queue, queued) if head is None else (wanted,):
        start: RecordKey | None = first
        while start is not None and given != limit:
            page = await scope.scan(start, end, limit=PAGE if limit is None else min(PAGE, limit - given))
            for record in page.records.values():
                if end is counted[1]:
                    yield WAITERS.decode(record.value)
                else:
                    yield queued_in(keys if end is queue[1] else slotted, record)
            given += len(page.records)
            start = page.more


# --- telling -----------------------------------------------------------------------------------------------------


def _explained(scope: Scope, keys: LineKeys, seen: _LineRead) -> Explanation:
    head = seen.head
    if head is None:
        history = _history(keys, seen)
        return Explanation(key=keys.name, family=keys.address[1], parts=keys.address[2:], at=seen.at, history=history)
    lives = _Liveness(scope, keys, seen)
    holding = {holder.entry.id for holder in seen.holders}
    waiters = [waiter for waiter in seen.waiters if waiter.entry.id not in holding]
    estimates = _estimates(seen, head, lives, [waiter.entry for waiter in waiters])
    return Explanation(
        key=keys.name,
        family=keys.address[1],
        parts=keys.address[2:],
        at=seen.at,
        kind=head.kind,
        permits=head.rules.permits,
        is_pinned=head.pinned,
        alone=head.rules.alone,
        holders=tuple(lives.holder(each) for each in seen.holders),
        waiters=tuple(lives.waiter(each, place, estimates[place]) for place, each in enumerate(waiters)),
        waiting=len(waiters) + (seen.rest if seen.more else 0),
        more=seen.more,
        pace=head.pace,
        estimate=_for_newcomer(estimates[-1], head, seen.rest if seen.more else 0),
        history=_history(keys, seen),
        reverts_at=None if head.reversion is None else head.reversion.at,
        holding=max(len(seen.holders), len(head.holders) + head.unseen),
    )


def _history(keys: LineKeys, seen: _LineRead) -> tuple[PastHold, ...]:
    record = seen.records.get(keys.past)
    return () if record is None else HISTORIES.decode(record.value).holds


def _estimates(seen: _LineRead, head: Head, lives: _Liveness, waiters: Sequence[Entry]) -> list[float | None]:
    """Return the estimate of each waiter, and last that of a newcomer. The dead are in no way."""
    holders = [
        (remaining(head.pace, lives.since(each.granted_at), lives.until(each.ends_at)), each)
        for each in seen.holders
        if lives.is_alive(each.entry)
    ]
    living = [lives.is_alive(entry) for entry in waiters]
    standing = [entry for entry, is_alive in zip(waiters, living, strict=True) if is_alive]
    found = forecast(_rules_of_listed(seen, head), holders, (*standing, newcomer(head.rules, head.kind)), head.pace)
    return [next(found) if is_alive else None for is_alive in (*living, True)]


def _rules_of_listed(seen: _LineRead, head: Head) -> Rules:
    """Return the rules for the holders that were read: their share of the permits, if they are some of very many."""
    unlisted = max(0, head.unseen + len(head.holders) - len(seen.holders))
    if not unlisted or head.rules.permits is None:
        return head.rules
    return structs.replace(head.rules, permits=max(1, head.rules.permits - unlisted))


def _for_newcomer(estimate: float | None, head: Head, unseen: int) -> float | None:
    """Return what a newcomer waits for, those included who were not looked at."""
    if not unseen:
        return estimate
    return None if estimate is None or not head.pace else estimate + unseen * head.pace / (head.rules.permits or 1)


class _Liveness:
    """Who of those in a line is alive, by what was read."""

    def __init__(self, scope: Scope, keys: LineKeys, seen: _LineRead) -> None:
        self._scope, self._keys, self._seen = scope, keys, seen

    def since(self, instant: Instant) -> float:
        return seconds_between(instant, self._seen.at)

    def until(self, instant: Instant | None) -> float | None:
        return None if instant is None else seconds_between(self._seen.at, instant)

    def _presence(self, entry: Entry) -> Record | None:
        if not isinstance(entry.anchor, OfPresence):
            return None
        return self._seen.records.get(self._keys.presence(entry.anchor.presence))

    def is_alive(self, entry: Entry) -> bool:
        if isinstance(entry.anchor, OfPresence):
            record = self._presence(entry)
            return record is not None and not self._scope.store.is_dead(PRESENCES.decode(record.value).liveness_token)
        return not isinstance(entry.anchor, Until) or entry.anchor.at > self._seen.at

    def _fence(self, holder: Holder) -> int | None:
        grant = self._seen.records.get(self._keys.grant_of(holder))
        if grant is None:
            return None
        if holder.slot == OUT_OF_SIGHT:
            return grant.version
        head = self._seen.head
        is_whole = head is not None and _has_queue(head)
        entry = holder_in(grant).entry.id if is_whole else GRANTS.decode(grant.value).entry
        return grant.version if entry == holder.entry.id else None

    def holder(self, holder: Holder) -> ExplainedHolder:
        anchor, record = holder.entry.anchor, self._presence(holder.entry)
        expires_at = None if record is None else record.expires_at
        lapses_at = anchor.at if isinstance(anchor, Until) else expires_at
        return ExplainedHolder(
            **self._described(holder.entry),
            since=holder.granted_at,
            held_for=self.since(holder.granted_at),
            lease_left=self.until(lapses_at) if self.is_alive(holder.entry) else None,
            ends_at=holder.ends_at,
            fence=self._fence(holder),
            slot=None if holder.slot == OUT_OF_SIGHT else holder.slot,
            entered_at=holder.entry.entered_at,
        )

    def waiter(self, waiter: Waiter, place: int, estimate: float | None) -> ExplainedWaiter:
        return ExplainedWaiter(
            **self._described(waiter.entry),
            since=waiter.entry.entered_at,
            place=place,
            ticket=waiter.ticket,
            waited=self.since(waiter.entry.entered_at),
            estimate=estimate,
        )

    def _described(self, entry: Entry) -> dict[str, Any]:
        record = self._presence(entry)
        here = PresenceRecord(0, "", "", 0.0) if record is None else PRESENCES.decode(record.value)
        return {
            "entry": entry.id,
            "owner": entry.owner,
            "note": entry.note,
            "mode": entry.mode,
            "weight": entry.weight,
            "is_alive": self.is_alive(entry),
            "process": None if record is None else here.process,
            "host": here.host,
            "program": here.program,
            "run": run_of(entry),
        }

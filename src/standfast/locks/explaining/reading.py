"""Looking at lines without touching them: who holds, who waits, and which lines there are.

Nothing is written, and nobody is dropped: a look at a live store leaves no trace in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from standfast.clock import Instant, seconds_between
from standfast.errors import InvalidLockArgumentError
from standfast.keys import RecordKey
from standfast.locks.algebra.entries import Attended, Entry, Holder, Until, Waiter
from standfast.locks.driving.presence import PRESENCES, PresenceRecord
from standfast.locks.driving.readying import run_of
from standfast.locks.driving.records import GRANTS, HEADS, WAITERS, Head, LineKeys, presences_of
from standfast.locks.explaining.explanation import ExplainedHolder, ExplainedWaiter, Explanation, LineSummary
from standfast.locks.explaining.forecast import forecast, newcomer, remaining
from standfast.stores.protocol import Record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from standfast.codec import Codec
    from standfast.scope import Scope

LISTED: Final = 100
"""How many waiters are listed, if nothing else is asked for."""

MOST_LISTED: Final = 1_000
"""The most that can be listed: the estimates of many who share take long to work out."""

PAGE: Final = 100
"""The most records that are read at once."""

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
        for key, record in page.records.items():
            yield _summary(LineKeys.of_head(scope, key), HEADS.decode(record.value), page.at)
        start = page.more


async def find_waiter(scope: Scope, keys: LineKeys, entry_id: str) -> Waiter | None:
    """Return a waiter by its entry's id, however far back it is; None if it does not wait."""
    async for waiter in _waiters(scope, keys, 0):
        if waiter.entry.id == entry_id:
            return waiter
    return None


async def stored_records(scope: Scope, address: tuple[str, ...], *, limit: int = LISTED) -> list[dict[str, Any]]:
    """Return the records of a line as they are stored: its head, grants, presences and the first waiters."""
    keys = LineKeys(scope, address)
    seen = await _look(scope, keys, _checked_limit(limit))
    wanted = [*seen.records, *(keys.ticket(waiter.ticket) for waiter in seen.waiters)]
    records, _ = await _read_all(scope, wanted)
    return [_shown(record) for record in records.values()]


def _checked_limit(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MOST_LISTED:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidLockArgumentError("limit", ascii(limit)[:40], f"it is a number from 0 to {MOST_LISTED:,}")
    return limit


def _shown(record: Record) -> dict[str, Any]:
    _, _, kind, *parts = record.key.parts
    codecs: dict[str, Codec[Any]] = {"line": HEADS, "grant": GRANTS, "presence": PRESENCES, "ticket": WAITERS}
    return {
        "record": kind,
        "parts": parts,
        "version": record.version,
        "expires_at": record.expires_at,
        "value": msgspec.to_builtins(codecs[kind].decode(record.value)),
    }


# --- reading -----------------------------------------------------------------------------------------------------


class _Seen(Struct, frozen=True):
    """What was read of a line. ``is_whole``: nobody came or went meanwhile, so that all of it was so at once."""

    at: Instant
    head: Head | None = None
    waiters: tuple[Waiter, ...] = ()
    more: bool = False
    records: dict[RecordKey, Record] = {}
    is_whole: bool = True


async def _look(scope: Scope, keys: LineKeys, limit: int) -> _Seen:
    first = await scope.read(keys.head)
    found = first.get(keys.head)
    if found is None:
        return _Seen(first.at)
    head = HEADS.decode(found.value)
    waiters = [waiter async for waiter in _waiters(scope, keys, head.front, limit + 1)]
    shown = tuple(waiters[:limit])
    entries = [*(holder.entry for holder in head.holders), *(waiter.entry for waiter in shown)]
    wanted = [keys.head, *(keys.grant(holder.slot) for holder in head.holders)]
    wanted += [keys.presence(name) for name in sorted(presences_of(entries))]
    records, at = await _read_all(scope, wanted)
    now = records.get(keys.head)
    is_whole = now is not None and now.version == found.version
    return _Seen(at, head, shown, len(waiters) > limit, records, is_whole)


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


async def _waiters(scope: Scope, keys: LineKeys, front: int, limit: int | None = None) -> AsyncIterator[Waiter]:
    start: RecordKey | None
    start, end = keys.tickets_from(front)
    given = 0
    while start is not None and given != limit:
        page = await scope.scan(start, end, limit=PAGE if limit is None else min(PAGE, limit - given))
        for record in page.records.values():
            yield WAITERS.decode(record.value)
        given += len(page.records)
        start = page.more


# --- telling -----------------------------------------------------------------------------------------------------


def _summary(keys: LineKeys, head: Head, at: Instant) -> LineSummary:
    oldest = min((holder.granted_at for holder in head.holders), default=None)
    return LineSummary(
        key=keys.name,
        family=keys.address[1],
        parts=keys.address[2:],
        at=at,
        kind=head.kind,
        permits=head.rules.permits,
        is_pinned=head.pinned,
        holders=len(head.holders),
        waiting=head.next_ticket - head.front,
        held_for=None if oldest is None else seconds_between(oldest, at),
    )


def _explained(scope: Scope, keys: LineKeys, seen: _Seen) -> Explanation:
    head = seen.head
    if head is None:
        return Explanation(key=keys.name, family=keys.address[1], parts=keys.address[2:], at=seen.at)
    lives = _Lives(scope, keys, seen)
    holding = {holder.entry.id for holder in head.holders}
    waiters = [waiter for waiter in seen.waiters if waiter.entry.id not in holding]
    estimates = _estimates(head, lives, [waiter.entry for waiter in waiters])
    rest = max(0, head.next_ticket - waiters[-1].ticket - 1) if waiters else head.next_ticket - head.front
    return Explanation(
        key=keys.name,
        family=keys.address[1],
        parts=keys.address[2:],
        at=seen.at,
        kind=head.kind,
        permits=head.rules.permits,
        is_pinned=head.pinned,
        alone=head.rules.alone,
        holders=tuple(lives.holder(each) for each in head.holders),
        waiters=tuple(lives.waiter(each, place, estimates[place]) for place, each in enumerate(waiters)),
        waiting=len(waiters) + (rest if seen.more else 0),
        more=seen.more,
        pace=head.pace,
        estimate=_for_newcomer(estimates[-1], head, rest if seen.more else 0),
    )


def _estimates(head: Head, lives: _Lives, waiters: Sequence[Entry]) -> list[float | None]:
    """Return the estimate of each waiter, and last that of a newcomer. The dead are in nobody's way."""
    holders = [
        (remaining(head.pace, lives.since(each.granted_at), lives.until(each.ends_at)), each)
        for each in head.holders
        if lives.is_alive(each.entry)
    ]
    living = [lives.is_alive(entry) for entry in waiters]
    standing = [entry for entry, is_alive in zip(waiters, living, strict=True) if is_alive]
    found = forecast(head.rules, holders, (*standing, newcomer(head.rules, head.kind)), head.pace)
    return list(_spread(found, (*living, True)))


def _spread(found: Iterator[float | None], living: Iterable[bool]) -> Iterator[float | None]:
    for is_alive in living:
        yield next(found) if is_alive else None


def _for_newcomer(estimate: float | None, head: Head, unseen: int) -> float | None:
    """Return what a newcomer waits for, those included who were not looked at."""
    if not unseen:
        return estimate
    return None if estimate is None or not head.pace else estimate + unseen * head.pace / (head.rules.permits or 1)


class _Lives:
    """Who of those in a line is alive, by what was read."""

    def __init__(self, scope: Scope, keys: LineKeys, seen: _Seen) -> None:
        self._scope, self._keys, self._seen = scope, keys, seen

    def since(self, instant: Instant) -> float:
        return seconds_between(instant, self._seen.at)

    def until(self, instant: Instant | None) -> float | None:
        return None if instant is None else seconds_between(self._seen.at, instant)

    def _presence(self, entry: Entry) -> Record | None:
        if not isinstance(entry.anchor, Attended):
            return None
        return self._seen.records.get(self._keys.presence(entry.anchor.presence))

    def is_alive(self, entry: Entry) -> bool:
        if isinstance(entry.anchor, Attended):
            record = self._presence(entry)
            return record is not None and not self._scope.store.is_severed(PRESENCES.decode(record.value).lifeline)
        return not isinstance(entry.anchor, Until) or entry.anchor.at > self._seen.at

    def _lease_left(self, entry: Entry) -> float | None:
        if not self.is_alive(entry):
            return None
        record = self._presence(entry)
        expires_at = None if record is None else record.expires_at
        return self.until(entry.anchor.at if isinstance(entry.anchor, Until) else expires_at)

    def _fence(self, holder: Holder) -> int | None:
        grant = self._seen.records.get(self._keys.grant(holder.slot))
        if grant is None or GRANTS.decode(grant.value).entry != holder.entry.id:
            return None
        return grant.version

    def holder(self, holder: Holder) -> ExplainedHolder:
        return ExplainedHolder(
            **self._described(holder.entry),
            since=holder.granted_at,
            held_for=self.since(holder.granted_at),
            lease_left=self._lease_left(holder.entry),
            ends_at=holder.ends_at,
            fence=self._fence(holder),
            slot=holder.slot,
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

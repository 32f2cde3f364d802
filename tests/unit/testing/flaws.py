"""Every way to break the store contract that its suite must notice."""

from __future__ import annotations

import asyncio
import unicodedata
from typing import TYPE_CHECKING, Any

from msgspec import structs

from holdfast.clock import Instant
from holdfast.errors import StoreError
from holdfast.keys import RecordKey
from holdfast.stores.backend import Applied, Batch, CommitRider, UpdateRider
from holdfast.stores.protocol import Check, Commit, Conflict, Delete, Put, Record, Snapshot
from tests.unit.testing.tiny import Tiny

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.stores.backend import Outcome, Rider
    from holdfast.stores.protocol import Change, Wake

FLAWS: dict[str, type[Tiny]] = {}


def flaw(tiny: type[Tiny]) -> type[Tiny]:
    """Note a backend with a flaw; its docstring says which."""
    FLAWS[str(tiny.__doc__).rstrip(".")] = tiny
    return tiny


# --- guards ---------------------------------------------------------------------------------------------------------


@flaw
class _NoPutGuards(Tiny):
    """A put does not look at the version."""

    def holds(self, change: Change, record: Record | None) -> bool:
        return isinstance(change, Put) or super().holds(change, record)


@flaw
class _NoDeleteGuards(Tiny):
    """A delete does not look at the version."""

    def holds(self, change: Change, record: Record | None) -> bool:
        return isinstance(change, Delete) or super().holds(change, record)


@flaw
class _NoChecks(Tiny):
    """A check does not look at the version."""

    def holds(self, change: Change, record: Record | None) -> bool:
        return isinstance(change, Check) or super().holds(change, record)


@flaw
class _CreateOverwrites(Tiny):
    """A create overwrites what is there."""

    def holds(self, change: Change, record: Record | None) -> bool:
        return change.expected == 0 or super().holds(change, record)


@flaw
class _NewerIsFine(Tiny):
    """A guard holds at any version that is not newer than expected."""

    def holds(self, change: Change, record: Record | None) -> bool:
        return (record is not None and 0 < record.version <= change.expected) or super().holds(change, record)


@flaw
class _NotAllOrNothing(Tiny):
    """A commit writes what it can before it finds the guard that fails."""

    def commit(self, rider: CommitRider) -> Commit | Conflict:
        verdict = super().commit(rider)
        if isinstance(verdict, Conflict):
            self.write(change for change in rider.changes if change.key not in verdict.current)
        return verdict


@flaw
class _FirstConflictOnly(Tiny):
    """A conflict names only the first guard that failed."""

    def lost(self, changes: Sequence[Change], at: Instant) -> dict[RecordKey, Record | None]:
        return dict(list(super().lost(changes, at).items())[:1])


@flaw
class _EmptyConflict(Tiny):
    """A conflict does not carry the present record."""

    def lost(self, changes: Sequence[Change], at: Instant) -> dict[RecordKey, Record | None]:
        return dict.fromkeys(super().lost(changes, at))


@flaw
class _TalkativeConflict(Tiny):
    """A conflict names guards that held."""

    def lost(self, changes: Sequence[Change], at: Instant) -> dict[RecordKey, Record | None]:
        lost = super().lost(changes, at)
        return {change.key: self.present(change.key, at) for change in changes} if lost else lost


# --- versions -------------------------------------------------------------------------------------------------------


@flaw
class _VersionsStartAgain(Tiny):
    """A key that was deleted starts again at version 1."""

    def next_version(self, key: RecordKey, value: bytes) -> int:  # noqa: ARG002 -- as the rule is called
        record = self.rows.get(self.row(key))
        return 1 if record is None else record.version + 1


@flaw
class _SameValueSameVersion(Tiny):
    """A put of the same value keeps the version."""

    def next_version(self, key: RecordKey, value: bytes) -> int:
        record = self.rows.get(self.row(key))
        return record.version if record is not None and record.value == value else super().next_version(key, value)


@flaw
class _HugeVersions(Tiny):
    """Versions do not fit into a double."""

    def next_version(self, key: RecordKey, value: bytes) -> int:
        return 2**53 + super().next_version(key, value)


@flaw
class _ExpiredStartsAgain(Tiny):
    """A record that is created over an expired one starts again at version 1."""

    def next_version(self, key: RecordKey, value: bytes) -> int:
        record = self.rows.get(self.row(key))
        return 1 if record is not None and self.is_gone(record, self.now()) else super().next_version(key, value)


# --- time -----------------------------------------------------------------------------------------------------------


@flaw
class _ExclusiveExpiry(Tiny):
    """A record is still there at the instant of its expiry."""

    def is_gone(self, record: Record, at: Instant) -> bool:
        return record.expires_at is not None and record.expires_at < at


@flaw
class _NoExpiry(Tiny):
    """Records never expire."""

    def is_gone(self, record: Record, at: Instant) -> bool:  # noqa: ARG002 -- as the rule is called
        return False


@flaw
class _ScansShowExpired(Tiny):
    """A scan shows what has expired."""

    def scannable(self, found: list[Record], at: Instant) -> list[Record]:  # noqa: ARG002 -- as the rule is called
        return found


@flaw
class _GuardsSeeExpired(Tiny):
    """A guard holds on a record that has expired."""

    def lost(self, changes: Sequence[Change], at: Instant) -> dict[RecordKey, Record | None]:
        return super().lost(changes, Instant(0)) if at else {}


@flaw
class _ExpiryStays(Tiny):
    """A put without an expiry keeps the old one."""

    def write(self, changes: Iterable[Change]) -> dict[RecordKey, int]:
        kept = [
            structs.replace(each, expires_at=old.expires_at)
            if isinstance(each, Put) and (old := self.present(each.key, self.now())) and each.expires_at is None
            else each
            for each in changes
        ]
        return super().write(kept)


@flaw
class _NoWindows(Tiny):
    """A commit does not look at its window."""

    def is_open(self, rider: Any, at: Instant) -> bool:  # noqa: ARG002 -- as the rule is called
        return True


@flaw
class _EndBelongs(Tiny):
    """The end of a window belongs to it."""

    def is_open(self, rider: Any, at: Instant) -> bool:
        return (rider.after is None or rider.after <= at) and (rider.before is None or at <= rider.before)


@flaw
class _BeginningDoesNotBelong(Tiny):
    """The beginning of a window does not belong to it."""

    def is_open(self, rider: Any, at: Instant) -> bool:
        return (rider.after is None or rider.after < at) and (rider.before is None or at < rider.before)


@flaw
class _WallTime(Tiny):
    """The store's time follows a stepped wall clock."""

    def now(self) -> Instant:
        return self.clock.wall()


@flaw
class _TimeStandsStill(Tiny):
    """The store's time does not pass."""

    def now(self) -> Instant:
        return Instant(self.started)


# --- scans and keys -------------------------------------------------------------------------------------------------


@flaw
class _EndIsInRange(Tiny):
    """The end of a range belongs to it."""

    def in_range(self, key: RecordKey, start: RecordKey, end: RecordKey) -> bool:
        return start <= key <= end


@flaw
class _StartIsNotInRange(Tiny):
    """The start of a range does not belong to it."""

    def in_range(self, key: RecordKey, start: RecordKey, end: RecordKey) -> bool:
        return start < key < end


@flaw
class _PagesRepeat(Tiny):
    """The last record of a page comes again on the next."""

    def go_on(self, page: list[Record], *, reverse: bool) -> RecordKey:
        return page[-1].key.successor() if reverse else page[-1].key


@flaw
class _SortedAsText(Tiny):
    """A scan sorts keys as text, without their case."""

    def sort_key(self, record: Record) -> Any:
        return [part.casefold() for part in record.key.parts]


@flaw
class _NoReverse(Tiny):
    """A reverse scan goes forwards."""

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:  # noqa: ARG002 -- the flaw
        return await super().scan(start, end, limit=limit, reverse=False)


@flaw
class _ExpiredFillPages(Tiny):
    """Expired records take up room on a page."""

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        everything = [each for each in self.rows.values() if self.in_range(each.key, start, end)]
        inside = sorted(everything, key=self.sort_key, reverse=reverse)[:limit]
        page = self.scannable(inside, self.now())
        more = None if len(everything) <= limit else self.go_on(inside, reverse=reverse)
        return Snapshot(self.now(), {record.key: record for record in page}, more)


class _Folded(Tiny):
    """A store that confuses keys."""

    def fold(self, part: str) -> str:
        return part

    def row(self, key: RecordKey) -> bytes:
        return bytes(RecordKey(*[self.fold(part) for part in key.parts]))


@flaw
class _CaseInsensitive(_Folded):
    """Keys are compared without their case."""

    def fold(self, part: str) -> str:
        return part.lower()


@flaw
class _Padded(_Folded):
    """Spaces at the end of a key do not count."""

    def fold(self, part: str) -> str:
        return part.rstrip(" ")


@flaw
class _Normalised(_Folded):
    """Keys are normalised."""

    def fold(self, part: str) -> str:
        return unicodedata.normalize("NFC", part)


@flaw
class _NulEnds(_Folded):
    """A key ends at a NUL."""

    def fold(self, part: str) -> str:
        return part.split("\x00", maxsplit=1)[0]


@flaw
class _Joined(_Folded):
    """The parts of a key are joined by a separator that may be part of them."""

    def row(self, key: RecordKey) -> bytes:
        return "\x1f".join(key.parts).encode() if "\x1f" in "".join(key.parts) else ":".join(key.parts).encode()


@flaw
class _NulEndsValues(Tiny):
    """A value ends at a NUL."""

    def kept(self, value: bytes) -> bytes:
        return value.split(b"\x00")[0]


@flaw
class _TextValues(Tiny):
    """A value is kept as text."""

    def kept(self, value: bytes) -> bytes:
        return value.decode(errors="replace").encode()


# --- updates and groups ---------------------------------------------------------------------------------------------


@flaw
class _LastFirst(Tiny):
    """Riders are served in the wrong order."""

    def order(self, riders: Sequence[Rider]) -> list[int]:
        return super().order(riders)[::-1]


@flaw
class _UpdatesFirst(Tiny):
    """Updates are served before commits."""

    def order(self, riders: Sequence[Rider]) -> list[int]:
        return sorted(super().order(riders), key=lambda n: isinstance(riders[n], CommitRider))


@flaw
class _LostUpdates(Tiny):
    """Updates of one group all see the records from before it."""

    def apply_batch(self, batch: Batch) -> Applied:
        self.before = dict(self.rows)
        return super().apply_batch(batch)

    def update(self, rider: UpdateRider) -> Any:
        present, self.rows = self.rows, self.before
        seen = self.snapshot(rider.keys)
        self.rows = present
        return super().update(UpdateRider(rider.keys, lambda _: rider.decide(seen)))

    def check(self, decision: Any, seen: Snapshot, rider: UpdateRider) -> None:
        """Let it pass."""


@flaw
class _UncheckedDecisions(Tiny):
    """A decision may change any key at any version."""

    def check(self, decision: Any, seen: Snapshot, rider: UpdateRider) -> None:
        """Let it pass."""


@flaw
class _OneFailsAll(Tiny):
    """An error in one decision fails the whole group."""

    def update(self, rider: UpdateRider) -> Any:
        outcome = super().update(rider)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@flaw
class _OneConflictForAll(Tiny):
    """One conflict makes the rest of the group lose."""

    def apply_batch(self, batch: Batch) -> Applied:
        self.lost_already: Conflict | None = None
        return super().apply_batch(batch)

    def serve(self, rider: Rider) -> Outcome:
        outcome = self.lost_already or super().serve(rider)
        if isinstance(outcome, Conflict):
            self.lost_already = outcome
        return outcome


@flaw
class _LooksAreWrites(Tiny):
    """A decision without changes still writes."""

    def update(self, rider: UpdateRider) -> Any:
        outcome = super().update(rider)
        self.write(Put(key, old.value) for key in rider.keys if (old := self.present(key, self.now())))
        return outcome


@flaw
class _SwallowsErrors(Tiny):
    """An error in a decision is raised as another one."""

    def update(self, rider: UpdateRider) -> Any:
        outcome = super().update(rider)
        return StoreError(self.name, "failed") if isinstance(outcome, Exception) else outcome


@flaw
class _TornReads(Tiny):
    """A read of several keys is not one snapshot."""

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        records: dict[RecordKey, Record] = {}
        for key in keys:
            records.update(self.snapshot([key]).records)
            await asyncio.sleep(0)
        return Snapshot(self.now(), records)


@flaw
class _StaleReads(Tiny):
    """A read may be one commit behind."""

    def apply_batch(self, batch: Batch) -> Applied:
        self.behind = dict(self.rows)
        return super().apply_batch(batch)

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        present, self.rows = self.rows, getattr(self, "behind", self.rows)
        try:
            return self.snapshot(keys)
        finally:
            self.rows = present


# --- hints, attempts and limits -------------------------------------------------------------------------------------


@flaw
class _PrefixOfText(Tiny):
    """A watch hears of keys that only begin alike."""

    def hears(self, prefix: RecordKey, key: RecordKey) -> bool:
        return key.startswith(prefix[:-2])


@flaw
class _OnlyTheKeyItself(Tiny):
    """A watch does not hear of what lies below its prefix."""

    def hears(self, prefix: RecordKey, key: RecordKey) -> bool:
        return key == prefix


@flaw
class _NoWakes(Tiny):
    """Wakes are not sent."""

    def ring(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:  # noqa: ARG002 -- the flaw
        super().ring(changed, ())


@flaw
class _HintsForConflicts(Tiny):
    """A commit that loses sends hints all the same."""

    def commit(self, rider: CommitRider) -> Commit | Conflict:
        verdict = super().commit(rider)
        if isinstance(verdict, Conflict):
            self.changed.extend(change.key for change in rider.changes)
        return verdict


@flaw
class _EarlyHints(Tiny):
    """Hints are sent before the commit can be seen."""

    async def apply(self, batch: Batch) -> Applied:
        rows = dict(self.rows)
        applied = await super().apply(batch)
        written, self.rows = self.rows, rows
        self.ring(applied.changed, applied.wakes)
        for _ in range(5):
            await asyncio.sleep(0)
        self.rows = written
        return structs.replace(applied, changed=(), wakes=())

    def apply_now(self, batch: Batch) -> Applied | None:  # noqa: ARG002 -- as the rule is called
        return None


@flaw
class _ClosedCanLand(Tiny):
    """An attempt that was closed can still land."""

    def apply_batch(self, batch: Batch) -> Applied:
        self.attempts.pop(batch.attempt, None)
        return super().apply_batch(batch)


@flaw
class _LandedIsForgotten(Tiny):
    """An attempt that landed is settled as never written."""

    async def settle(self, attempt: str) -> Applied | None:
        self.attempts.setdefault(attempt, None)
        return None


@flaw
class _BoastsOfRoom(Tiny):
    """It declares more changes a commit than the contract allows."""

    capabilities = structs.replace(Tiny.capabilities, max_changes=1_000)


@flaw
class _NotAtomic(Tiny):
    """It declares that it is not atomic."""

    capabilities = structs.replace(Tiny.capabilities, atomic=False)

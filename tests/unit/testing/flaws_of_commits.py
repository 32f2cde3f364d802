"""Flaws of single commits: guards, versions and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from standfast.clock import Instant
from standfast.stores.protocol import Check, Commit, Conflict, Delete, Put, Record
from tests.unit.testing.flaws import flaw
from tests.unit.testing.tiny import Tiny

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.backend import CommitRider
    from standfast.stores.protocol import Change


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

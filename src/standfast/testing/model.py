"""What a store should answer, as a pure model: no time, no I/O, no concurrency.

A store may choose two things: the instant of an answer and the versions of what it puts. The model takes both from
the store's own answer (``like``), refuses versions that do not grow, and predicts everything else. If the answer is
not equal to the prediction, the store is wrong (or the model).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct

from standfast.stores.protocol import (
    ABSENT,
    MAX_VERSION,
    Change,
    Check,
    Commit,
    Conflict,
    Decided,
    Decision,
    Put,
    Record,
    Snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from standfast.clock import Instant
    from standfast.keys import RecordKey


class Cell(Struct, frozen=True):
    """A key that has been used: its record, expired or not, and the highest version that it has had."""

    record: Record | None
    high: int


NEVER_USED: Final = Cell(None, ABSENT)


@final
class StoreModel:
    """The records that a store should hold. Immutable: each change returns another model."""

    __slots__ = ("_cells",)

    def __init__(self, cells: Mapping[RecordKey, Cell] | None = None) -> None:
        self._cells: Final[Mapping[RecordKey, Cell]] = {} if cells is None else cells

    def __eq__(self, other: object) -> bool:
        return type(other) is StoreModel and self._cells == other._cells

    def __hash__(self) -> int:
        return hash(frozenset(self._cells.items()))

    def record(self, key: RecordKey, at: Instant) -> Record | None:
        """Return the record that is present at ``key`` at ``at``."""
        record = self._cell(key).record
        if record is None or (record.expires_at is not None and record.expires_at <= at):
            return None
        return record

    def _cell(self, key: RecordKey) -> Cell:
        return self._cells.get(key, NEVER_USED)

    def expiries(self, keys: Sequence[RecordKey]) -> set[Instant]:
        """Return the instants at which records at ``keys`` expire."""
        records = [self._cell(key).record for key in keys]
        return {record.expires_at for record in records if record is not None and record.expires_at is not None}

    # --- reading -----------------------------------------------------------------------------------------------

    def read(self, keys: Sequence[RecordKey], *, at: Instant) -> Snapshot:
        """Predict a read."""
        return Snapshot(at, {key: record for key in keys if (record := self.record(key, at)) is not None})

    def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool = False, at: Instant) -> Snapshot:
        """Predict a page of a scan."""
        inside = sorted((key for key in self._cells if start <= key < end), reverse=reverse)
        present = [key for key in inside if self.record(key, at) is not None]
        snapshot = self.read(present[:limit], at=at)
        if len(present) <= limit:
            return snapshot
        last = present[limit - 1]
        return Snapshot(at, snapshot.records, last if reverse else last.successor())

    # --- writing -----------------------------------------------------------------------------------------------

    def commit(
        self,
        changes: Sequence[Change],
        *,
        like: Commit | Conflict,
        after: Instant | None = None,
        before: Instant | None = None,
    ) -> tuple[StoreModel, Commit | Conflict]:
        """Predict a commit that was answered ``like`` this, and the model after it."""
        at = like.at
        current = {change.key: self.record(change.key, at) for change in changes}
        lost = {
            change.key: current[change.key] for change in changes if _version(current[change.key]) != change.expected
        }
        if lost or (after is not None and at < after) or (before is not None and at >= before):
            return self, Conflict(at, lost)
        versions = self.versions(changes, like.versions if isinstance(like, Commit) else {})
        return self.written(changes, versions), Commit(at, versions)

    def update(
        self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[Any]], *, like: Decided[Any]
    ) -> tuple[StoreModel, Decided[Any]]:
        """Predict an update that was answered ``like`` this, and the model after it."""
        decision = decide(self.read(keys, at=like.at))
        versions = self.versions(decision.changes, like.versions)
        return self.written(decision.changes, versions), Decided(decision.answer, like.at, versions)

    def versions(self, changes: Sequence[Change], given: Mapping[RecordKey, int]) -> dict[RecordKey, int]:
        """Return the version of each key that is put: the one that was ``given``, if a store may choose it."""
        return {put.key: self._grown(put.key, given.get(put.key, ABSENT)) for put in changes if isinstance(put, Put)}

    def _grown(self, key: RecordKey, given: int) -> int:
        high = self._cell(key).high
        return given if high < given <= MAX_VERSION else high + 1

    def written(self, changes: Sequence[Change], versions: Mapping[RecordKey, int]) -> StoreModel:
        """Return the model after ``changes``, whatever they expect."""
        cells = dict(self._cells)
        for change in changes:
            if isinstance(change, Check):
                continue
            high = self._cell(change.key).high
            if isinstance(change, Put):
                high = max(high, versions[change.key])
                record = Record(change.key, change.value, versions[change.key], change.expires_at)
            else:
                record = None
            cells[change.key] = Cell(record, high)
        return StoreModel(cells)


def _version(record: Record | None) -> int:
    return ABSENT if record is None else record.version

"""Folding: what a batch of commits and updates does to the records, as a pure function.

Riders are taken in order; each sees what those before it did. The result has an outcome for each rider and only
the *last* state of each key, so a hundred updates of one hot key become one write. Backends that can compute
inside their transaction call this there; the others commit its writes under guards and fold again if they lose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from msgspec import Struct

from holdfast.errors import StoreError
from holdfast.stores.backend import CommitRider, Outcome, UpdateRider
from holdfast.stores.protocol import (
    ABSENT,
    MAX_VERSION,
    Capabilities,
    Change,
    Commit,
    Conflict,
    Decided,
    Decision,
    Delete,
    Put,
    Record,
    Snapshot,
    Wake,
)
from holdfast.stores.rules import check_decision, in_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from holdfast.clock import Instant
    from holdfast.keys import RecordKey
    from holdfast.stores.backend import Rider

    Lookup = Callable[[Sequence[RecordKey]], Mapping[RecordKey, Record]]


class Folded(Struct, frozen=True):
    """What a batch comes to: an outcome a rider, the last state of each changed key, and hints to send."""

    outcomes: tuple[Outcome, ...]
    writes: dict[RecordKey, Record | None]
    wakes: tuple[Wake, ...]
    last_version: int


def fold(riders: Iterable[Rider], *, at: Instant, last_version: int, lookup: Lookup, limits: Capabilities) -> Folded:
    """Fold ``riders`` over the records that ``lookup`` finds, at store time ``at``.

    ``lookup`` may return expired records; they count as absent. Each rider that writes takes the next version
    after ``last_version``, so versions grow for every key whatever happened to it before.
    """
    state = _Fold(at, last_version, lookup, limits)
    outcomes = tuple([state.ride(rider) for rider in riders])
    return Folded(outcomes, state.writes, tuple(state.wakes), state.last_version)


@final
class _Fold:
    """The records as the riders so far have left them."""

    __slots__ = ("_at", "_limits", "_lookup", "_seen", "last_version", "wakes", "writes")

    def __init__(self, at: Instant, last_version: int, lookup: Lookup, limits: Capabilities) -> None:
        self._at, self._lookup, self._limits = at, lookup, limits
        self._seen: dict[RecordKey, Record | None] = {}
        self.last_version = last_version
        self.writes: dict[RecordKey, Record | None] = {}
        self.wakes: list[Wake] = []

    def ride(self, rider: Rider) -> Outcome:
        if type(rider) is CommitRider:
            return self._commit(rider)
        assert type(rider) is UpdateRider
        return self._update(rider)

    def _commit(self, rider: CommitRider) -> Commit | Conflict:
        changes = rider.changes
        self._look_up([change.key for change in changes])
        seen = self._seen
        lost = {
            change.key: record
            for change in changes
            if (ABSENT if (record := seen[change.key]) is None else record.version) != change.expected
        }
        if lost or not in_window(self._at, rider.after, rider.before):
            return Conflict(self._at, lost)
        return Commit(self._at, self._write(changes, rider.wake))

    def _update(self, rider: UpdateRider) -> Decided[Any] | Exception:
        self._look_up(rider.keys)
        seen = Snapshot(self._at, {key: record for key in rider.keys if (record := self._seen[key]) is not None})
        try:
            decision: Decision[Any] = rider.decide(seen)
            check_decision(decision, seen, rider.keys, self._limits)
        except Exception as problem:  # noqa: BLE001 -- it is the rider's own, and is raised to it alone
            return problem
        versions = self._write(decision.changes, decision.wake)
        return Decided(decision.answer, self._at, versions)

    def _look_up(self, keys: Sequence[RecordKey]) -> None:
        missing = [key for key in keys if key not in self._seen]
        if missing:
            found = self._lookup(missing)
            for key in missing:
                self._see(key, found.get(key))

    def _see(self, key: RecordKey, record: Record | None) -> None:
        self._seen[key] = None if record is None or record.is_expired(self._at) else record

    def _write(self, changes: Sequence[Change], wakes: Sequence[Wake]) -> dict[RecordKey, int]:
        if self.last_version >= MAX_VERSION:
            raise StoreError("store", "its version counter is used up")
        self.last_version = version = self.last_version + 1
        versions: dict[RecordKey, int] = {}
        for change in changes:
            if type(change) is Put:
                record = Record(change.key, change.value, version, change.expires_at)
                self.writes[change.key] = record
                self._see(change.key, record)
                versions[change.key] = version
            elif type(change) is Delete:
                self.writes[change.key] = None
                self._seen[change.key] = None
        self.wakes.extend(wakes)
        return versions

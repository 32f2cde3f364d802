"""Folding: what a batch of commits and updates does to the records, as a pure function.

Riders are taken in order; each sees what those before it did. The result has an outcome for each rider and only
the *last* state of each key, so a hundred updates of one hot key become one write. Backends that can compute
inside their transaction call this there; the others commit its writes under guards and fold again if they lose.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from msgspec import Struct

from standfast.clock import Instant
from standfast.errors import InvalidChangeError, StoreError
from standfast.keys import RecordKey
from standfast.stores.alternatives import choose, keys_in
from standfast.stores.backend import ChoiceRider, CommitRider, Outcome, UpdateRider
from standfast.stores.protocol import (
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
from standfast.stores.validation import check_decision, in_window

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from standfast.stores.backend import Rider


_BY_KEY: Final = attrgetter("key")


class Ranges(Protocol):
    """Looks into the records below a key."""

    def __call__(self, prefix: RecordKey, most: int, without: Container[RecordKey] = ..., /) -> Sequence[Record]:
        """Return the first live records, up to a number, that continue a key and are not in the container."""
        ...


class Folded(Struct, frozen=True):
    """What a batch comes to: an outcome a rider, the last state of each changed key, and wakes to send."""

    at: Instant
    outcomes: tuple[Outcome, ...]
    writes: dict[RecordKey, Record | None]
    wakes: tuple[Wake, ...]
    last_version: int


def fold(
    riders: Sequence[Rider],
    *,
    at: Instant,
    last_version: int,
    records: Mapping[RecordKey, Record],
    limits: Capabilities,
    ranges: Ranges | None = None,
) -> Folded:
    """Fold ``riders`` over ``records``, at store time ``at``.

    ``records`` holds what exists at the keys of the riders (see :func:`keys_of`); expired ones count as absent. Each
    rider that writes takes the next version after ``last_version``, so versions grow for every key whatever happened
    to it before. ``ranges`` finds the first live records below a prefix that are none of those given.
    """
    if len(riders) == 1:
        alone = riders[0]
        if type(alone) is CommitRider:
            return _fold_alone(alone, at, last_version, records)
        if type(alone) is ChoiceRider and ranges is not None:  # no rider was before it: it sees what is stored
            for record in records.values():
                if record.expires_at is not None:
                    records = {key: each for key, each in records.items() if not each.is_expired(at)}
                    break
            made = choose(alone, at, records.get, ranges, partial(_next_version, last_version))
            return Folded(at, (made.answer,), made.writes, made.wakes, last_version + bool(made.writes))
    return fold_in_order(riders, at, last_version, records, limits, ranges)


def fold_in_order(
    riders: Iterable[Rider],
    at: Instant,
    last_version: int,
    records: Mapping[RecordKey, Record],
    limits: Capabilities,
    ranges: Ranges | None = None,
) -> Folded:
    """Fold any riders, one after the other."""
    state = Fold(at, last_version, records, limits, ranges=ranges)
    commit, ride = state.commit, state.ride
    outcomes = tuple([commit(rider) if type(rider) is CommitRider else ride(rider) for rider in riders])
    return Folded(at, outcomes, state.writes, tuple(state.wakes), state.last_version)


def _fold_alone(rider: CommitRider, at: Instant, last_version: int, records: Mapping[RecordKey, Record]) -> Folded:
    """Fold one commit as ``fold_in_order`` does, in one step: most transactions have but one rider."""
    lost: dict[RecordKey, Record | None] = {}
    for change in rider.changes:
        record = records.get(change.key)
        if record is not None and record.expires_at is not None and record.expires_at <= at:
            record = None
        if (ABSENT if record is None else record.version) != change.expected:
            lost[change.key] = record
    if lost or not in_window(at, rider.after, rider.before):
        return Folded(at, (Conflict(at, lost),), {}, (), last_version)
    version = _next_version(last_version)
    versions: dict[RecordKey, int] = {}
    writes: dict[RecordKey, Record | None] = {}
    for change in rider.changes:
        if type(change) is Put:
            key = change.key
            versions[key] = version
            writes[key] = Record(key, change.value, version, change.expires_at)
        elif type(change) is Delete:
            writes[change.key] = None
    return Folded(at, (Commit(at, versions),), writes, rider.wake, version)


def _next_version(last: int) -> int:
    if last >= MAX_VERSION:
        raise StoreError("store", "its version counter is used up")
    return last + 1


def keys_of(riders: Iterable[Rider]) -> dict[RecordKey, RecordKey]:
    """Return every key that folding ``riders`` looks at, each at itself: so equal bytes find the key that is known."""
    keys: dict[RecordKey, RecordKey] = {}
    for rider in riders:
        if type(rider) is CommitRider:
            for change in rider.changes:
                keys[change.key] = change.key
        elif type(rider) is UpdateRider:
            keys.update(zip(rider.keys, rider.keys, strict=True))
        elif type(rider) is ChoiceRider:
            names = keys_in(rider.alternatives)
            keys.update(zip(names, names, strict=True))
    return keys


def as_exception(error: BaseException) -> Exception:
    """Return what a rider's own function raised, as it may be raised to the rider.

    A ``CancelledError`` of its own would look like a cancellation of the task that waits.
    """
    if isinstance(error, Exception):
        return error
    refused = InvalidChangeError(
        f"{type(error).__name__} was raised where only an Exception may be; nothing is written"
    )
    refused.__cause__ = error
    return refused


def decide_alone(
    rider: UpdateRider, at: Instant, present: dict[RecordKey, Record], limits: Capabilities
) -> Decision[Any] | Exception:
    """Return what an update decides on live records, or what it raised, or why its decision is refused."""
    seen = Snapshot(at, {key: present[key] for key in rider.keys if key in present})
    try:
        decision: Decision[Any] = rider.decide(seen)
        # Not ``seen``: a function that is not pure may have changed what it was handed.
        check_decision(decision, Snapshot(at, present), rider.keys, limits)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 -- it is the rider's own, and is raised to it alone
        return as_exception(error)
    return decision


@final
class Fold:
    """The records as the riders so far have left them.

    ``writes`` has the last state of each changed key; ``after`` and ``before`` bound the window in which all that was
    allowed holds.
    """

    __slots__ = (
        "_at",
        "_draw",
        "_limits",
        "_present",
        "_ranges",
        "after",
        "before",
        "last_version",
        "wakes",
        "writes",
    )

    def __init__(
        self,
        at: Instant,
        last_version: int,
        records: Mapping[RecordKey, Record],
        limits: Capabilities,
        draw: Callable[[int], int] | None = None,
        *,
        ranges: Ranges | None = None,
    ) -> None:
        self._at, self._limits, self._draw, self._ranges = at, limits, draw or _next_version, ranges
        self.after: Instant | None = None
        self.before: Instant | None = None
        self._present = {
            key: record for key, record in records.items() if record.expires_at is None or record.expires_at > at
        }
        self.last_version = last_version
        self.writes: dict[RecordKey, Record | None] = {}
        self.wakes: list[Wake] = []

    def ride(self, rider: Rider) -> Outcome:
        """Take a rider that is no commit."""
        if type(rider) is UpdateRider:
            decision = decide_alone(rider, self._at, self._present, self._limits)
            if isinstance(decision, Exception):
                return decision
            if decision.after is not None or decision.before is not None:
                self._narrow(decision.after, decision.before)
            versions = self._write(decision.changes, decision.wake)
            return Decided(decision.answer, self._at, versions)
        if type(rider) is not ChoiceRider:
            raise TypeError(f"a {type(rider).__name__} cannot be folded")
        choice = choose(rider, self._at, self._present.get, self._below, self._next)
        for key, record in choice.writes.items():
            self.writes[key] = record
            if record is None or record.is_expired(self._at):
                self._present.pop(key, None)
            else:
                self._present[key] = record
        self.wakes.extend(choice.wakes)
        return choice.answer

    def commit(self, rider: CommitRider) -> Commit | Conflict:
        """Take a commit."""
        present, lost = self._present, None
        for change in rider.changes:
            record = present.get(change.key)
            if (ABSENT if record is None else record.version) != change.expected:
                lost = lost or {}
                lost[change.key] = record
        timed = rider.after is not None or rider.before is not None
        if lost or (timed and not in_window(self._at, rider.after, rider.before)):
            return Conflict(self._at, lost or {})
        if timed:
            self._narrow(rider.after, rider.before)
        return Commit(self._at, self._write(rider.changes, rider.wake))

    def _next(self) -> int:
        self.last_version = self._draw(self.last_version)
        return self.last_version

    def _below(self, prefix: RecordKey, most: int) -> Sequence[Record]:
        """Return the first live records below a prefix, as the riders so far have left them."""
        if self._ranges is None:
            raise TypeError("there is nothing to look into ranges with")
        found = self._ranges(prefix, most, self.writes)
        own = [key for key in self.writes if key in self._present and key.startswith(prefix) and key != prefix]
        if not own:
            return found
        return sorted([*found, *[self._present[key] for key in own]], key=_BY_KEY)[:most]

    def _narrow(self, after: Instant | None, before: Instant | None) -> None:
        """Keep in mind the window in which everything so far holds."""
        if after is not None:
            self.after = after if self.after is None else max(self.after, after)
        if before is not None:
            self.before = before if self.before is None else min(self.before, before)

    def _write(self, changes: Sequence[Change], wakes: Sequence[Wake]) -> dict[RecordKey, int]:
        versions: dict[RecordKey, int] = {}
        if wakes:
            self.wakes.extend(wakes)
        if not changes:
            return versions
        self.last_version = version = self._draw(self.last_version)
        for change in changes:
            key = change.key
            if type(change) is Put:
                versions[key] = version
                self.writes[key] = self._present[key] = record = Record(key, change.value, version, change.expires_at)
                if record.expires_at is not None and record.is_expired(self._at):
                    del self._present[key]
            elif type(change) is Delete:
                self.writes[key] = None
                del self._present[key]
        return versions

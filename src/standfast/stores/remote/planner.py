"""Planning: what a batch comes to on assumed records, as a pure function.

A plan is an intent for the server and, for each rider, what to answer if the server does as intended. Riders that
read what another one of the same batch writes see its version before the server has drawn it; so the versions must be
reserved for them (``exact``), or they are put off to the next transaction.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct, structs

from standfast.clock import SYSTEM_CLOCK, Instant
from standfast.keys import RecordKey
from standfast.stores.backend import Applied, CommitRider, Deferred, Outcome, Rider, UpdateRider
from standfast.stores.fold import Fold, decide_alone
from standfast.stores.protocol import ABSENT, MAX_VERSION, Check, Commit, Conflict, Decided, Put, Record, Wake
from standfast.stores.remote.server import Row
from standfast.stores.validation import in_window

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from standfast.stores.protocol import Capabilities, Change


# --- cached records, and the time of the server --------------------------------------------------------------------
#
# Cached records save a round trip and are never trusted: what is decided on them is guarded by them, in the server's
# own transaction. *Fresh* ones came from the server since the batch at hand was begun, and need no guard to be an
# answer.

REMEMBERED: Final = 4_000
"""How many keys a handle remembers the records of."""

LARGEST_REMEMBERED: Final = 8_000
"""Larger values are read again instead of being kept."""

TIME_IS_GOOD_FOR: Final = 30_000_000
"""For how many microseconds the time of a server is extrapolated from its last answer."""

CLOCK_WAS_SET_BACK: Final = 1_000_000
"""An answer that is this many microseconds behind was not slow: the server's clock was set back."""


@final
class RecordCache:
    """Records as they were last seen, and the server's time."""

    __slots__ = ("_received_at", "_records", "_said_at")

    def __init__(self) -> None:
        self._records: Final[OrderedDict[RecordKey, Record | None]] = OrderedDict()
        self._said_at = Instant(0)
        self._received_at = Instant(0)

    def learn_time(self, at: Instant) -> None:
        """Take the time that an answer carried, unless it was on its way for longer than another one."""
        received_at = SYSTEM_CLOCK.elapsed()
        passed = received_at - self._received_at
        is_known = self._said_at and passed < TIME_IS_GOOD_FOR  # as now() has it
        if is_known and 0 < self._said_at + passed - at < CLOCK_WAS_SET_BACK:
            return
        self._said_at, self._received_at = at, received_at

    def now(self) -> Instant | None:
        """Return what the server's time is at least, if its clock goes on as it did; None if it is not known.

        An answer was on its way for a while, so this is a little behind: nothing is decided ahead of time.
        """
        passed = SYSTEM_CLOCK.elapsed() - self._received_at
        return Instant(self._said_at + passed) if self._said_at and passed < TIME_IS_GOOD_FOR else None

    def get(self, key: RecordKey) -> Record | None:
        """Return the record at ``key`` as it was last seen; None if it was absent or never seen."""
        return self._records.get(key)

    def learn(self, records: Mapping[RecordKey, Record | None]) -> None:
        """Remember what was seen."""
        kept = self._records
        for key, record in records.items():
            if record is None or len(record.value) <= LARGEST_REMEMBERED:
                kept[key] = record
                kept.move_to_end(key)
            else:
                kept.pop(key, None)
        while len(kept) > REMEMBERED:
            kept.popitem(last=False)

    def learn_shown(self, records: Sequence[Record], gone: Sequence[RecordKey]) -> None:
        """Remember what a notification has shown of one commit, unless it was late."""
        version = min([each.version for each in records])
        for key, record in {**{each.key: each for each in records}, **dict.fromkeys(gone)}.items():
            known = self._records.get(key)
            if known is None or known.version < version:
                self.learn({key: record})

    def forget(self, keys: Iterable[RecordKey]) -> None:
        """Forget what may have changed."""
        for key in keys:
            self._records.pop(key, None)


# --- planning: what a batch comes to on assumed records, as a pure function ---------------------------------------

UNDRAWN: Final = MAX_VERSION // 2
"""Versions above this one stand for those that the server will draw: the first of them for its first."""

DEFERRED: Final = Deferred()


class WritePlan(Struct, frozen=True):
    """What to ask of the server, and what to answer then."""

    riders: tuple[Rider, ...]
    outcomes: tuple[Outcome, ...]
    guards: dict[RecordKey, int]
    puts: tuple[Row, ...]
    deletes: tuple[RecordKey, ...]
    wakes: tuple[Wake, ...]
    draws: int
    after: Instant | None
    before: Instant | None
    unknown: frozenset[RecordKey]
    """Keys that must be read before this can be planned at all."""
    exact: tuple[int, ...] = ()
    """All that were reserved, also if fewer are taken."""
    assumed: Mapping[RecordKey, Record | None] = {}
    """What updates were decided on: by the time the server has confirmed it, something else may be assumed."""

    @property
    def writes(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.puts or self.deletes)

    @property
    def changed(self) -> tuple[RecordKey, ...]:
        """The keys to notify of."""
        return (*[row.key for row in self.puts], *self.deletes)

    @property
    def confirmed(self) -> dict[RecordKey, Record | None]:
        """What updates were decided on, as the server has it if it does not say otherwise."""
        guards = self.guards
        return {key: record if guards[key] != ABSENT else None for key, record in self.assumed.items() if key in guards}

    def applied(self, at: Instant, versions: Sequence[int]) -> Applied:
        """Return what each rider is answered, now that the server has done it at ``at``."""
        outcomes = [
            Commit(at, _drawn(outcome.versions, versions))
            if type(outcome) is Commit
            else _answered(rider, outcome, at, versions, self.guards)
            for rider, outcome in zip(self.riders, self.outcomes, strict=True)
        ]
        return Applied(tuple(outcomes), self.changed, self.wakes)

    def records(self, versions: Sequence[int]) -> dict[RecordKey, Record | None]:
        """Return the records that the server has now."""
        records: dict[RecordKey, Record | None] = dict.fromkeys(self.deletes)
        for row in self.puts:
            records[row.key] = Record(row.key, row.value, versions[row.draw], row.expires_at)
        return records


def plan(
    riders: Sequence[Rider],
    at: Instant,
    cache: RecordCache,
    fresh: Mapping[RecordKey, Record | None],
    limits: Capabilities,
    reserved: tuple[int, ...] = (),
    shown: frozenset[RecordKey] = frozenset(),
) -> WritePlan:
    """Plan ``riders`` on what is known (``fresh``) and assumed, at about ``at``.

    What the server last looked at, all at one moment, is ``shown``: a conflict over such keys needs no guard, nor does
    any answer if nothing is to be written.
    """
    ground = _Ground(cache, fresh)
    for rider in riders:
        ground.cover(rider)
    if ground.unknown:
        return WritePlan(tuple(riders), (), {}, (), (), (), 0, None, None, frozenset(ground.unknown))
    # Others may have been faster: what is reserved is of use only if it is above all that is there.
    is_stale = reserved and any(record.version >= reserved[0] for record in ground.records.values())
    return _Planning(ground, at, limits, () if is_stale else reserved, shown).plan(riders)


def wants_reserve(riders: Sequence[Rider]) -> int:
    """Return how many versions to reserve: none if no update reads what another rider may write."""
    written: set[RecordKey] = set()
    reads_own = False
    for rider in riders:
        keys = keys_named(rider)
        reads_own = reads_own or (type(rider) is UpdateRider and not written.isdisjoint(keys))
        written.update(keys)
    return len(riders) if reads_own else 0


def keys_named(rider: Rider) -> Sequence[RecordKey]:
    """Return the keys that a rider looks at."""
    if isinstance(rider, CommitRider):
        return [change.key for change in rider.changes]
    return rider.keys if isinstance(rider, UpdateRider) else ()


class _Ground:
    """The records to fold on: known, assumed, or what a commit itself expects."""

    __slots__ = ("_cache", "_hollow", "assumed", "fresh", "records", "seen", "unknown")

    def __init__(self, cache: RecordCache, fresh: Mapping[RecordKey, Record | None]) -> None:
        self._cache, self.fresh = cache, fresh
        self.records: dict[RecordKey, Record] = {}
        self.assumed: dict[RecordKey, Record | None] = {}
        self.seen: set[RecordKey] = set()
        self.unknown: set[RecordKey] = set()
        self._hollow: set[RecordKey] = set()

    def cover(self, rider: Rider) -> None:
        if isinstance(rider, CommitRider):
            for change in rider.changes:
                self._expect(change.key, change.expected)
        elif isinstance(rider, UpdateRider):
            for key in rider.keys:
                self._assume(key)

    def _expect(self, key: RecordKey, version: int) -> None:
        if key not in self.seen:
            self.seen.add(key)
            if key in self.fresh:
                self._put(key, self.fresh[key])
            elif version != ABSENT:  # only its version matters: what it holds is not known, and not needed
                self._hollow.add(key)
                self.records[key] = Record(key, b"", version)
        elif key in self._hollow and self.records[key].version != version:
            self.unknown.add(key)  # they disagree, and the one who is wrong is to be shown the record
        elif key not in self.records and version != ABSENT and key not in self.fresh:
            self.unknown.add(key)

    def _assume(self, key: RecordKey) -> None:
        if key not in self.seen:
            self.seen.add(key)
            self.assumed[key] = self.fresh[key] if key in self.fresh else self._cache.get(key)
            self._put(key, self.assumed[key])
        elif key in self._hollow:
            assumed = self._cache.get(key)
            if assumed is not None and assumed.version == self.records[key].version:
                self.records[key] = self.assumed[key] = assumed
                self._hollow.discard(key)
            else:
                self.unknown.add(key)

    def _put(self, key: RecordKey, record: Record | None) -> None:
        if record is not None:
            self.records[key] = record

    def guards(self, keys: set[RecordKey], at: Instant) -> dict[RecordKey, int]:
        return {key: self._version(key, at) for key in sorted(keys)}

    def _version(self, key: RecordKey, at: Instant) -> int:
        record = self.records.get(key)
        return ABSENT if record is None or record.is_expired(at) else record.version


class _Planning:
    """One pass over the riders."""

    __slots__ = ("_at", "_blocked", "_fold", "_ground", "_guarded", "_only_shown", "_reserved", "_shown", "_taken")

    def __init__(
        self,
        ground: _Ground,
        at: Instant,
        limits: Capabilities,
        reserved: tuple[int, ...],
        shown: frozenset[RecordKey],
    ) -> None:
        self._ground, self._at, self._reserved, self._shown = ground, at, reserved, shown
        self._fold = Fold(at, UNDRAWN, ground.records, limits, self._draw if reserved else None)
        self._guarded: set[RecordKey] = set()
        self._only_shown: set[RecordKey] = set()
        self._blocked: set[RecordKey] = set()
        self._taken = 0

    def _draw(self, _last: int) -> int:
        self._taken += 1
        return self._reserved[self._taken - 1]

    def plan(self, riders: Sequence[Rider]) -> WritePlan:
        outcomes = tuple([self._ride(rider) for rider in riders])
        fold = self._fold
        taken = self._reserved[: self._taken] if self._reserved else range(UNDRAWN + 1, fold.last_version + 1)
        drawn = {version: number for number, version in enumerate(taken)}
        puts = [
            Row(key, record.value, drawn[record.version], record.expires_at)
            for key, record in fold.writes.items()
            if record is not None
        ]
        deletes = [key for key, record in fold.writes.items() if record is None and key in self._ground.records]
        return WritePlan(
            tuple(riders),
            outcomes,
            self._ground.guards(self._to_guard(), self._at),
            tuple(sorted(puts, key=attrgetter("key"))),
            tuple(sorted(deletes)),
            tuple(fold.wakes),
            len(drawn),
            fold.after,
            fold.before,
            frozenset(),
            self._reserved,
            self._ground.assumed,
        )

    def _to_guard(self) -> set[RecordKey]:
        """Return the keys to guard; if nothing is written, an answer about what was shown is one of that moment."""
        fold = self._fold
        is_still = not fold.writes and fold.after is None and fold.before is None
        return self._guarded if is_still else self._guarded | self._only_shown

    def _ride(self, rider: Rider) -> Outcome:
        keys = keys_named(rider)
        reads_own = type(rider) is UpdateRider and any(key in self._fold.writes for key in keys)
        if (self._blocked and not self._blocked.isdisjoint(keys)) or (reads_own and not self._reserved):
            self._blocked.update(keys)
            return DEFERRED
        was_shown = self._shown.issuperset(keys) and self._fold.writes.keys().isdisjoint(keys)
        self._keep_alive(keys)
        outcome = self._fold.commit(rider) if isinstance(rider, CommitRider) else self._fold.ride(rider)
        is_early_or_late = isinstance(outcome, Conflict) and not outcome.current
        if is_early_or_late:
            self._blocked.update(keys)  # by the server's time it may ride again: no later one may pass it
        if not was_shown or is_early_or_late:
            self._guarded.update(keys)
        elif not isinstance(outcome, Conflict):
            self._only_shown.update(keys)
        return outcome

    def _keep_alive(self, keys: Sequence[RecordKey]) -> None:
        """See that what an earlier rider puts and this one looks at has not expired by the time of the server."""
        fold = self._fold
        for key in keys:
            record = fold.writes.get(key)
            if record is not None and record.expires_at is not None and not record.is_expired(self._at):
                fold.before = record.expires_at if fold.before is None else min(fold.before, record.expires_at)


def _answered(
    rider: Rider, outcome: Outcome, at: Instant, versions: Sequence[int], guards: Mapping[RecordKey, int]
) -> Outcome:
    if isinstance(outcome, Decided):
        decided: Decided[Any] = outcome
        return Decided(decided.answer, at, _drawn(decided.versions, versions))
    if isinstance(outcome, Conflict):
        # What was shown and not guarded was so when it was shown: by now some of it may have expired.
        seen_at = at if guards.keys() >= set(keys_named(rider)) else outcome.at
        return _conflict(rider, outcome, seen_at, versions)
    return outcome


def _conflict(rider: Rider, outcome: Conflict, at: Instant, versions: Sequence[int]) -> Outcome:
    if not outcome.current and isinstance(rider, CommitRider) and in_window(at, rider.after, rider.before):
        return DEFERRED  # by the server's time its window is open after all
    shown = {key: record if record is None else _redrawn(record, versions) for key, record in outcome.current.items()}
    return Conflict(at, shown)


def _redrawn(record: Record, versions: Sequence[int]) -> Record:
    if record.version <= UNDRAWN:
        return record
    return structs.replace(record, version=versions[record.version - UNDRAWN - 1])


def _drawn(keys: dict[RecordKey, int], versions: Sequence[int]) -> dict[RecordKey, int]:
    """Return the keys with the version that the server drew in place of the one that stood for it."""
    for version in keys.values():
        return keys if version <= UNDRAWN else dict.fromkeys(keys, versions[version - UNDRAWN - 1])
    return keys


# --- independent riders: their plan needs no fold, as each holds if its own guards do ------------------------------
#
# Most batches are made of such riders alone. Their plan is what :func:`~standfast.stores.remote.planner.plan` comes to,
# in less time; a test compares the two. Whatever is not so simple is folded.

_NOTHING: Final[frozenset[RecordKey]] = frozenset()
_NO_TIME: Final = Instant(0)
_key: Final = itemgetter(0)


def plan_independent(
    riders: tuple[Rider, ...], cache: RecordCache, at: Instant | None, limits: Capabilities
) -> WritePlan | None:
    """Plan riders of which no two name a key that one of them may write, at about ``at``; None: fold them.

    Commits by themselves may share what they only compare. Those with a window of time are folded.
    """
    updates = any(type(rider) is not CommitRider for rider in riders)
    if updates and (at is None or not _are_independent(riders)):
        return None
    plans = _IndependentPlan(cache, at or _NO_TIME, limits)
    for rider in riders:
        if type(rider) is UpdateRider:
            plans.update(rider)
        elif type(rider) is not CommitRider or not plans.commit(rider):
            return None
    return plans.plan(riders)


def _are_independent(riders: Sequence[Rider]) -> bool:
    named = [key for rider in riders for key in keys_named(rider)]
    return len(set(named)) == len(named)


@final
class _IndependentPlan:
    """What the riders so far come to."""

    __slots__ = (
        "_at",
        "_cache",
        "_compared",
        "_limits",
        "after",
        "assumed",
        "before",
        "changes",
        "draws",
        "guards",
        "outcomes",
        "wakes",
    )

    def __init__(self, cache: RecordCache, at: Instant, limits: Capabilities) -> None:
        self._cache, self._at, self._limits = cache, at, limits
        self._compared: set[RecordKey] = set()
        self.guards: dict[RecordKey, int] = {}
        self.assumed: dict[RecordKey, Record | None] = {}
        self.changes: list[tuple[RecordKey, Change, int]] = []
        self.outcomes: list[Outcome] = []
        self.wakes: list[Wake] = []
        self.draws = 0
        self.after: Instant | None = None
        self.before: Instant | None = None

    def commit(self, rider: CommitRider) -> bool:
        """Add a commit; return True if it has nothing to do with the others."""
        if rider.after is not None or rider.before is not None:
            return False
        guards, draw = self.guards, self.draws
        put: dict[RecordKey, int] = {}
        for change in rider.changes:
            key = change.key
            if type(change) is not Check:
                if key in guards:
                    return False
                if type(change) is Put:
                    put[key] = UNDRAWN + 1 + draw
                self.changes.append((key, change, draw))
            elif key not in guards:
                self._compared.add(key)
            elif key not in self._compared or guards[key] != change.expected:
                return False
            guards[key] = change.expected
        if rider.wake:
            self.wakes.extend(rider.wake)
        self.draws = draw + 1
        self.outcomes.append(Commit(_NO_TIME, put))
        return True

    def update(self, rider: UpdateRider) -> None:
        """Add an update, decided on what is assumed."""
        at = self._at
        present: dict[RecordKey, Record] = {}
        for key in rider.keys:
            self.assumed[key] = record = self._cache.get(key)
            if record is None or record.is_expired(at):
                self.guards[key] = ABSENT
            else:
                self.guards[key] = record.version
                present[key] = record
        decision = decide_alone(rider, at, present, self._limits)
        if isinstance(decision, Exception):
            self.outcomes.append(decision)
            return
        if decision.after is not None:
            self.after = decision.after if self.after is None else max(self.after, decision.after)
        if decision.before is not None:
            self.before = decision.before if self.before is None else min(self.before, decision.before)
        self.outcomes.append(Decided(decision.answer, at, self._draw(decision.changes, decision.wake)))

    def _draw(self, changes: Sequence[Change], wakes: Sequence[Wake]) -> dict[RecordKey, int]:
        self.wakes.extend(wakes)
        put: dict[RecordKey, int] = {}
        draw = self.draws
        for change in changes:
            if type(change) is Put:
                put[change.key] = UNDRAWN + 1 + draw
            if type(change) is not Check:
                self.changes.append((change.key, change, draw))
        self.draws = draw + bool(changes)
        return put

    def plan(self, riders: tuple[Rider, ...]) -> WritePlan:
        """Return what all of them come to."""
        guards, changes = self.guards, self.changes
        if len(guards) > 1:
            guards = {key: guards[key] for key in sorted(guards)}
            changes.sort(key=_key)
        puts: list[Row] = []
        deletes: list[RecordKey] = []
        for key, change, draw in changes:
            if type(change) is Put:
                puts.append(Row(key, change.value, draw, change.expires_at))
            else:
                deletes.append(key)
        return WritePlan(
            riders,
            tuple(self.outcomes),
            guards,
            tuple(puts),
            tuple(deletes),
            tuple(self.wakes),
            self.draws,
            self.after,
            self.before,
            _NOTHING,
            (),
            self.assumed,
        )

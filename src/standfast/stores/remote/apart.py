"""Riders that have nothing to do with each other: their plan needs no fold, as each holds if its own guards do.

Most batches are made of such riders alone. Their plan is what :func:`~standfast.stores.remote.planning.plan` comes to,
in less time; a test compares the two. Whatever is not so simple is folded.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Final, final

from standfast.clock import Instant
from standfast.stores.backend import CommitRider, UpdateRider
from standfast.stores.fold import decide_alone
from standfast.stores.protocol import ABSENT, Check, Commit, Decided, Put
from standfast.stores.remote.planning import UNDRAWN, Plan, keys_named
from standfast.stores.remote.server import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.keys import RecordKey
    from standfast.stores.backend import Outcome, Rider
    from standfast.stores.protocol import Capabilities, Change, Record, Wake
    from standfast.stores.remote.believing import Beliefs

_NOTHING: Final[frozenset[RecordKey]] = frozenset()
_NO_TIME: Final = Instant(0)
_key: Final = itemgetter(0)


def plan_apart(riders: tuple[Rider, ...], beliefs: Beliefs, at: Instant | None, limits: Capabilities) -> Plan | None:
    """Plan riders of which no two name a key that one of them may write, at about ``at``; None: fold them.

    Commits by themselves may share what they only compare. Those with a window of time are folded.
    """
    updates = any(type(rider) is not CommitRider for rider in riders)
    if updates and (at is None or not _are_apart(riders)):
        return None
    apart = _Apart(beliefs, at or _NO_TIME, limits)
    for rider in riders:
        if type(rider) is UpdateRider:
            apart.update(rider)
        elif type(rider) is not CommitRider or not apart.commit(rider):
            return None
    return apart.plan(riders)


def _are_apart(riders: Sequence[Rider]) -> bool:
    named = [key for rider in riders for key in keys_named(rider)]
    return len(set(named)) == len(named)


@final
class _Apart:
    """What the riders so far come to."""

    __slots__ = (
        "_at",
        "_beliefs",
        "_compared",
        "_limits",
        "after",
        "before",
        "believed",
        "changes",
        "draws",
        "guards",
        "outcomes",
        "wakes",
    )

    def __init__(self, beliefs: Beliefs, at: Instant, limits: Capabilities) -> None:
        self._beliefs, self._at, self._limits = beliefs, at, limits
        self._compared: set[RecordKey] = set()
        self.guards: dict[RecordKey, int] = {}
        self.believed: dict[RecordKey, Record | None] = {}
        self.changes: list[tuple[RecordKey, Change, int]] = []
        self.outcomes: list[Outcome] = []
        self.wakes: list[Wake] = []
        self.draws = 0
        self.after: Instant | None = None
        self.before: Instant | None = None

    def commit(self, rider: CommitRider) -> bool:
        """Add a commit; tell whether it has nothing to do with the others."""
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
        """Add an update, decided on what is believed."""
        at = self._at
        present: dict[RecordKey, Record] = {}
        for key in rider.keys:
            self.believed[key] = record = self._beliefs.get(key)
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

    def plan(self, riders: tuple[Rider, ...]) -> Plan:
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
        return Plan(
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
            self.believed,
        )

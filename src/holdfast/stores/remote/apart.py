"""Commits that have nothing to do with each other: their plan needs no fold, as each holds if its own guards do.

Most batches are made of such commits alone. Their plan is what :func:`~holdfast.stores.remote.planning.plan` comes to,
in a third of the time; a test compares the two. Whatever is not so simple is folded.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Final

from holdfast.clock import Instant
from holdfast.stores.backend import CommitRider
from holdfast.stores.protocol import Check, Commit, Put
from holdfast.stores.remote.planning import UNDRAWN, Plan
from holdfast.stores.remote.server import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.keys import RecordKey
    from holdfast.stores.backend import Rider
    from holdfast.stores.protocol import Change, Wake

_NOBODY: Final[frozenset[RecordKey]] = frozenset()
_NO_TIME: Final = Instant(0)
_key: Final = itemgetter(0)


def plan_apart(riders: tuple[Rider, ...]) -> Plan | None:
    """Plan commits without a window of time, no two of which name a key that one of them writes; None: fold them."""
    guards: dict[RecordKey, int] = {}
    compared: set[RecordKey] = set()
    changes: list[tuple[RecordKey, Change, int]] = []
    outcomes: list[Commit] = []
    wakes: list[Wake] = []
    for draw, rider in enumerate(riders):
        if type(rider) is not CommitRider or rider.after is not None or rider.before is not None:
            return None
        put: dict[RecordKey, int] = {}
        for change in rider.changes:
            key = change.key
            if type(change) is not Check:
                if key in guards:
                    return None
                if type(change) is Put:
                    put[key] = UNDRAWN + 1 + draw
                changes.append((key, change, draw))
            elif key not in guards:
                compared.add(key)
            elif key not in compared or guards[key] != change.expected:
                return None
            guards[key] = change.expected
        if rider.wake:
            wakes.extend(rider.wake)
        outcomes.append(Commit(_NO_TIME, put))
    return _plan(riders, outcomes, guards, changes, wakes)


def _plan(
    riders: tuple[Rider, ...],
    outcomes: Sequence[Commit],
    guards: dict[RecordKey, int],
    changes: list[tuple[RecordKey, Change, int]],
    wakes: list[Wake],
) -> Plan:
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
        riders, tuple(outcomes), guards, tuple(puts), tuple(deletes), tuple(wakes), len(riders), None, None, _NOBODY
    )

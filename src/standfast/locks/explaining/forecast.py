"""When those who wait are likely to hold: a pure guess from how long holds took lately."""

from __future__ import annotations

import heapq
from math import inf
from typing import TYPE_CHECKING, Final

from standfast.clock import Instant
from standfast.locks.algebra.entries import Entry, Holder, Until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from standfast.locks.algebra.line import Rules

_NOW: Final = Instant(0)
_MODE_OF_ITS_OWN: Final = "\0"


def newcomer(rules: Rules, kind: str) -> Entry:
    """Return an entry that has not come yet: with one permit, and where there are modes, sharing with nobody."""
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
        waiters: Who waits, in order. Nobody passes anybody.
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

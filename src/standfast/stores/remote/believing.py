"""What a handle believes of the records and of the time on its server.

Beliefs save a round trip and are never trusted: whatever is decided on them is guarded by them, in the server's own
transaction. *Fresh* ones came from the server since the batch at hand was begun, and need no guard to be an answer.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

from standfast.clock import SYSTEM_CLOCK, Instant

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from standfast.keys import RecordKey
    from standfast.stores.protocol import Record

REMEMBERED: Final = 4_000
"""How many keys a handle remembers the records of."""

LARGEST_REMEMBERED: Final = 8_000
"""Larger values are read again instead of being kept."""

TIME_IS_GOOD_FOR: Final = 30_000_000
"""For how many microseconds the time of a server is extrapolated from its last answer."""

CLOCK_WAS_SET_BACK: Final = 1_000_000
"""An answer that is so many microseconds behind was not slow: the server's clock was set back."""


@final
class Beliefs:
    """Records as they were last seen, and the server's time."""

    __slots__ = ("_heard_at", "_records", "_said_at")

    def __init__(self) -> None:
        self._records: Final[OrderedDict[RecordKey, Record | None]] = OrderedDict()
        self._said_at = Instant(0)
        self._heard_at = Instant(0)

    def hear_time(self, at: Instant) -> None:
        """Take the time that an answer carried, unless it was on its way for longer than another one."""
        believed = self.now()
        if believed is not None and 0 < believed - at < CLOCK_WAS_SET_BACK:
            return
        self._said_at, self._heard_at = at, SYSTEM_CLOCK.elapsed()

    def now(self) -> Instant | None:
        """Return what the server's time is at least, if its clock goes on as it did; None if it is not known.

        An answer was on its way for a while, so this is a little behind: nothing is decided ahead of time.
        """
        passed = SYSTEM_CLOCK.elapsed() - self._heard_at
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

    def forget(self, keys: Iterable[RecordKey]) -> None:
        """Forget what may have changed."""
        for key in keys:
            self._records.pop(key, None)

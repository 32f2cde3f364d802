"""The store's time: a clock that all processes on the file share and that nobody can step.

It runs on the time since boot, anchored once a boot to the time of day, and never falls behind what any commit has
carried. A stepped wall clock therefore moves no lease, and a reboot never turns time back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from standfast.clock import Clock, Instant
from standfast.stores.sqlite.driver import transaction

if TYPE_CHECKING:
    from standfast.stores.sqlite.driver import Connection

_ANCHOR: Final = "anchor"


@final
class StoreTime:
    """Store time for one handle."""

    __slots__ = ("_clock", "_last", "_offset")

    def __init__(self, clock: Clock, offset: int) -> None:
        self._clock, self._offset = clock, offset
        self._last = Instant(0)

    def now(self, at_least: int = 0) -> Instant:
        """Return the store's time, never earlier than ``at_least`` nor than any time returned before."""
        now = self._offset + self._clock.elapsed()
        if now < at_least or now < self._last:
            now = max(at_least, self._last)
        self._last = last = Instant(now)
        return last


def read_anchor(connection: Connection, clock: Clock) -> StoreTime | None:
    """Return the time as anchored since this boot; None if nobody has anchored it yet."""
    stored = connection.execute("SELECT value FROM main.facts WHERE name = ?", (_ANCHOR,)).get
    boot, _, offset = str(stored or "").rpartition(" ")
    return StoreTime(clock, int(offset)) if boot == clock.boot() else None


def write_anchor(connection: Connection, clock: Clock) -> StoreTime:
    """Anchor the time of this boot. Call it with the turn to write."""
    with transaction(connection):
        present = read_anchor(connection, clock)
        if present is not None:
            return present
        last_at = connection.execute("SELECT at FROM main.counters WHERE handle = ''").get
        offset = max(clock.wall(), last_at) - clock.elapsed()
        connection.execute("INSERT OR REPLACE INTO main.facts VALUES (?, ?)", (_ANCHOR, f"{clock.boot()} {offset}"))
        return StoreTime(clock, offset)

"""The lines of requests as they lie in the store: one holds at most, and nobody passes one that asked earlier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from msgspec import Struct, field

from standfast.locks.line import Waiter
from standfast.locks.line_records import HEADS, WAITERS, Head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from standfast.keys import RecordKey
    from standfast.stores.memory import MemoryRecords

    Demand = Callable[[object, str], None]


class Seen(Struct):
    """The records of one line."""

    head: Head | None = None
    waiters: dict[int, Waiter] = field(default_factory=dict)


@final
class LineWatch:
    """Looks at the lines after every commit."""

    def __init__(self, memory: MemoryRecords, demand: Demand) -> None:
        self._memory, self._demand = memory, demand
        self._lines: Final[dict[tuple[str, ...], Seen]] = {}

    def saw(self, changed: Iterable[RecordKey]) -> None:
        """Look at what a commit has changed."""
        mine = [key for key in changed if key.parts[2] in ("line", "ticket") and key.parts[3] == "request"]
        if not mine:
            return
        before = {address: Seen(seen.head, dict(seen.waiters)) for address, seen in self._lines.items()}
        for key in mine:
            self._saw_line(key, key.parts)
        for address, seen in self._lines.items():
            old = before.get(address) or Seen()
            if seen != old:
                self._check_order(address, old, seen)

    def _saw_line(self, key: RecordKey, parts: tuple[str, ...]) -> None:
        record = self._memory._records.get(key)
        if parts[2] == "line":
            self._lines.setdefault(parts[3:], Seen()).head = None if record is None else HEADS.decode(record.value)
            return
        waiters = self._lines.setdefault(parts[3:-1], Seen()).waiters
        if record is None:
            waiters.pop(int(parts[-1]), None)
        else:
            waiters[int(parts[-1])] = WAITERS.decode(record.value)

    def _check_order(self, address: tuple[str, ...], before: Seen, after: Seen) -> None:
        """One holds at most, and nobody passes one that asked earlier and still waits."""
        holders = () if after.head is None else after.head.holders
        self._demand(len(holders) <= 1, f"exclusion: {len(holders)} have their turn on {address[-1]}")
        old = set() if before.head is None else {each.entry.id for each in before.head.holders}
        tickets = {each.entry.id: ticket for ticket, each in before.waiters.items()}
        same_life = before.head is not None and after.head is not None and before.head.life == after.head.life
        for holder in holders:
            if holder.entry.id in old or not same_life:
                continue
            own = tickets.get(holder.entry.id, 2**60)
            passed = [ticket for ticket in before.waiters if ticket < own and ticket in after.waiters]
            self._demand(not passed, f"FIFO: {holder.entry.owner} passed somebody on {address[-1]}")

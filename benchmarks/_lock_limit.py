"""The limit for a mutex on SQLite: the same records, written and taken away just as durably, by a plain loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks._lock_ours import NAME
from benchmarks._sqlite_limit import WRITE, Limit
from standfast.locks.line_records import LineKeys
from standfast.scope import address_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from standfast.keys import RecordKey
    from standfast.space import Space

READ_BOTH: Final = "SELECT key, version, expires_at, value FROM records WHERE key IN (?, ?)"
LAST: Final = "SELECT count, at FROM counters WHERE handle = ''"
DELETE: Final = "DELETE FROM records WHERE key = ?"
DIGITS: Final = 12  # how much of a value is new each time


async def records_of_a_hold(space: Space) -> dict[RecordKey, bytes]:
    """Return what a hold keeps in the store while it lasts: the head of its line, and its grant."""
    keys = LineKeys(space, address_of(NAME))
    async with space.mutex(NAME).hold():
        seen = await space.read(keys.head, keys.grant(0))
    return {key: record.value for key, record in seen.records.items()}


class LockLimit(Limit):
    """Two durable commits: one that writes the records of a hold, one that takes them away. Both check their guards."""

    def __init__(self, path: str, records: Mapping[RecordKey, bytes]) -> None:
        super().__init__(path)
        assert len(records) == 2
        self._records = records
        self._keys = tuple(records)

    def pair(self) -> None:
        """Acquire and release."""
        execute = self.connection.execute
        version, found = self._begin()
        assert not found
        number = b"%012d" % self._transactions
        for offset, (key, value) in enumerate(self._records.items(), start=1):
            execute(WRITE, (key, version + offset, None, value[:-DIGITS] + number))
        self._finish(version + len(self._records))
        version, found = self._begin()
        assert {row[0] for row in found} == {*self._keys}
        self.connection.executemany(DELETE, [(key,) for key in self._keys])
        self._finish(version + len(self._records))

    def _begin(self) -> tuple[int, list[Any]]:
        execute = self.connection.execute
        self._transactions += 1
        execute("BEGIN IMMEDIATE")
        version: Any = execute(LAST).fetchall()[0][0]
        return version, execute(READ_BOTH, self._keys).fetchall()

"""A batch of plain commits, written as if every guard held.

Most batches of many riders are commits of different records whose guards all hold: steps of many runs. Nothing of such
a batch has to be read but the records that are only checked; each other guard is part of the statement that writes. If
one does not hold, or if riders touch the same record, nothing may be kept of it, and the batch is folded instead
(:mod:`~standfast.stores.fold`), which is the specification of what is done here.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Final, final

import apsw

from standfast.stores.backend import CommitRider
from standfast.stores.fold import Folded
from standfast.stores.protocol import ABSENT, MAX_VERSION, Commit, Delete, Put
from standfast.stores.validation import in_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from standfast.clock import Instant
    from standfast.keys import RecordKey
    from standfast.stores.backend import Rider
    from standfast.stores.protocol import Record, Wake
    from standfast.stores.sqlite.connection import SqliteConnection

    Row = tuple[RecordKey, int, Instant | None, bytes]
    Found = tuple[dict[RecordKey, Record], dict[RecordKey, int]]
    """Records, and the row that each of them is kept in."""

_LIVE: Final = "(expires_at IS NULL OR expires_at > ?)"
_REPLACE: Final = (
    f"UPDATE main.records SET version = ?, expires_at = ?, value = ? WHERE key = ? AND version = ? AND {_LIVE}"  # noqa: S608 -- constants
)
_DELETE: Final = f"DELETE FROM main.records WHERE key = ? AND version = ? AND {_LIVE}"  # noqa: S608 -- constants
_REPLACE_ROW: Final = "UPDATE main.records SET version = ?, expires_at = ?, value = ? WHERE rowid = ?"
_DELETE_ROW: Final = "DELETE FROM main.records WHERE rowid = ?"
_INSERT: Final = "INSERT INTO main.records VALUES "
_ROW: Final = "(?, ?, ?, ?)"
_ROWS: Final = 32
"""How many rows one statement inserts: beyond some dozens, more gain nothing."""

_MANY: Final = f"{_INSERT}{', '.join([_ROW] * _ROWS)}"
_ONE: Final = f"{_INSERT}{_ROW}"
_MOST_CHECKED: Final = 512

_BY_KEY: Final = itemgetter(0)

PAUSE: Final = 32
"""How many batches are folded at once after one that was written in vain: its like may follow."""


@cache
def _count_of(size: int) -> str:
    """Return the statement that counts how many of some records are there, live, at their versions."""
    pairs = ", ".join(["(?, ?)"] * size)
    return (
        f"SELECT count(*) FROM (VALUES {pairs}) AS g JOIN main.records AS r"  # noqa: S608 -- only question marks
        f" ON r.key = g.column1 AND r.version = g.column2 WHERE {_LIVE}"
    )


def insert(connection: SqliteConnection, rows: Sequence[Row]) -> None:
    """Insert records, many by one statement: that takes about 0.6 of the time of one by one."""
    whole = len(rows) - len(rows) % _ROWS
    for first in range(0, whole, _ROWS):
        connection.execute(_MANY, tuple(chain.from_iterable(rows[first : first + _ROWS])))
    if whole < len(rows):
        connection.executemany(_ONE, rows[whole:])


@cache
def _counters_and(size: int) -> str:
    """Return the statement that reads the counters of the store and some records.

    Each key by itself: for a few, that takes less than the table which SQLite would make of a list of them.
    """
    each = " UNION ALL SELECT key, version, expires_at, rowid FROM main.records WHERE key = ?"
    return f"SELECT NULL, count, at, NULL FROM main.counters WHERE handle = ''{each * size}"  # noqa: S608 -- constants


def write_alone(  # noqa: C901 -- one pass over the changes, without a call for each
    connection: SqliteConnection, rider: CommitRider, now_in: Callable[[SqliteConnection, int], Instant]
) -> Folded | None:
    """Write a commit that is alone in its transaction, as the fold would; None: a guard does not hold.

    Then nothing is written. What it expects is looked at by the query that reads the counters; what it creates is not
    looked for, as an insert fails where there is one. ``now_in`` returns the store's time, which is not before another.

    Raises:
        apsw.ConstraintError: There is one. It must be rolled back: something may be written.
    """
    expected: list[RecordKey] = []
    for change in rider.changes:
        if change.expected != ABSENT:
            expected.append(change.key)  # noqa: PERF401 -- a comprehension is a call
    (_, last_version, last_at, _), *rows = connection.execute(_counters_and(len(expected)), expected).fetchall()
    at = now_in(connection, last_at)
    version = (last_version if last_version >= at else at - 1) + 1  # as Database._fold has it
    is_windowed = rider.after is not None or rider.before is not None
    if version > MAX_VERSION or (is_windowed and not in_window(at, rider.after, rider.before)):
        return None
    versions: dict[RecordKey, int] = {}
    inserts: list[Row] = []
    replaces: list[tuple[object, ...]] = []
    deletes: dict[RecordKey, tuple[int]] = {}
    found: Iterator[tuple[bytes, int, Instant | None, int]] = iter(rows)
    for change in rider.changes:
        key = change.key
        if change.expected == ABSENT and type(change) is Put:
            versions[key] = version
            inserts.append((key, version, change.expires_at, change.value))
            continue
        row = next(found, None)  # in the order of the changes; if one is missing, this is of another key
        if row is None or row[0] != key or row[1] != change.expected or (row[2] is not None and row[2] <= at):
            return None
        if type(change) is Put:
            versions[key] = version
            replaces.append((version, change.expires_at, change.value, row[3]))
        elif type(change) is Delete:
            deletes[key] = (row[3],)
    if len(inserts) >= _ROWS:
        insert(connection, inserts)
    elif inserts:
        connection.executemany(_ONE, inserts)
    if replaces:
        connection.executemany(_REPLACE_ROW, replaces)
    if deletes:
        connection.executemany(_DELETE_ROW, deletes.values())
    writes: dict[RecordKey, Record | None] = dict.fromkeys((*versions, *deletes) if deletes else versions)
    return Folded(at, (Commit(at, versions),), writes, rider.wake, version)


@final
class PlainBatch:
    """What a batch of plain commits writes, and what its riders are told if all of it could be written."""

    __slots__ = (
        "_at",
        "_changed",
        "_checks",
        "_deletes",
        "_inserts",
        "_last_version",
        "_outcomes",
        "_replaces",
        "_wakes",
    )

    def __init__(self, at: Instant, last_version: int) -> None:
        self._at, self._last_version = at, last_version
        self._inserts: Final[list[Row]] = []
        self._replaces: Final[list[tuple[object, ...]]] = []
        self._deletes: Final[list[tuple[RecordKey, int, Instant]]] = []
        self._checks: Final[dict[RecordKey, int]] = {}
        self._changed: Final[dict[RecordKey, None]] = {}
        self._outcomes: Final[list[Commit]] = []
        self._wakes: Final[list[Wake]] = []

    @classmethod
    def of(cls, riders: Sequence[Rider], at: Instant, last_version: int) -> PlainBatch | None:
        """Return the batch that riders make; None: they are not plain, or not apart from each other."""
        if last_version + len(riders) > MAX_VERSION:
            return None
        batch = cls(at, last_version)
        return batch if batch._takes(riders) else None

    def _takes(self, riders: Sequence[Rider]) -> bool:
        at, version, checks, changed = self._at, self._last_version, self._checks, self._changed
        inserts, replaces, deletes = self._inserts, self._replaces, self._deletes
        for rider in riders:
            if type(rider) is not CommitRider or rider.after is not None or rider.before is not None:
                return False
            version += 1
            versions: dict[RecordKey, int] = {}
            for change in rider.changes:
                key = change.key
                if type(change) is Put:
                    versions[key] = version
                    changed[key] = None
                    if change.expected:
                        replaces.append((version, change.expires_at, change.value, key, change.expected, at))
                    else:
                        inserts.append((key, version, change.expires_at, change.value))
                elif type(change) is Delete:
                    changed[key] = None
                    deletes.append((key, change.expected, at))
                elif checks.setdefault(key, change.expected) != change.expected:
                    return False
            if rider.wake:
                self._wakes.extend(rider.wake)
            self._outcomes.append(Commit(at, versions))
        self._last_version = version
        return len(inserts) + len(replaces) + len(deletes) == len(changed) and checks.keys().isdisjoint(changed)

    def write(self, connection: SqliteConnection) -> Folded | None:
        """Write everything, in the transaction under way; None: a guard does not hold, and it must be rolled back."""
        if not self._all_hold(connection):
            return None
        if self._inserts:
            # What many riders insert of one kind lies side by side: in the order of keys each page is visited once, and
            # fewer pages are written.
            self._inserts.sort(key=_BY_KEY)
            try:
                insert(connection, self._inserts)
            except apsw.ConstraintError:
                return None
        before = connection.total_changes()
        if self._replaces:
            connection.executemany(_REPLACE, self._replaces)
        if self._deletes:
            connection.executemany(_DELETE, self._deletes)
        if connection.total_changes() - before != len(self._replaces) + len(self._deletes):
            return None
        writes: dict[RecordKey, Record | None] = {**self._changed}
        return Folded(self._at, tuple(self._outcomes), writes, tuple(self._wakes), self._last_version)

    def _all_hold(self, connection: SqliteConnection) -> bool:
        checks = tuple(self._checks.items())
        for first in range(0, len(checks), _MOST_CHECKED):
            some = checks[first : first + _MOST_CHECKED]
            size = 1 << (len(some) - 1).bit_length()  # few sizes, so that each statement is prepared once
            # What fills up a statement is a key that no record has.
            pairs = (*chain.from_iterable(some), *((b"", 0) * (size - len(some))))
            if connection.execute(_count_of(size), (*pairs, self._at)).get != len(some):
                return False
        return True

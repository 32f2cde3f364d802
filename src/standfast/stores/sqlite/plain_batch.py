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
from typing import TYPE_CHECKING, Any, Final, final

import apsw

from standfast.stores.backend import ChoiceRider, CommitRider
from standfast.stores.fold import Folded
from standfast.stores.protocol import (
    MAX_VERSION,
    Check,
    Choice,
    Commit,
    Delete,
    Empty,
    MoveFirst,
    Put,
    Stamped,
    stamped,
)
from standfast.stores.validation import in_window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from standfast.clock import Instant
    from standfast.keys import RecordKey
    from standfast.stores.backend import Rider
    from standfast.stores.protocol import Alternative, Record, Wake
    from standfast.stores.sqlite.connection import SqliteConnection

    Row = tuple[RecordKey, int, Instant | None, bytes]
    Found = tuple[dict[RecordKey, Record], dict[RecordKey, int]]
    """Records, and the row that each of them is kept in."""

_LIVE: Final = "(expires_at IS NULL OR expires_at > ?)"
_REPLACE: Final = (
    f"UPDATE main.records SET version = ?, expires_at = ?, value = ? WHERE key = ? AND version = ? AND {_LIVE}"  # noqa: S608 -- constants
)
_DELETE: Final = f"DELETE FROM main.records WHERE key = ? AND version = ? AND {_LIVE}"  # noqa: S608 -- constants
_REPLACE_HELD: Final = "UPDATE main.records SET version = ?, expires_at = ?, value = ? WHERE key = ?"
_DELETE_HELD: Final = "DELETE FROM main.records WHERE key = ?"
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
def _counters_and(size: int, empty: int) -> str:
    """Return the statement that reads the counters of the store, and counts how many of some guards hold.

    A record that may expire counts as one that does not, and one that has expired lies in the way: the fold looks when.
    """
    guards = ["EXISTS (SELECT 1 FROM main.records WHERE key = ? AND version = ? AND expires_at IS NULL)"] * size
    if empty:
        guards.append("NOT EXISTS (SELECT 1 FROM main.records WHERE key > ? AND key < ?)")
    return f"SELECT count, at, {' + '.join(guards) or '0'} FROM main.counters WHERE handle = ''"  # noqa: S608 -- constants


def write_alone(  # noqa: C901, PLR0912 -- one pass over the changes, without a call for each
    connection: SqliteConnection, rider: CommitRider | ChoiceRider, now_in: Callable[[SqliteConnection, int], Instant]
) -> Folded | None:
    """Write what is alone in its transaction, as the fold would; None: it is to be folded.

    Then nothing is written. The query that reads the counters looks at the guards; what is created is not looked for,
    as an insert fails where there is a record. ``now_in`` returns the store's time, which is not before another.

    Raises:
        apsw.ConstraintError: There is one. It must be rolled back: something may be written.
    """
    wanted: CommitRider | Alternative | None = rider if type(rider) is CommitRider else likely_in(rider)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] -- none else is left, and a cast is a call
    if wanted is None:
        return None
    changes: Any = wanted.changes  # as likely_in has them
    guards: list[object] = []
    prefix: RecordKey | None = None
    if type(changes[0]) is Empty:
        prefix, changes = changes[0].prefix, changes[1:]
    for change in changes:
        if change.expected:
            guards += (change.key, change.expected)
    size, empty = len(guards) // 2, 0
    if prefix is not None:
        guards += prefix.within()
        empty = 1
    last_version, last_at, held = connection.execute(_counters_and(size, empty), guards).get
    at = now_in(connection, last_at)
    version = last_version + 1 if last_version >= at else at  # as Database._fold has it
    if held < size + empty or version > MAX_VERSION:
        return None
    is_windowed = wanted.after is not None or wanted.before is not None
    if is_windowed and not in_window(at, wanted.after, wanted.before):
        return None
    versions: dict[RecordKey, int] = {}
    inserts: list[Row] = []
    replaces: list[tuple[object, ...]] = []
    deletes: dict[RecordKey, tuple[RecordKey]] = {}
    for change in changes:
        key = change.key
        is_put = type(change) is Put
        if is_put or type(change) is Stamped:
            versions[key] = version
            value = change.value if is_put else stamped(at, change.value)
            if change.expected:
                replaces.append((version, change.expires_at, value, key))
            else:
                inserts.append((key, version, change.expires_at, value))
        elif type(change) is Delete:
            deletes[key] = (key,)
    if len(inserts) >= _ROWS:
        insert(connection, inserts)
    elif inserts:
        connection.executemany(_ONE, inserts)
    if replaces:
        connection.executemany(_REPLACE_HELD, replaces)
    if deletes:
        connection.executemany(_DELETE_HELD, deletes.values())
    writes: dict[RecordKey, Record | None] = dict.fromkeys((*versions, *deletes) if deletes else versions)
    if wanted is not rider and type(rider) is ChoiceRider:
        chosen = Choice(at, 0 if wanted is rider.alternatives[0] else 1, versions)
        return Folded(at, (chosen,), writes, wanted.wake, version)
    return Folded(at, (Commit(at, versions),), writes, wanted.wake, version)


_PLAIN: Final = frozenset({Put, Stamped, Delete, Check})


def likely_in(rider: ChoiceRider) -> Alternative | None:
    """Return the alternative that a lone choice is likely to come to; None: that is not to be said.

    If its guards hold, it is the first that does: it is the first of all, or needs nothing to lie where the first one
    moves something from. So a mutex that no other one wants is taken, and given back.
    """
    first = rider.alternatives[0]
    if type(move := first.changes[0]) is not MoveFirst:
        return first if _PLAIN.issuperset(map(type, first.changes)) else None
    second = rider.alternatives[1] if len(rider.alternatives) > 1 else first
    empty = second.changes[0]
    is_its_opposite = type(empty) is Empty and empty.prefix == move.prefix
    return second if is_its_opposite and _PLAIN.issuperset(map(type, second.changes[1:])) else None


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

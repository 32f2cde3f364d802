"""One handle's database: transactions, reads and scans, all of them blocking and short.

Writing needs the turn (see :mod:`~standfast.stores.sqlite.turn`). The writer's connection is used either on the event
loop or on the writer's thread, never on both at once; reads have a connection of their own.
"""

from __future__ import annotations

import contextlib
import functools
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import apsw
from msgspec import structs

from standfast.clock import later, monotonic
from standfast.errors import AttemptClosedError, OutcomeUnknownError, StoreError
from standfast.keys import RecordKey
from standfast.stores.backend import Applied, Batch, WorkRider
from standfast.stores.fold import Folded, as_exception, fold, keys_of
from standfast.stores.protocol import Capabilities, Commit, Record, Snapshot, Worked
from standfast.stores.rules import check_commit
from standfast.stores.sqlite.connecting import connect, disconnect
from standfast.stores.sqlite.trouble import translate
from standfast.stores.sqlite.work import run_work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from standfast.clock import Instant
    from standfast.stores.backend import Rider
    from standfast.stores.sqlite.driver import Connection
    from standfast.stores.sqlite.sharing import SharedFile
    from standfast.stores.sqlite.store_time import ClockStep, StoreTime

    Found = tuple[dict[RecordKey, Record], dict[RecordKey, int]]
    """Records, and the row that each of them is kept in."""

T = TypeVar("T")

_COUNTERS: Final = "SELECT count, at FROM main.counters WHERE handle = ''"
_COUNT_UP: Final = (
    "INSERT INTO main.counters VALUES (?, ?, ?) ON CONFLICT (handle)"
    " DO UPDATE SET count = excluded.count, at = excluded.at WHERE excluded.count > count"
)
_INSERT: Final = "INSERT INTO main.records VALUES (?, ?, ?, ?)"
_REPLACE: Final = "UPDATE main.records SET version = ?, expires_at = ?, value = ? WHERE rowid = ?"
_DELETE: Final = "DELETE FROM main.records WHERE key = ?"
_ATTEMPT: Final = "SELECT count FROM main.counters WHERE handle = ?"
_SWEEP: Final = (
    "DELETE FROM main.records WHERE key IN"
    " (SELECT key FROM main.records WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)"
)
_SCAN: Final = (
    "SELECT key, version, expires_at, value FROM main.records"
    " WHERE key >= ? AND key < ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY key {} LIMIT ?"
)
_FORGET_HANDLES: Final = "DELETE FROM main.counters WHERE handle <> '' AND at < ?"
# Each key by itself: for a few, that takes less than the table which SQLite would make of a list of them.
_ONE_MORE: Final = " UNION ALL SELECT key, version, expires_at, value, rowid FROM main.records WHERE key = ?"
_SELECTS: Final = tuple(
    f"SELECT NULL, count, at, NULL, NULL FROM main.counters WHERE handle = ''{_ONE_MORE * few}"  # noqa: S608 -- constants
    for few in range(5)
)
_FEW: Final = len(_SELECTS) - 1
_MOST_AT_ONCE: Final = 512
_LOOP_MAY_WAIT: Final = 0.02
_STEP: Final = 0.002

HANDLE_REMEMBERED: Final = 7 * 24 * 3600.0
"""How long, in seconds, the attempts of a handle that died can still be settled."""


@final
class Database:
    """The blocking half of an SQLite store."""

    __slots__ = (
        "_applied",
        "_closed_attempt",
        "_file",
        "_last_commit_seconds",
        "_limits",
        "_reader",
        "_rows",
        "_section",
        "_time",
        "_writer",
        "log_pages",
        "quickest_of_two",
    )

    def __init__(self, file: SharedFile, writer: Connection, time: StoreTime, limits: Capabilities) -> None:
        self._file, self._writer, self._time, self._limits = file, writer, time, limits
        self._reader: Final = connect(file, busy_seconds=_LOOP_MAY_WAIT)
        self._section: Final = file.new_section()
        self._applied: tuple[str, Applied] | None = None
        self._closed_attempt: str | None = None
        self._rows: dict[RecordKey, int] = {}
        self._last_commit_seconds = self.quickest_of_two = 0.0
        self.log_pages = 0
        with self._section:
            writer.set_busy_timeout(0)
            writer.set_wal_hook(self._note_log)

    def _note_log(self, _connection: Connection, _name: str, pages: int) -> int:
        self.log_pages = pages
        return apsw.SQLITE_OK

    # --- writing, with the turn --------------------------------------------------------------------------------

    def apply(self, batch: Batch, *, patience: float = 0.0) -> Applied:
        """Apply a batch in one durable transaction, waiting up to ``patience`` for those who take no turns."""
        self._file.check()
        try:
            self._begin(patience)
            try:
                rider = batch.riders[0]
                folded = self._work(rider) if type(rider) is WorkRider else self._fold(batch.riders)
                has_written = bool(folded.writes) or type(folded.outcomes[0]) is Worked
                if has_written:
                    self._write(batch.attempt, folded)
            except BaseException:
                self._roll_back()
                raise
        except apsw.Error as problem:
            raise translate(problem, self._file.path) from problem
        applied = Applied(folded.outcomes, tuple(folded.writes), folded.wakes)
        if has_written:
            self._applied = (batch.attempt, applied)
            self._commit(batch.attempt)
        else:
            self._roll_back()
        return applied

    def _begin(self, patience: float) -> None:
        if self._writer.in_transaction:  # a disk error may have left it behind
            self._roll_back()
        deadline: float | None = None
        while True:
            try:
                self._writer.execute("BEGIN IMMEDIATE")
            except apsw.BusyError:
                deadline = monotonic() + patience if deadline is None else deadline
                if monotonic() >= deadline:
                    raise
                time.sleep(_STEP)
            else:
                return

    def _work(self, rider: WorkRider) -> Folded:
        folded = self._fold((rider.commit,))
        verdict = folded.outcomes[0]
        if type(verdict) is not Commit:
            return folded
        try:
            answer, changes = run_work(self._writer, rider, self._file.path)
            if len(changes) > len(rider.commit.changes):
                check_commit(changes, rider.commit.wake, self._limits)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as problem:  # noqa: BLE001 -- it is the caller's own, and is raised to it alone
            return Folded(verdict.at, (as_exception(problem),), {}, (), folded.last_version)
        if len(changes) > len(rider.commit.changes):
            # All of them anew, at the same instant: one version, and no guard that held before fails for its age.
            folded = self._fold((structs.replace(rider.commit, changes=changes),), verdict.at)
            verdict = folded.outcomes[0]
        if type(verdict) is not Commit:
            return folded
        return structs.replace(folded, outcomes=(Worked(answer, verdict.at, verdict.versions),))

    def _fold(self, riders: Sequence[Rider], at: Instant | None = None) -> Folded:
        last_version, last_at, found = look_up_with_counters(self._writer, keys_of(riders))
        records, self._rows = found
        if at is None:
            self._time.look(self._writer)
            at = self._time.now(last_at)
        # Never below the time in microseconds: so versions grow even after an older copy of the file was restored.
        last_version = max(last_version, at - 1)
        return fold(riders, at=at, last_version=last_version, records=records, limits=self._limits)

    def _write(self, attempt: str, folded: Folded) -> None:
        execute_many, rows = self._writer.executemany, self._rows
        inserts: list[tuple[object, ...]] = []
        replacements: list[tuple[object, ...]] = []
        for key, record in folded.writes.items():
            if record is not None:
                if (row := rows.get(key)) is None:
                    inserts.append((key, record.version, record.expires_at, record.value))
                else:  # found a moment ago: its row is known, and need not be looked for by its key again
                    replacements.append((record.version, record.expires_at, record.value, row))
        if inserts:
            execute_many(_INSERT, inserts)
        if replacements:
            execute_many(_REPLACE, replacements)
        if len(inserts) + len(replacements) < len(folded.writes):
            execute_many(_DELETE, [(key,) for key, record in folded.writes.items() if record is None])
        handle, number = _split(attempt)
        execute_many(_COUNT_UP, (("", folded.last_version, folded.at), (handle, number, folded.at)))
        if self._writer.changes() != 1:
            raise AttemptClosedError(self._file.path, f"attempt {attempt} was settled as never written")

    def _commit(self, attempt: str) -> None:
        started = monotonic()
        try:
            self._writer.execute("COMMIT")
        except (apsw.FullError, apsw.BusyError) as problem:  # the commit mark was not written: certainly not done
            self._try_to_roll_back()
            raise translate(problem, self._file.path) from problem
        except apsw.Error as problem:
            self._try_to_roll_back()
            raise OutcomeUnknownError(self._file.path, f"COMMIT failed: {problem}", attempt) from problem
        finally:
            taken = monotonic() - started
            last, self._last_commit_seconds = self._last_commit_seconds, taken
            self.quickest_of_two = min(last, taken)

    def _roll_back(self) -> None:
        if self._writer.in_transaction:
            self._writer.execute("ROLLBACK")

    def _try_to_roll_back(self) -> None:
        with contextlib.suppress(apsw.Error):  # the next transaction tries again before it begins
            self._roll_back()

    def settle(self, attempt: str, *, patience: float = 0.0) -> Applied | None:
        """Close an attempt: what it applied, or None and then its counter is past it for good."""
        self._file.identity.check()
        handle, number = _split(attempt)
        try:
            self._begin(patience)
            try:
                last = self._writer.execute(_ATTEMPT, (handle,)).get
                if last is None or last < number:
                    self._closed_attempt = attempt  # before it is durable: what it finds next time may be this
                    self._writer.execute(_COUNT_UP, (handle, number, self._time.now()))
                self._writer.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        except apsw.Error as problem:
            raise translate(problem, self._file.path) from problem
        if self._closed_attempt == attempt:
            return None
        if last == number and self._applied is not None and self._applied[0] == attempt:
            return self._applied[1]
        raise StoreError(
            self._file.path, f"attempt {attempt} is not the last of this handle; settle it where it was made"
        )

    def change(self, work: Callable[[Connection], T], *, patience: float) -> T:
        """Do something to the tables in one durable transaction that is no batch; it may be done twice."""
        self._file.check()
        try:
            self._begin(patience)
            try:
                result = work(self._writer)
                self._writer.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        except apsw.Error as problem:
            raise translate(problem, self._file.path) from problem
        return result

    # --- reading -----------------------------------------------------------------------------------------------

    def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records in one snapshot."""
        try:
            with self._section:
                self._time.look(self._reader)
                found, _ = look_up(self._reader, {key: key for key in keys})
        except apsw.Error as problem:
            raise translate(problem, self._file.path) from problem
        at = self._time.now()
        return Snapshot(at, {key: found[key] for key in keys if key in found and not found[key].is_expired(at)})

    def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of a range."""
        query = _SCAN.format("DESC" if reverse else "ASC")
        try:
            with self._section:
                self._time.look(self._reader)
                at = self._time.now()
                rows = self._reader.execute(query, (start, end, at, limit + 1)).fetchall()
        except apsw.Error as problem:
            raise translate(problem, self._file.path) from problem
        records = [_record(row) for row in rows[:limit]]
        more = None
        if len(rows) > limit:
            more = records[-1].key if reverse else records[-1].key.successor()
        return Snapshot(at, {record.key: record for record in records}, more)

    def data_version(self) -> int:
        """Return a number that changes when another connection has committed."""
        try:
            with self._section:
                return int(self._reader.pragma("data_version"))
        except apsw.Error as problem:
            raise translate(problem, self._file.path) from problem

    # --- upkeep ------------------------------------------------------------------------------------------------

    def sweep(self, connection: Connection, limit: int) -> int:
        """Delete up to ``limit`` expired records over another connection, with the turn. Nobody could see them."""
        with connection:
            connection.execute(_SWEEP, (self._time.now(), limit))
            swept = connection.changes()
            connection.execute(_FORGET_HANDLES, (later(self._time.now(), -HANDLE_REMEMBERED),))
            return swept

    def wall_ahead(self) -> int:
        """Return how far the time of day is ahead of the time since boot, in microseconds."""
        return self._time.wall_ahead()

    def follow_wall(self, connection: Connection) -> tuple[bool, ClockStep | None]:
        """Let all processes follow the time of day over another connection, with the turn."""
        return self._time.follow(connection)

    def retire(self) -> None:
        """Remove the trace of this handle's attempts, with the turn: nobody will settle them any more."""
        if self._applied is not None:
            handle, _ = _split(self._applied[0])
            self._writer.execute("DELETE FROM main.counters WHERE handle = ?", (handle,))

    def close(self) -> None:
        """Close both connections."""
        self._writer.set_wal_hook(None)
        disconnect(self._file, self._reader)
        disconnect(self._file, self._writer)


def look_up_with_counters(connection: Connection, named: Mapping[RecordKey, RecordKey]) -> tuple[int, int, Found]:
    """Return the last version and the last time of the store, and what is found at the keys."""
    if len(named) > _FEW:
        last_version, last_at = connection.execute(_COUNTERS).fetchall()[0]
        return last_version, last_at, look_up(connection, named)
    records: dict[RecordKey, Record] = {}
    places: dict[RecordKey, int] = {}
    last_version = last_at = 0
    for raw, version, expires_at, value, place in connection.execute(_SELECTS[len(named)], tuple(named)).fetchall():
        if raw is None:
            last_version, last_at = version, expires_at
        else:
            key = named[raw]
            records[key], places[key] = Record(key, value, version, expires_at), place
    return last_version, last_at, (records, places)


def look_up(connection: Connection, named: Mapping[RecordKey, RecordKey]) -> Found:
    """Return the records at the keys, expired ones included, and their rows, by as few statements as possible.

    ``named`` has each key at itself, so that a found key is the object that is known already, with its hash.
    """
    wanted = tuple(named)
    records: dict[RecordKey, Record] = {}
    places: dict[RecordKey, int] = {}
    for first in range(0, len(wanted), _MOST_AT_ONCE):
        some = wanted[first : first + _MOST_AT_ONCE]
        size = 1 << (len(some) - 1).bit_length()  # few sizes, so that each statement is prepared once
        rows = connection.execute(_select(size), some + some[-1:] * (size - len(some))).fetchall()
        for raw, version, expires_at, value, place in rows:
            key = named[raw]
            records[key], places[key] = Record(key, value, version, expires_at), place
    return records, places


@functools.cache
def _select(size: int) -> str:
    return f"SELECT key, version, expires_at, value, rowid FROM main.records WHERE key IN ({','.join('?' * size)})"  # noqa: S608 -- only question marks


def _record(row: Any) -> Record:  # noqa: ANN401 -- what the driver returns
    key, version, expires_at, value = row
    return Record(RecordKey.from_encoded(key), value, version, expires_at)


def _split(attempt: str) -> tuple[str, int]:
    handle, _, number = attempt.rpartition(".")
    return handle, int(number)

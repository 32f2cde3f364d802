"""One handle's database: transactions, reads and scans, the store's time, the user's SQL, and transfer.

All of it blocks, and is short. Writing needs the turn (see :mod:`~standfast.stores.sqlite.locks`). The writer's
connection is used either on the event loop or on the writer's thread, never on both at once; reads have a connection of
their own.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, final

import apsw
from msgspec import Struct, structs

from standfast.clock import MICROSECONDS, Clock, Instant, later, monotonic
from standfast.errors import (
    AttemptClosedError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreGoneError,
    StoreReadOnlyError,
    StoreUnavailableError,
    WorkTimeoutError,
)
from standfast.keys import RecordKey
from standfast.stores.backend import OPEN, Applied, ChoiceRider, CommitRider, RiderBatch, WorkRider, moved_error, pages
from standfast.stores.fold import Folded, as_exception, fold, keys_of
from standfast.stores.protocol import Capabilities, Commit, Record, Snapshot, StoreSize, Worked
from standfast.stores.sqlite.connection import connect, disconnect, transaction
from standfast.stores.sqlite.plain_batch import PAUSE, PlainBatch, insert, write_alone
from standfast.stores.validation import check_commit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Mapping, Sequence

    from standfast.stores.backend import Rider, Scan
    from standfast.stores.protocol import Change
    from standfast.stores.sqlite.connection import SharedFile, SqliteConnection
    from standfast.stores.sqlite.plain_batch import Found, Row


# --- the user's own SQL inside one of our transactions -------------------------------------------------------------
#
# Their tables may lie in our file, but only our connection may touch it; so the work comes here. It can do anything to
# its own tables and nothing to ours, and cannot end the transaction it is in.

_OURS: Final = frozenset({"records", "records_that_expire", "counters", "facts", "frozen"})
_FORBIDDEN: Final = frozenset(
    {apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT, apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH, apsw.SQLITE_PRAGMA}
)
_ON_A_TABLE: Final = frozenset(
    {apsw.SQLITE_ALTER_TABLE, apsw.SQLITE_CREATE_INDEX, apsw.SQLITE_CREATE_TRIGGER, apsw.SQLITE_CREATE_TEMP_TRIGGER}
)
"""Actions whose second name is the table they are on."""

_STEPS_BETWEEN_CHECKS: Final = 1_000


@final
class SqliteWork:
    """What ``commit_with`` hands to the work: SQL on the caller's own tables, for as long as the call lasts."""

    __slots__ = ("_connection", "_name")

    def __init__(self, connection: SqliteConnection, name: str) -> None:
        self._connection: SqliteConnection | None = connection
        self._name = name

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        return self._open().execute(statement, tuple(parameters)).fetchall()

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Run one statement once for each set of parameters."""
        self._open().executemany(statement, parameters)

    def _open(self) -> SqliteConnection:
        if self._connection is None:
            raise RuntimeError("the transaction is over; do all the work inside the function given to commit_with")
        self.check(self._connection)
        return self._connection

    def check(self, connection: SqliteConnection) -> None:
        """Raise if SQLite has ended the transaction: what is written after that would be written for good."""
        if not connection.in_transaction:
            raise StoreError(
                self._name,
                "an error in the work's SQL rolled the whole transaction back (ON CONFLICT ROLLBACK, RAISE(ROLLBACK), "
                "a full disk); nothing was written",
            )

    def end(self) -> None:
        """Make it unusable."""
        self._connection = None


def run_work(connection: SqliteConnection, rider: WorkRider, name: str) -> tuple[Any, tuple[Change, ...]]:
    """Run the work with a time limit, kept to its own tables; return its answer and all changes to commit with it.

    Exceptions of the work, and of the function that makes changes of its answer, pass through.
    """
    seconds, changes = rider.seconds, rider.commit.changes
    deadline = monotonic() + seconds
    sql = SqliteWork(connection, name)
    connection.authorizer = _authorize
    connection.set_progress_handler(lambda: monotonic() > deadline, _STEPS_BETWEEN_CHECKS)
    try:
        answer = rider.work(sql)
        if rider.extra_changes is not None:
            changes = (*changes, *rider.extra_changes(answer))
    except apsw.InterruptError as error:
        raise WorkTimeoutError(name, f"the work took longer than {seconds:g} s; everything was undone") from error
    finally:
        sql.end()
        connection.set_progress_handler(None)
        connection.authorizer = None
    if monotonic() > deadline:
        raise WorkTimeoutError(name, f"the work took longer than {seconds:g} s; everything was undone")
    sql.check(connection)
    return answer, changes


def _authorize(action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    if action in _FORBIDDEN or _is_ours(first) or (action in _ON_A_TABLE and _is_ours(second)):
        return apsw.SQLITE_DENY
    return apsw.SQLITE_OK


def _is_ours(name: str | None) -> bool:
    return name is not None and name.lower() in _OURS  # to SQLite, "RECORDS" is the same name


# --- the store's time: a clock that all processes on the file share, and that no step of the wall clock moves ------
#
# It runs on the time since boot and follows the time of day slowly, by a plan in the file that every process reads.
# While the file is open somewhere, the store's time never jumps: it runs up to 5 % faster until it has caught up, which
# is half of what a holder leaves unused of its lease, or at half speed until the time of day has. So a stepped wall
# clock ends no lease early, and none lasts longer than twice its length. The first to open the file when no other
# process has it open takes the time of day as it is, as after a reboot. Time never falls behind what any commit has
# carried.

FASTER: Final = 5
"""By how many percent the store's time runs faster, at most. Holders stop a tenth of their lease before its end."""

SLOWER: Final = 50
"""By how many percent it runs slower, at most. That only delays: the end of a lease, a timer."""

TOLERANCE: Final = 50_000
"""Microseconds by which the time of day may differ from what the store's time follows."""

LEAD: Final = 3 * MICROSECONDS
"""How long before it begins a plan is written, in microseconds."""

LOOK_EVERY: Final = 1 * MICROSECONDS
"""How old what a handle knows of the plan may be, in microseconds. Less than ``LEAD``, so that all know it in time."""

_ANCHOR: Final = "anchor"
_PLAN: Final = "time"


class Slew(Struct, frozen=True, gc=False):
    """How far the store's time is ahead of the time since boot: ``offset`` at ``since``, on its way to ``target``."""

    since: int
    offset: int
    target: int

    def offset_at(self, elapsed: int) -> int:
        """Return how far it is ahead at a time since boot."""
        passed = max(0, elapsed - self.since)
        if self.target >= self.offset:
            return min(self.target, self.offset + passed * FASTER // 100)
        return max(self.target, self.offset - passed * SLOWER // 100)

    def settles_in(self) -> float:
        """Return the seconds from ``since`` until it is there."""
        gap = self.target - self.offset
        return abs(gap) * 100 / (FASTER if gap > 0 else SLOWER) / MICROSECONDS


class TimePlan(Struct, frozen=True, gc=False):
    """The slew that holds, and the one that follows it."""

    present: Slew
    following: Slew

    @classmethod
    def level(cls, offset: int) -> TimePlan:
        """Return the plan of a time that has nothing to follow."""
        slew = Slew(0, offset, offset)
        return cls(slew, slew)

    def slew_at(self, elapsed: int) -> Slew:
        """Return the slew that holds at a time since boot."""
        return self.following if elapsed >= self.following.since else self.present

    def at(self, elapsed: int) -> int:
        """Return the store's time."""
        return elapsed + self.slew_at(elapsed).offset_at(elapsed)

    def follow(self, elapsed: int, wall: int) -> TimePlan | None:
        """Return the plan that follows the time of day from soon on; None: it is followed already.

        Ask only when ``following`` has begun: what is known to all is not taken back.
        """
        target, present = wall - elapsed, self.slew_at(elapsed)
        if abs(target - present.target) <= TOLERANCE:
            return None
        start = elapsed + LEAD
        return TimePlan(present, Slew(start, present.offset_at(start), target))


class ClockStep(Struct, frozen=True):
    """That the time of day was not what the store's time follows.

    Attributes:
        seconds: By how much the time of day is ahead of the store's time; negative: behind.
        settles_in: After how many seconds the two agree.
    """

    seconds: float
    settles_in: float


@final
class StoreTime:
    """Store time for one handle."""

    __slots__ = ("_clock", "_last", "_look_at", "_plan")

    def __init__(self, clock: Clock, plan: TimePlan) -> None:
        self._clock, self._plan = clock, plan
        self._last = Instant(0)
        self._look_at = clock.elapsed() + LOOK_EVERY

    def now(self, at_least: int = 0) -> Instant:
        """Return the store's time, never earlier than ``at_least`` nor than any time returned before."""
        now = self._plan.at(self._clock.elapsed())
        if now < at_least or now < self._last:
            now = max(at_least, self._last)
        self._last = last = Instant(now)
        return last

    def look(self, connection: SqliteConnection) -> None:
        """Read the plan again if it was read a while ago. Call it before :meth:`now`, inside of SQLite."""
        elapsed = self._clock.elapsed()
        if elapsed >= self._look_at:
            self._plan = read_plan(connection, self._clock) or self._plan
            self._look_at = elapsed + LOOK_EVERY

    def now_in(self, connection: SqliteConnection, at_least: int) -> Instant:
        """Do as :meth:`look` and then :meth:`now` do, by one reading of the clock: for every transaction."""
        elapsed = self._clock.elapsed()
        if elapsed >= self._look_at:
            self.look(connection)
        slew = self._plan.following
        if elapsed < slew.since or slew.offset != slew.target:
            return self.now(at_least)
        now = elapsed + slew.offset  # as TimePlan.at has it when there is nothing to follow, which is nearly always
        if now < at_least or now < self._last:
            now = max(at_least, self._last)
        self._last = last = Instant(now)
        return last

    def wall_ahead(self) -> int:
        """Return how far the time of day is ahead of the time since boot."""
        return self._clock.wall() - self._clock.elapsed()

    def follow(self, connection: SqliteConnection) -> tuple[bool, ClockStep | None]:
        """Let all processes follow the time of day as it is here, with the turn.

        Return False if another change has to begin first, and what was changed.
        """
        elapsed, wall = self._clock.elapsed(), self._clock.wall()
        with transaction(connection):
            plan = read_plan(connection, self._clock) or self._plan
            if elapsed < plan.following.since:
                return False, None
            changed = plan.follow(elapsed, wall)
            if changed is None:
                return True, None
            _write_plan(connection, self._clock, changed)
        self._look_at = elapsed
        slew = changed.following
        return True, ClockStep((slew.target - slew.offset) / MICROSECONDS, slew.settles_in() + LEAD / MICROSECONDS)


def read_plan(connection: SqliteConnection, clock: Clock) -> TimePlan | None:
    """Return the plan of this boot; None if there is none yet."""
    boot, numbers = _read(connection, _PLAN)
    if boot == clock.boot() and len(numbers) == 6:  # noqa: PLR2004 -- three for each slew
        return TimePlan(Slew(*numbers[:3]), Slew(*numbers[3:]))
    boot, numbers = _read(connection, _ANCHOR)  # of a version that knew no plans
    return TimePlan.level(numbers[0]) if boot == clock.boot() and len(numbers) == 1 else None


def _read(connection: SqliteConnection, name: str) -> tuple[str, tuple[int, ...]]:
    stored = connection.execute("SELECT value FROM main.facts WHERE name = ?", (name,)).get
    boot, *numbers = str(stored or "").split(" ")
    return boot, tuple(map(int, numbers))


def _write_plan(connection: SqliteConnection, clock: Clock, plan: TimePlan) -> None:
    slews = (plan.present, plan.following)
    numbers = (number for slew in slews for number in (slew.since, slew.offset, slew.target))
    value = " ".join((clock.boot(), *map(str, numbers)))
    connection.execute("INSERT OR REPLACE INTO main.facts VALUES (?, ?)", (_PLAN, value))


def read_anchor(connection: SqliteConnection, clock: Clock) -> StoreTime | None:
    """Return the time as anchored since this boot; None if it is not anchored yet."""
    plan = read_plan(connection, clock)
    return None if plan is None else StoreTime(clock, plan)


def is_off(time: StoreTime, clock: Clock) -> bool:
    """Return True if a time differs from the time of day."""
    return abs(time.now() - clock.wall()) > TOLERANCE


def write_anchor(connection: SqliteConnection, clock: Clock, *, alone: bool) -> tuple[StoreTime, ClockStep | None]:
    """Anchor the time of this boot at the time of day, unless that was done. Call it with the turn to write.

    ``alone`` says that no other handle is open on the file, so nothing can rely on a lease: then it is anchored anew.
    """
    with transaction(connection):
        present = read_anchor(connection, clock)
        if present is not None and not (alone and is_off(present, clock)):
            return present, None
        last_at = connection.execute("SELECT at FROM main.counters WHERE handle = ''").get
        elapsed, wall = clock.elapsed(), clock.wall()
        offset = max(wall, last_at) - elapsed
        slew = Slew(elapsed, offset, wall - elapsed)
        _write_plan(connection, clock, TimePlan(slew, slew))
        connection.execute("INSERT OR REPLACE INTO main.facts VALUES (?, ?)", (_ANCHOR, f"{clock.boot()} {offset}"))
        # A process that opens the file right now may have read the time as it was; its commits go by this one.
        connection.execute("UPDATE main.counters SET at = ? WHERE handle = '' AND at < ?", (elapsed + offset,) * 2)
    before = elapsed + offset if present is None else present.now()
    step = None if wall == before else ClockStep((wall - before) / MICROSECONDS, slew.settles_in())
    return StoreTime(clock, TimePlan(slew, slew)), step


# --- driver errors, translated once, at the edge -------------------------------------------------------------------

_KINDS: Mapping[type[apsw.Error], tuple[type[StoreError], str]] = {
    apsw.BusyError: (StoreBusyError, "another program keeps it locked; retry, and leave the file to Standfast"),
    apsw.LockedError: (StoreBusyError, "it is locked; retry"),
    apsw.FullError: (StoreFullError, "the disk is full; free some space and retry"),
    apsw.ReadOnlyError: (StoreReadOnlyError, "it cannot be written to; fix the permissions of the file and its folder"),
    apsw.PermissionsError: (StoreReadOnlyError, "access is denied; fix the permissions of the file and its folder"),
    apsw.CantOpenError: (StoreUnavailableError, "it cannot be opened; check that the folder exists and may be used"),
    apsw.CorruptError: (StoreCorruptError, "its content is damaged; restore it from a backup"),
    apsw.NotADBError: (StoreCorruptError, "it is not an SQLite database; name another file"),
}


FROZEN: Final = re.compile(r"standfast frozen (?P<reason>[0-9]+)", re.ASCII)
"""What the trigger says that freezes a store."""


def translate(error: apsw.Error, name: str) -> StoreError:
    """Return the Standfast error for a driver error."""
    code = getattr(error, "extendedresult", 0)
    if code == apsw.SQLITE_READONLY_DBMOVED:
        return StoreGoneError(name, "the file was deleted, moved or replaced; put it back or open it anew")
    frozen = FROZEN.search(str(error))
    if frozen is not None:
        return moved_error(name, int(frozen["reason"]))
    for kind, (meaning, advice) in _KINDS.items():
        if isinstance(error, kind):
            return meaning(name, advice)
    return StoreUnavailableError(name, f"SQLite failed: {error}")


# --- one handle's database: transactions, reads and scans, all of them blocking and short --------------------------

T = TypeVar("T")

_COUNTERS: Final = "SELECT count, at FROM main.counters WHERE handle = ''"
_COUNT_UP: Final = (
    "INSERT INTO main.counters VALUES (?, ?, ?) ON CONFLICT (handle)"
    " DO UPDATE SET count = excluded.count, at = excluded.at WHERE excluded.count > count"
)
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
_BELOW: Final = (
    "SELECT key, version, expires_at, value FROM main.records"
    " WHERE key > ? AND key < ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY key LIMIT ?"
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
        "_choose_in",
        "_closed_attempt",
        "_file",
        "_last_commit_seconds",
        "_limits",
        "_plain_in",
        "_reader",
        "_rows",
        "_section",
        "_time",
        "_writer",
        "log_pages",
        "quickest_of_two",
    )

    def __init__(self, file: SharedFile, writer: SqliteConnection, time: StoreTime, limits: Capabilities) -> None:
        self._file, self._writer, self._time, self._limits = file, writer, time, limits
        self._reader: Final = connect(file, busy_seconds=_LOOP_MAY_WAIT)
        self._section: Final = file.new_section()
        self._applied: tuple[str, int, Applied] | None = None
        self._closed_attempt: str | None = None
        self._rows: dict[RecordKey, int] = {}
        self._plain_in = 0  # after how many batches one may be written as if every guard held
        self._choose_in = 0  # after how many lone choices one may be taken for what is likely
        self._last_commit_seconds = self.quickest_of_two = 0.0
        self.log_pages = 0
        with self._section:
            writer.set_busy_timeout(0)
            writer.set_wal_hook(self._note_log)

    def _note_log(self, _connection: SqliteConnection, _name: str, pages: int) -> int:
        self.log_pages = pages
        return apsw.SQLITE_OK

    # --- writing, with the turn ------------------------------------------------------------------------------

    def apply(self, batch: RiderBatch, *, patience: float = 0.0) -> Applied:
        """Apply a batch in one durable transaction, waiting up to ``patience`` for programs that take no turns."""
        self._file.check()
        handle, number = _split(batch.attempt)
        try:
            self._begin(patience)
            try:
                rider = batch.riders[0]
                if len(batch.riders) > 1:
                    folded = self._write_plainly(batch.riders, patience)
                else:
                    folded = self._write_alone(rider, patience)
                if folded is None:
                    folded = self._work(rider) if type(rider) is WorkRider else self._fold(batch.riders)
                    self._write(folded)
                has_written = bool(folded.writes) or type(folded.outcomes[0]) is Worked
                if has_written:
                    self._count_up(handle, number, batch.attempt, folded)
            except BaseException:
                self._roll_back()
                raise
        except apsw.Error as error:
            raise translate(error, self._file.path) from error
        applied = Applied(folded.outcomes, tuple(folded.writes), folded.wakes)
        if has_written:
            self._applied = (handle, number, applied)
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
        except BaseException as error:  # noqa: BLE001 -- it is the caller's own, and is raised to it alone
            return Folded(verdict.at, (as_exception(error),), {}, (), folded.last_version)
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
            at = self._time.now_in(self._writer, last_at)
        # Never below the time in microseconds: so versions grow even after an older copy of the file was restored.
        last_version = max(last_version, at - 1)
        ranges = functools.partial(self._below, at)
        return fold(riders, at=at, last_version=last_version, records=records, limits=self._limits, ranges=ranges)

    def _below(self, at: Instant, prefix: RecordKey, most: int, without: Container[RecordKey] = ()) -> list[Record]:
        """Return the first records that continue a key, are live at ``at`` and are not left out."""
        found: list[Record] = []
        start, end = prefix.within()
        while len(found) < most and (rows := self._writer.execute(_BELOW, (start, end, at, most)).fetchall()):
            records = list(map(_record, rows))
            found += [record for record in records if record.key not in without]
            start = records[-1].key
            if len(records) < most:
                break
        return found[:most]

    def _write_plainly(self, riders: Sequence[Rider], patience: float) -> Folded | None:
        """Write commits whose guards all hold, without folding them; None: fold them, nothing is written."""
        if self._plain_in:
            self._plain_in -= 1
            return None
        writer, time = self._writer, self._time
        last_version, last_at = writer.execute(_COUNTERS).fetchall()[0]
        at = time.now_in(writer, last_at)
        batch = PlainBatch.of(riders, at, max(last_version, at - 1))  # as in _fold
        folded = None if batch is None else batch.write(writer)
        if batch is not None and folded is None:
            self._plain_in = PAUSE
            self._roll_back()
            self._begin(patience)
        return folded

    def _write_alone(self, rider: Rider, patience: float) -> Folded | None:
        """Write a commit whose guards all hold, or a likely choice, without folding it; None: nothing is written."""
        folded = None
        if type(rider) is ChoiceRider:
            if self._choose_in:
                self._choose_in -= 1
                return None
        elif type(rider) is not CommitRider:
            return None
        try:
            folded = write_alone(self._writer, rider, self._time.now_in)
        except apsw.ConstraintError:  # there is a record where none was expected
            self._roll_back()
            self._begin(patience)
        if folded is None and type(rider) is ChoiceRider:
            self._choose_in = PAUSE
        return folded

    def _write(self, folded: Folded) -> None:
        execute_many, rows = self._writer.executemany, self._rows
        inserts: list[Row] = []
        replacements: list[tuple[object, ...]] = []
        for key, record in folded.writes.items():
            if record is not None:
                if (row := rows.get(key)) is None:
                    inserts.append((key, record.version, record.expires_at, record.value))
                else:  # found a moment ago: its row is known, and need not be looked for by its key again
                    replacements.append((record.version, record.expires_at, record.value, row))
        if inserts:
            insert(self._writer, inserts)
        if replacements:
            execute_many(_REPLACE, replacements)
        if len(inserts) + len(replacements) < len(folded.writes):
            execute_many(_DELETE, [(key,) for key, record in folded.writes.items() if record is None])

    def _count_up(self, handle: str, number: int, attempt: str, folded: Folded) -> None:
        counts = (("", folded.last_version, folded.at), (handle, number, folded.at))
        self._writer.executemany(_COUNT_UP, counts)
        if self._writer.changes() != 1:
            raise AttemptClosedError(self._file.path, f"attempt {attempt} was settled as never written")

    def _commit(self, attempt: str) -> None:
        started = monotonic()
        try:
            self._writer.execute("COMMIT")
        except (apsw.FullError, apsw.BusyError) as error:  # the commit mark was not written: certainly not done
            self._try_to_roll_back()
            raise translate(error, self._file.path) from error
        except apsw.Error as error:
            self._try_to_roll_back()
            raise OutcomeUnknownError(self._file.path, f"COMMIT failed: {error}", attempt) from error
        finally:
            taken, last = monotonic() - started, self._last_commit_seconds
            self._last_commit_seconds = taken
            self.quickest_of_two = taken if taken < last else last  # noqa: FURB136 -- this is done for every commit

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
        except apsw.Error as error:
            raise translate(error, self._file.path) from error
        if self._closed_attempt == attempt:
            return None
        if last == number and self._applied is not None and self._applied[:2] == (handle, number):
            return self._applied[2]
        raise StoreError(
            self._file.path, f"attempt {attempt} is not the last of this handle; settle it where it was made"
        )

    def change(self, work: Callable[[SqliteConnection], T], *, patience: float) -> T:
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
        except apsw.Error as error:
            raise translate(error, self._file.path) from error
        return result

    # --- reading ---------------------------------------------------------------------------------------------

    def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records in one snapshot."""
        try:
            with self._section:
                self._time.look(self._reader)
                found, _ = look_up(self._reader, {key: key for key in keys})
        except apsw.Error as error:
            raise translate(error, self._file.path) from error
        at = self._time.now()
        return Snapshot(at, {key: found[key] for key in keys if key in found and not found[key].is_expired(at)})

    def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of a range."""
        query = _SCAN.format("DESC" if reverse else "ASC")
        try:
            with self._section:
                at = self._time.now_in(self._reader, 0)
                rows = self._reader.execute(query, (start, end, at, limit + 1)).fetchall()
        except apsw.Error as error:
            raise translate(error, self._file.path) from error
        return Snapshot.page(at, [_record(row) for row in rows], limit, reverse=reverse)

    def data_version(self) -> int:
        """Return a number that changes when another connection has committed."""
        try:
            with self._section:
                return int(self._reader.pragma("data_version"))
        except apsw.Error as error:
            raise translate(error, self._file.path) from error

    # --- upkeep ----------------------------------------------------------------------------------------------

    def sweep(self, connection: SqliteConnection, limit: int) -> int:
        """Delete up to ``limit`` expired records over another connection, with the turn. They were not visible."""
        with connection:
            connection.execute(_SWEEP, (self._time.now(), limit))
            swept = connection.changes()
            connection.execute(_FORGET_HANDLES, (later(self._time.now(), -HANDLE_REMEMBERED),))
            return swept

    def size(self, connection: SqliteConnection | None = None) -> StoreSize:
        """Return how large the file is, as a connection sees it."""
        seen = connection or self._reader
        with self._section if connection is None else contextlib.nullcontext():
            page, pages = int(seen.pragma("page_size")), int(seen.pragma("page_count"))
            return StoreSize(page * pages, page * int(seen.pragma("freelist_count")))

    def count(self, most: int) -> int:
        """Return how many records there are, expired ones included, up to a number."""
        query = "SELECT count(*) FROM (SELECT 1 FROM main.records LIMIT ?)"
        try:
            with self._section:
                return int(self._reader.execute(query, (most,)).get)
        except apsw.Error as error:
            raise translate(error, self._file.path) from error

    def give_back(self, connection: SqliteConnection, pages: int) -> None:
        """Cut up to ``pages`` free pages off the file over another connection, with the turn.

        A file from before free pages could be cut off keeps them for records to come.
        """
        connection.execute(f"PRAGMA main.incremental_vacuum({pages:d})").fetchall()

    def wall_ahead(self) -> int:
        """Return how far the time of day is ahead of the time since boot, in microseconds."""
        return self._time.wall_ahead()

    def follow_wall(self, connection: SqliteConnection) -> tuple[bool, ClockStep | None]:
        """Let all processes follow the time of day over another connection, with the turn."""
        return self._time.follow(connection)

    def retire(self) -> None:
        """Remove the trace of this handle's attempts, with the turn: they will not be settled any more."""
        if self._applied is not None:
            self._writer.execute("DELETE FROM main.counters WHERE handle = ?", (self._applied[0],))

    def close(self) -> None:
        """Close both connections."""
        with self._section:
            self._writer.set_wal_hook(None)
        disconnect(self._file, self._reader)
        disconnect(self._file, self._writer)


def look_up_with_counters(connection: SqliteConnection, named: Mapping[RecordKey, RecordKey]) -> tuple[int, int, Found]:
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


def look_up(connection: SqliteConnection, named: Mapping[RecordKey, RecordKey]) -> Found:
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
    return handle, int(number.partition("@")[0])


# --- transfer: a trigger freezes the file, in every process and for good -------------------------------------------
#
# It stands on the row that every commit counts in, and so costs nothing while it is not there. Making it is a write
# like any other: what was before it is durable, and what comes after it is refused.

_FREEZE: Final = (
    "CREATE TRIGGER IF NOT EXISTS main.frozen BEFORE INSERT ON counters WHEN NEW.handle = ''"
    " BEGIN SELECT RAISE(ABORT, 'standfast frozen {}'); END"
)
_LOOK: Final = "SELECT sql FROM main.sqlite_schema WHERE type = 'trigger' AND name = 'frozen'"
_LAST: Final = "SELECT count FROM main.counters WHERE handle = ''"
_LIFT: Final = "UPDATE main.counters SET count = max(count, ?) WHERE handle = ''"
_PUT: Final = (
    "INSERT INTO main.records VALUES (?, ?, ?, ?) ON CONFLICT (key)"
    " DO UPDATE SET version = excluded.version, expires_at = excluded.expires_at, value = excluded.value"
)


class Rewrite(Protocol):
    """Runs a function on the writer's connection, in a transaction."""

    def __call__(self, work: Callable[[SqliteConnection], Any]) -> Awaitable[Any]:
        """Run it."""
        ...


@final
class SqliteTransfer:
    """Everything in a file."""

    def __init__(self, change: Rewrite, scan: Scan) -> None:
        self._change, self._scan = change, scan

    async def frozen(self) -> int:
        """Return why it is frozen."""
        text: str | None = await self._change(lambda writer: writer.execute(_LOOK).get)
        found = FROZEN.search(text or "")
        return int(found["reason"]) if found else OPEN

    async def freeze(self, reason: int) -> None:
        """Refuse writes."""
        await self._change(lambda writer: writer.execute(_FREEZE.format(int(reason))))

    async def thaw(self) -> None:
        """Take writes again."""
        await self._change(lambda writer: writer.execute("DROP TRIGGER IF EXISTS main.frozen"))

    async def last(self) -> int:
        """Return the last version that was given out."""
        return int(await self._change(lambda writer: writer.execute(_LAST).get))

    async def lift(self, version: int) -> None:
        """Go on above a version."""
        await self._change(lambda writer: writer.execute(_LIFT, (version,)))

    def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all records."""
        return pages(self._scan)

    async def put(self, records: Sequence[Record]) -> None:
        """Write records as they are."""
        rows = [(record.key, record.version, record.expires_at, record.value) for record in records]
        await self._change(lambda writer: writer.executemany(_PUT, rows))

"""One handle on a libSQL server: its tables, its SQL, and every intent as one batch whose steps stop at a refusal."""

from __future__ import annotations

import asyncio
import random
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast, final

import msgspec
from msgspec import Struct, structs

from standfast.clock import Instant
from standfast.errors import (
    AttemptClosedError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreError,
    StoreReadOnlyError,
    UnsuitableStoreError,
)
from standfast.keys import RecordKey
from standfast.stores.backend import Batching, pages
from standfast.stores.libsql.connection import (
    LibsqlConnection,
    is_busy,
    is_constraint,
    is_frozen,
    is_missing_table,
    is_rolled_back,
    is_too_large,
    reason_of,
    translate,
)
from standfast.stores.libsql.hrana import BatchResults, HranaBatch, HranaFailure, if_failed, if_first_but_not, if_ok
from standfast.stores.protocol import ABSENT, Capabilities, Record, Snapshot, StoreMeasure
from standfast.stores.remote.server import (
    Intent,
    Landed,
    Row,
    ServerDefaults,
    WriteRefused,
    Written,
)
from standfast.stores.views import VIEWS, SqliteDialect, view_statements

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from standfast.stores.backend import Scan
    from standfast.stores.libsql.connection import LibsqlOptions
    from standfast.stores.libsql.hrana import Cell

    Run: TypeAlias = Callable[[HranaBatch], Awaitable[BatchResults | HranaFailure]]


# --- the server ----------------------------------------------------------------------------------------------------

CAPABILITIES: Final = Capabilities(
    backend="libsql",
    atomic=True,
    durable=True,
    reach="network",
    wakes="poll",
    clock_resolution=0.001,
    shortest_lease=0.5,
)

BATCHING: Final = Batching(max_riders=500, max_weight=5_000, max_bytes=4_000_000)

BUSY_TRIES: Final = 20
BUSY_PAUSE: Final = 0.02
ATTEMPTS_KEPT: Final = 24 * 3_600 * 1_000_000
"""For how many microseconds the attempts of a handle that died can still be settled."""


@final
class LibsqlServer(ServerDefaults):
    """A server whose tables are there."""

    def __init__(self, caller: LibsqlConnection, options: LibsqlOptions, *, durable: bool) -> None:
        self._caller, self._options = caller, options
        self.name = options.name
        self.capabilities: Final = structs.replace(CAPABILITIES, durable=durable)
        self.batching: Final = BATCHING
        self._sql: Final = Statements(options.prefix)
        self._random: Final = random.Random()  # noqa: S311 -- spreads out the retries of several handles

    # --- writing ---------------------------------------------------------------------------------------------

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Do all of it in one transaction, in one request."""
        batch = _intent_batch(self._sql, intent)
        results = await self._not_busy(self._caller.write, batch)
        if isinstance(results, HranaFailure):
            if is_too_large(results):  # only the records that refuse it can be: nothing was written
                seen = await self.read(list(intent.guards))
                return WriteRefused(seen.at, intent.lost(seen), stale=bool(intent.exact))
            raise OutcomeUnknownError(self.name, translate(results, self.name).problem)
        if results.step_results[_COMMIT] is not None:
            [[at, count]] = _numbers(results.rows(_JUDGED))
            first = count - max(intent.draws, 1) + 1
            return Written(Instant(at), intent.exact or tuple(range(first, first + intent.draws)))
        failed = results.step_errors[_JUDGED]
        if is_constraint(failed) and not is_frozen(failed):
            return self._refused(intent, results)
        failure = results.failure() or _NOTHING
        error = translate(failure, self.name)
        if results.step_results[_ROLLBACK] is not None or results.step_results[0] is None or is_rolled_back(failure):
            raise error
        raise OutcomeUnknownError(self.name, error.problem)

    def _refused(self, intent: Intent, results: BatchResults) -> WriteRefused:
        if results.step_results[_DIAGNOSIS] is None:
            raise translate(results.step_errors[_DIAGNOSIS] or _NOTHING, self.name)
        [at, count, number, _], *lost = results.rows(_DIAGNOSIS)
        if number is not None and cast("int", number) >= intent.number:
            raise AttemptClosedError(self.name, f"attempt {intent.handle}.{intent.number} is closed")
        keys = list(intent.guards)
        current: dict[RecordKey, Record | None] = {}
        for row in lost:
            key = keys[cast("int", row[0])]
            current[key] = None if row[1] is None else _record_there(key, row)
        return WriteRefused(Instant(cast("int", at)), current, stale=bool(intent.exact) and count != intent.exact[-1])

    async def _not_busy(self, run: Run, batch: HranaBatch) -> BatchResults | HranaFailure:
        """Run a batch until its first step meets no other writer: nothing was written then."""
        failure = _NOTHING
        for _ in range(BUSY_TRIES):
            results = await run(batch)
            failed = results.step_errors[0] if isinstance(results, BatchResults) else None
            if failed is None or not is_busy(failed):
                return results
            failure = failed
            await asyncio.sleep(self._random.uniform(0, BUSY_PAUSE))
        raise translate(failure, self.name)

    async def reserve(self, count: int, namespace: bytes) -> tuple[int, ...]:
        """Take versions."""
        del namespace
        [[last]] = _numbers(await self._one(self._sql.reserve, count))
        return tuple(range(last - count + 1, last + 1))

    async def close_attempt(self, handle: str, number: int, namespace: bytes) -> Landed | None:
        """Close an attempt: a write of it that is under way holds the one turn to write, so this comes after it."""
        del namespace
        batch = HranaBatch()
        batch.add(self._sql.close, (handle, number))
        found = batch.add(self._sql.closed, (handle,), if_ok(0))
        [[last, at, first, draws]] = (await self._done(batch)).rows(found)
        if last != number:
            raise StoreError(self.name, f"attempt {handle}.{number} is not the last one of its handle")
        if first is None:
            return None
        [[at_, first_, draws_]] = _numbers([[at, first, draws]])
        return Landed(Instant(at_), tuple(range(first_, first_ + draws_)))

    async def forget(self, handle: str) -> None:
        """Forget a handle."""
        await self._one(self._sql.forget, handle)

    async def sweep(self, limit: int) -> int:
        """Delete expired records, and attempts that are too old to be asked for."""
        batch = HranaBatch()
        swept = batch.add(self._sql.sweep, (limit,))
        batch.add(self._sql.sweep_attempts, (ATTEMPTS_KEPT,), if_ok(swept))
        result = (await self._done(batch)).step_results[swept]
        return 0 if result is None else result.affected_row_count

    async def measure(self) -> StoreMeasure:
        """Return the bytes of the database. Counting its rows would read all of them, which is billed."""
        pages = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        [[size]] = _numbers(await self._one(pages))
        return StoreMeasure(size)

    def transfer(self) -> LibsqlTransfer:
        """Return what moves everything in the tables."""
        return LibsqlTransfer(self._done, self._options.prefix, self.scan)

    # --- reading ---------------------------------------------------------------------------------------------

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records, in one statement."""
        [at, *_], *found = await self._rows(self._sql.read, *pack_keys(keys))
        at = Instant(cast("int", at))
        return Snapshot(at, {keys[cast("int", row[0])]: _record_there(keys[cast("int", row[0])], row) for row in found})

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page, in one statement."""
        sql = self._sql.scan_back if reverse else self._sql.scan
        [at, *_], *found = await self._rows(sql, bytes(start), bytes(end), limit + 1)
        records = [_record_there(RecordKey.from_encoded(cast("bytes", row[0])), row) for row in found]
        records.sort(key=attrgetter("key"), reverse=reverse)
        return Snapshot.page(Instant(cast("int", at)), records, limit, reverse=reverse)

    async def mark(self) -> int:
        """Return the last version: it grows with every commit."""
        [[count]] = _numbers(await self._one(self._sql.mark))
        return count

    async def _rows(self, sql: str, *parameters: bytes | int | str) -> list[list[Cell]]:
        batch = HranaBatch()
        batch.add(sql, parameters)
        results = await self._caller.read(batch)
        if isinstance(results, HranaFailure) and is_too_large(results):
            return await self._caller.rows(batch)
        return self._checked(results).rows(0)

    async def _one(self, sql: str, *parameters: int | str) -> list[list[Cell]]:
        batch = HranaBatch()
        batch.add(sql, parameters)
        return (await self._done(batch)).rows(0)

    async def _done(self, batch: HranaBatch) -> BatchResults:
        """Run statements that stand for themselves, and may be run twice."""
        return self._checked(await self._not_busy(self._caller.read, batch))

    def _checked(self, results: BatchResults | HranaFailure) -> BatchResults:
        failure = results if isinstance(results, HranaFailure) else results.failure()
        if failure is not None:
            raise translate(failure, self.name)
        return cast("BatchResults", results)

    # --- life ------------------------------------------------------------------------------------------------

    async def another(self) -> LibsqlServer:
        """Open another handle."""
        return LibsqlServer(LibsqlConnection(self._options), self._options, durable=self.capabilities.durable)

    async def aclose(self) -> None:
        """Close everything."""
        await self._caller.aclose()


_JUDGED: Final = 1
_COMMIT, _ROLLBACK, _DIAGNOSIS = -3, -2, -1
_NOTHING: Final = HranaFailure("the server did not say why")


def _intent_batch(sql: Statements, intent: Intent) -> HranaBatch:
    """Return the steps: begin, judge, write, commit; and if that was refused, undo it and look why.

    What is seen then is there at one moment, though perhaps a later one: the records as they are, to try again with.
    """
    batch = HranaBatch()
    first, last = (intent.exact[0], intent.exact[-1]) if intent.exact else (None, None)
    creates = any(intent.guards[row.key] == ABSENT for row in intent.puts)
    draws = max(intent.draws, 1)
    guards = pack_guards(intent.guards)
    begin = batch.add("BEGIN IMMEDIATE")
    window = (intent.after, intent.before, last if creates else None, 0 if intent.exact else draws)
    judge = done = batch.add(sql.judge, (intent.handle, intent.number, *window, *guards), if_ok(begin))
    taken = len(intent.exact) or intent.draws
    done = batch.add(sql.count, (intent.handle, intent.number, first, taken), if_ok(done))
    for packed in pack_rows(intent.puts):
        done = batch.add(sql.put, (*packed, first, draws), if_ok(done))
    if intent.deletes:
        done = batch.add(sql.delete, pack_keys(intent.deletes), if_ok(done))
    commit = batch.add("COMMIT", condition=if_ok(done))
    batch.add("ROLLBACK", condition=if_first_but_not(begin, commit))
    batch.add(sql.diagnose, (intent.handle, *guards), if_failed(judge))
    return batch


def _record_there(key: RecordKey, row: list[Cell]) -> Record:
    _, version, expires_at, value = row
    return Record(key, cast("bytes", value), cast("int", version), cast("Instant | None", expires_at))


def _numbers(rows: list[list[Cell]]) -> list[list[int]]:
    return cast("list[list[int]]", rows)


# --- the tables of a store: made, moved on to newer forms, and checked when a store is opened ----------------------
#
# A migration and its number are written in one transaction that fails if another process was faster; so any number of
# processes may start at once, and each statement of a migration runs once.

# With row ids, so that the tree of keys holds keys alone: finding a small record beside large ones is quick.
_FIRST: Final = (
    """CREATE TABLE "{p}facts" (name TEXT NOT NULL PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID""",
    """INSERT INTO "{p}facts" VALUES ('schema', 0)""",
    """CREATE TABLE "{p}records" (
      key BLOB NOT NULL PRIMARY KEY, version INTEGER NOT NULL, expires_at INTEGER, value BLOB NOT NULL)""",
    """CREATE INDEX "{p}records_that_expire" ON "{p}records" (expires_at) WHERE expires_at IS NOT NULL""",
    """CREATE TABLE "{p}attempts" (
      handle TEXT NOT NULL PRIMARY KEY, number INTEGER NOT NULL, at INTEGER NOT NULL, first INTEGER, draws INTEGER)
      WITHOUT ROWID""",
    """CREATE TABLE "{p}clock" (
      one INTEGER PRIMARY KEY CHECK (one = 1), count INTEGER NOT NULL, at INTEGER NOT NULL)""",
    """INSERT INTO "{p}clock" VALUES (1, 0, 0)""",
)


MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (_FIRST,)
"""Each leads from one number of the schema to the next. They are only ever added to."""

VERSION: Final = len(MIGRATIONS)
_RACES: Final = 50
_STRONG: Final = ([[2]], [[3]])


class LibsqlFacts(Struct, frozen=True):
    """What a server has told of itself."""

    schema: int
    durable: bool
    """Whether it waits for its disk before it answers."""
    views: int = 0
    """Which views for people it has."""


async def prepare(caller: LibsqlConnection, options: LibsqlOptions) -> LibsqlFacts:
    """Check the server and its tables, and make them if that is wanted.

    Raises:
        UnsuitableStoreError: The tables are newer than this program, or missing and not to be made; or the server is
            too old.
    """
    for _ in range(_RACES):
        facts = await _look(caller, options)
        found = facts.schema
        if found == VERSION:
            if options.migrate and facts.views < VIEWS:
                await _create_views(caller, options)
            return facts
        if found > VERSION:
            problem = f"its tables have form {found}, and this program knows {VERSION}; update Standfast here"
            raise UnsuitableStoreError(options.name, problem)
        if not options.migrate:
            problem = f"its tables have form {found}, not {VERSION}; open it once with migrate=true and the right to"
            raise UnsuitableStoreError(options.name, f"{problem} create tables")
        await _migrate(caller, options, found)
    raise StoreBusyError(options.name, "its tables are being made by others, over and over; retry")


async def _look(caller: LibsqlConnection, options: LibsqlOptions) -> LibsqlFacts:
    batch = HranaBatch()
    time = batch.add("SELECT typeof(unixepoch('now', 'subsec'))")
    care = batch.add("PRAGMA synchronous")
    schema = batch.add(f"SELECT value FROM \"{options.prefix}facts\" WHERE name = 'schema'")  # noqa: S608 -- the prefix was checked when the URL was read
    views = batch.add(f"SELECT value FROM \"{options.prefix}facts\" WHERE name = 'views'")  # noqa: S608 -- see above
    results = await caller.read(batch)
    if isinstance(results, HranaFailure):
        raise translate(results, options.name)
    if results.rows(time) != [["real"]]:
        raise UnsuitableStoreError(options.name, "the server's SQLite is older than 3.42; update the server")
    failure = results.step_errors[schema]
    if failure is not None and not is_missing_table(failure):
        raise translate(failure, options.name)
    [[version]], [[shown]] = results.rows(schema) or [[0]], results.rows(views) or [[0]]
    return LibsqlFacts(int(version or 0), durable=results.rows(care) in _STRONG, views=int(shown or 0))


async def _create_views(caller: LibsqlConnection, options: LibsqlOptions) -> None:
    """Make the views for people anew. Where that is not allowed, or another process does it, there are none yet."""
    batch = HranaBatch()
    begin = last = batch.add("BEGIN IMMEDIATE")
    for name, query in view_statements(SqliteDialect(), f'"{options.prefix}records"').items():
        last = batch.add(f'DROP VIEW IF EXISTS "{options.prefix}{name}"', condition=if_ok(last))
        last = batch.add(f'CREATE VIEW "{options.prefix}{name}" AS {query}', condition=if_ok(last))
    done = f"INSERT OR REPLACE INTO \"{options.prefix}facts\" VALUES ('views', {VIEWS})"  # noqa: S608 -- see above
    last = batch.add(done, condition=if_ok(last))
    commit = batch.add("COMMIT", condition=if_ok(last))
    batch.add("ROLLBACK", condition=if_first_but_not(begin, commit))
    await caller.read(batch)


async def _migrate(caller: LibsqlConnection, options: LibsqlOptions, found: int) -> None:
    """Move on by one number; another process may be faster."""
    batch = HranaBatch()
    begin = last = batch.add("BEGIN IMMEDIATE")
    for statement in MIGRATIONS[found]:
        last = batch.add(statement.format(p=options.prefix), condition=if_ok(last))
    moved = f"UPDATE \"{options.prefix}facts\" SET value = CASE value WHEN ?1 THEN ?1 + 1 END WHERE name = 'schema'"  # noqa: S608 -- the prefix was checked when the URL was read
    last = batch.add(moved, (found,), if_ok(last))
    commit = batch.add("COMMIT", condition=if_ok(last))
    batch.add("ROLLBACK", condition=if_first_but_not(begin, commit))
    results = await caller.read(batch)
    problem = results if isinstance(results, HranaFailure) else results.failure()
    if problem is None or is_busy(problem) or is_constraint(problem) or "already exists" in problem.message:
        return
    error = translate(problem, options.name)
    if isinstance(error, StoreReadOnlyError):
        problem_text = f"{error.problem}; to make the tables apart, open it once with a token that may write"
        raise StoreReadOnlyError(options.name, problem_text)
    raise error


# --- packing: many keys and values as one blob, so that the text of a statement never changes ----------------------
#
# A statement with a parameter for each key would be parsed anew for every number of keys, by the server twice.

Packed: TypeAlias = tuple[bytes, str]
"""The blob, and the places as JSON. A place is a start, counted from 1 as SQL does, and a length."""

MOST_BYTES: Final = 1_000_000
"""How much goes into one blob, give or take a record. Servers take rows of 5 MB."""

_encode: Final = msgspec.json.Encoder().encode


def pack_keys(keys: Iterable[RecordKey]) -> Packed:
    """Pack keys: ``[[start, length], ...]``."""
    places: list[tuple[int, int]] = []
    start = 1
    keys = tuple(keys)
    for key in keys:
        places.append((start, len(key)))
        start += len(key)
    return b"".join(keys), _encode(places).decode()


def pack_guards(guards: Mapping[RecordKey, int]) -> Packed:
    """Pack keys with the version that each must be at: ``[[start, length, version], ...]``."""
    places: list[tuple[int, int, int]] = []
    start = 1
    for key, version in guards.items():
        places.append((start, len(key), version))
        start += len(key)
    return b"".join(guards), _encode(places).decode()


def pack_rows(rows: Sequence[Row]) -> Iterator[Packed]:
    """Pack records: ``[[start, length, start of the value, its length, draw, expires_at], ...]``."""
    parts: list[bytes] = []
    places: list[tuple[int, int, int, int, int, int | None]] = []
    start = 1
    for row in rows:
        value_start = start + len(row.key)
        places.append((start, len(row.key), value_start, len(row.value), row.draw, row.expires_at))
        parts += (row.key, row.value)
        start = value_start + len(row.value)
        if start > MOST_BYTES:
            yield b"".join(parts), _encode(places).decode()
            parts, places, start = [], [], 1
    if places:
        yield b"".join(parts), _encode(places).decode()


# --- transfer: a trigger freezes the row that every write counts in ------------------------------------------------

_FREEZE: Final = (
    'CREATE TRIGGER IF NOT EXISTS "{p}frozen" BEFORE UPDATE ON "{p}clock"'
    " BEGIN SELECT RAISE(ABORT, 'standfast frozen {reason}'); END"
)
_LOOK: Final = "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = '{p}frozen'"
# Not an UPDATE, which the trigger would refuse.
_LIFT: Final = 'REPLACE INTO "{p}clock" (one, count, at) SELECT one, max(count, ?1), at FROM "{p}clock"'
# As writes do, but each row has its version where others have the number of a draw.
_IMPORT: Final = """\
INSERT INTO "{p}records" (key, version, expires_at, value)
SELECT substr(?1, p.value ->> 0, p.value ->> 1), p.value ->> 4, p.value ->> 5, substr(?1, p.value ->> 2, p.value ->> 3)
FROM json_each(?2) AS p WHERE true
ON CONFLICT (key) DO UPDATE SET
  version = excluded.version, expires_at = excluded.expires_at, value = excluded.value"""


class IdempotentRun(Protocol):
    """Runs statements that may be run twice, and raises what goes wrong."""

    def __call__(self, batch: HranaBatch) -> Awaitable[BatchResults]:
        """Run them."""
        ...


@final
class LibsqlTransfer:
    """Everything in the tables with one prefix."""

    def __init__(self, run: IdempotentRun, prefix: str, scan: Scan) -> None:
        self._run, self._prefix, self._scan = run, prefix, scan

    async def _one(self, sql: str, *parameters: int, **words: int) -> list[list[Any]]:
        batch = HranaBatch()
        batch.add(sql.format(p=self._prefix, **words), parameters)
        return (await self._run(batch)).rows(0)

    async def frozen(self) -> int:
        """Return why it is frozen."""
        rows = await self._one(_LOOK)
        return reason_of(cast("str", rows[0][0])) if rows else 0

    async def freeze(self, reason: int) -> None:
        """Refuse writes: making the trigger is one itself, and they come one after the other."""
        await self._one(_FREEZE, reason=int(reason))

    async def thaw(self) -> None:
        """Take writes again."""
        await self._one('DROP TRIGGER IF EXISTS "{p}frozen"')

    async def last(self) -> int:
        """Return the last version that was given out."""
        [[count]] = await self._one('SELECT count FROM "{p}clock"')
        return int(count)

    async def lift(self, version: int) -> None:
        """Go on above a version."""
        await self._one(_LIFT, version)

    def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all records."""
        return pages(self._scan)

    async def put(self, records: Sequence[Record]) -> None:
        """Write records as they are."""
        batch = HranaBatch()
        begin = done = batch.add("BEGIN IMMEDIATE")
        rows = [Row(record.key, record.value, record.version, record.expires_at) for record in records]
        for packed in pack_rows(rows):
            done = batch.add(_IMPORT.format(p=self._prefix), packed, if_ok(done))
        commit = batch.add("COMMIT", condition=if_ok(done))
        batch.add("ROLLBACK", condition=if_first_but_not(begin, commit))
        await self._run(batch)


# --- the SQL that is sent, for one prefix of table names -----------------------------------------------------------
#
# Every statement that judges by time reads the clock once. ``now`` is the same throughout one row of one statement, so
# where a statement returns several rows, the time is put into a materialized table expression first.

_NOW: Final = "CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) * 1000"
"""The server's time in microseconds. It counts milliseconds."""

_GUARDED: Final = (
    'json_each({list}) AS g LEFT JOIN "{p}records" AS r'
    " ON r.key = substr({blob}, g.value ->> 0, g.value ->> 1) AND (r.expires_at IS NULL OR r.expires_at > c.at)"
    " WHERE ifnull(r.version, 0) <> g.value ->> 2"
)
"""The keys that are not at their version at the time of ``c``."""

_JUDGE: Final = """\
UPDATE "{p}clock" SET (at, count) = (
  SELECT c.at, CASE WHEN
      NOT EXISTS (SELECT 1 FROM "{p}attempts" WHERE handle = ?1 AND number >= ?2)
      AND (?3 IS NULL OR c.at >= ?3) AND (?4 IS NULL OR c.at < ?4) AND (?5 IS NULL OR c.count = ?5)
      AND NOT EXISTS (SELECT 1 FROM {guarded})
    THEN CASE WHEN ?6 = 0 THEN c.count + 1 ELSE max(c.count + 1, c.at) + ?6 - 1 END END
  FROM (SELECT max(at, {now}) AS at, count FROM "{p}clock" LIMIT 1) AS c)
RETURNING at, count"""
"""Guards, window and attempt; then the time and the versions. What does not hold makes the count NULL, an error.

The ``LIMIT`` keeps SQLite from working the time out anew for each place where it is used.
"""

_DIAGNOSE: Final = """\
WITH c AS MATERIALIZED (SELECT max(at, {now}) AS at, count FROM "{p}clock")
SELECT at, count, (SELECT number FROM "{p}attempts" WHERE handle = ?1), NULL FROM c
UNION ALL
SELECT g.key, r.version, r.expires_at, r.value FROM c CROSS JOIN {guarded}"""

_COUNT: Final = """\
INSERT INTO "{p}attempts" (handle, number, at, first, draws)
SELECT ?1, ?2, at, ifnull(?3, count - max(?4, 1) + 1), ?4 FROM "{p}clock" WHERE true
ON CONFLICT (handle) DO UPDATE SET
  number = excluded.number, at = excluded.at, first = excluded.first, draws = excluded.draws"""

_PUT: Final = """\
INSERT INTO "{p}records" (key, version, expires_at, value)
SELECT substr(?1, p.value ->> 0, p.value ->> 1),
  ifnull(?3, (SELECT count FROM "{p}clock") - ?4 + 1) + (p.value ->> 4), p.value ->> 5,
  substr(?1, p.value ->> 2, p.value ->> 3)
FROM json_each(?2) AS p WHERE true
ON CONFLICT (key) DO UPDATE SET
  version = excluded.version, expires_at = excluded.expires_at, value = excluded.value"""

_DELETE: Final = """\
DELETE FROM "{p}records" WHERE key IN (SELECT substr(?1, k.value ->> 0, k.value ->> 1) FROM json_each(?2) AS k)"""

_CLOSE: Final = """\
INSERT INTO "{p}attempts" (handle, number, at) SELECT ?1, ?2, max(at, {now}) FROM "{p}clock" WHERE true
ON CONFLICT (handle) DO UPDATE SET number = excluded.number, at = excluded.at, first = NULL, draws = NULL
WHERE number < excluded.number"""

_RESERVE: Final = """\
UPDATE "{p}clock" SET count = max(count + 1, at, {now}) + ?1 - 1, at = max(at, {now}) RETURNING count"""

_READ: Final = """\
WITH c AS MATERIALIZED (SELECT max(at, {now}) AS at FROM "{p}clock")
SELECT at, NULL, NULL, NULL FROM c
UNION ALL
SELECT k.key, r.version, r.expires_at, r.value
FROM c CROSS JOIN json_each(?2) AS k CROSS JOIN "{p}records" AS r ON r.key = substr(?1, k.value ->> 0, k.value ->> 1)
WHERE r.expires_at IS NULL OR r.expires_at > c.at"""

_SCAN: Final = """\
WITH c AS MATERIALIZED (SELECT max(at, {now}) AS at FROM "{p}clock")
SELECT at, NULL, NULL, NULL FROM c
UNION ALL
SELECT * FROM (
  SELECT r.key, r.version, r.expires_at, r.value FROM "{p}records" AS r
  WHERE r.key >= ?1 AND r.key < ?2 AND (r.expires_at IS NULL OR r.expires_at > (SELECT at FROM c))
  ORDER BY r.key {order} LIMIT ?3)"""

_SWEEP: Final = """\
DELETE FROM "{p}records" WHERE rowid IN (
  SELECT rowid FROM "{p}records" WHERE expires_at <= (SELECT max(at, {now}) FROM "{p}clock") LIMIT ?1)"""


@final
class Statements:
    """The statements for tables that begin with ``prefix``, which must be harmless."""

    def __init__(self, prefix: str) -> None:
        def made(sql: str, order: str = "") -> str:
            guarded = {
                _JUDGE: _GUARDED.format(p=prefix, blob="?7", list="?8"),
                _DIAGNOSE: _GUARDED.format(p=prefix, blob="?2", list="?3"),
            }
            return sql.format(p=prefix, now=_NOW, guarded=guarded.get(sql, ""), order=order)

        self.judge: Final = made(_JUDGE)
        self.diagnose: Final = made(_DIAGNOSE)
        self.count: Final = made(_COUNT)
        self.put: Final = made(_PUT)
        self.delete: Final = made(_DELETE)
        self.close: Final = made(_CLOSE)
        self.closed: Final = made('SELECT number, at, first, draws FROM "{p}attempts" WHERE handle = ?1')
        self.forget: Final = made('DELETE FROM "{p}attempts" WHERE handle = ?1')
        self.reserve: Final = made(_RESERVE)
        self.read: Final = made(_READ)
        self.scan: Final = made(_SCAN, "ASC")
        self.scan_back: Final = made(_SCAN, "DESC")
        self.sweep: Final = made(_SWEEP)
        self.sweep_attempts: Final = made('DELETE FROM "{p}attempts" WHERE at < {now} - ?1')
        self.mark: Final = made('SELECT count FROM "{p}clock"')

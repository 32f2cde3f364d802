"""The SQL of the MySQL store: its tables, and one guarded write in one round trip.

The server runs one statement after another and stops at the first that fails. So the statement that counts the attempt
also judges the guards, and fails if they do not hold: it sets a column to NULL that must not be. Everything that comes
from outside is a number or a hexadecimal literal, so there is nothing to escape.

User variables carry what the rows were found to be: ``@sf_m`` how many guarded versions match, ``@sf_e`` when the first
of those expires, ``@sf_d`` when the last of those that must be absent does, ``@sf_v`` the highest version among all;
then ``@sf_t`` the time, ``@sf_b`` the first version to take, ``@sf_f`` why the store is frozen, 0 if it is not.
"""

from __future__ import annotations

import hashlib
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from standfast.clock import Instant
from standfast.errors import StoreUnavailableError, UnsuitableStoreError
from standfast.keys import RecordKey
from standfast.stores.mysql.connection import DRIVER_ERRORS, NO_TABLE, NOT_ALLOWED, code_of, translated
from standfast.stores.protocol import ABSENT
from standfast.stores.views import VIEWS, MysqlDialect, view_statements

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from standfast.stores.mysql.connection import MysqlConnection, MysqlOptions, MysqlTables
    from standfast.stores.protocol import Record
    from standfast.stores.remote.server import Row

# ruff: noqa: S608 -- names of tables are checked where they are read, and all else is a number or a hex literal


# --- the tables: made once, however many processes start at the same time, and changed only forward ----------------


PATIENCE: Final = 60
"""How many seconds to wait for another process that is making the tables."""

_TABLE: Final = "ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4"


def _first(names: MysqlTables) -> tuple[str, ...]:
    facts = "name VARBINARY(64) NOT NULL, number BIGINT NOT NULL, PRIMARY KEY (name)"
    records = (
        "k VARBINARY(1000) NOT NULL, version BIGINT NOT NULL, expires_at BIGINT NULL, value MEDIUMBLOB NOT NULL, "
        "PRIMARY KEY (k), KEY expiry (expires_at)"
    )
    attempts = (
        "handle VARBINARY(64) NOT NULL, number BIGINT NOT NULL, at BIGINT NOT NULL, first BIGINT NULL, "
        "draws INT NOT NULL, PRIMARY KEY (handle)"
    )
    return (
        f"CREATE TABLE IF NOT EXISTS {names.facts} ({facts}) {_TABLE}",
        f"CREATE TABLE IF NOT EXISTS {names.records} ({records}) {_TABLE}",
        f"CREATE TABLE IF NOT EXISTS {names.attempts} ({attempts}) {_TABLE}",
        f"INSERT IGNORE INTO {names.facts} (name,number) VALUES ('floor',0)",
    )


def _moving(names: MysqlTables) -> tuple[str, ...]:
    return (f"INSERT IGNORE INTO {names.facts} (name,number) VALUES ('frozen',0)",)


MIGRATIONS: Final = (_first, _moving)
"""What leads from one version of the schema to the next. They only grow; each may be run again where it broke off."""

SCHEMA: Final = len(MIGRATIONS)


async def prepare(link: MysqlConnection, options: MysqlOptions) -> None:
    """Make sure that the tables are there and are of this version.

    Raises:
        UnsuitableStoreError: They were made by a newer release, or are not there and may not be made.
    """
    found = await _version(link, options)
    if found < SCHEMA and options.migrate:
        await _migrate(link, options)
        found = await _version(link, options)
    if found > SCHEMA:
        problem = f"its tables are of version {found}, this release knows {SCHEMA}; install a newer one"
        raise UnsuitableStoreError(options.name, problem)
    if found < SCHEMA:
        problem = f"its tables are of version {found}, {SCHEMA} is needed; open it once without migrate=false"
        raise UnsuitableStoreError(options.name, problem)
    await _check_engine(link, options)
    if options.migrate:
        await _make_views(link, options)


async def _make_views(link: MysqlConnection, options: MysqlOptions) -> None:
    """Make the views for people, if the user may; nothing else depends on them."""
    facts, (records, *_) = options.names.facts, options.names.plain
    try:
        [rows] = await link.run(f"SELECT number FROM {facts} WHERE name='views'", options.timeout)
        if rows and int(rows[0][0]) >= VIEWS:
            return
        for name, query in view_statements(MysqlDialect(), options.names.records).items():
            view = records.removesuffix("records") + name
            await link.run(f"CREATE OR REPLACE SQL SECURITY DEFINER VIEW `{view}` AS {query}", PATIENCE)
        done = f"INSERT INTO {facts} (name,number) VALUES ('views',{VIEWS}) ON DUPLICATE KEY UPDATE number={VIEWS}"
        await link.run(done, options.timeout)
    except DRIVER_ERRORS as error:
        if code_of(error) not in NOT_ALLOWED:
            raise translated(error, options.name) from error


async def _version(link: MysqlConnection, options: MysqlOptions) -> int:
    try:
        [rows] = await link.run(f"SELECT number FROM {options.names.facts} WHERE name='schema'", options.timeout)
    except DRIVER_ERRORS as error:
        if code_of(error) == NO_TABLE:
            return 0
        raise translated(error, options.name) from error
    return int(rows[0][0]) if rows else 0


async def _migrate(link: MysqlConnection, options: MysqlOptions) -> None:
    names, place = options.names, hashlib.sha256(f"{options.database}/{options.prefix}".encode()).hexdigest()[:32]
    try:
        [[[got]]] = await link.run(f"SELECT GET_LOCK('standfast.{place}',{PATIENCE})", PATIENCE + options.timeout)
        if got != 1:
            raise StoreUnavailableError(options.name, "another process is making the tables and does not get done")
        found = await _version(link, options)
        for version, migration in enumerate(MIGRATIONS[found:], start=found + 1):
            for statement in migration(names):
                await link.run(statement, PATIENCE)
            done = f"INSERT INTO {names.facts} (name,number) VALUES ('schema',{version})"
            await link.run(f"{done} ON DUPLICATE KEY UPDATE number=VALUES(number)", PATIENCE)
        await link.run(f"DO RELEASE_LOCK('standfast.{place}')", options.timeout)
    except DRIVER_ERRORS as error:
        raise translated(error, options.name) from error


async def _check_engine(link: MysqlConnection, options: MysqlOptions) -> None:
    named = ",".join(f"'{name}'" for name in options.names.plain)
    where = f"table_schema=DATABASE() AND table_name IN ({named})"
    asked = f"SELECT DISTINCT engine FROM information_schema.tables WHERE {where}"
    try:
        [rows] = await link.run(asked, options.timeout)
    except DRIVER_ERRORS as error:
        raise translated(error, options.name) from error
    engines = {str(row[0]) for row in rows}
    if engines != {"InnoDB"}:
        raise UnsuitableStoreError(options.name, f"its tables must be of the engine InnoDB, not {', '.join(engines)}")


# --- the SQL of one guarded write, all of it for one round trip ----------------------------------------------------


NOW: Final = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))"
"""The server's time in microseconds, whatever its time zone: when the statement began, so it stands in its own."""

NEVER: Final = 2**62
"""Stands for the expiry of what does not expire."""

LONGEST_STATEMENT: Final = 1_000_000
"""About how many characters of rows are put into one statement."""

COLUMNS: Final = "k,version,expires_at,value"


class Guards(Struct, frozen=True):
    """What must be true when the locks are held."""

    versions: dict[RecordKey, int]
    after: Instant | None = None
    before: Instant | None = None


class AttemptCount(Struct, frozen=True):
    """The attempt to count, and the versions to take: ``draws`` of them, from ``first`` on if they are reserved."""

    handle: str
    number: int
    draws: int
    first: int | None = None
    creates: bool = False


def literal(data: bytes) -> str:
    """Return bytes as they are written in a statement."""
    return f"x'{data.hex()}'"


def literals(keys: Iterable[bytes]) -> str:
    """Return several, with commas."""
    return ",".join([f"x'{key.hex()}'" for key in keys])


def handle_literal(handle: str) -> str:
    """Return the name of a handle as it is written in a statement."""
    return literal(handle.encode())


def lock(names: MysqlTables, guards: Guards) -> str:
    """Lock the rows at all guarded keys, in the order of the keys, and see what they are."""
    present = [f"({literal(key)},{version})" for key, version in guards.versions.items() if version != ABSENT]
    absent = [key for key, version in guards.versions.items() if version == ABSENT]
    matches = f"(k,version) IN ({','.join(present)})" if present else "0"
    must_be_absent = f"k IN ({literals(absent)})" if absent else "0"
    return (
        f"SELECT COALESCE(SUM({matches}),0),"
        f"COALESCE(MIN(IF({must_be_absent},NULL,expires_at)),{NEVER}),"
        f"COALESCE(MAX(IF({must_be_absent},COALESCE(expires_at,{NEVER}),0)),0),"
        "COALESCE(MAX(version),0) INTO @sf_m,@sf_e,@sf_d,@sf_v "
        f"FROM {names.records} FORCE INDEX (PRIMARY) WHERE k IN ({literals(guards.versions)}) FOR UPDATE"
    )


def look_at_time(names: MysqlTables, count: AttemptCount, *, since: Instant | None = None) -> str:
    """Read the time, now that the locks are held, choose the versions to take, and see whether the store was moved."""
    floor = f",1+(SELECT number FROM {names.facts} WHERE name='floor')" if count.creates else ""
    time = NOW if since is None else str(since)
    first = str(count.first) if count.first is not None else f"GREATEST(s.t,@sf_v+1{floor})"
    lowest = f"GREATEST(@sf_v+1,0{floor})" if count.first is not None else "0"
    frozen = f"SELECT number FROM {names.facts} WHERE name='frozen' LOCK IN SHARE MODE"
    chosen = f"s.t,{first},{lowest},({frozen})"
    return f"SELECT {chosen} INTO @sf_t,@sf_b,@sf_l,@sf_f FROM (SELECT {time} AS t) AS s"


def verdict(guards: Guards) -> str:
    """Return the condition that all guards and the window hold, and that reserved versions are not stale."""
    present = sum(version != ABSENT for version in guards.versions.values())
    parts = [f"@sf_m={present}", "@sf_e>@sf_t", "@sf_d<=@sf_t", "@sf_b>=@sf_l", "@sf_f=0"]
    if guards.after is not None:
        parts.append(f"@sf_t>={guards.after}")
    if guards.before is not None:
        parts.append(f"@sf_t<{guards.before}")
    return " AND ".join(parts)


def count_attempt(names: MysqlTables, guards: Guards, count: AttemptCount) -> str:
    """Count the attempt; fail if it was counted before, or if anything that was asked for is not so."""
    holds, number = verdict(guards), count.number
    return (
        f"INSERT INTO {names.attempts} (handle,number,at,first,draws) "
        f"VALUES ({handle_literal(count.handle)},IF({holds},{number},NULL),@sf_t,@sf_b,{count.draws}) "
        f"ON DUPLICATE KEY UPDATE number=IF(number<{number} AND {holds},{number},NULL),"
        f"at=@sf_t,first=@sf_b,draws={count.draws}"
    )


def put(names: MysqlTables, rows: Sequence[Row]) -> Iterator[str]:
    """Write over rows that are there and locked."""
    if len(rows) == 1:
        [row] = rows
        yield (
            f"UPDATE {names.records} SET version=@sf_b+{row.draw},expires_at={_expiry(row)},value={literal(row.value)} "
            f"WHERE k={literal(row.key)}"
        )
        return
    tail = "version=VALUES(version),expires_at=VALUES(expires_at),value=VALUES(value)"
    for some in _chunks(rows):
        yield f"INSERT INTO {names.records} ({COLUMNS}) VALUES {some} ON DUPLICATE KEY UPDATE {tail}"


def create(names: MysqlTables, rows: Sequence[Row]) -> Iterator[str]:
    """Write rows that are not there, or over dead ones; fail if another process was faster."""
    is_expired = "expires_at<=@sf_t AND version<VALUES(version)"
    tail = f"version=IF({is_expired},VALUES(version),NULL),expires_at=VALUES(expires_at),value=VALUES(value)"
    for some in _chunks(rows):
        yield f"INSERT INTO {names.records} ({COLUMNS}) VALUES {some} ON DUPLICATE KEY UPDATE {tail}"


def load(names: MysqlTables, records: Sequence[Record]) -> Iterator[str]:
    """Write records with the versions that they have."""
    tail = "version=VALUES(version),expires_at=VALUES(expires_at),value=VALUES(value)"
    rows = (
        f"({literal(each.key)},{each.version},{_expiry(each)},{literal(each.value)})"
        for each in sorted(records, key=attrgetter("key"))
    )
    for some in _filled(rows, LONGEST_STATEMENT, ","):
        yield f"INSERT INTO {names.records} ({COLUMNS}) VALUES {some} ON DUPLICATE KEY UPDATE {tail}"


def check_floor(names: MysqlTables, handle: str) -> str:
    """Fail if a key that was created may have come and gone meanwhile, with a higher version, and been swept."""
    floor = f"(SELECT number FROM {names.facts} WHERE name='floor')"
    return f"UPDATE {names.attempts} SET number=NULL WHERE handle={handle_literal(handle)} AND {floor}>=@sf_b"


def delete(names: MysqlTables, keys: Sequence[RecordKey]) -> str:
    """Delete records: the row stays for a while, so that its version is not forgotten.

    It expired at the negative of the time: before every instant, also if the clock is set back, or a reader goes by a
    time that it took a moment ago. Yet it tells since when it is dead.
    """
    return f"UPDATE {names.records} SET expires_at=-@sf_t,value='' WHERE k IN ({literals(keys)})"


def dead_since(until: str) -> str:
    """Return the condition that a row has been dead since ``until`` or longer: expired or deleted by then."""
    return f"(expires_at BETWEEN 0 AND {until} OR expires_at BETWEEN -{until} AND -1)"


def fetch(names: MysqlTables, keys: Iterable[RecordKey]) -> str:
    """Read rows, dead or alive."""
    return f"SELECT {COLUMNS} FROM {names.records} FORCE INDEX (PRIMARY) WHERE k IN ({literals(keys)})"


def _chunks(rows: Sequence[Row]) -> Iterator[str]:
    values = (f"({literal(row.key)},@sf_b+{row.draw},{_expiry(row)},{literal(row.value)})" for row in rows)
    return _filled(values, LONGEST_STATEMENT, ",")


def _filled(texts: Iterable[str], longest: int, mark: str) -> Iterator[str]:
    """Join texts with a mark to as few as possible that are not longer than ``longest``, or have one text each."""
    some: list[str] = []
    size = 0
    for text in texts:
        if some and size + len(text) > longest:
            yield mark.join(some)
            some, size = [], 0
        some.append(text)
        size += len(text) + len(mark)
    if some:
        yield mark.join(some)


def _expiry(row: Row | Record) -> str:
    return "NULL" if row.expires_at is None else str(int(row.expires_at))


def packets(statements: Iterable[str], longest: int) -> Iterator[str]:
    """Join statements to packets that the server takes; almost always it is one."""
    return _filled(statements, longest, ";")

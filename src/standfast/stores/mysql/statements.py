"""The SQL of one guarded write, all of it for one round trip.

The server runs one statement after another and stops at the first that fails. So the statement that counts the attempt
also judges the guards, and fails if they do not hold: it sets a column to NULL that must not be. Everything that comes
from outside is a number or a hexadecimal literal, so there is nothing to escape.

User variables carry what the rows were found to be: ``@sf_m`` how many guarded versions match, ``@sf_e`` when the first
of those expires, ``@sf_d`` when the last of those that must be absent does, ``@sf_v`` the highest version among all;
then ``@sf_t`` the time, ``@sf_b`` the first version to take, ``@sf_f`` why the store is frozen, 0 if it is not.
"""

# ruff: noqa: S608 -- names of tables are checked where they are read, and all else is a number or a hex literal

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores.protocol import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from standfast.stores.mysql.options import Names
    from standfast.stores.protocol import Record
    from standfast.stores.remote.server import Row

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


class Count(Struct, frozen=True):
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


def lock(names: Names, guards: Guards) -> str:
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


def look_at_time(names: Names, count: Count, *, since: Instant | None = None) -> str:
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


def count_attempt(names: Names, guards: Guards, count: Count) -> str:
    """Count the attempt; fail if it was counted before, or if anything that was asked for is not so."""
    holds, number = verdict(guards), count.number
    return (
        f"INSERT INTO {names.attempts} (handle,number,at,first,draws) "
        f"VALUES ({handle_literal(count.handle)},IF({holds},{number},NULL),@sf_t,@sf_b,{count.draws}) "
        f"ON DUPLICATE KEY UPDATE number=IF(number<{number} AND {holds},{number},NULL),"
        f"at=@sf_t,first=@sf_b,draws={count.draws}"
    )


def put(names: Names, rows: Sequence[Row]) -> Iterator[str]:
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


def create(names: Names, rows: Sequence[Row]) -> Iterator[str]:
    """Write rows that are not there, or over dead ones; fail if somebody else was faster."""
    is_dead = "expires_at<=@sf_t AND version<VALUES(version)"
    tail = f"version=IF({is_dead},VALUES(version),NULL),expires_at=VALUES(expires_at),value=VALUES(value)"
    for some in _chunks(rows):
        yield f"INSERT INTO {names.records} ({COLUMNS}) VALUES {some} ON DUPLICATE KEY UPDATE {tail}"


def load(names: Names, records: Sequence[Record]) -> Iterator[str]:
    """Write records with the versions that they have."""
    tail = "version=VALUES(version),expires_at=VALUES(expires_at),value=VALUES(value)"
    rows = (
        f"({literal(each.key)},{each.version},{_expiry(each)},{literal(each.value)})"
        for each in sorted(records, key=_key_of)
    )
    for some in _joined(rows):
        yield f"INSERT INTO {names.records} ({COLUMNS}) VALUES {some} ON DUPLICATE KEY UPDATE {tail}"


def check_floor(names: Names, handle: str) -> str:
    """Fail if a key that was created may have come and gone meanwhile, with a higher version, and been swept."""
    floor = f"(SELECT number FROM {names.facts} WHERE name='floor')"
    return f"UPDATE {names.attempts} SET number=NULL WHERE handle={handle_literal(handle)} AND {floor}>=@sf_b"


def bury(names: Names, keys: Sequence[RecordKey]) -> str:
    """Delete records: the row stays for a while, so that its version is not forgotten.

    It expired at the negative of the time: before every instant, also if the clock is set back, or somebody reads by a
    time that he took a moment ago. Yet it tells since when it is dead.
    """
    return f"UPDATE {names.records} SET expires_at=-@sf_t,value='' WHERE k IN ({literals(keys)})"


def is_dead(until: str) -> str:
    """Return the condition that a row has been dead since ``until`` or longer: expired or deleted by then."""
    return f"(expires_at BETWEEN 0 AND {until} OR expires_at BETWEEN -{until} AND -1)"


def fetch(names: Names, keys: Iterable[RecordKey]) -> str:
    """Read rows, dead or alive."""
    return f"SELECT {COLUMNS} FROM {names.records} FORCE INDEX (PRIMARY) WHERE k IN ({literals(keys)})"


def _chunks(rows: Sequence[Row]) -> Iterator[str]:
    return _joined(f"({literal(row.key)},@sf_b+{row.draw},{_expiry(row)},{literal(row.value)})" for row in rows)


def _joined(rows: Iterable[str]) -> Iterator[str]:
    some: list[str] = []
    size = 0
    for text in rows:
        if some and size + len(text) > LONGEST_STATEMENT:
            yield ",".join(some)
            some, size = [], 0
        some.append(text)
        size += len(text)
    if some:
        yield ",".join(some)


def _key_of(record: Record) -> RecordKey:
    return record.key


def _expiry(row: Row | Record) -> str:
    return "NULL" if row.expires_at is None else str(int(row.expires_at))


def packets(statements: Iterable[str], longest: int) -> Iterator[str]:
    """Join statements to packets that the server takes; almost always it is one."""
    some: list[str] = []
    size = 0
    for statement in statements:
        if some and size + len(statement) > longest:
            yield ";".join(some)
            some, size = [], 0
        some.append(statement)
        size += len(statement) + 1
    yield ";".join(some)

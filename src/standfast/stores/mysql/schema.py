"""The tables: made once, however many processes start at the same time, and changed only forward."""

# ruff: noqa: S608 -- names of tables are checked where they are read, and all else is a number or a hex literal

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from standfast.errors import StoreUnavailableError, UnsuitableStoreError
from standfast.stores.mysql.linking import TROUBLE
from standfast.stores.mysql.trouble import NO_TABLE, code_of, translated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.stores.mysql.linking import Link
    from standfast.stores.mysql.options import Names, Options

PATIENCE: Final = 60
"""How many seconds to wait for another process that is making the tables."""

_TABLE: Final = "ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4"


def _first(names: Names) -> tuple[str, ...]:
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


def _moving(names: Names) -> tuple[str, ...]:
    return (f"INSERT IGNORE INTO {names.facts} (name,number) VALUES ('frozen',0)",)


MIGRATIONS: Final = (_first, _moving)
"""What leads from one version of the schema to the next. They only grow; each may be run again where it broke off."""

SCHEMA: Final = len(MIGRATIONS)


async def prepare(link: Link, options: Options) -> None:
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


async def _version(link: Link, options: Options) -> int:
    try:
        [rows] = await link.run(f"SELECT number FROM {options.names.facts} WHERE name='schema'", options.timeout)
    except TROUBLE as problem:
        if code_of(problem) == NO_TABLE:
            return 0
        raise translated(problem, options.name) from problem
    return int(rows[0][0]) if rows else 0


async def _migrate(link: Link, options: Options) -> None:
    place = hashlib.sha256(f"{options.database}/{options.prefix}".encode()).hexdigest()[:32]
    try:
        [[[got]]] = await link.run(f"SELECT GET_LOCK('standfast.{place}',{PATIENCE})", PATIENCE + options.timeout)
        if got != 1:
            raise StoreUnavailableError(options.name, "another process is making the tables and does not get done")
        for statement in _steps(await _version(link, options), options.names):
            await link.run(statement, PATIENCE)
        await link.run(f"DO RELEASE_LOCK('standfast.{place}')", options.timeout)
    except TROUBLE as problem:
        raise translated(problem, options.name) from problem


def _steps(found: int, names: Names) -> Sequence[str]:
    steps: list[str] = []
    for version, migration in enumerate(MIGRATIONS[found:], start=found + 1):
        steps += migration(names)
        steps.append(
            f"INSERT INTO {names.facts} (name,number) VALUES ('schema',{version}) "
            "ON DUPLICATE KEY UPDATE number=VALUES(number)"
        )
    return steps


async def _check_engine(link: Link, options: Options) -> None:
    named = ",".join(f"'{name}'" for name in options.names.plain)
    where = f"table_schema=DATABASE() AND table_name IN ({named})"
    asked = f"SELECT DISTINCT engine FROM information_schema.tables WHERE {where}"
    try:
        [rows] = await link.run(asked, options.timeout)
    except TROUBLE as problem:
        raise translated(problem, options.name) from problem
    engines = {str(row[0]) for row in rows}
    if engines != {"InnoDB"}:
        raise UnsuitableStoreError(options.name, f"its tables must be of the engine InnoDB, not {', '.join(engines)}")

"""The tables of a store: made, moved on to newer forms, and checked when a store is opened.

A migration and its number are written in one transaction that fails if another process was faster; so any number of
processes may start at once, and each statement of a migration runs once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from standfast.errors import StoreBusyError, StoreReadOnlyError, UnsuitableStoreError
from standfast.stores.libsql.hrana import Batch, Failure, if_first_but_not, if_ok
from standfast.stores.libsql.trouble import is_busy, is_constraint, is_missing_table, translate

if TYPE_CHECKING:
    from standfast.stores.libsql.calling import Caller
    from standfast.stores.libsql.options import Options

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


class Facts(Struct, frozen=True):
    """What a server has told of itself."""

    schema: int
    durable: bool
    """Whether it waits for its disk before it answers."""


async def prepare(caller: Caller, options: Options) -> Facts:
    """Check the server and its tables, and make them if that is wanted.

    Raises:
        UnsuitableStoreError: The tables are newer than this program, or missing and not to be made; or the server is
            too old.
    """
    for _ in range(_RACES):
        facts = await _look(caller, options)
        found = facts.schema
        if found == VERSION:
            return facts
        if found > VERSION:
            problem = f"its tables have form {found}, and this program knows {VERSION}; update Standfast here"
            raise UnsuitableStoreError(options.name, problem)
        if not options.migrate:
            problem = f"its tables have form {found}, not {VERSION}; open it once with migrate=true and the right to"
            raise UnsuitableStoreError(options.name, f"{problem} create tables")
        await _migrate(caller, options, found)
    raise StoreBusyError(options.name, "its tables are being made by others, over and over; retry")


async def _look(caller: Caller, options: Options) -> Facts:
    batch = Batch()
    time = batch.add("SELECT typeof(unixepoch('now', 'subsec'))")
    care = batch.add("PRAGMA synchronous")
    schema = batch.add(f"SELECT value FROM \"{options.prefix}facts\" WHERE name = 'schema'")  # noqa: S608 -- the prefix was checked when the URL was read
    results = await caller.read(batch)
    if isinstance(results, Failure):
        raise translate(results, options.name)
    if results.rows(time) != [["real"]]:
        raise UnsuitableStoreError(options.name, "the server's SQLite is older than 3.42; update the server")
    failure = results.step_errors[schema]
    if failure is not None and not is_missing_table(failure):
        raise translate(failure, options.name)
    [[version]] = results.rows(schema) or [[0]]
    return Facts(int(version or 0), durable=results.rows(care) in _STRONG)


async def _migrate(caller: Caller, options: Options, found: int) -> None:
    """Move on by one number; somebody else may be faster."""
    batch = Batch()
    begin = last = batch.add("BEGIN IMMEDIATE")
    for statement in MIGRATIONS[found]:
        last = batch.add(statement.format(p=options.prefix), condition=if_ok(last))
    moved = f"UPDATE \"{options.prefix}facts\" SET value = CASE value WHEN ?1 THEN ?1 + 1 END WHERE name = 'schema'"  # noqa: S608 -- the prefix was checked when the URL was read
    last = batch.add(moved, (found,), if_ok(last))
    commit = batch.add("COMMIT", condition=if_ok(last))
    batch.add("ROLLBACK", condition=if_first_but_not(begin, commit))
    results = await caller.read(batch)
    problem = results if isinstance(results, Failure) else results.failure()
    if problem is None or is_busy(problem) or is_constraint(problem) or "already exists" in problem.message:
        return
    error = translate(problem, options.name)
    if isinstance(error, StoreReadOnlyError):
        problem_text = f"{error.problem}; to make the tables apart, open it once with a token that may write"
        raise StoreReadOnlyError(options.name, problem_text)
    raise error

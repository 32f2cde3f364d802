"""A table of the user's own in the store's database, that transactions of runs write to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from standfast.stores import Put, Worked

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast import Space
    from standfast.stores.postgresql.transactions import PostgresWork as PostgresqlWork
    from standfast.stores.sqlite.database import SqliteWork

_TWICE: Final = "SELECT name, count(*) FROM payments GROUP BY name HAVING count(*) > 1"


def pay(sql: SqliteWork, name: str) -> int:
    """Write to a table of our own in the store's database; return how often that was done for this name."""
    sql.execute("CREATE TABLE IF NOT EXISTS payments (name TEXT)")
    sql.execute("INSERT INTO payments VALUES (?)", (name,))
    return int(sql.execute("SELECT count(*) FROM payments WHERE name = ?", (name,))[0][0])


async def pay_on_server(sql: PostgresqlWork, name: str) -> int:
    """Do the same on PostgreSQL, where the table was made before."""
    await sql.execute("INSERT INTO payments VALUES ($1)", name)
    return int((await sql.fetch("SELECT count(*) FROM payments WHERE name = $1", name))[0][0])


def paying() -> Callable[[Any, str], Any]:
    """Return what pays on the store of this test."""
    return pay_on_server if os.environ["STANDFAST_STORE"].startswith("postgresql") else pay


async def prepare(url: str) -> None:
    """Make the table on a PostgreSQL server; all tests share it, and no two pay under the same name."""
    connection = await asyncpg.connect(url.partition("?")[0], statement_cache_size=0)
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(7206)")
            await connection.execute("CREATE TABLE IF NOT EXISTS payments (name TEXT)")
            await connection.execute("CREATE INDEX IF NOT EXISTS payments_by_name ON payments (name)")
    finally:
        await connection.close()


async def paid_twice(space: Space) -> list[tuple[object, ...]]:
    """Return what was written more than once."""

    def look(sql: SqliteWork) -> list[tuple[object, ...]]:
        if not sql.execute("SELECT 1 FROM sqlite_master WHERE name = 'payments'"):
            return []
        return list(sql.execute(_TWICE))

    answer = await space.commit_with(look, Put(space.key("looked"), b""))
    assert isinstance(answer, Worked)
    return answer.answer


async def paid_twice_on_server(url: str) -> list[tuple[object, ...]]:
    """Return what was written more than once on a PostgreSQL server."""
    connection = await asyncpg.connect(url.partition("?")[0], statement_cache_size=0)
    try:
        return [tuple(row) for row in await connection.fetch(_TWICE)]
    finally:
        await connection.close()

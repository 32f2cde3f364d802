"""The schema: created and changed by numbered files, forward only, by one process at a time."""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING, Final

from standfast.errors import UnsuitableStoreError

if TYPE_CHECKING:
    from standfast.stores.postgresql.connecting import Connection

_FILE: Final = re.compile(r"(?P<number>[0-9]{4})_[a-z_]+\.sql", re.ASCII)

FIXED_PLANS: Final = (
    "SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off"
    " SET plan_cache_mode = force_generic_plan"
)
"""For functions on the way of every commit: by index, and planned once for a session."""


def migrations(schema: str) -> list[tuple[int, str]]:
    """Return the numbers and texts of all migrations, in their order."""
    folder = resources.files("standfast.stores.postgresql").joinpath("migrations")
    found = [(match["number"], each) for each in folder.iterdir() if (match := _FILE.fullmatch(each.name))]
    return [(int(number), render(each.read_text("utf-8"), schema)) for number, each in sorted(found)]


def render(text: str, schema: str) -> str:
    """Return a migration for one schema."""
    return text.replace("@schema@", f'"{schema}"').replace("@fixed_plans@", FIXED_PLANS)


async def ensure_schema(connection: Connection, schema: str, name: str, *, migrate: bool, timeout: float) -> None:
    """Bring the schema up to date, or check that it is; refuse one from the future."""
    steps = migrations(schema)
    newest = steps[-1][0]
    present = await _present(connection, schema, timeout)
    if present < newest and migrate:
        await _migrate(connection, schema, steps, timeout)
        present = await _present(connection, schema, timeout)
    if present < newest:
        raise UnsuitableStoreError(
            name, f"its schema is at migration {present}, {newest} is needed; let its owner open it with migrate=true"
        )
    if present > newest:
        raise UnsuitableStoreError(
            name, f"its schema is at migration {present}, this version of Standfast knows {newest}; use a newer one"
        )


async def _present(connection: Connection, schema: str, timeout: float) -> int:
    # Not to_regclass: it may have an outdated answer at hand if somebody else has just created the table.
    find = "SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'migrations'"
    if not await connection.fetchval(find, schema, timeout=timeout):
        return 0
    last = await connection.fetchval(f'SELECT max(number) FROM "{schema}".migrations', timeout=timeout)  # noqa: S608 -- a checked name
    return last or 0


async def _migrate(connection: Connection, schema: str, steps: list[tuple[int, str]], timeout: float) -> None:
    """Apply what is missing in one transaction; whoever comes at the same time waits, and finds it done.

    The lock goes with the transaction: also a pooler cannot leave it behind. Whatever fails is undone by closing the
    connection.
    """
    await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED", timeout=timeout)
    lock = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
    await connection.execute(lock, f"standfast migrations of {schema}", timeout=10 * timeout)
    present = await _present(connection, schema, timeout)
    if present == 0:
        await connection.execute(first(schema), timeout=timeout)
    for number, text in steps:
        if number > present:
            await connection.execute(text, timeout=10 * timeout)
            note = f'INSERT INTO "{schema}".migrations (number) VALUES ($1)'  # noqa: S608 -- a checked name
            await connection.execute(note, number, timeout=timeout)
    await connection.execute("COMMIT", timeout=timeout)


def first(schema: str) -> str:
    """Return what makes a schema that no migration was applied to yet."""
    return (
        f'CREATE SCHEMA IF NOT EXISTS "{schema}";'
        f' CREATE TABLE "{schema}".migrations (number int PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())'
    )

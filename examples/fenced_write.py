"""A writer that was paused for too long wakes up and writes. The database refuses it, because its fence is stale."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import standfast as sf
from standfast.errors import StaleFenceError
from standfast.fencing import SqlFenceGuard

GUARD = SqlFenceGuard()


def write(database: sqlite3.Connection, total: int, fence: int) -> None:
    """Write the invoice in one transaction with the check of the fence."""
    with database:
        GUARD.admit(database.cursor(), "invoice-7", fence)
        database.execute("UPDATE invoices SET total = ? WHERE id = 'invoice-7'", (total,))


async def main() -> None:
    """Let two holders write one after the other, and then the first of them again."""
    with closing(sqlite3.connect("invoices.db")) as database:
        database.execute("CREATE TABLE invoices (id TEXT PRIMARY KEY, total INTEGER)")
        database.execute("INSERT INTO invoices VALUES ('invoice-7', 0)")
        database.execute(GUARD.create_statement)
        database.commit()
        async with sf.open("sqlite:///locks.db") as space:
            async with space.mutex("invoice-7").hold() as first:
                write(database, 100, first.fence)
            async with space.mutex("invoice-7").hold() as second:
                write(database, 250, second.fence)
        print("higher fence:", second.fence > first.fence)
        try:
            write(database, 100, first.fence)  # as if the first had slept through the loss of its hold
        except StaleFenceError as refused:
            print("refused:", refused.fence == first.fence, "because of", refused.highest == second.fence)
        print("the total is", database.execute("SELECT total FROM invoices").fetchone()[0])


asyncio.run(main())

# Output:
# higher fence: True
# refused: True because of True
# the total is 250

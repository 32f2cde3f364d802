"""What the mutex protects in these tests: a database of its own, outside the store, that refuses stale fences."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from standfast.errors import StaleFenceError
from standfast.fencing import SqlFenceGuard

if TYPE_CHECKING:
    from pathlib import Path

GUARD: Final = SqlFenceGuard()


class Entry(Struct, frozen=True):
    """One write that the ledger has accepted: ``in``, ``out``, or what was done between."""

    number: int
    name: str
    what: str
    fence: int


@final
class Ledger:
    """Entries in the order in which they were accepted."""

    def __init__(self, path: Path | str) -> None:
        self._connection: Final = sqlite3.connect(path, timeout=20)
        with self._connection:
            self._connection.execute(GUARD.create_statement)
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, name TEXT, what TEXT, fence INTEGER)"
            )
        self._connection.execute("PRAGMA synchronous = OFF")  # it has to outlive processes, not machines

    def write(self, name: str, what: str, fence: int) -> bool:
        """Write an entry; tell whether it was accepted."""
        try:
            with self._connection:
                GUARD.admit(self._connection.cursor(), "ledger", fence)
                insert = "INSERT INTO entries (name, what, fence) VALUES (?, ?, ?)"
                self._connection.execute(insert, (name, what, fence))
        except StaleFenceError:
            return False
        return True

    def entries(self, after: int = 0) -> list[Entry]:
        """Return what was accepted after an entry."""
        select = "SELECT number, name, what, fence FROM entries WHERE number > ? ORDER BY number"
        return [Entry(*row) for row in self._connection.execute(select, (after,))]

    def close(self) -> None:
        """Close it."""
        self._connection.close()

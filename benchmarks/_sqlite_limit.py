"""The limit for SQLite: the same rows, written just as durably, by a plain loop over the driver."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import apsw

import standfast as sf
from standfast.keys import RecordKey

READ: Final = "SELECT version, expires_at, value FROM records WHERE key = ?"
WRITE: Final = (
    "INSERT INTO records VALUES (?, ?, ?, ?) ON CONFLICT (key)"
    " DO UPDATE SET version = excluded.version, expires_at = excluded.expires_at, value = excluded.value"
)
LAST: Final = "SELECT count, at FROM counters WHERE handle = ''"
COUNT_UP: Final = (
    "INSERT INTO counters VALUES (?, ?, ?) ON CONFLICT (handle)"
    " DO UPDATE SET count = excluded.count, at = excluded.at WHERE excluded.count > count"
)
HANDLE: Final = "0" * 32  # as long as the id of a handle
LOG_PAGES: Final = 1_000  # written back this often, which is SQLite's own habit as well


def key(task: int) -> RecordKey:
    """Return the key that a task writes to: the same for the limit and for Standfast."""
    return RecordKey("default", "default", "bench", f"task-{task:04}")


def value(task: int, number: int) -> bytes:
    """Return a value that was never written before: rewriting the same bytes dirties no page."""
    return b'{"format":1,"task":%04d,"number":%012d,"filler":"0123456789abcdef"}' % (task, number)


async def prepare(path: str) -> None:
    """Let Standfast make the file, so that its schema and the size of its log are the same for both sides."""
    async with sf.open(f"sqlite:///{path}"):
        pass


class Limit:
    """Guarded commits without Standfast: for each of them one guard is read and one row written."""

    def __init__(self, path: str, *, busy_seconds: float = 0.0) -> None:
        asyncio.run(prepare(path))
        self.connection = connection = apsw.Connection(path)
        connection.set_busy_timeout(round(busy_seconds * 1000))
        assert connection.pragma("journal_mode") == "wal"
        connection.pragma("synchronous", "full")
        connection.pragma("wal_autocheckpoint", LOG_PAGES)
        self._versions: dict[int, int] = {}
        self._transactions = 0

    def adopt(self, task: int) -> None:
        """Go on from the version that a record has already."""
        rows = self._read(key_of[task])
        self._versions[task] = rows[0][0] if rows else 0

    def commit(self, tasks: range) -> None:
        """Commit once for each task, all in one transaction."""
        execute, versions = self.connection.execute, self._versions
        self._transactions += 1
        execute("BEGIN IMMEDIATE")
        version: Any = execute(LAST).fetchall()[0][0]
        for task in tasks:
            where = key_of[task]
            rows: list[Any] = execute(READ, (where,)).fetchall()
            if (rows[0][0] if rows else 0) != versions.get(task, 0):
                raise AssertionError(task)
            version += 1
            execute(WRITE, (where, version, None, value(task, self._transactions)))
            versions[task] = version
        self._finish(version)

    def update(self, updates: int) -> None:
        """Do as many updates of one counter in one transaction: read it once, count, write it once."""
        execute = self.connection.execute
        self._transactions += 1
        execute("BEGIN IMMEDIATE")
        version: Any = execute(LAST).fetchall()[0][0]
        rows = self._read(HOT)
        count = rows[0][2] if rows else b"0"
        for _ in range(updates):
            count = b"%d" % (int(count) + 1)
            version += 1
        execute(WRITE, (HOT, version, None, count))
        self._finish(version)

    def read(self, task: int) -> bytes:
        """Read one record."""
        return bytes(self._read(key_of[task])[0][2])

    def _read(self, where: RecordKey) -> list[Any]:
        return self.connection.execute(READ, (where,)).fetchall()

    def _finish(self, version: int) -> None:
        """Count up what Standfast counts up, the last version and the attempt of the handle, and commit."""
        now = time.time_ns() // 1000
        self.connection.execute(COUNT_UP, ("", version, now))
        self.connection.execute(COUNT_UP, (HANDLE, self._transactions, now))
        self.connection.execute("COMMIT")


key_of: Final = [key(task) for task in range(1_000)]
HOT: Final = key(0).child("hot")

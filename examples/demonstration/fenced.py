"""What the mutex of the fifth scene protects: a ledger outside the store, and processes that write to it."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from typing import TYPE_CHECKING, Final

import standfast as sf
from demonstration.talking import reach, say
from standfast.errors import LeaseLostError, StaleFenceError
from standfast.fencing import SqlFenceGuard

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

MUTEX: Final = "cash-book"
GUARD: Final = SqlFenceGuard()
WRITE_EVERY: Final = 0.05  # seconds


class FencedLedger:
    """A database that knows nothing of locks, but refuses a fence that is below the highest it has seen."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, timeout=5.0)
        with self._database:
            self._database.execute(GUARD.create_statement)
            self._database.execute("CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, name, fence)")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def write(self, name: str, fence: int) -> bool:
        """Write an entry in one transaction with the check of the fence; tell whether it was accepted."""
        try:
            with self._database:
                GUARD.admit(self._database.cursor(), MUTEX, fence)
                self._database.execute("INSERT INTO entries (name, fence) VALUES (?, ?)", (name, fence))
        except StaleFenceError:
            return False
        return True

    def entries(self) -> list[tuple[str, int]]:
        """Return who wrote with which fence, in the order in which it was accepted."""
        return self._database.execute("SELECT name, fence FROM entries ORDER BY number").fetchall()

    def is_free(self) -> bool:
        """Tell whether nobody is in the middle of a write, nor at its beginning, where it only reads."""
        self._database.execute("PRAGMA busy_timeout = 100")
        try:
            self._database.execute("BEGIN EXCLUSIVE")  # IMMEDIATE does not see who has just begun to read
        except sqlite3.OperationalError:
            return False
        finally:
            self._database.rollback()
            self._database.execute("PRAGMA busy_timeout = 5000")
        return True


def keep_writing(ledger: str, name: str, fence: int, seconds: float) -> bool:
    """Write again and again, as a thread does that nobody can cancel; tell whether all of it was accepted."""
    end_at = time.monotonic() + seconds
    with FencedLedger(ledger) as book:
        while time.monotonic() < end_at:
            if not book.write(name, fence):
                return False
            time.sleep(WRITE_EVERY)
    return True


async def contend(url: str, name: str, ledger: str, lease: float, seconds: float) -> None:
    """Be a process that waits for its cue, then for the mutex, and writes while it holds it."""
    async with sf.open(url, namespace="demo", lease=lease) as space:
        say(ready=True)
        await reach(space, space.key("cue", name), b"ask")
        try:
            async with space.mutex(MUTEX).hold(note=name) as hold:
                say(fence=hold.fence, entered=time.monotonic())
                await write_while_held(ledger, name, hold.fence, seconds)
        except LeaseLostError:
            say(lost=True)
        else:
            say(left=time.monotonic())


async def write_while_held(ledger: str, name: str, fence: int, seconds: float) -> None:
    """Write from a thread; when the body is cancelled, the thread is not."""
    work = asyncio.create_task(asyncio.to_thread(keep_writing, ledger, name, fence, seconds))
    try:
        await asyncio.shield(work)
    finally:
        if not await work:
            say(refused=True)

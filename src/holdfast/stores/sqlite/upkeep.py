"""Upkeep: checkpoints, sweeps of expired records, and the search for foreign descriptors.

It is done off the loop, on connections of its own, and only after commits: a store at rest does nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

import apsw

from holdfast.clock import monotonic
from holdfast.offload import Lane
from holdfast.stores.sqlite.connecting import connect, disconnect

if TYPE_CHECKING:
    from holdfast.stores.sqlite.database import Database
    from holdfast.stores.sqlite.driver import Connection
    from holdfast.stores.sqlite.options import Options
    from holdfast.stores.sqlite.sharing import SharedFile

CHECKPOINT_PAGES: Final = 1_000
"""The log is written back to the database when it has this many pages: 4 MB, its size from the start."""

RESTART_PAGES: Final = 4_000
"""A log this long is not being written back fast enough: the writers are held up until it is."""

EVERY: Final = 5.0
SWEEP_AT_MOST: Final = 200


@final
class Upkeep:
    """What a handle does for the file it uses."""

    __slots__ = ("_connection", "_database", "_done_at", "_file", "_lane", "_options", "_task")

    def __init__(self, file: SharedFile, database: Database, options: Options) -> None:
        self._file, self._database, self._options = file, database, options
        self._lane: Final = Lane("sqlite-upkeep")
        self._connection: Connection | None = None
        self._task: asyncio.Future[None] | None = None
        self._done_at = monotonic()

    def consider(self) -> None:
        """Start upkeep if it is due and not under way."""
        if self._task is not None:
            return
        if self._database.log_pages >= CHECKPOINT_PAGES or monotonic() - self._done_at > EVERY:
            self._task = self._lane.start(self._do)
            self._task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Future[None]) -> None:
        self._task = None
        self._done_at = monotonic()
        if not task.cancelled():
            task.exception()  # commits and reads meet the same trouble and report it

    def _do(self) -> None:
        self._file.guard.check()
        if self._connection is None:
            self._connection = connect(self._file, busy_seconds=self._options.busy_seconds)
        if self._database.log_pages >= CHECKPOINT_PAGES:
            self._checkpoint(self._connection)
        if monotonic() - self._done_at > EVERY:
            self._sweep(self._connection)

    def _checkpoint(self, connection: Connection) -> None:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        if self._database.log_pages < RESTART_PAGES:
            return
        # Commits kept coming while the log was written back, so it could not start over. Hold them up once.
        self._file.turn.take()
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        finally:
            self._file.turn.give()

    def _sweep(self, connection: Connection) -> None:
        self._file.turn.take()
        try:
            self._database.sweep(connection, SWEEP_AT_MOST)
        finally:
            self._file.turn.give()

    async def aclose(self) -> None:
        """Wait for what is under way and close."""
        if self._task is not None:
            await asyncio.wait({self._task})
        self._lane.close()
        if self._connection is not None:
            disconnect(self._file, self._connection)

"""Upkeep: checkpoints, sweeps of expired records, and the search for foreign descriptors.

It is done off the loop, on connections of its own, and only after commits: a store at rest does nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

import apsw

from standfast.clock import SYSTEM_CLOCK, monotonic
from standfast.errors import ForeignHandleError
from standfast.events import Checkpointed, ClockStepped, ForeignHandleSeen, Swept
from standfast.offload import Lane
from standfast.stores.sqlite.connecting import connect, disconnect
from standfast.stores.sqlite.store_time import TOLERANCE

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.sqlite.database import Database
    from standfast.stores.sqlite.driver import Connection
    from standfast.stores.sqlite.options import Options
    from standfast.stores.sqlite.sharing import SharedFile
    from standfast.stores.sqlite.store_time import ClockStep

CHECKPOINT_PAGES: Final = 1_000
"""The log is written back to the database when it has this many pages: half of the size it has from the start."""

EVERY: Final = 5.0
SWEEP_AT_MOST: Final = 200
SWEEPS_AT_MOST: Final = 100

OTHERS_MAY_WAIT: Final = 0.05
"""How many seconds upkeep waits for readers and other programs: all writers wait for it meanwhile."""


@final
class Upkeep:
    """What a handle does for the file it uses."""

    def __init__(self, file: SharedFile, database: Database, options: Options, hooks: Hooks) -> None:
        self._file, self._database, self._options = file, database, options
        self._hooks: Final = hooks
        self._name: Final = f"sqlite://{file.path}"
        self._lane: Final = Lane("sqlite-upkeep")
        self._section: Final = file.new_section()
        self._connection: Connection | None = None
        self._task: asyncio.Future[None] | None = None
        self._sweep_at = asyncio.get_running_loop().time() + EVERY
        self._checkpoint_at = CHECKPOINT_PAGES

    def consider(self, now: float) -> None:
        """Start upkeep if it is due, by the loop's time, and not under way."""
        is_long, is_late = self._database.log_pages >= self._checkpoint_at, now > self._sweep_at
        if (is_long or is_late) and self._task is None:
            if is_late:
                self._sweep_at = now + EVERY
            self._task = self._lane.start(self._do, checkpoint=is_long, sweep=is_late)
            self._task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Future[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # commits and reads meet the same trouble and report it

    def _do(self, *, checkpoint: bool, sweep: bool) -> None:
        self._look_for_strangers()
        if self._connection is None:
            self._connection = connect(self._file, busy_seconds=OTHERS_MAY_WAIT)
        if checkpoint:
            self._checkpoint(self._connection)
        if sweep:
            self._sweep(self._connection)
            self._follow_wall(self._connection)

    def _look_for_strangers(self) -> None:
        try:
            with self._file.lock:  # not while a thread opens a connection that is not yet known as ours
                self._file.guard.check()
        except ForeignHandleError:
            self._hooks.emit(ForeignHandleSeen(at=SYSTEM_CLOCK.wall(), store=self._name))
            raise

    def _checkpoint(self, connection: Connection) -> None:
        # The bulk is written back while commits go on. They keep the log from starting over, so hold them up for
        # the few pages that are left: a log that grows makes each commit twice as slow.
        started = monotonic()
        with self._section:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        with self._file.turn:
            pages, done = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            # What is left is being read by another program. It may read for long: try again only when more is there.
            self._checkpoint_at = pages + CHECKPOINT_PAGES
            if pages == done:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
                self._checkpoint_at = CHECKPOINT_PAGES
        if self._hooks:
            at, taken = SYSTEM_CLOCK.wall(), monotonic() - started
            event = Checkpointed(at=at, store=self._name, seconds=taken, pages=pages, remaining=pages - done)
            self._hooks.emit(event)

    def _sweep(self, connection: Connection) -> None:
        started, removed = monotonic(), 0
        for _ in range(SWEEPS_AT_MOST):
            with self._file.turn:  # let go between sweeps, so that nobody waits for more than one of them
                swept = self._database.sweep(connection, SWEEP_AT_MOST)
            removed += swept
            if swept < SWEEP_AT_MOST:
                break
        if self._hooks and removed:
            at, taken = SYSTEM_CLOCK.wall(), monotonic() - started
            self._hooks.emit(Swept(at=at, store=self._name, seconds=taken, removed=removed))

    def _follow_wall(self, connection: Connection) -> None:
        """Let the store's time follow the time of day, once for each step of the clock that this process sees."""
        ahead, known = self._database.wall_ahead(), self._file.wall_ahead
        if known is not None and abs(ahead - known) <= TOLERANCE:
            return
        with self._file.turn:
            is_followed, step = self._database.follow_wall(connection)
        if is_followed:
            self._file.wall_ahead = ahead
        if step is not None:
            tell_clock_step(step, self._file, self._hooks)

    async def aclose(self) -> None:
        """Close when what is under way has ended, off the loop: the last to close writes the log back."""
        if self._task is not None:
            await asyncio.wait({self._task})
        if self._connection is not None:
            await self._lane.run(disconnect, self._file, self._connection)
        self._lane.close()


def tell_clock_step(step: ClockStep, file: SharedFile, hooks: Hooks) -> None:
    """Tell that the store's time and the time of day differ, and when they will not any more."""
    at, store = SYSTEM_CLOCK.wall(), f"sqlite://{file.path}"
    hooks.emit(ClockStepped(at=at, store=store, seconds=step.seconds, settles_in=step.settles_in))

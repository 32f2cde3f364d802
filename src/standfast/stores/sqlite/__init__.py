"""SQLite, the embedded default: one file, for all processes of one machine."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Final

import apsw
from msgspec import structs

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import StoreBusyError
from standfast.events import NO_HOOKS
from standfast.stores.group_commit import GroupedStore
from standfast.stores.protocol import Capabilities
from standfast.stores.sqlite.backend import SqliteBackend, tell_clock_step
from standfast.stores.sqlite.connection import (
    OldSqliteWarning,
    SharedFile,
    connect,
    disconnect,
    ensure_schema,
    share,
    share_again,
    unshare,
    warn_of_old_library,
)
from standfast.stores.sqlite.database import Database, SqliteWork, is_off, read_anchor, translate, write_anchor
from standfast.stores.sqlite.file import SqliteOptions, prepare, refuse_others
from standfast.stores.sqlite.locks import SUPPORTED
from standfast.threads import Lane

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.clock import Clock
    from standfast.events import Hooks
    from standfast.stores.sqlite.connection import SqliteConnection
    from standfast.stores.sqlite.database import ClockStep, StoreTime

__all__ = ["CAPABILITIES", "OldSqliteWarning", "SqliteBackend", "SqliteOptions", "SqliteWork", "open_sqlite"]


# --- SQLite, the embedded default: one file, for all processes of one machine --------------------------------------

CAPABILITIES: Final = Capabilities(
    backend="sqlite",
    atomic=True,
    durable=True,
    reach="machine",
    wakes="push",
    sees_process_death=SUPPORTED,
    commit_with=True,
    alternatives=True,
)
"""What it can do on a local disk; on a network file system it sees no deaths."""


async def open_sqlite(
    path: str, options: SqliteOptions | None = None, *, clock: Clock = SYSTEM_CLOCK, hooks: Hooks = NO_HOOKS
) -> GroupedStore:
    """Open the database at ``path`` on the running loop, creating it if there is none."""
    warn_of_old_library()
    chosen = options or SqliteOptions()
    return GroupedStore(await _open_backend(functools.partial(_find, path, chosen), chosen, clock, hooks), hooks)


def _find(path: str, options: SqliteOptions) -> SharedFile:
    return share(prepare(path, options))


async def _open_backend(
    find: Callable[[], SharedFile], options: SqliteOptions, clock: Clock, hooks: Hooks
) -> SqliteBackend:
    lane = Lane("sqlite-opening")
    opening = lane.start(_open, find, options, clock)
    lane.close(wait=False)
    try:
        file, database, step = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unwanted)
        raise
    try:
        if step is not None:
            tell_clock_step(step, file, hooks)
        again = functools.partial(_open_backend, functools.partial(share_again, file), options, clock, hooks)
        return SqliteBackend(
            file,
            database,
            options,
            structs.replace(CAPABILITIES, sees_process_death=file.alive.sees_deaths),
            hooks,
            again,
        )
    except BaseException:
        _close(file, database)
        raise


def _close_unwanted(opening: asyncio.Future[tuple[SharedFile, Database, ClockStep | None]]) -> None:
    """Close what was opened for a caller that was cancelled meanwhile."""
    if not opening.cancelled() and opening.exception() is None:
        file, database, _ = opening.result()
        _close(file, database)


def _close(file: SharedFile, database: Database) -> None:
    database.close()
    unshare(file)


def _open(
    find: Callable[[], SharedFile], options: SqliteOptions, clock: Clock
) -> tuple[SharedFile, Database, ClockStep | None]:
    file = find()
    try:
        return file, *_open_database(file, options, clock)
    except apsw.Error as error:
        unshare(file)
        raise translate(error, file.path) from error
    except BaseException:
        unshare(file)
        raise


def _open_database(file: SharedFile, options: SqliteOptions, clock: Clock) -> tuple[Database, ClockStep | None]:
    writer = connect(file, busy_seconds=options.busy_seconds)
    try:
        ensure_schema(file, writer, busy_seconds=options.busy_seconds)
        file.identity.note_side_files()
        if options.others == "refuse":  # in a folder that all users share, another user may have been quicker
            refuse_others(file.path)
        file.alive.liveness_token()  # before the time is read: a process that anchors it anew sees this one
        file.turn.tell_alone(file.alive.is_alone)
        step = None
        with file.new_section():
            time = read_anchor(writer, clock)
        if time is None or (is_off(time, clock) and file.is_alone()):
            time, step = _anchor(file, writer, options, clock)
        return Database(file, writer, time, CAPABILITIES), step
    except BaseException:
        disconnect(file, writer)
        raise


def _anchor(
    file: SharedFile, writer: SqliteConnection, options: SqliteOptions, clock: Clock
) -> tuple[StoreTime, ClockStep | None]:
    if not file.turn.take_within(options.busy_seconds):
        raise StoreBusyError(file.path, f"process {file.turn.holder()} keeps the write turn")
    try:
        return write_anchor(writer, clock, alone=file.is_alone())
    finally:
        file.turn.give()

"""Connections as this store needs them, and the schema they find."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import warnings
from importlib import resources
from typing import TYPE_CHECKING, Final

import apsw

from standfast.errors import FormatTooNewError, StoreBusyError, StoreCorruptError, StoreReadOnlyError
from standfast.stores.sqlite.driver import Connection, open_connection, transaction
from standfast.stores.sqlite.files import SIDE_FILES
from standfast.stores.sqlite.foreign import opening_our_own

if TYPE_CHECKING:
    from standfast.stores.sqlite.sharing import SharedFile

APPLICATION_ID: Final = 0x53464153
"""Marks a database as Standfast's own: "SFAS"."""

FORMAT: Final = 1
"""The newest schema that this version reads and writes."""

SAFE_SQLITE: Final = (3, 51, 3)
"""Older libraries can corrupt a database in WAL mode when a checkpoint meets a writer at the wrong moment."""

_PREGROWN_LOG: Final = 8 * 1024 * 1024
_ZEROS: Final = bytes(64 * 1024)
_LONGEST_KEPT_LOG: Final = 16 * 1024 * 1024


class OldSqliteWarning(RuntimeWarning):
    """The SQLite library in use can damage a database that several processes write to.

    Install an ``apsw`` that brings SQLite 3.51.3 or newer; one that was built against the system's library may not.
    Until then let only one process use the file.
    """


def library_is_safe(version: str = apsw.sqlite_lib_version()) -> bool:
    """Tell whether the SQLite in use is past the known WAL corruption."""
    return tuple(int(part) for part in version.split(".")[:3]) >= SAFE_SQLITE


def warn_of_old_library(version: str = apsw.sqlite_lib_version()) -> None:
    """Give an :class:`OldSqliteWarning` if the SQLite in use is one to be warned of."""
    if not library_is_safe(version):
        message = f"SQLite {version} can damage a file that several processes write to; install apsw 3.51.3 or newer"
        warnings.warn(OldSqliteWarning(message), stacklevel=3)


def connect(file: SharedFile, *, busy_seconds: float) -> Connection:
    """Open a connection with every setting in place. SQLite syncs each commit before it is visible to anyone."""
    with file.lock:
        file.guard.check()
        before = file.guard.present()
        connection = open_connection(file.path)
        try:
            connection.set_busy_timeout(round(busy_seconds * 1000))
            _refuse_read_only(file.path, connection)
            _is_ready(file.path, connection)  # refuses what is not ours before anything of it is changed
            _use_log(file, connection, busy_seconds)
            _configure(connection)
        except BaseException:
            connection.close()
            raise
        finally:
            file.guard.opened(before)
        file.connections.append(connection)
    return connection


def _refuse_read_only(path: str, connection: Connection) -> None:
    # SQLite is content with less than it was asked for, and fails when it has something to write.
    if connection.readonly("main"):
        raise StoreReadOnlyError(path, "it cannot be written to; fix the permissions of the file")
    for ending in SIDE_FILES:
        if os.path.exists(path + ending) and not os.access(path + ending, os.W_OK):  # noqa: PTH110 -- plain text, like all paths here
            raise StoreReadOnlyError(path, f"its {ending} file cannot be written to; fix the permissions of that file")


def _use_log(file: SharedFile, connection: Connection, busy_seconds: float) -> None:
    # Asked before it is set: setting it while others have the file open takes locks, and only one of them may.
    if connection.pragma("journal_mode") == "wal":
        return
    if not file.turn.take_within(busy_seconds):
        raise StoreBusyError(file.path, f"process {file.turn.holder()} kept the write turn for {busy_seconds:g} s")
    try:
        connection.pragma("journal_mode", "wal")
    finally:
        file.turn.give()


def _configure(connection: Connection) -> None:
    connection.pragma("synchronous", "full")
    if sys.platform == "darwin":
        connection.pragma("fullfsync", 1)
    connection.pragma("wal_autocheckpoint", 0)
    connection.pragma("journal_size_limit", _LONGEST_KEPT_LOG)
    connection.pragma("trusted_schema", 0)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    keep = ctypes.c_int(1)
    connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(keep))


def disconnect(file: SharedFile, connection: Connection) -> None:
    """Close a connection and forget its descriptors."""
    with file.lock:
        connection.close()
        file.connections.remove(connection)
        file.guard.closed()


def ensure_schema(file: SharedFile, connection: Connection, *, busy_seconds: float) -> None:
    """Create the schema if the file is empty; refuse a file that is not ours or is newer than this version."""
    with file.new_section():
        is_ready = _is_ready(file.path, connection)
    if is_ready and _log_is_grown(file.path):
        return
    if not file.turn.take_within(busy_seconds):
        raise StoreBusyError(file.path, f"process {file.turn.holder()} kept the write turn for {busy_seconds:g} s")
    try:
        if not _is_ready(file.path, connection):
            _create_schema(connection)
        if not _log_is_grown(file.path):
            _grow_log(file.path, connection)
    finally:
        file.turn.give()


def _is_ready(path: str, connection: Connection) -> bool:
    with connection:  # one snapshot: another process may be creating the schema right now
        application, version = connection.pragma("application_id"), connection.pragma("user_version")
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    if application == APPLICATION_ID and version > FORMAT:
        raise FormatTooNewError(path, version, FORMAT)
    if application == APPLICATION_ID and version == FORMAT:
        return True
    if application or version or tables:
        raise StoreCorruptError(path, "it is a database of another program; name a file of Standfast's own")
    return False


def _create_schema(connection: Connection) -> None:
    script = resources.files("standfast.stores.sqlite").joinpath("schema.sql").read_text()
    with transaction(connection):
        connection.execute(script)
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", FORMAT)


def _log_is_grown(path: str) -> bool:
    # Whoever closes the file as the last one empties the log, or removes it.
    try:
        return os.stat(f"{path}-wal").st_size >= _PREGROWN_LOG  # noqa: PTH116 -- plain text, like all paths here
    except OSError:
        return False


def _grow_log(path: str, connection: Connection) -> None:
    """Give the write-ahead log its size at once: a log that grows with each commit syncs at half the speed.

    Nobody writes to it meanwhile, and to SQLite a log goes as far as its frames do: zeros are no frames.
    """
    with contextlib.suppress(apsw.BusyError, OSError), transaction(connection), opening_our_own():
        descriptor = os.open(f"{path}-wal", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        before = size = os.fstat(descriptor).st_size
        try:
            while size < _PREGROWN_LOG:
                size += os.pwrite(descriptor, _ZEROS, size)
            os.fsync(descriptor)
        except OSError:  # what room there is is needed for records
            os.ftruncate(descriptor, before)
        finally:
            os.close(descriptor)

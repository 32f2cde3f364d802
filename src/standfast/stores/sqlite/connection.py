"""Connections to one database file, and what all handles of a process on that file share."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
import tempfile
import threading
import warnings
import weakref
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, cast, final

import apsw

from standfast.clock import monotonic
from standfast.errors import (
    FormatTooNewError,
    StoreBusyError,
    StoreClosedError,
    StoreCorruptError,
    StoreGoneError,
    StoreReadOnlyError,
)
from standfast.stores.liveness import run_around_fork, run_in_forked_child
from standfast.stores.sqlite.file import ALIVE, SIDE_FILES, FileGuard, Identity, opening_our_own
from standfast.stores.sqlite.locks import WriteTurn, close_liveness_file, open_liveness_file
from standfast.stores.views import VIEWS, SqliteDialect, view_statements
from standfast.stores.watch import LocalSubscriptions

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence


# --- the driver as this store uses it, with types that a strict checker can follow ---------------------------------


class SqliteRows(Protocol):
    """What a statement returns."""

    @property
    def get(self) -> Any:  # noqa: ANN401 -- whatever the one column of the one row holds
        """The only value of the only row, or None."""
        ...

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows."""
        ...

    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...


class SqliteConnection(Protocol):
    """The part of ``apsw.Connection`` that is used here."""

    authorizer: Callable[[int, str | None, str | None, str | None, str | None], int] | None

    @property
    def in_transaction(self) -> bool: ...  # noqa: D102 -- as in apsw
    def execute(self, statements: str, bindings: Sequence[Any] | None = None, /) -> SqliteRows: ...  # noqa: D102 -- as in apsw
    def executemany(self, statements: str, bindings: Iterable[Sequence[Any]], /) -> SqliteRows: ...  # noqa: D102 -- as in apsw
    def pragma(self, name: str, value: int | str | None = None, /) -> Any: ...  # noqa: ANN401, D102 -- as in apsw
    def readonly(self, name: str, /) -> bool: ...  # noqa: D102 -- as in apsw
    def changes(self) -> int: ...  # noqa: D102 -- as in apsw
    def total_changes(self) -> int: ...  # noqa: D102 -- as in apsw
    def set_busy_timeout(self, milliseconds: int, /) -> None: ...  # noqa: D102 -- as in apsw
    def set_wal_hook(self, hook: Callable[[Any, str, int], int] | None, /) -> None: ...  # noqa: D102 -- as in apsw
    def set_progress_handler(self, handler: Callable[[], bool] | None, steps: int = 100, /) -> None: ...  # noqa: D102 -- as in apsw
    def wal_checkpoint(self, dbname: str | None = None, mode: int = 0) -> tuple[int, int]: ...  # noqa: D102 -- as in apsw
    def config(self, option: int, value: int, /) -> int: ...  # noqa: D102 -- as in apsw
    def file_control(self, dbname: str, option: int, pointer: int, /) -> bool: ...  # noqa: D102 -- as in apsw
    def close(self) -> None: ...  # noqa: D102 -- as in apsw
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...


def open_connection(path: str) -> SqliteConnection:
    """Open an existing database for reading and writing, refusing symbolic links."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
    return cast("SqliteConnection", apsw.Connection(path, flags=flags))


@contextlib.contextmanager
def copied(path: str) -> Generator[str]:
    """Copy a database that may only be read, and yield where the copy is, for the length of a block.

    SQLite reads a log by the index beside it, and may not make one there. Without an index no process has the file
    open, and on a disk that can only be read nothing changes: then the files are copied as they are.

    Raises:
        StoreReadOnlyError: It cannot be read either.
    """
    with tempfile.TemporaryDirectory(prefix="standfast-") as folder:
        copy = os.path.join(folder, os.path.basename(path))  # noqa: PTH118, PTH119 -- plain text, like all paths here
        try:
            if os.statvfs(path).f_flag & os.ST_RDONLY or not os.path.exists(f"{path}-shm"):  # noqa: PTH110 -- plain text, like all paths here
                for ending in ("", "-wal"):
                    if os.path.exists(path + ending):  # noqa: PTH110 -- plain text, like all paths here
                        shutil.copyfile(path + ending, copy + ending)
            else:
                with (
                    contextlib.closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)) as source,
                    contextlib.closing(apsw.Connection(copy)) as target,
                    target.backup("main", source, "main") as backup,
                ):
                    backup.step()
        except (OSError, apsw.Error) as error:
            raise StoreReadOnlyError(path, f"it can be neither written nor copied to be read: {error}") from error
        yield copy


@contextlib.contextmanager
def transaction(connection: SqliteConnection) -> Generator[None]:
    """Commit what is done inside, or undo it.

    Unlike the driver's own, it shows the error that made SQLite undo everything by itself, not that nothing was left
    to be undone.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


# --- what all handles of one process on the same file share --------------------------------------------------------
#
# A fork needs care. SQLite keeps its own account of the locks a process holds, and a child inherits the account but not
# the locks. So every fork waits for a moment at which no thread is inside SQLite, and the child then closes what it
# inherited: it starts with a clean account and can open the same file itself.

LOOK_EVERY: Final = 0.002
"""How many seconds a process may go on to commit and read after its file was deleted or replaced."""

STILL_WITHIN: Final = 2.0
"""How many seconds a fork waits for the threads of this process to finish what they do in SQLite."""


@final
class SharedFile:
    """One database file in this process. Get it with :func:`share`, give it back with :func:`unshare`.

    ``wall_ahead`` is how far the time of day was ahead of the time since boot when this process last let the store
    follow it. It says so once for each step of the clock, so that processes whose clocks differ do not fight.
    """

    __slots__ = (
        "_held",
        "_look_at",
        "_sections",
        "alive",
        "connections",
        "guard",
        "identity",
        "lock",
        "path",
        "stands_still",
        "subscriptions",
        "turn",
        "users",
        "wall_ahead",
    )

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self.identity: Final = Identity(path)
        self.turn: Final = WriteTurn(f"{path}-turn")
        try:
            self.alive: Final = open_liveness_file(path + ALIVE)
        except BaseException:
            self.turn.close()
            raise
        try:
            self.guard: Final = FileGuard(path, self.identity.database)
        except BaseException:
            self.close()
            raise
        self.subscriptions: Final = LocalSubscriptions()
        self.lock: Final = threading.Lock()
        self.connections: Final[list[SqliteConnection]] = []
        self.users = 0
        self.wall_ahead: int | None = None
        self._look_at = 0.0
        self._sections: Final[weakref.WeakSet[threading.Lock]] = weakref.WeakSet()
        self._held: Final[list[threading.Lock]] = []
        self.stands_still = False

    def is_alone(self) -> bool:
        """Return True if certainly nothing but one handle of this process has the file open."""
        with self.lock:
            return self.users == 1 and self.alive.is_alone()

    def check(self) -> None:
        """Raise if a stranger has the file open, or if it has been another one for longer than ``LOOK_EVERY``."""
        if self.guard.seen is not None:
            raise self.guard.seen
        now = monotonic()
        if now >= self._look_at:
            self.identity.check()
            self._look_at = now + LOOK_EVERY

    def close(self) -> None:
        """Close the lock files."""
        self.turn.close()
        close_liveness_file(self.alive)

    def new_section(self) -> threading.Lock:
        """Return a lock to hold inside SQLite where the turn is not held: a fork waits for it."""
        section = threading.Lock()
        with self.lock:  # none is made while a fork stands still: it would be missed
            self._sections.add(section)
        return section

    def stand_still(self, deadline: float) -> None:
        """Wait until no thread uses the file, and keep it so."""
        is_still = [self._hold(each, deadline) for each in (self.turn.here, self.lock)]
        is_still += [self._hold(each, deadline) for each in tuple(self._sections)]
        self.stands_still = all(is_still)

    def _hold(self, lock: threading.Lock, deadline: float) -> bool:
        if not lock.acquire(timeout=max(0.0, deadline - monotonic())):
            return False
        self._held.append(lock)
        return True

    def go_on(self) -> None:
        """Let the threads use the file again."""
        while self._held:
            self._held.pop().release()

    def let_go(self) -> bool:
        """Close what was inherited, in a forked child; False if a thread was using it, and then it stays open."""
        if self.stands_still and not self._is_in_use():
            for connection in self.connections:
                connection.close()
            self.turn.close()
            return True
        for connection in self.connections:  # closing one in the midst of something would undo it for the parent
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        return False

    def _is_in_use(self) -> bool:
        try:
            return any(connection.in_transaction for connection in self.connections)
        except apsw.ThreadingViolationError:  # a thread was inside, without a lock that the fork waits for
            return True


_HEADER: Final = b"SQLite format 3\0"
_files: dict[str, SharedFile] = {}
_left_open: set[tuple[int, int]] = set()
_lock = threading.Lock()


def share(path: str) -> SharedFile:
    """Return this process's shared part of the database at ``path``."""
    with _lock:
        file = _files.get(path)
        if file is None or not file.identity.is_current():
            if Identity(path).database in _left_open:
                raise StoreClosedError(
                    path, "a thread used it at the moment of the fork; open it in a process of its own"
                )
            if all(Identity(path).database != each.identity.database for each in _files.values()):
                _check_header(path)
            file = _files[path] = SharedFile(path)
        file.users += 1
        return file


def _check_header(path: str) -> None:
    """Refuse a file that is no database, before anything is made beside it. It must not be open in this process."""
    try:
        with opening_our_own(), open(path, "rb") as file:  # noqa: PTH123 -- plain text, like all paths here
            head = file.read(len(_HEADER))
    except OSError:
        return  # SQLite says why
    if head and head != _HEADER:
        raise StoreCorruptError(path, "it is not an SQLite database; name another file")


def share_again(file: SharedFile) -> SharedFile:
    """Count one more user of what this process has open, for another handle on the very same file."""
    with _lock:
        if not file.users:
            raise StoreClosedError(file.path, "it was closed; open a new one")
        if not file.identity.is_current():
            raise StoreGoneError(file.path, "the file was deleted, moved or replaced; put it back or open it anew")
        file.users += 1
        return file


def unshare(file: SharedFile) -> None:
    """Let go of it; the last user closes it."""
    with _lock:
        file.users -= 1
        if file.users == 0:
            if _files.get(file.path) is file:
                del _files[file.path]
                file.guard.close()
            file.close()


def _before_fork() -> None:
    _lock.acquire()
    deadline = monotonic() + STILL_WITHIN
    for file in _files.values():
        file.stand_still(deadline)


def _in_parent() -> None:
    for file in _files.values():
        file.go_on()
    _lock.release()


def _in_child() -> None:
    global _lock  # noqa: PLW0603 -- a child starts anew
    _lock = threading.Lock()
    for file in _files.values():
        if not file.let_go():
            _left_open.add(file.identity.database)
    _files.clear()


run_around_fork(_before_fork, _in_parent)
run_in_forked_child(_in_child)


# --- connections as this store needs them, and the schema they find ------------------------------------------------

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
    """Return True if the SQLite in use is past the known WAL corruption."""
    return tuple(int(part) for part in version.split(".")[:3]) >= SAFE_SQLITE


def warn_of_old_library(version: str = apsw.sqlite_lib_version()) -> None:
    """Give an :class:`OldSqliteWarning` if the SQLite in use is one to be warned of."""
    if not library_is_safe(version):
        message = f"SQLite {version} can damage a file that several processes write to; install apsw 3.51.3 or newer"
        warnings.warn(OldSqliteWarning(message), stacklevel=3)


def connect(file: SharedFile, *, busy_seconds: float) -> SqliteConnection:
    """Open a connection with every setting in place. SQLite syncs each commit before it is visible."""
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


def _refuse_read_only(path: str, connection: SqliteConnection) -> None:
    # SQLite is content with less than it was asked for, and fails when it has something to write.
    if connection.readonly("main"):
        raise StoreReadOnlyError(path, "it cannot be written to; fix the permissions of the file")
    for ending in SIDE_FILES:
        if os.path.exists(path + ending) and not os.access(path + ending, os.W_OK):  # noqa: PTH110 -- plain text, like all paths here
            raise StoreReadOnlyError(path, f"its {ending} file cannot be written to; fix the permissions of that file")


INCREMENTAL: Final = 2
"""Free pages are given back when that is asked for, some at a time."""


def _use_log(file: SharedFile, connection: SqliteConnection, busy_seconds: float) -> None:
    # Asked before it is set: setting it while others have the file open takes locks, and only one of them may.
    if connection.pragma("journal_mode") == "wal":
        return
    if not file.turn.take_within(busy_seconds):
        raise StoreBusyError(file.path, f"process {file.turn.holder()} kept the write turn for {busy_seconds:g} s")
    try:
        connection.pragma("auto_vacuum", INCREMENTAL)  # before there is a page; a file that has some stays as it is
        connection.pragma("journal_mode", "wal")
    finally:
        file.turn.give()


def _configure(connection: SqliteConnection) -> None:
    connection.pragma("synchronous", "full")
    if sys.platform == "darwin":
        connection.pragma("fullfsync", 1)
    connection.pragma("wal_autocheckpoint", 0)
    connection.pragma("journal_size_limit", _LONGEST_KEPT_LOG)
    connection.pragma("trusted_schema", 0)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    # Else a statement with LIMIT ? is planned anew at each call, for the sake of the number: a scan took 20 us, not 2.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    keep = ctypes.c_int(1)
    connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(keep))


def disconnect(file: SharedFile, connection: SqliteConnection) -> None:
    """Close a connection and forget its descriptors."""
    with file.lock:
        connection.close()
        file.connections.remove(connection)
        file.guard.closed()


def ensure_schema(file: SharedFile, connection: SqliteConnection, *, busy_seconds: float) -> None:
    """Create the schema if the file is empty; refuse a file that is not ours or is newer than this version."""
    with file.new_section():
        is_ready = _is_ready(file.path, connection) and _has_views(connection)
    if is_ready:
        return
    if not file.turn.take_within(busy_seconds):
        raise StoreBusyError(file.path, f"process {file.turn.holder()} kept the write turn for {busy_seconds:g} s")
    try:
        if not _is_ready(file.path, connection):
            script = resources.files("standfast.stores.sqlite").joinpath("schema.sql").read_text()
            with transaction(connection):
                connection.execute(script)
                connection.pragma("application_id", APPLICATION_ID)
                connection.pragma("user_version", FORMAT)
        if not _has_views(connection):
            _create_views(connection)
    finally:
        file.turn.give()


def _is_ready(path: str, connection: SqliteConnection) -> bool:
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


def _has_views(connection: SqliteConnection) -> bool:
    """Return True if the views for people are of this version, or of a newer one."""
    found = connection.execute("SELECT value FROM facts WHERE name = 'views'").get
    return found is not None and int(found) >= VIEWS


def _create_views(connection: SqliteConnection) -> None:
    """Make the views anew; what the users of the file call by the same names stays."""
    with transaction(connection):
        for name, query in view_statements(SqliteDialect(), "records").items():
            own = f"SELECT count(*) FROM sqlite_schema WHERE name = 'standfast_{name}' AND type <> 'view'"  # noqa: S608 -- a name of ours
            if not connection.execute(own).get:
                connection.execute(f"DROP VIEW IF EXISTS standfast_{name}")
                connection.execute(f"CREATE VIEW standfast_{name} AS {query}")
        connection.execute(f"INSERT OR REPLACE INTO facts VALUES ('views', '{VIEWS}')")  # noqa: S608 -- a number of ours


def log_is_grown(path: str) -> bool:
    """Return True if the log has its size; the last one to close the file empties it, or removes it."""
    try:
        return os.stat(f"{path}-wal").st_size >= _PREGROWN_LOG  # noqa: PTH116 -- plain text, like all paths here
    except OSError:
        return False


def grow_log(path: str, connection: SqliteConnection) -> None:
    """Give the write-ahead log its size at once: a log that grows with each commit syncs at half the speed.

    Nothing is written to it meanwhile, and to SQLite a log goes as far as its frames do: zeros are no frames.
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

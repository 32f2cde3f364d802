"""The database file: options, where it may lie, if it is still the same, and keeping other libraries off it."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import re
import shlex
import stat
import sys
import threading
import urllib.parse
from typing import TYPE_CHECKING, Final, Literal, cast, final

from msgspec import Struct

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import (
    InvalidUrlError,
    StandfastError,
    StoreFullError,
    StoreGoneError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.liveness import run_in_forked_child

if TYPE_CHECKING:
    from collections.abc import Generator


# --- what can be chosen for an SQLite store, in its URL or in code -------------------------------------------------


class SqliteOptions(Struct, frozen=True):
    """Settings of one handle.

    Attributes:
        busy_seconds: How long a commit waits for its turn before it is refused (``?busy=5s``).
        network: ``"allow"`` opens a file on a network file system all the same (``?network=allow``).
        others: ``"allow"`` opens a file that other users can change (``?others=allow``).
        commits: Where commits run: on the loop when that is quick, or always on the loop or a thread.
        folder: ``"create"`` makes the folders above the file if they are missing (``?folder=create``).
        hints: ``"machine"`` notifies other processes; ``"process"`` only this one (``?hints=process``).
    """

    busy_seconds: float = 5.0
    network: Literal["refuse", "allow"] = "refuse"
    others: Literal["refuse", "allow"] = "refuse"
    commits: Literal["auto", "loop", "thread"] = "auto"
    hints: Literal["machine", "process"] = "machine"
    folder: Literal["refuse", "create"] = "refuse"


# --- which file system a folder lies on, as Linux tells it ---------------------------------------------------------

_FIELDS: Final = 5
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


def filesystem_of(folder: str, mounts: str = "/proc/self/mountinfo") -> str | None:
    """Return the type of the file system that ``folder`` lies on, where the platform tells.

    The folder's device finds the mount. Where it is not in the table, as with some subvolumes and overlays, the
    deepest mount point above the folder does.
    """
    if sys.platform != "linux":
        return None
    device = os.stat(folder).st_dev  # noqa: PTH116 -- plain text throughout this package
    wanted = f"{os.major(device)}:{os.minor(device)}"
    deepest, found = -1, None
    for number, point, kind in _table(mounts):
        if number == wanted:
            return kind
        is_above = folder == point or folder.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= deepest:  # of two on the same point the later one is on top
            deepest, found = len(point), kind
    return found


def is_mounted_alone(path: str, mounts: str = "/proc/self/mountinfo") -> bool:
    """Return True if a single file is a mount of its own, as when a container is given one file of its host."""
    return sys.platform == "linux" and any(point == path for _, point, _ in _table(mounts))


def _table(mounts: str) -> list[tuple[str, str, str]]:
    """Return device, mount point and type of every mount that can be understood."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape", newline="\n") as table:  # noqa: PTH123 -- see above
            lines = [
                (before.split(" "), after.split()) for before, _, after in (line.partition(" - ") for line in table)
            ]
    except OSError:
        return []
    return [
        (fields[2], _ESCAPE.sub(lambda escape: chr(int(escape[1], 8)), fields[4]), kind[0])
        for fields, kind in lines
        if len(fields) >= _FIELDS and len(kind) > 0
    ]


# --- the database file: where it may lie, who may read it, and whether it is still the one that was opened ---------

NETWORK_FILESYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "davfs"}
    | {"virtiofs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.davfs2"}
)  # fmt: skip


SIDE_FILES: Final = ("-wal", "-shm")
"""What SQLite keeps beside a database: the log, and the index that its locks are in."""

ALIVE: Final = "-alive"
"""The file whose locked bytes tell which processes live."""

BESIDE: Final = (*SIDE_FILES, ALIVE, "-turn", "-wakes")
"""All that lies beside a database."""

FRESH: Final = 50_000
"""Microseconds: a folder that changed this recently may change again within one tick of its clock."""


_creating = threading.Lock()


def _renew_lock() -> None:
    global _creating  # noqa: PLW0603 -- a thread that does not exist in a forked child may hold the old one
    _creating = threading.Lock()


run_in_forked_child(_renew_lock)


def prepare(path: str, options: SqliteOptions) -> str:
    """Return the real path of a database that may be opened, creating an empty private file if there is none.

    Raises if the last part is a symbolic link or not a file, if its folder is missing and not to be made, if it lies on
    a network file system, or if other users can change it.
    """
    try:
        folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100 -- a Path would drop what must be refused
    except OSError as error:
        raise refusal(path, "the working folder is gone", error) from error
    if not name:
        raise InvalidUrlError(path, "it names a folder; add a file name, for example sqlite:///standfast.db")
    if options.folder == "create":
        _make_folder(folder, path)
    elif not os.path.isdir(folder):  # noqa: PTH112 -- plain text throughout this module
        if os.path.lexists(folder):
            raise InvalidUrlError(path, f"{folder} is not a folder; name another one")
        # More often a mistake in its name than a new one.
        problem = f"there is no folder {folder}; check the name, make the folder, or add ?folder=create to the URL"
        raise InvalidUrlError(path, problem)
    real = os.path.join(os.path.realpath(folder), name)  # noqa: PTH118 -- see above
    if options.network != "allow" and (kind := filesystem_of(os.path.dirname(real))) in NETWORK_FILESYSTEMS:  # noqa: PTH120 -- see above
        raise UnsuitableStoreError(
            path, f"it is on a network file system ({kind}), where locks fail; use a local disk or ?network=allow"
        )
    _create(real)
    if is_mounted_alone(real):  # its log would lie beside it here, and another log beside it over there
        raise InvalidUrlError(path, "the file is mounted by itself; mount its folder, so that all see the same log")
    if options.others != "allow":
        refuse_others(real)
    return real


def refuse_others(path: str) -> None:
    """Refuse a database that other users can change: the file, what lies beside it, or its folder.

    Raises:
        UnsuitableStoreError: They can; the message has the command that mends it.
    """
    folder = os.path.dirname(path)  # noqa: PTH120 -- plain text throughout this module
    for each in (folder, path, *(path + ending for ending in BESIDE)):
        try:
            found = os.lstat(each)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise refusal(path, f"{each} cannot be looked at", error) from error
        if stat.S_ISLNK(found.st_mode):
            continue  # opening it is refused
        if command := _mending(each, found, is_folder=each == folder):
            raise UnsuitableStoreError(
                path,
                f"other users can change {each}; run: {command} (or add ?others=allow, if you trust all of them)",
            )


def _mending(path: str, found: os.stat_result, *, is_folder: bool) -> str:
    """Return the command that takes a file or folder from other users; empty if they have none of it."""
    own = os.geteuid()
    if found.st_uid != own and not (is_folder and found.st_uid == 0):  # root can do anything anyway
        return f"chown {own} {shlex.quote(path)}"
    is_sticky = is_folder and found.st_mode & stat.S_ISVTX  # all users make files there, and change none of others
    if found.st_mode & stat.S_IWOTH and not is_sticky:
        return f"chmod go-w {shlex.quote(path)}"
    if found.st_mode & stat.S_IWGRP and not is_sticky and not _is_alone_in(found.st_gid):
        return f"chmod g-w {shlex.quote(path)}"
    return ""


def _is_alone_in(group: int) -> bool:
    """Return True if a group is the user's own: many systems give each user one of the same name, to share nothing."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


def _make_folder(folder: str, path: str) -> None:
    """Make what is missing of the folder, each part of it for its owner alone."""
    missing: list[str] = []
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):  # noqa: PTH112, PTH120 -- plain text throughout this module
        missing.append(folder)
        folder = os.path.dirname(folder)  # noqa: PTH120 -- see above
    for each in reversed(missing):
        try:
            os.mkdir(each, 0o700)  # noqa: PTH102 -- see above
        except FileExistsError:
            if not os.path.isdir(each):  # noqa: PTH112 -- see above
                raise InvalidUrlError(path, f"{each} is not a folder; name another one") from None
        except OSError as error:
            raise refusal(path, "its folder cannot be made", error) from error


def _create(path: str) -> None:
    """Create the file for its owner alone; SQLite gives its side files the same mode."""
    # Never opened when it is there: closing a descriptor of a database in use would drop its locks. For the same
    # reason no thread gets past here while another one creates.
    with _creating:
        if not os.path.lexists(path):
            try:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except FileExistsError:  # another process was quicker
                pass
            except OSError as error:
                raise refusal(path, "it cannot be created", error) from error
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a regular file"
        raise InvalidUrlError(path, f"it is {kind}; name the database file itself")
    if found.st_nlink > 1:  # each name would have a log of its own, and the two would overwrite each other
        raise InvalidUrlError(path, "the file has a second name (a hard link); remove one, or make a copy")


def open_private(path: str, flags: int) -> int:
    """Open something of our own beside the database, following no symbolic link."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise refusal(path, "it cannot be opened", error) from error


def refusal(path: str, what: str, error: OSError) -> StandfastError:
    """Return our error for what the operating system said."""
    if error.errno == errno.EROFS:
        advice = "mount it so that it can be written, or copy the store to another disk"
        return StoreReadOnlyError(path, f"{what}: {error.strerror}; {advice}")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return StoreReadOnlyError(path, f"{what}: {error.strerror}; fix the permissions of the file and its folder")
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreFullError(path, f"{what}: {error.strerror}; free some space and retry")
    if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}:
        return InvalidUrlError(path, f"{what}: {error.strerror}")
    return StoreUnavailableError(path, f"{what}: {error.strerror}")


@final
class Identity:
    """Which file was opened, so that a deleted or replaced one is noticed before anything is written to nowhere.

    It looks at the folder first: whatever happens to a name in it changes its time, and asking for the times of the
    log itself before each commit would make every one of them sync the log's inode too.
    """

    __slots__ = ("_database", "_folder", "_looked_at", "_path", "_side_files")

    def __init__(self, path: str) -> None:
        self._path: Final = path
        self._folder: Final = os.path.dirname(path)  # noqa: PTH120 -- plain text throughout this module
        self._database: Final = _identify(path)
        self._side_files: dict[str, tuple[int, int] | None] | None = None
        self._looked_at = 0

    @property
    def database(self) -> tuple[int, int]:
        """Device and inode of the database file."""
        if self._database is None:
            raise StoreGoneError(self._path, "the file was deleted")
        return self._database

    def is_current(self) -> bool:
        """Return True if the file at the path is still the one that was opened."""
        return _identify(self._path) == self._database

    def note_side_files(self) -> None:
        """Remember which log and index belong to the file, once it has been opened and has them."""
        if self._side_files is None:
            self._side_files = {ending: _identify(self._path + ending) for ending in SIDE_FILES}

    def check(self) -> None:
        """Raise if the database file, its log or its index is not the one that was opened."""
        try:
            changed_at = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 -- called for every commit; a Path costs more than the call
        except OSError as error:
            raise StoreGoneError(self._path, f"its folder cannot be looked at: {error.strerror}") from error
        if changed_at == self._looked_at:
            return
        if not self.is_current():
            raise StoreGoneError(self._path, "the file was deleted, moved or replaced; put it back or open it anew")
        for ending, expected in (self._side_files or {}).items():
            if _identify(self._path + ending) != expected:
                raise StoreGoneError(
                    self._path, f"its {ending} file was deleted or replaced; stop all processes and open it anew"
                )
        is_fresh = SYSTEM_CLOCK.wall() - changed_at // 1000 < FRESH
        self._looked_at = 0 if is_fresh else changed_at


def _identify(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 -- plain text throughout this module
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnavailableError(path, f"it cannot be looked at: {error.strerror}") from error
    return found.st_dev, found.st_ino


# --- keeping other libraries off the file --------------------------------------------------------------------------
#
# POSIX drops all of a process's locks on a file when *any* descriptor of it is closed in that process. A second SQLite
# library that opens and closes our file (the standard ``sqlite3`` module carries its own), or a plain ``open()``, would
# make us lose acknowledged commits without a trace. Two nets: ``sqlite3.connect`` and ``open`` on our files are refused
# as they happen, and unknown descriptors are looked for when a store is opened and from time to time.

_BESIDE: Final = (*SIDE_FILES, ALIVE)
"""What lies beside a database and carries locks that must not fall."""

_DESCRIPTORS: Final = "/proc/self/fd"

_guarded: dict[str, tuple[int, int]] = {}
_lock = threading.Lock()
_hooked = False
_this_thread = threading.local()


def descriptors_of(identity: tuple[int, int]) -> frozenset[int]:
    """Return the descriptors that this process has open on a file; empty where the platform does not tell."""
    try:
        numbers = os.listdir(_DESCRIPTORS)  # noqa: PTH208 -- numbers, not paths
    except OSError:
        return frozenset()
    return frozenset(number for number in map(int, numbers) if _file_behind(number) == identity)


def _file_behind(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@final
class FileGuard:
    """Watches one database file for as long as this process has it open."""

    __slots__ = ("_identity", "_ours", "_path", "seen")

    def __init__(self, path: str, identity: tuple[int, int]) -> None:
        self._path, self._identity = path, identity
        self._ours: frozenset[int] = frozenset()
        self.seen: UnsuitableStoreError | None = None
        self.check()
        _refuse_from_now_on(path, identity)

    def present(self) -> frozenset[int]:
        """Return the descriptors that are open on the file now, to tell which ones an opening adds."""
        return descriptors_of(self._identity)

    def opened(self, before: frozenset[int]) -> None:
        """Count as our own what has been opened since ``before``."""
        self._ours |= self.present() - before

    def closed(self) -> None:
        """Forget those of our own that are closed: their numbers will be given to others."""
        self._ours &= self.present()

    def check(self) -> None:
        """Raise if a descriptor is open on the file that is not ours, or ever was."""
        strange = descriptors_of(self._identity) - self._ours
        if strange:
            # Remembered for good: the locks are gone as soon as that descriptor is closed.
            self.seen = UnsuitableStoreError(
                self._path,
                f"another library in this process has it open (descriptor {min(strange)}), which breaks its locks; "
                "close both, give your data a file of its own, and open the store again",
            )
        self.raise_if_seen()

    def raise_if_seen(self) -> None:
        """Raise if :meth:`check` has ever found a strange descriptor."""
        if self.seen is not None:
            raise self.seen

    def close(self) -> None:
        """Stop refusing: this process no longer has the file open."""
        with _lock:
            _guarded.pop(self._path, None)


def _refuse_from_now_on(path: str, identity: tuple[int, int]) -> None:
    global _hooked  # noqa: PLW0603 -- an audit hook can be added once and never removed
    with _lock:
        _guarded[path] = identity
        if not _hooked:
            sys.addaudithook(_audit)
            _hooked = True


run_in_forked_child(_guarded.clear)  # a child has none of the locks, so it cannot lose them


@contextlib.contextmanager
def opening_our_own() -> Generator[None]:
    """Let this thread open a side file: one that carries no locks, or one that is closed last of all."""
    _this_thread.opens_our_own = True
    try:
        yield
    finally:
        _this_thread.opens_our_own = False


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    # Called for every audited event of the process: the first line is all that most of them cost.
    if event not in {"open", "sqlite3.connect"} or not _guarded or getattr(_this_thread, "opens_our_own", False):
        return
    name = _as_path(arguments[0], uri=event == "sqlite3.connect")
    path = None if name is None else _guarded_path(name)
    if path is not None:
        problem = "give your data a file of its own, or go through commit_with"
        raise UnsuitableStoreError(path, f"{event} would break its locks in this process; {problem}")


def _guarded_path(name: str) -> str | None:
    """Return the path of the database that ``name`` leads to, by whatever links, or that it is a side file of."""
    try:
        found = os.stat(name)  # noqa: PTH116 -- called for every file that this process opens
    except (OSError, ValueError):
        return None
    identity = found.st_dev, found.st_ino
    for path, guarded in tuple(_guarded.items()):
        if identity == guarded:
            return path
        # By name, not by inode: looking at the log's own would make the next commit sync more than its data.
        if name.endswith(_BESIDE) and os.path.realpath(name) in {path + ending for ending in _BESIDE}:
            return path
    return None


def _as_path(given: object, *, uri: bool) -> str | None:
    if not isinstance(given, str | bytes | os.PathLike):  # a descriptor number, say
        return None
    given = os.fsdecode(cast("str", given))
    if not uri or not given.startswith("file:"):
        return given
    address = given.removeprefix("file:").partition("#")[0].partition("?")[0]
    if address.startswith("//"):  # an authority, which may be empty or localhost
        address = "/" + address[2:].partition("/")[2]
    return urllib.parse.unquote(address)

"""The database file: where it may lie, who may read it, and whether it is still the one that was opened."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shlex
import stat
import threading
from typing import TYPE_CHECKING, Final, final

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import (
    InvalidUrlError,
    NetworkFilesystemError,
    StandfastError,
    StoreFullError,
    StoreGoneError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.forks import run_in_forked_child
from standfast.stores.sqlite.mounts import filesystem_of, is_mounted_alone

if TYPE_CHECKING:
    from standfast.stores.sqlite.options import Options

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


def prepare(path: str, options: Options) -> str:
    """Return the real path of a database that may be opened, creating an empty private file if there is none.

    Raises if the last part is a symbolic link or not a file, if its folder is missing and not to be made, if it lies on
    a network file system, or if other users can change it.
    """
    try:
        folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100 -- a Path would drop what must be refused
    except OSError as problem:
        raise refusal(path, "the working folder is gone", problem) from problem
    if not name:
        raise InvalidUrlError(path, "it names a folder; add a file name, for example sqlite:///standfast.db")
    if options.folder == "create":
        _make_folder(folder, path)
    elif not os.path.isdir(folder):  # noqa: PTH112 -- plain text throughout this module
        _refuse_folder(folder, path)
    real = os.path.join(os.path.realpath(folder), name)  # noqa: PTH118 -- see above
    if options.network != "allow":
        _refuse_network(real)
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
        except OSError as problem:
            raise refusal(path, f"{each} cannot be looked at", problem) from problem
        if stat.S_ISLNK(found.st_mode):
            continue  # whoever opens it refuses it
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
    is_sticky = is_folder and found.st_mode & stat.S_ISVTX  # everybody makes files there, and changes none of others
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


def _refuse_folder(folder: str, path: str) -> None:
    """Say that there is no such folder: more often a mistake in its name than a new one."""
    if os.path.lexists(folder):
        raise InvalidUrlError(path, f"{folder} is not a folder; name another one")
    problem = f"there is no folder {folder}; check the name, make the folder, or add ?folder=create to the URL"
    raise InvalidUrlError(path, problem)


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
        except OSError as problem:
            raise refusal(path, "its folder cannot be made", problem) from problem


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
            except OSError as problem:
                raise refusal(path, "it cannot be created", problem) from problem
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
    except OSError as problem:
        raise refusal(path, "it cannot be opened", problem) from problem


def refusal(path: str, what: str, problem: OSError) -> StandfastError:
    """Return our error for what the operating system said."""
    if problem.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return StoreReadOnlyError(path, f"{what}: {problem.strerror}; fix the permissions of the file and its folder")
    if problem.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreFullError(path, f"{what}: {problem.strerror}; free some space and retry")
    if problem.errno in {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}:
        return InvalidUrlError(path, f"{what}: {problem.strerror}")
    return StoreUnavailableError(path, f"{what}: {problem.strerror}")


def _refuse_network(path: str) -> None:
    kind = filesystem_of(os.path.dirname(path))  # noqa: PTH120 -- plain text throughout this module
    if kind in NETWORK_FILESYSTEMS:
        raise NetworkFilesystemError(
            path, f"it lies on a network file system ({kind}), where locks fail; use a local disk or ?network=allow"
        )


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
        """Tell whether the file at the path is still the one that was opened."""
        return _identify(self._path) == self._database

    def note_side_files(self) -> None:
        """Remember which log and index belong to the file, once it has been opened and has them."""
        if self._side_files is None:
            self._side_files = {ending: _identify(self._path + ending) for ending in SIDE_FILES}

    def check(self) -> None:
        """Raise if the database file, its log or its index is not the one that was opened."""
        try:
            changed_at = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 -- called for every commit; a Path costs more than the call
        except OSError as problem:
            raise StoreGoneError(self._path, f"its folder cannot be looked at: {problem.strerror}") from problem
        if changed_at != self._looked_at:
            self._look()
            is_fresh = SYSTEM_CLOCK.wall() - changed_at // 1000 < FRESH
            self._looked_at = 0 if is_fresh else changed_at

    def _look(self) -> None:
        if not self.is_current():
            raise StoreGoneError(self._path, "the file was deleted, moved or replaced; put it back or open it anew")
        for ending, expected in (self._side_files or {}).items():
            if _identify(self._path + ending) != expected:
                raise StoreGoneError(
                    self._path, f"its {ending} file was deleted or replaced; stop all processes and open it anew"
                )


def _identify(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 -- plain text throughout this module
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise StoreUnavailableError(path, f"it cannot be looked at: {problem.strerror}") from problem
    return found.st_dev, found.st_ino

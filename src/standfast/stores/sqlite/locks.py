"""File locks: the liveness token of a process, and the turn to write.

A process that is asked for its token locks one byte, far out and chosen at random, of an empty file beside the
database. The kernel gives it back when the process dies, in any way; a stopped or a busy process keeps it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from standfast.clock import SYSTEM_CLOCK, monotonic
from standfast.stores.liveness import run_in_forked_child
from standfast.stores.sqlite.file import (
    NETWORK_FILESYSTEMS,
    filesystem_of,
    open_private,
    opening_our_own,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# --- record locks on a file, behind one face for every platform ----------------------------------------------------
#
# POSIX record locks fall when their process dies, are not inherited by forked children, and tell who holds them;
# they do not exclude two users inside one process, which :mod:`~standfast.stores.sqlite.locks` takes care of. The
# Windows half is written for but untested.

if sys.platform == "win32":
    import msvcrt

    def try_lock(descriptor: int, offset: int) -> bool:
        """Lock one byte; False if another process has it."""
        os.lseek(descriptor, offset, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def lock(descriptor: int, offset: int) -> None:
        """Lock one byte, waiting for the process that has it."""
        while not try_lock(descriptor, offset):  # LK_LOCK gives up after ten seconds, so wait in short steps
            os.lseek(descriptor, offset, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
            except OSError:
                continue
            return

    def unlock(descriptor: int, offset: int) -> None:
        """Give one byte back."""
        os.lseek(descriptor, offset, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

    def unlocking(descriptor: int, offset: int) -> Callable[[], object]:
        """Return what gives one byte back."""
        return functools.partial(unlock, descriptor, offset)

    def try_lock_through(descriptor: int, gate: int) -> bool:
        """Lock the byte after ``gate``, if neither of the two is locked; False if another process has one."""
        if not try_lock(descriptor, gate):
            return False
        try:
            return try_lock(descriptor, gate + 1)
        finally:
            unlock(descriptor, gate)

    def lock_holder(descriptor: int, offset: int, *, to_the_end: bool = False) -> int | None:
        """Return the process that holds a byte, where the platform tells: never on Windows."""
        del descriptor, offset, to_the_end

else:
    import fcntl
    import time

    _DEADLOCK_PAUSE: Final = 0.001
    _EXCLUSIVE_NOW: Final = fcntl.LOCK_EX | fcntl.LOCK_NB

    def try_lock(descriptor: int, offset: int) -> bool:
        """Lock one byte; False if another process has it."""
        try:
            fcntl.lockf(descriptor, _EXCLUSIVE_NOW, 1, offset)
        except BlockingIOError:
            return False
        except PermissionError:  # what some systems answer instead of EAGAIN
            return False
        return True

    def lock(descriptor: int, offset: int) -> None:
        """Lock one byte, waiting for the process that has it."""
        while True:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, offset)
            except OSError as error:
                # The kernel looks for deadlocks between processes, not threads, so two threads with two stores
                # can look like one. There is none: the turn is the last lock that is taken.
                if error.errno != errno.EDEADLK:
                    raise
                time.sleep(_DEADLOCK_PAUSE)
            else:
                return

    def unlock(descriptor: int, offset: int) -> None:
        """Give one byte back."""
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, offset)

    def unlocking(descriptor: int, offset: int) -> Callable[[], object]:
        """Return what gives one byte back, without a function of ours that is called for each commit."""
        return functools.partial(fcntl.lockf, descriptor, fcntl.LOCK_UN, 1, offset)

    def try_lock_through(descriptor: int, gate: int) -> bool:
        """Lock the byte after ``gate``, if neither of the two is locked; False if another process has one.

        Both are asked for in one call, which takes all or nothing, and the gate is let go at once.
        """
        try:
            fcntl.lockf(descriptor, _EXCLUSIVE_NOW, 2, gate)
        except (BlockingIOError, PermissionError):
            return False
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, gate)
        except BaseException:
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 2, gate)
            raise
        return True

    def lock_holder(descriptor: int, offset: int, *, to_the_end: bool = False) -> int | None:
        """Return the other process that holds a byte, or any from there on; None if there is none or it is unknown."""
        if sys.platform != "linux":
            return None
        layout = "@hhqqi"
        asked = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, offset, not to_the_end, 0).ljust(
            struct.calcsize("@hhqqiq"), b"\0"
        )
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
        kind, _, _, _, holder = struct.unpack_from(layout, answer)
        return None if kind == fcntl.F_UNLCK else holder


# --- liveness: a locked byte that falls with its process, so that others see a death at once -----------------------

SUPPORTED: Final = sys.platform == "linux" and sys.maxsize > 2**32
"""Whether this platform tells who has a lock, in a layout that we know."""

_OFFSET_BITS: Final = 62
_TRIES: Final = 8

_TOKEN: Final = re.compile(r"1:([0-9A-Za-z-]{1,64}):([0-9]{1,20}):([0-9]{1,20}):([0-9]{1,19}):([0-9]{1,10})", re.ASCII)
"""Format, boot, device and inode of the file, the byte, and the process for people to read."""


class _Token(Struct, frozen=True):
    boot: str
    device: int
    inode: int
    offset: int
    process: int

    @classmethod
    def read(cls, text: str) -> _Token | None:
        """Read what :meth:`write` wrote; None if it is anything else."""
        found = _TOKEN.fullmatch(text)
        if found is None:
            return None
        line = cls(found[1], *map(int, found.groups()[1:]))
        return line if line.offset < 2**_OFFSET_BITS else None

    def write(self) -> str:
        return f"1:{self.boot}:{self.device}:{self.inode}:{self.offset}:{self.process}"


@final
class LivenessFile:
    """The file in which the processes that use one database have their bytes, as this process has it open.

    Get it with :func:`open_liveness_file`. It stays open until its last user leaves: closing *any* descriptor of the
    file would give this process's byte back.
    """

    __slots__ = ("_descriptors", "_lock", "_offset", "_path", "identity", "sees_deaths", "users")

    def __init__(self, path: str, descriptor: int, identity: tuple[int, int]) -> None:
        self._path: Final = path
        self._descriptors: Final = [descriptor]
        self._lock: Final = threading.Lock()
        self._offset: int | None = None
        self.identity: Final = identity
        # The locks of a network file system, and the boots of other machines, prove nothing here.
        is_local = filesystem_of(os.path.dirname(path)) not in NETWORK_FILESYSTEMS  # noqa: PTH120 -- plain text, like all paths here
        self.sees_deaths: Final = SUPPORTED and is_local
        self.users = 0

    def liveness_token(self) -> str:
        """Return this process's token, locking its byte if that was not done; empty where there is none."""
        with self._lock:
            if not self.sees_deaths or not self._descriptors or not self._lock_byte():
                return ""
            boot, process = SYSTEM_CLOCK.boot(), os.getpid()
            return _Token(boot, *self.identity, offset=self._offset or 0, process=process).write()

    def _lock_byte(self) -> bool:
        # Locked anew each time, which costs a microsecond: should something have closed a descriptor of the file behind
        # our back, the byte is ours again before the next one asks.
        for _ in range(_TRIES):
            if self._offset is None:
                self._offset = _draw()
            try:
                if try_lock(self._descriptors[0], self._offset):
                    return True
            except OSError:  # no locks left, say: then there is no token
                return False
            self._offset = None
        return False

    def is_dead(self, text: str) -> bool:
        """Return True if no process has the byte of a token any more; False if that is not certain."""
        line = _Token.read(text)
        with self._lock:
            if line is None or not self.sees_deaths or not self._descriptors or not self._is_here(line):
                return False
            try:
                return line.offset != self._offset and lock_holder(self._descriptors[0], line.offset) is None
            except OSError:
                return False

    def is_alone(self) -> bool:
        """Return True if certainly no other process has the file open; each locks its byte before it reads."""
        with self._lock:
            if not self.sees_deaths or not self._descriptors or not self._lock_byte():
                return False
            try:
                return lock_holder(self._descriptors[0], 0, to_the_end=True) is None
            except OSError:
                return False

    def _is_here(self, line: _Token) -> bool:
        """Return True if a token belongs to this file, and the file is the one that others find."""
        device, inode = self.identity
        # A device may get another number when the machine boots; a file keeps its inode.
        is_same_device = line.device == device or line.boot != SYSTEM_CLOCK.boot()
        if line.inode != inode or not is_same_device:
            return False
        try:
            found = os.lstat(self._path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self.identity

    def add(self, descriptor: int) -> None:
        """Keep one more descriptor of the file open for as long as the others."""
        self._descriptors.append(descriptor)

    def close(self) -> None:
        """Close the file, and sever the token."""
        with self._lock:
            self.abandon()

    def abandon(self) -> None:
        """Close what a forked child has inherited; its parent's token is not touched by that."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _draw() -> int:
    return int.from_bytes(os.urandom(8)) >> (64 - _OFFSET_BITS)


_liveness_files: dict[tuple[int, int], LivenessFile] = {}


def open_liveness_file(path: str) -> LivenessFile:
    """Open the file at ``path``, creating it if there is none. Not to be called by two threads at once."""
    with opening_our_own():
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
    found = os.fstat(descriptor)
    identity = found.st_dev, found.st_ino
    file = _liveness_files.get(identity)
    if file is None:
        file = _liveness_files[identity] = LivenessFile(path, descriptor, identity)
    else:  # a database that was replaced is opened anew while the old one is still open
        file.add(descriptor)
    file.users += 1
    return file


def close_liveness_file(file: LivenessFile) -> None:
    """Let go of it; the last user closes it. Not to be called by two threads at once."""
    file.users -= 1
    if file.users == 0:
        if _liveness_files.get(file.identity) is file:
            del _liveness_files[file.identity]
        file.close()


def _liveness_in_child() -> None:
    for file in _liveness_files.values():
        file.abandon()
    _liveness_files.clear()


run_in_forked_child(_liveness_in_child)


# --- the turn to write: fair between processes and between the handles of one process ------------------------------
#
# SQLite's own busy handler lets a process that has just committed take the lock again before all others. Here two
# file locks make a turnstile: a writer takes *next*, then *active*, then lets *next* go. One that
# has just finished finds *next* taken by the process that waits, and so gets behind it.
#
# A process that is alone with the file takes neither: no other one could wait. That it is, is in the first byte of the
# file of the locks. A process that opens the database locks its byte of the liveness file, and then says that there are
# others; one that says that it is alone then looks once more. So at the end the byte is right, whichever was first, and
# the turn is passed over by one transaction at most, which SQLite's own lock keeps apart from all others.

_NEXT: Final = 0
_ACTIVE: Final = 1
_STEP: Final = 0.002
_ALONE: Final = b"1"
_SHARED: Final = b"0"


@final
class WriteTurn:
    """The right to write to one database. All handles of this process on it share one ``WriteTurn``.

    They must: a record lock falls when *any* descriptor of its file is closed in the process. ``here`` is what one
    of them holds while it has the turn or waits for it.

    Attributes:
        is_alone: Whether this process was alone with the file when the turn was last given back.
    """

    def __init__(self, path: str) -> None:
        self._descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        self.here: Final = threading.Lock()
        self._unlock: Final = unlocking(self._descriptor, _ACTIVE)
        self._is_locked = self.is_alone = False

    def tell_alone(self, is_alone: Callable[[], bool]) -> None:
        """Say, to all processes, whether this one is alone with the file. Call it when its own byte there is locked."""
        if sys.platform != "linux":  # elsewhere none can be seen
            return
        with contextlib.suppress(OSError):  # a full disk: then the turn is taken
            if is_alone():
                os.pwrite(self._descriptor, _ALONE, 0)
            if not is_alone():  # perhaps one has come meanwhile, and has said so before
                os.pwrite(self._descriptor, _SHARED, 0)

    def try_take(self) -> bool:
        """Take the turn if it is free and no writer waits for it."""
        if not self.here.acquire(blocking=False):
            return False
        taken = False
        try:
            taken = self.is_alone or try_lock_through(self._descriptor, _NEXT)
            self._is_locked = not self.is_alone
        finally:
            if not taken:
                self.here.release()
        return taken

    def take_within(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the turn, in small steps; False if it did not come."""
        deadline = monotonic() + seconds
        while not self.try_take():
            if monotonic() >= deadline:
                return False
            time.sleep(_STEP)
        return True

    def take(self) -> None:
        """Wait for the turn, for as long as it takes; call it from a thread that may wait."""
        self.here.acquire()
        try:
            lock(self._descriptor, _NEXT)
            try:
                lock(self._descriptor, _ACTIVE)
            finally:
                unlock(self._descriptor, _NEXT)
            self._is_locked = True
        except BaseException:
            self.here.release()
            raise

    def give(self) -> None:
        """Give the turn back, and look if there are others: for the next one, and for who is to be notified."""
        try:
            if self._is_locked:
                self._unlock()
            self.is_alone = sys.platform == "linux" and os.pread(self._descriptor, 1, 0) == _ALONE
        except OSError:
            self.is_alone = False
            raise
        finally:
            self.here.release()

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *exc: object) -> None:
        self.give()

    def holder(self) -> int | None:
        """Return the process that has the turn, where the platform tells; None if none or this one."""
        return lock_holder(self._descriptor, _ACTIVE)

    def close(self) -> None:
        """Close the lock file."""
        os.close(self._descriptor)

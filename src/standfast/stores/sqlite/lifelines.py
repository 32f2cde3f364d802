"""Lifelines: a locked byte that falls with its process, so that others see a death at once.

Each process that is asked for its lifeline locks one byte, far out and chosen at random, of an empty file beside the
database. The kernel gives it back when the process dies, whatever it dies of; a stopped or a busy process keeps it.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from typing import Final, final

from msgspec import Struct

from standfast.clock import SYSTEM_CLOCK
from standfast.stores.forks import run_in_forked_child
from standfast.stores.sqlite.files import NETWORK_FILESYSTEMS, open_private
from standfast.stores.sqlite.foreign import opening_our_own
from standfast.stores.sqlite.locking import lock_holder, try_lock
from standfast.stores.sqlite.mounts import filesystem_of

SUPPORTED: Final = sys.platform == "linux" and sys.maxsize > 2**32
"""Whether this platform tells who has a lock, in a layout that we know."""

_OFFSET_BITS: Final = 62
_TRIES: Final = 8

_LIFELINE: Final = re.compile(
    r"1:([0-9A-Za-z-]{1,64}):([0-9]{1,20}):([0-9]{1,20}):([0-9]{1,19}):([0-9]{1,10})", re.ASCII
)
"""Format, boot, device and inode of the file, the byte, and the process for people to read."""


class _Lifeline(Struct, frozen=True):
    boot: str
    device: int
    inode: int
    offset: int
    process: int

    @classmethod
    def read(cls, text: str) -> _Lifeline | None:
        """Read what :meth:`write` wrote; None if it is anything else."""
        found = _LIFELINE.fullmatch(text)
        if found is None:
            return None
        line = cls(found[1], *map(int, found.groups()[1:]))
        return line if line.offset < 2**_OFFSET_BITS else None

    def write(self) -> str:
        return f"1:{self.boot}:{self.device}:{self.inode}:{self.offset}:{self.process}"


@final
class AliveFile:
    """The file in which the processes that use one database have their bytes, as this process has it open.

    Get it with :func:`come_alive`. It stays open until its last user leaves: closing *any* descriptor of the file
    would give this process's byte back.
    """

    __slots__ = ("_descriptors", "_lock", "_offset", "_path", "identity", "sees_deaths", "users")

    def __init__(self, path: str, descriptor: int, identity: tuple[int, int]) -> None:
        self._path: Final = path
        self._descriptors: Final = [descriptor]
        self._lock: Final = threading.Lock()
        self._offset: int | None = None
        self.identity: Final = identity
        self.sees_deaths: Final = SUPPORTED and _is_local(path)
        self.users = 0

    def lifeline(self) -> str:
        """Return this process's lifeline, tying it if it is not tied; empty where none can be had."""
        with self._lock:
            if not self.sees_deaths or not self._descriptors or not self._tie():
                return ""
            boot, process = SYSTEM_CLOCK.boot(), os.getpid()
            return _Lifeline(boot, *self.identity, offset=self._offset or 0, process=process).write()

    def _tie(self) -> bool:
        # Locked anew each time, which costs a microsecond: should anyone have closed a descriptor of the file behind
        # our back, the byte is ours again before the next one asks.
        for _ in range(_TRIES):
            if self._offset is None:
                self._offset = _draw()
            try:
                if try_lock(self._descriptors[0], self._offset):
                    return True
            except OSError:  # no locks left, say: then there is no lifeline
                return False
            self._offset = None
        return False

    def is_severed(self, text: str) -> bool:
        """Tell whether nobody has the byte of a lifeline any more; False if that is not certain."""
        line = _Lifeline.read(text)
        with self._lock:
            if line is None or not self.sees_deaths or not self._descriptors or not self._is_here(line):
                return False
            try:
                return line.offset != self._offset and lock_holder(self._descriptors[0], line.offset) is None
            except OSError:
                return False

    def is_alone(self) -> bool:
        """Return True if certainly no other process has the file open; each ties its lifeline before it reads."""
        with self._lock:
            if not self.sees_deaths or not self._descriptors or not self._tie():
                return False
            try:
                return lock_holder(self._descriptors[0], 0, to_the_end=True) is None
            except OSError:
                return False

    def _is_here(self, line: _Lifeline) -> bool:
        """Tell whether a lifeline is tied to this file, and the file is the one that everybody finds."""
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
        """Close the file, and sever the lifeline."""
        with self._lock:
            self.abandon()

    def abandon(self) -> None:
        """Close what a forked child has inherited; its parent's lifeline is not touched by that."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _draw() -> int:
    return int.from_bytes(os.urandom(8)) >> (64 - _OFFSET_BITS)


def _is_local(path: str) -> bool:
    # The locks of a network file system, and the boots of other machines, prove nothing here.
    return filesystem_of(os.path.dirname(path)) not in NETWORK_FILESYSTEMS  # noqa: PTH120 -- plain text, like all paths here


_files: dict[tuple[int, int], AliveFile] = {}


def come_alive(path: str) -> AliveFile:
    """Open the file at ``path``, creating it if there is none. Not to be called by two threads at once."""
    with opening_our_own():
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
    found = os.fstat(descriptor)
    identity = found.st_dev, found.st_ino
    file = _files.get(identity)
    if file is None:
        file = _files[identity] = AliveFile(path, descriptor, identity)
    else:  # a database that was replaced is opened anew while the old one is still open
        file.add(descriptor)
    file.users += 1
    return file


def leave(file: AliveFile) -> None:
    """Let go of it; the last user closes it. Not to be called by two threads at once."""
    file.users -= 1
    if file.users == 0:
        if _files.get(file.identity) is file:
            del _files[file.identity]
        file.close()


def _in_child() -> None:
    for file in _files.values():
        file.abandon()
    _files.clear()


run_in_forked_child(_in_child)

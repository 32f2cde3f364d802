"""Record locks on a file, behind one face for every platform.

POSIX record locks fall when their process dies, are not inherited by forked children, and tell who holds them;
they do not exclude two users inside one process, which :mod:`~standfast.stores.sqlite.turn` takes care of. The
Windows half is written for but untested.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from typing import Final

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
        """Lock one byte, waiting for whoever has it."""
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
        """Lock one byte, waiting for whoever has it."""
        while True:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, offset)
            except OSError as problem:
                # The kernel looks for deadlocks between processes, not threads, so two threads with two stores
                # can look like one. There is none: the turn is the last lock that anyone takes.
                if problem.errno != errno.EDEADLK:
                    raise
                time.sleep(_DEADLOCK_PAUSE)
            else:
                return

    def unlock(descriptor: int, offset: int) -> None:
        """Give one byte back."""
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, offset)

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
        """Return the other process that holds a byte, or any from there on; None if nobody or unknown."""
        if sys.platform != "linux":
            return None
        layout = "@hhqqi"
        asked = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, offset, not to_the_end, 0).ljust(
            struct.calcsize("@hhqqiq"), b"\0"
        )
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
        kind, _, _, _, holder = struct.unpack_from(layout, answer)
        return None if kind == fcntl.F_UNLCK else holder

"""A fair turn to write, between processes and between the handles of one process.

SQLite's own busy handler lets a process that has just committed take the lock again before anyone else. Here two
file locks make a turnstile: whoever wants the turn first takes *next*, then *active*, then lets *next* go. One that
has just finished finds *next* taken by the one who waits, and so gets behind it.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final, final

from standfast.clock import monotonic
from standfast.stores.sqlite.files import open_private
from standfast.stores.sqlite.locking import lock, lock_holder, try_lock_through, unlock

_NEXT: Final = 0
_ACTIVE: Final = 1
_STEP: Final = 0.002


@final
class Turn:
    """The right to write to one database. All handles of this process on it share one ``Turn``.

    They must: a record lock falls when *any* descriptor of its file is closed in the process. ``here`` is what one
    of them holds while it has the turn or waits for it.
    """

    def __init__(self, path: str) -> None:
        self._descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        self.here: Final = threading.Lock()

    def try_take(self) -> bool:
        """Take the turn if nobody has it and nobody waits for it."""
        if not self.here.acquire(blocking=False):
            return False
        taken = False
        try:
            taken = try_lock_through(self._descriptor, _NEXT)
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
        except BaseException:
            self.here.release()
            raise

    def give(self) -> None:
        """Give the turn back."""
        try:
            unlock(self._descriptor, _ACTIVE)
        finally:
            self.here.release()

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *exc: object) -> None:
        self.give()

    def holder(self) -> int | None:
        """Return the process that has the turn, where the platform tells; None if nobody or this one."""
        return lock_holder(self._descriptor, _ACTIVE)

    def close(self) -> None:
        """Close the lock file."""
        os.close(self._descriptor)

"""What all handles of one process on the same database share: the turn to write, the lifeline, the guard and the bells.

A fork needs care. SQLite keeps its own account of the locks a process holds, and a child inherits the account but not
the locks. So every fork waits for a moment at which no thread is inside SQLite, and the child then closes what it
inherited: it starts with a clean account and can open the same file itself.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import TYPE_CHECKING, Final, final

from standfast.clock import monotonic
from standfast.errors import ForkedError, StoreClosedError, StoreGoneError
from standfast.stores.bells import Bells
from standfast.stores.forks import run_around_fork, run_in_forked_child
from standfast.stores.sqlite.files import ALIVE, Identity
from standfast.stores.sqlite.foreign import Guard
from standfast.stores.sqlite.lifelines import come_alive, leave
from standfast.stores.sqlite.turn import Turn

if TYPE_CHECKING:
    from standfast.stores.sqlite.driver import Connection

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
        "bells",
        "connections",
        "guard",
        "identity",
        "lock",
        "path",
        "stands_still",
        "turn",
        "users",
        "wall_ahead",
    )

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self.identity: Final = Identity(path)
        self.turn: Final = Turn(f"{path}-turn")
        try:
            self.alive: Final = come_alive(path + ALIVE)
        except BaseException:
            self.turn.close()
            raise
        try:
            self.guard: Final = Guard(path, self.identity.database)
        except BaseException:
            self.close()
            raise
        self.bells: Final = Bells()
        self.lock: Final = threading.Lock()
        self.connections: Final[list[Connection]] = []
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
        leave(self.alive)

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
        if not self.stands_still or any(connection.in_transaction for connection in self.connections):
            for connection in self.connections:  # closing one in the midst of something would undo it for the parent
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
            return False
        for connection in self.connections:
            connection.close()
        self.turn.close()
        return True


_files: dict[str, SharedFile] = {}
_left_open: set[tuple[int, int]] = set()
_lock = threading.Lock()


def share(path: str) -> SharedFile:
    """Return this process's shared part of the database at ``path``."""
    with _lock:
        file = _files.get(path)
        if file is None or not file.identity.is_current():
            if Identity(path).database in _left_open:
                raise ForkedError(path, "a thread used it at the moment of the fork; open it in a process of its own")
            file = _files[path] = SharedFile(path)
        file.users += 1
        return file


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

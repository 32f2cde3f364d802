"""What all handles of one process on the same database share: the turn to write, the guard and the bells."""

from __future__ import annotations

import threading
from typing import Final, final

from holdfast.stores.bells import Bells
from holdfast.stores.forks import run_in_forked_child
from holdfast.stores.sqlite.files import Identity
from holdfast.stores.sqlite.foreign import Guard
from holdfast.stores.sqlite.turn import Turn


@final
class SharedFile:
    """One database file in this process. Get it with :func:`share`, give it back with :func:`unshare`."""

    __slots__ = ("bells", "guard", "identity", "lock", "path", "turn", "users")

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self.identity: Final = Identity(path)
        self.guard: Final = Guard(path, self.identity.database)
        self.turn: Final = Turn(f"{path}-turn")
        self.bells: Final = Bells()
        self.lock: Final = threading.Lock()
        self.users = 0


_files: dict[str, SharedFile] = {}
_lock = threading.Lock()


def share(path: str) -> SharedFile:
    """Return this process's shared part of the database at ``path``."""
    with _lock:
        file = _files.get(path)
        if file is None or not file.identity.is_current():
            file = _files[path] = SharedFile(path)
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
            file.turn.close()


def _forget() -> None:
    global _lock  # noqa: PLW0603 -- the parent's lock may have been held by a thread that the child has not
    _lock = threading.Lock()
    _files.clear()


run_in_forked_child(_forget)

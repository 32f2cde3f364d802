"""Keeping other libraries off the file.

POSIX drops all of a process's locks on a file when *any* descriptor of it is closed in that process. A second SQLite
library that opens and closes our file (the standard ``sqlite3`` module carries its own), or a plain ``open()``, would
make us lose acknowledged commits without a trace. Two nets: ``sqlite3.connect`` and ``open`` on our files are refused
as they happen, and unknown descriptors are looked for when a store is opened and from time to time.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import urllib.parse
from typing import TYPE_CHECKING, Final, cast, final

from standfast.errors import ForeignHandleError
from standfast.stores.forks import run_in_forked_child
from standfast.stores.sqlite.files import ALIVE, SIDE_FILES

if TYPE_CHECKING:
    from collections.abc import Generator

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
class Guard:
    """Watches one database file for as long as this process has it open."""

    __slots__ = ("_identity", "_ours", "_path", "seen")

    def __init__(self, path: str, identity: tuple[int, int]) -> None:
        self._path, self._identity = path, identity
        self._ours: frozenset[int] = frozenset()
        self.seen: ForeignHandleError | None = None
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
            self.seen = ForeignHandleError(
                self._path,
                f"another library in this process has it open (descriptor {min(strange)}), which breaks its locks; "
                "close both, give your data a file of its own, and open the store anew",
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
        raise ForeignHandleError(
            path, f"{event} would break its locks in this process; give your data a file of its own"
        )


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

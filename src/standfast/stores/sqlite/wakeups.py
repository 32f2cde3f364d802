"""Doorbells: hints between the processes that use one database.

A watch binds a datagram socket in a folder beside the file, under a name that is computed from the prefix it listens
to. A committer looks at the folder (only when it has changed) and sends to just the sockets whose prefix covers a
changed or woken key. Nothing waits, nothing retries: hints may be lost, and a slow check is the net.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import socket
import sys
import zlib
from typing import TYPE_CHECKING, Final, final

from standfast.clock import SYSTEM_CLOCK
from standfast.ids import new_id
from standfast.keys import RecordKey
from standfast.stores.liveness import ForkGuard, run_in_forked_child
from standfast.stores.sqlite.file import FRESH, open_private, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from standfast.stores.backend import Ear
    from standfast.stores.protocol import Wake


_LONGEST_ADDRESS: Final = 100  # socket addresses have room for 104 to 108 bytes
_LONGEST_NAME: Final = 64  # room for _name_of(), the id of the process and a number
_HEADER: Final = 2
_AT_ONCE: Final = 100  # hints heard before the loop gets its turn again

_process = new_id()
_numbers: Final = itertools.count()


def _become_another() -> None:
    global _process  # noqa: PLW0603 -- a forked child is another process, and wants to be heard by its parent
    _process = new_id()


run_in_forked_child(_become_another)


@final
class Doorbells:
    """The folder of doorbells of one database, as one handle sees it."""

    __slots__ = ("_bells", "_changed_at", "_descriptor", "_folder", "_guard", "_lengths", "_others", "_sender")

    def __init__(self, path: str) -> None:
        self._guard: Final = ForkGuard(path)
        self._folder: Final = f"{path}-wakes"
        try:
            os.mkdir(self._folder, 0o700)  # noqa: PTH102 -- plain text throughout this module
        except FileExistsError:
            pass
        except OSError as problem:
            raise refusal(self._folder, "it cannot be made", problem) from problem
        self._descriptor: Final = open_private(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        self._sender: Final = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)  # noqa: FBT003 -- the standard library takes it so
        self._bells: Final[dict[_Doorbell, list[str]]] = {}
        self._changed_at = 0
        self._others: dict[str, list[str]] = {}
        self._lengths: tuple[int, ...] = ()
        self._remove_dead()

    def _remove_dead(self) -> None:
        """Remove the doorbells of processes that died without taking them down."""
        for name in os.listdir(self._descriptor):  # noqa: PTH208 -- plain text throughout this module
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as visitor:
                try:
                    visitor.connect(self._address(name))
                except ConnectionRefusedError:
                    self._remove_if_dead(name)
                except OSError:
                    continue

    def listen(self, prefixes: Iterable[RecordKey], ear: Ear) -> Callable[[], None]:
        """Let other processes ring ``ear``, until the returned function is called."""
        try:
            bell = _Doorbell(tuple(prefixes), ear)
        except OSError:  # no descriptors left: hints of other processes are lost, and the slow check is the net
            return _nothing
        names = self._bells[bell] = [f"{_name_of(prefix)}.{_process}.{next(_numbers)}" for prefix in bell.prefixes]
        try:
            bell.bind(self._address(names[0]))
            for name in names[1:]:
                os.link(f"{self._folder}/{names[0]}", f"{self._folder}/{name}")
        except OSError:  # no space, or the folder is gone: the same
            self._unlisten(bell)
        return functools.partial(self._unlisten, bell)

    def _unlisten(self, bell: _Doorbell) -> None:
        if self._guard.crossed:  # a forked child shares the socket and the loop's selector: they are its parent's
            return
        names = self._bells.pop(bell, None)
        if names is not None:
            for name in names:
                self._remove(name)
            bell.close()

    def ring(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Ring the doorbells of other processes whose prefix covers a changed key or the address of a wake."""
        try:
            changed_at = os.stat(self._descriptor).st_mtime_ns  # noqa: PTH116 -- a descriptor
        except OSError:
            return
        if changed_at != self._changed_at:
            self._look(changed_at)
        if not self._others:
            return
        for key in changed:
            self._send(key, key)
        for wake in wakes:
            self._send(wake.to, wake.about or wake.to)

    def _send(self, to: RecordKey, about: RecordKey) -> None:
        for length in self._lengths:
            if length > len(to):
                return
            for name in self._others.get(_name_of(to[:length]), ()):
                self._send_to(name, len(to).to_bytes(_HEADER, "big") + to + about)

    def _send_to(self, name: str, message: bytes) -> None:
        try:
            self._sender.sendto(message, self._address(name))
        except ConnectionRefusedError:
            self._remove_if_dead(name)
        except OSError:  # gone, or its queue is full: it has enough to wake up for
            return

    def _look(self, changed_at: int) -> None:
        try:
            names = os.listdir(self._descriptor)  # noqa: PTH208 -- plain text throughout this module
        except OSError:
            return
        self._others = {}
        for name in names:
            prefix, _, owner = name.partition(".")
            if not owner.startswith(_process):
                self._others.setdefault(prefix, []).append(name)
        self._lengths = tuple(sorted({_length_in(prefix) for prefix in self._others}))
        is_fresh = SYSTEM_CLOCK.wall() - changed_at // 1000 < FRESH
        self._changed_at = 0 if is_fresh else changed_at

    def _address(self, name: str) -> str:
        if sys.platform == "linux":
            return f"/proc/self/fd/{self._descriptor}/{name}"
        return f"{self._folder}/{name}"

    def _remove_if_dead(self, name: str) -> None:
        # A socket is there for a moment before it can be rung. After that its process has died for sure, and the
        # name is its own and never comes back.
        with contextlib.suppress(OSError):
            made_at = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mtime_ns // 1000
            if abs(SYSTEM_CLOCK.wall() - made_at) > FRESH:
                self._remove(name)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._descriptor)

    def close(self) -> None:
        """Take down every doorbell and close what sends."""
        for bell in tuple(self._bells):
            self._unlisten(bell)
        self._sender.close()
        os.close(self._descriptor)


@final
class _Doorbell:
    """The socket of one watch."""

    __slots__ = ("_ear", "_loop", "_socket", "prefixes")

    def __init__(self, prefixes: tuple[RecordKey, ...], ear: Ear) -> None:
        self.prefixes, self._ear = prefixes, ear
        self._loop: Final = asyncio.get_running_loop()
        self._socket: Final = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)  # noqa: FBT003 -- the standard library takes it so

    def bind(self, address: str) -> None:
        self._socket.bind(address)
        self._loop.add_reader(self._socket, self._answer)

    def _answer(self) -> None:
        heard = 0
        with contextlib.suppress(BlockingIOError):
            while heard < _AT_ONCE:
                self._hear(self._socket.recv(4096))
                heard += 1
        if heard >= _queue_length():  # it may have been full, and then something was not heard
            self._ear.hear(None)

    def _hear(self, message: bytes) -> None:
        size = int.from_bytes(message[:_HEADER], "big")
        to, about = message[_HEADER : _HEADER + size], message[_HEADER + size :]
        if any(to.startswith(prefix) for prefix in self.prefixes):
            self._ear.hear(RecordKey.from_encoded(about))

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()


def _nothing() -> None:
    """Forget a doorbell that could not be put up."""


def _queue_length() -> int:
    return 10  # what kernels give a datagram socket unless told otherwise


def _name_of(prefix: bytes) -> str:
    """Return what stands for a prefix in a file name, where its text has no room. Who is rung by mistake can tell."""
    return f"{len(prefix)}-{zlib.crc32(prefix):08x}"


def _length_in(name: str) -> int:
    length = name.partition("-")[0]
    return int(length) if length.isdecimal() else 0


def is_supported(path: str) -> bool:
    """Tell whether doorbells work for a database at ``path`` on this platform."""
    if not hasattr(socket, "AF_UNIX") or sys.platform == "win32":
        return False
    return sys.platform == "linux" or len(path) + len("-wakes/") + _LONGEST_NAME < _LONGEST_ADDRESS

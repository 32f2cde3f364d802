"""Notifications between the processes that use one database, over datagram sockets.

A watch binds an *inbox*, a datagram socket in a folder beside the file, under a name that is computed from the prefix
it subscribes to. A committer reads the folder (only when it has changed) and sends to just the inboxes whose prefix
covers a changed or woken key. Nothing waits, nothing retries: notifications may be lost, and polling finds what was
missed.
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
from standfast.stores.protocol import Record, Wake
from standfast.stores.sqlite.file import FRESH, open_private, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from standfast.stores.backend import Subscriber


_LONGEST_ADDRESS: Final = 100  # socket addresses have room for 104 to 108 bytes
_LONGEST_NAME: Final = 64  # room for _name_of(), the id of the process and a number
_HEADER: Final = 2
_VERSION: Final = 8
_SIZES: Final = 2 * _HEADER + _VERSION
_HAS_RECORD: Final = 1 << 15  # in the first length: no key is that long
_LONGEST_MESSAGE: Final = 8_192
_AT_ONCE: Final = 100  # messages taken before the loop gets its turn again
_QUEUE_LENGTH: Final = 10  # what kernels give a datagram socket unless told otherwise

_process = new_id()
_numbers: Final = itertools.count()


def _become_another() -> None:
    global _process  # noqa: PLW0603 -- a forked child is another process, and its parent is to receive what it sends
    _process = new_id()


run_in_forked_child(_become_another)


@final
class WakeSockets:
    """The inboxes of one database, as one handle sees them."""

    __slots__ = ("_changed_at", "_descriptor", "_folder", "_guard", "_inboxes", "_lengths", "_others", "_sender")

    def __init__(self, path: str) -> None:
        self._guard: Final = ForkGuard(path)
        self._folder: Final = f"{path}-wakes"
        try:
            os.mkdir(self._folder, 0o700)  # noqa: PTH102 -- plain text throughout this module
        except FileExistsError:
            pass
        except OSError as error:
            raise refusal(self._folder, "it cannot be made", error) from error
        self._descriptor: Final = open_private(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        self._sender: Final = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)  # noqa: FBT003 -- the standard library takes it so
        self._inboxes: Final[dict[_Inbox, list[str]]] = {}
        self._changed_at = 0
        self._others: dict[str, list[str]] = {}
        self._lengths: tuple[int, ...] = ()
        self._remove_dead()

    def _remove_dead(self) -> None:
        """Remove the inboxes of processes that died without removing them."""
        for name in os.listdir(self._descriptor):  # noqa: PTH208 -- plain text throughout this module
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                try:
                    probe.connect(self._address(name))
                except ConnectionRefusedError:
                    self._remove_if_dead(name)
                except OSError:
                    continue

    def subscribe(self, prefixes: Iterable[RecordKey], subscriber: Subscriber) -> Callable[[], None]:
        """Let other processes notify ``subscriber``, until the returned function is called."""
        try:
            inbox = _Inbox(tuple(prefixes), subscriber)
        except OSError:  # no descriptors left: polling finds what other processes commit
            return _nothing
        names = self._inboxes[inbox] = [f"{_name_of(prefix)}.{_process}.{next(_numbers)}" for prefix in inbox.prefixes]
        try:
            inbox.bind(self._address(names[0]))
            for name in names[1:]:
                os.link(f"{self._folder}/{names[0]}", f"{self._folder}/{name}")
        except OSError:  # no space, or the folder is gone: the same
            self._remove_inbox(inbox)
        return functools.partial(self._remove_inbox, inbox)

    def _remove_inbox(self, inbox: _Inbox) -> None:
        if self._guard.crossed:  # a forked child shares the socket and the loop's selector: they are its parent's
            return
        names = self._inboxes.pop(inbox, None)
        if names is not None:
            for name in names:
                self._remove(name)
            inbox.close()

    def notify(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Send to the inboxes of other processes whose prefix covers a changed key or the address of a wake."""
        try:
            changed_at = os.stat(self._descriptor).st_mtime_ns  # noqa: PTH116 -- a descriptor
        except OSError:
            return
        if changed_at != self._changed_at:
            self._read_folder(changed_at)
        if not self._others:
            return
        for wake in wakes:  # before the rest: some process waits for it
            self._send(wake)
        for key in changed:
            self._send(Wake(key))

    def _send(self, wake: Wake) -> None:
        to = wake.to
        for length in self._lengths:
            if length > len(to):
                return
            for name in self._others.get(_name_of(to[:length]), ()):
                try:
                    self._sender.sendto(_encoded(wake), self._address(name))
                except ConnectionRefusedError:
                    self._remove_if_dead(name)
                except OSError:  # gone, or its queue is full: it has enough to wake up for
                    continue

    def _read_folder(self, changed_at: int) -> None:
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
        # A socket is there for a moment before it can be sent to. After that its process has certainly died, and the
        # name is its own and never comes back.
        with contextlib.suppress(OSError):
            made_at = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mtime_ns // 1000
            if abs(SYSTEM_CLOCK.wall() - made_at) > FRESH:
                self._remove(name)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._descriptor)

    def close(self) -> None:
        """Remove every inbox and close the sender."""
        for inbox in tuple(self._inboxes):
            self._remove_inbox(inbox)
        self._sender.close()
        os.close(self._descriptor)


@final
class _Inbox:
    """The socket of one watch."""

    __slots__ = ("_loop", "_socket", "_subscriber", "prefixes")

    def __init__(self, prefixes: tuple[RecordKey, ...], subscriber: Subscriber) -> None:
        self.prefixes, self._subscriber = prefixes, subscriber
        self._loop: Final = asyncio.get_running_loop()
        self._socket: Final = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)  # noqa: FBT003 -- the standard library takes it so

    def bind(self, address: str) -> None:
        self._socket.bind(address)
        self._loop.add_reader(self._socket, self._receive)

    def _receive(self) -> None:
        taken = 0
        with contextlib.suppress(BlockingIOError):
            while taken < _AT_ONCE:
                wake = _decoded(self._socket.recv(_LONGEST_MESSAGE))
                taken += 1
                if any(wake.to.startswith(prefix) for prefix in self.prefixes):
                    self._subscriber.notify(wake.about, wake.moved)
        if taken >= _QUEUE_LENGTH:  # it may have been full, and then something was lost
            self._subscriber.notify(None)

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()


def _encoded(wake: Wake) -> bytes:
    """Return a message: the length of ``to``, that, and ``about``; or with the moved record in place of ``about``.

    One that is too long goes without the record: its reader looks for itself.
    """
    plain = len(wake.to).to_bytes(_HEADER, "big") + wake.to + (wake.about or wake.to)
    moved = wake.moved
    if moved is None or len(plain) + _SIZES + len(moved.value) > _LONGEST_MESSAGE:
        return plain
    sizes = (_HAS_RECORD + len(wake.to)).to_bytes(_HEADER, "big"), len(moved.key).to_bytes(_HEADER, "big")
    return b"".join((*sizes, moved.version.to_bytes(_VERSION, "big"), wake.to, moved.key, moved.value))


def _decoded(message: bytes) -> Wake:
    read = RecordKey.from_encoded
    size = int.from_bytes(message[:_HEADER], "big")
    if size < _HAS_RECORD:
        return Wake(read(message[_HEADER : _HEADER + size]), read(message[_HEADER + size :]))
    key_starts = _SIZES + size - _HAS_RECORD
    key_ends = key_starts + int.from_bytes(message[_HEADER : 2 * _HEADER], "big")
    key, version = read(message[key_starts:key_ends]), int.from_bytes(message[2 * _HEADER : _SIZES], "big")
    return Wake(read(message[_SIZES:key_starts]), key, Record(key, message[key_ends:], version))


def _nothing() -> None:
    """Do nothing: there is no inbox to remove."""


def _name_of(prefix: bytes) -> str:
    """Return what stands for a prefix in a file name, which has no room for it. An inbox drops what is not for it."""
    return f"{len(prefix)}-{zlib.crc32(prefix):08x}"


def _length_in(name: str) -> int:
    length = name.partition("-")[0]
    return int(length) if length.isdecimal() else 0


def is_supported(path: str) -> bool:
    """Return True if inboxes work for a database at ``path`` on this platform."""
    if not hasattr(socket, "AF_UNIX") or sys.platform == "win32":
        return False
    return sys.platform == "linux" or len(path) + len("-wakes/") + _LONGEST_NAME < _LONGEST_ADDRESS

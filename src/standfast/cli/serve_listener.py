"""Where a server listens, and how it takes connections, also when its descriptors run out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from standfast.cli.exits import FAILED, end
from standfast.logs import as_logfmt

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from standfast.logs import Fact
    from standfast.transports.log_budget import LogBudget

BACKLOG: Final = 2_048
AT_ONCE: Final = 64
"""How many connections are taken before others have their turn."""

PAUSE: Final = 0.5
"""Seconds after which it is tried again when there are no descriptors left."""

KEPT: Final = 64
"""Descriptors that are kept for everything but connections: the store, its files, and what actions open."""

SPENT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
OWNER_ONLY: Final = 0o177
"""The mask of a file that only its owner may use."""

_log: Final = logging.getLogger("standfast.edge")


def descriptors() -> int:
    """Raise the limit of open files as far as the system lets us, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems have a lower limit than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connections(wanted: int, most: int) -> int:
    """Return how many connections there may be within a limit of open files; it is said if that is less than wanted."""
    possible = wanted if most == resource.RLIM_INFINITY else max(1, most - KEPT)
    if possible < wanted:
        facts: dict[str, Fact] = {"wanted": wanted, "connections": possible, "descriptors": most}
        _log.warning("%s", as_logfmt({"event": "connections-lowered", **facts}))
    return min(wanted, possible)


@contextlib.contextmanager
def on_port(host: str, port: int, patience: float) -> Generator[socket.socket]:
    """Listen at an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as problem:
        end(f"cannot listen on {host} port {port}: {problem}", FAILED, "Choose another with --host and --port.")
    with listener:
        # Whatever is accepted inherits it. Without it an answer's body waits 40 ms for the caller to confirm the head.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Likewise: a connection whose other side does not read is cut off, with all that waits in it. Where a system
        # cannot do that, what waits is as much as its buffers hold.
        if (unread := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
            listener.setsockopt(socket.IPPROTO_TCP, unread, max(1, round(patience * 1_000)))
        yield listener


@contextlib.contextmanager
def on_file(path: str) -> Generator[socket.socket]:
    """Listen at a unix socket that only its owner can open. What a server has left that was killed is taken away."""
    _clear(path)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(OWNER_ONLY)  # it never has another mode, not even for a moment
    try:
        listener.bind(path)
        made = Path(path).stat()
    except OSError as problem:
        listener.close()
        end(f"cannot listen at {path}: {problem}", FAILED, "Choose another file with --uds.")
    finally:
        os.umask(mask)
    with listener:
        listener.listen(BACKLOG)
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                if os.path.samestat(Path(path).stat(), made):  # and not that of a server that came after us
                    Path(path).unlink()


def _clear(path: str) -> None:
    try:
        mode = Path(path).lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        end(f"cannot listen at {path}: it is no socket", FAILED, "Choose another file with --uds.")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
        except OSError as problem:
            end(f"cannot listen at {path}: {problem}", FAILED, "Choose another file with --uds.")
    end(f"cannot listen at {path}: another server does", FAILED, "Stop it, or choose another file with --uds.")


def address_of(listener: socket.socket) -> str:
    """Return where a server can be reached."""
    name = listener.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host, port = name[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@final
class Acceptor:
    """Takes connections. When there are no descriptors left, it waits for a while, and says so once in a while.

    asyncio's own server tries again 2,000 times in a row then, and logs each with a traceback.

    Args:
        listener: Where they come in.
        make: Makes the protocol of one.
        log: Where it says so.
    """

    def __init__(self, listener: socket.socket, make: Callable[[], asyncio.Protocol], log: LogBudget) -> None:
        self._listener, self._make, self._log = listener, make, log
        self._loop: Final = asyncio.get_running_loop()
        self._connecting: Final[set[asyncio.Task[object]]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listener.settimeout(0)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Take no more."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        elif self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)

    async def wait_closed(self) -> None:
        """Return when those that were being taken are taken."""
        await asyncio.gather(*self._connecting, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as problem:
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(PAUSE, self._go_on)
                name = "descriptors-spent" if problem.errno in SPENT else "accept-failed"
                self._log.warning(name, problem=str(problem), pause=PAUSE)
                return
            connection.settimeout(0)
            task: asyncio.Task[object] = self._loop.create_task(self._take(connection))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _take(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection)
        except OSError:  # it has gone
            connection.close()

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

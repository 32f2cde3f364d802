"""Serving an application with uvicorn: where it listens, how it takes connections, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import math
import os
import resource
import signal
import socket
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, final

import click
import uvicorn
from uvicorn.config import LOGGING_CONFIG

from standfast.cli.probes import listening, watch
from standfast.cli.target import FAILED, end, reason_of, settle_in
from standfast.log_hook import as_logfmt
from standfast.telemetry.health import notifying_systemd
from standfast.telemetry.listener import EngineProbes
from standfast.web.protocol import HttpProtocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from standfast.log_budget import LogBudget
    from standfast.log_hook import Fact
    from standfast.web.app import App
    from standfast.web.edge import Edge
    from standfast.workflows.engine import Engine


# --- where a server listens, and how it takes connections, also when its descriptors run out -----------------------

BACKLOG: Final = 2_048
AT_ONCE: Final = 64
"""How many connections are taken before others have their turn."""

PAUSE: Final = 0.5
"""Seconds before the next attempt when there are no descriptors left."""

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
    """Return how many connections there may be within a limit of open files; warn if that is less than wanted."""
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
        end(f"cannot listen on {host} port {port}: {reason_of(problem)}", FAILED, "Choose another port with --port.")
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
    """Listen at a unix socket that only its owner can open. The socket of a server that was killed is replaced."""
    _clear(path)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(OWNER_ONLY)  # it never has another mode, not even for a moment
    try:
        listener.bind(path)
        made = Path(path).stat()
    except OSError as problem:
        listener.close()
        end(f"cannot listen at {path}: {reason_of(problem)}", FAILED, "Choose another file with --uds.")
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
    """Remove the socket of a server that was killed; refuse any other file, and the socket of a server that runs."""
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
            end(f"cannot listen at {path}: {reason_of(problem)}", FAILED, "Choose another file with --uds.")
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
    """Takes connections. When there are no descriptors left, it waits for a while, and logs that now and then.

    asyncio's own server tries again 2,000 times in a row then, and logs each with a traceback.

    Args:
        listener: Where they come in.
        make: Makes the protocol of a connection.
        log: Where it logs.
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
        """Return when the connections that were being taken are taken."""
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


# --- serving an application with uvicorn until a signal says to stop -----------------------------------------------

STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WS_MESSAGE: Final = 262_144
"""Bytes of one message over a WebSocket."""

WS_PING: Final = 20.0
PATIENCE: Final = 5
"""Seconds that requests have to end after their grace, when they were cancelled. Then their callers are cut off."""

OBJECTS: Final = 10_000
"""How many new objects there must be before the youngest are searched for cycles."""


async def run(  # noqa: PLR0913 -- keyword options
    app: App,
    name: str,
    listener: socket.socket,
    edge: Edge,
    grace: float,
    *,
    shows: str = "",
    quiet: bool,
    has_log: bool = False,
    place: tuple[str, int] | None = None,
) -> int:
    """Open an application, serve it, close it, and return the exit code to end with.

    Args:
        app: What is served.
        name: What it is called.
        listener: Where.
        edge: The limits of connections, and the trusted proxies.
        grace: How long requests have to end.
        shows: The token, if it is to be printed.
        quiet: Say nothing.
        has_log: Logs are configured, and uvicorn writes to them.
        place: Where probes and scrapes are answered besides.
    """
    app.grace = grace
    if place is not None:
        watch(app.engine)
    async with app, listening(place, EngineProbes(app.engine, app.health)) as probes:
        config = uvicorn.Config(
            app,
            http=HttpProtocol,
            loop="asyncio",
            ws="websockets-sansio",
            lifespan="off",  # it is open already: what goes wrong then is told in our words
            log_level="warning",
            log_config=None if has_log else LOGGING_CONFIG,
            access_log=False,
            proxy_headers=False,  # the edge knows whose word is taken
            server_header=False,
            timeout_graceful_shutdown=math.ceil(grace) + PATIENCE,
            ws_max_size=WS_MESSAGE,
            ws_ping_interval=WS_PING,
            ws_per_message_deflate=False,  # a few bytes could become megabytes
        )
        server = _Server(config, app, edge, quiet=quiet)
        # What a request leaves behind goes when it ends, without being searched for. Searching for cycles after every
        # 700 objects took a third of the time of a request.
        gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])
        address = address_of(listener)
        server.tell(f"serving {name} at {address} (process {os.getpid()})")
        if shows:
            server.tell(f"with this token a caller may do everything: {shows}")
            for page in app.pages:
                server.tell(f"open {address}{page}?token={shows}")
        if probes is not None:
            server.tell(f"probes and metrics at {probes.address}/health/ready and {probes.address}/metrics")
        async with notifying_systemd(), _ending_with(app.engine, server):
            await server.serve(sockets=[listener])
    server.tell("stopped")
    return 0


@contextlib.asynccontextmanager
async def _ending_with(engine: Engine, server: uvicorn.Server) -> AsyncGenerator[None]:
    """Stop the server if its worker ends by itself, and raise why: another process must take over."""
    worker = engine.worker
    if worker is None:
        yield
        return

    def stop(_: object) -> None:
        server.should_exit = True

    joined = asyncio.ensure_future(worker.join())
    joined.add_done_callback(stop)
    yield
    if joined.done():
        await joined
    joined.cancel()


@final
class _Server(uvicorn.Server):
    """uvicorn with signals of ours: the first lets requests end, the second ends the process as it would any other."""

    def __init__(self, config: uvicorn.Config, app: App, edge: Edge, *, quiet: bool) -> None:
        super().__init__(config)
        self._app, self._edge, self._quiet = app, edge, quiet

    def tell(self, words: str) -> None:
        """Print a line for the person who started this, if stdout is still read."""
        if not self._quiet:
            with contextlib.suppress(OSError):
                click.echo(words)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Listen for signals while serving, and until the application is closed."""
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, self._on_signal, number)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections in our way."""
        await self.lifespan.startup()
        make = partial(HttpProtocol, self.config, self.server_state, self.lifespan.state, edge=self._edge)
        taking = [Acceptor(each, make, self._edge.log) for each in sockets or ()]
        self.servers = cast("Any", taking)  # all that uvicorn does with them is to close them
        settle_in()
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop serving; callers whose requests are stopped after their grace are told so."""
        ending = asyncio.get_running_loop().create_task(self._app.let_end())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)

    def _on_signal(self, number: int) -> None:
        if self.should_exit:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.tell(f"{signal.Signals(number).name}: letting requests end; once more to end at once")
        self.should_exit = True
        self._app.drain()

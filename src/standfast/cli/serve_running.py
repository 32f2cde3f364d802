"""Serving an application with uvicorn until a signal says to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import signal
import socket
from typing import TYPE_CHECKING, Final, final

import click
import uvicorn

from standfast.cli.exits import FAILED, end

if TYPE_CHECKING:
    from collections.abc import Generator

    from standfast.transports.app import App

STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WS_MESSAGE: Final = 262_144
"""Bytes of one message over a WebSocket."""

WS_PING: Final = 20.0
BACKLOG: Final = 2_048
PATIENCE: Final = 5
"""Seconds that requests have which were told to stop when their grace was over. Then their callers are cut off."""

OBJECTS: Final = 10_000
"""How many more objects there have to be before the youngest are looked through for cycles."""


async def run(app: App, name: str, place: tuple[str, int], grace: float, *, quiet: bool) -> int:
    """Open an application, serve it, close it, and return the exit code to end with."""
    with _listening(*place, app.limits.patience) as listener:
        app.grace = grace
        async with app:
            config = uvicorn.Config(
                app,
                http="httptools",
                loop="asyncio",
                ws="websockets-sansio",
                lifespan="off",  # it is open already: what goes wrong then is told in our words
                log_level="warning",
                access_log=False,
                proxy_headers=False,  # whoever asks must not say where they ask from
                server_header=False,
                timeout_graceful_shutdown=math.ceil(grace) + PATIENCE,
                ws_max_size=WS_MESSAGE,
                ws_ping_interval=WS_PING,
                ws_per_message_deflate=False,  # a few bytes could become megabytes
            )
            server = _Server(config, app, quiet=quiet)
            _let_garbage_be()
            server.tell(f"serving {name} at {_address(listener)} (process {os.getpid()})")
            await server.serve(sockets=[listener])
        server.tell("stopped")
    return 0


def _let_garbage_be() -> None:
    """Look for cycles less often, and never among what was there before the first request.

    What a request leaves behind goes when it ends, without being looked for. Looking for it after every 700 objects
    took a third of the time of a request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])


def _listening(host: str, port: int, patience: float) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as problem:
        end(f"cannot listen on {host} port {port}: {problem}", FAILED, "Choose another with --host and --port.")
    # Whatever is accepted inherits it. Without it the body of an answer waits 40 ms for the caller to confirm the head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Likewise: a connection whose other side does not read is cut off, with all that waits in it. Where a system cannot
    # do that, what waits is as much as its buffers hold.
    if (unread := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        listener.setsockopt(socket.IPPROTO_TCP, unread, max(1, round(patience * 1_000)))
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@final
class _Server(uvicorn.Server):
    """uvicorn with signals of ours: the first lets requests end, the second ends the process as it would any other."""

    def __init__(self, config: uvicorn.Config, app: App, *, quiet: bool) -> None:
        super().__init__(config)
        self._app, self._quiet = app, quiet

    def tell(self, words: str) -> None:
        """Say something to whoever started us."""
        if not self._quiet:
            click.echo(words)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Listen for signals while serving, and until the application is closed."""
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, self._hear, number)
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop serving; whoever waits for a request that is stopped after its grace is told so."""
        ending = asyncio.get_running_loop().create_task(self._app.let_end())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)

    def _hear(self, number: int) -> None:
        if self.should_exit:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.tell(f"{signal.Signals(number).name}: letting requests end; once more to end at once")
        self.should_exit = True
        self._app.drain()

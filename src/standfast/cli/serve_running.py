"""Serving an application with uvicorn until a signal says to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast, final

import click
import uvicorn

from standfast.cli.serve_listener import Acceptor, address_of
from standfast.transports.protocol import HttpProtocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator

    from standfast.transports.app import App
    from standfast.transports.edge import Edge

STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WS_MESSAGE: Final = 262_144
"""Bytes of one message over a WebSocket."""

WS_PING: Final = 20.0
PATIENCE: Final = 5
"""Seconds that requests have which were told to stop when their grace was over. Then their callers are cut off."""

OBJECTS: Final = 10_000
"""How many more objects there have to be before the youngest are looked through for cycles."""


async def run(
    app: App, name: str, listener: socket.socket, edge: Edge, grace: float, *, shows: str = "", quiet: bool
) -> int:
    """Open an application, serve it, close it, and return the exit code to end with.

    Args:
        app: What is served.
        name: What it is called.
        listener: Where.
        edge: What is taken from anybody.
        grace: How long requests have to end.
        shows: The token, if it is to be shown to whoever started this.
        quiet: Say nothing.
    """
    app.grace = grace
    async with app:
        config = uvicorn.Config(
            app,
            http=HttpProtocol,
            loop="asyncio",
            ws="websockets-sansio",
            lifespan="off",  # it is open already: what goes wrong then is told in our words
            log_level="warning",
            access_log=False,
            proxy_headers=False,  # the edge knows whose word is taken
            server_header=False,
            timeout_graceful_shutdown=math.ceil(grace) + PATIENCE,
            ws_max_size=WS_MESSAGE,
            ws_ping_interval=WS_PING,
            ws_per_message_deflate=False,  # a few bytes could become megabytes
        )
        server = _Server(config, app, edge, quiet=quiet)
        _let_garbage_be()
        address = address_of(listener)
        server.tell(f"serving {name} at {address} (process {os.getpid()})")
        if shows:
            server.tell(f"whoever has this token may do everything: {shows}")
            for page in app.pages:
                server.tell(f"open {address}{page}?token={shows}")
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


@final
class _Server(uvicorn.Server):
    """uvicorn with signals of ours: the first lets requests end, the second ends the process as it would any other."""

    def __init__(self, config: uvicorn.Config, app: App, edge: Edge, *, quiet: bool) -> None:
        super().__init__(config)
        self._app, self._edge, self._quiet = app, edge, quiet

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

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections in our way."""
        await self.lifespan.startup()
        make = partial(HttpProtocol, self.config, self.server_state, self.lifespan.state, edge=self._edge)
        taking = [Acceptor(each, make, self._edge.log) for each in sockets or ()]
        self.servers = cast("Any", taking)  # all that uvicorn does with them is to close them
        self.started = True

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

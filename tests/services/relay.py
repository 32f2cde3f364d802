"""A relay between clients and servers: it follows a primary, holds bytes to make lag, and cuts connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

PIECE = 1 << 18


def port_of(url: str) -> int:
    """Return the port that a URL names."""
    return int(urlsplit(url).netloc.rpartition(":")[2])


def with_port(url: str, port: int) -> str:
    """Return a URL with another port on this machine."""
    parts = urlsplit(url)
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return parts._replace(netloc=f"{user}127.0.0.1:{port}").geturl()


@final
class Relay:
    """Carries bytes to one server, on a thread of its own. Its methods may be called from anywhere.

    Holding keeps connections open and carries nothing: to a client the server is partitioned off, to a standby the
    primary lags. What was held is carried when it goes on.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._open = asyncio.Event()
        self._answering = asyncio.Event()
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(_open_event)
        self._shunned = b""
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="relay")
        self._thread.start()
        self._server = self._do(self._start())

    async def _start(self) -> asyncio.Server:
        self._open.set()
        self._answering.set()
        return await asyncio.start_server(self._carry, sock=self._listening)

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def point_at(self, target: int, *, cut: bool = True) -> None:
        """Carry new connections to another port; those that are open are cut, or stay with the old server."""
        self._target = target
        if cut:
            self.cut()

    def hold(self, source: str = "") -> None:
        """Carry nothing from now on, and close nothing: of all connections, or of those from the address ``source``."""
        self._do(self._hold(source))

    async def _hold(self, source: str) -> None:
        (self._gates[source] if source else self._open).clear()

    def carry_on(self) -> None:
        """Carry again, what was held first."""
        self._do(self._carry_on())

    async def _carry_on(self) -> None:
        for each in (self._open, self._answering, *self._gates.values()):
            each.set()

    def mute(self) -> None:
        """Carry what is sent to the server, and none of its answers."""
        self._loop.call_soon_threadsafe(self._answering.clear)

    def shun(self, mark: bytes) -> None:
        """Break every connection, and carry nothing from now on of those that send ``mark``; empty: carry all again."""
        self._shunned = mark
        self.cut()

    def cut(self) -> None:
        """Break every connection; both ends see a reset, and what was held is lost."""
        self._do(self._cut())

    async def _cut(self) -> None:
        for end in tuple(self._ends):
            _reset(end)
        for task in tuple(self._tasks):
            task.cancel()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._ends.add(writer)
        back: asyncio.StreamWriter | None = None
        try:
            gate = self._gates[writer.get_extra_info("peername")[0]]
            await self._open.wait()
            await gate.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            self._ends.add(back)
            await asyncio.gather(
                self._pass_on(reader, back, self._open, gate, is_asking=True),
                self._pass_on(there, writer, self._open, gate, self._answering),
            )
        except (OSError, asyncio.CancelledError):
            _reset(writer)
        finally:
            self._tasks.discard(task)
            for end in (writer, back):
                if end is not None:
                    self._ends.discard(end)
                    end.close()

    async def _pass_on(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        *allowed: asyncio.Event,
        is_asking: bool = False,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(PIECE):
                if is_asking and self._shunned and self._shunned in data:
                    await asyncio.Event().wait()  # until it is cut
                for each in allowed:
                    await each.wait()
                target.write(data)
                await target.drain()
        target.close()

    def close(self) -> None:
        """End it, and wait until its thread has ended."""
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        # What was accepted a moment ago has a task that is not known here yet; and asyncio drops it, unclosed, if the
        # server is closed before that task has run.
        self._loop.remove_reader(self._listening)
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await self._cut()
            await asyncio.wait(others, timeout=0.05)
        self._server.close()
        for _ in range(3):  # transports close their sockets on later turns of the loop
            await asyncio.sleep(0)


def _open_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def _reset(end: asyncio.StreamWriter) -> None:
    raw: socket.socket | None = end.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.transport.abort()

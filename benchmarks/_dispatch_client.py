"""A client that costs less than what it measures: prepared bytes out, and as little of the answer read as will do."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import time
from typing import TYPE_CHECKING, Final

from benchmarks._dispatch_flow import BODY, TOKEN
from benchmarks._workflow_windows import Timing

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks._workflow_windows import Window

    Asking = Callable[[int], Callable[[], bytes]]
    """Returns, by the number of a connection, what says the next request of it."""

AT_ONCE: Final = 16
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_END: Final = b"\r\n\r\n"


def request(action: str, body: bytes = BODY, **headers: str) -> bytes:
    """Return a request, as it goes over the wire."""
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    known = f"Authorization: Bearer {TOKEN}\r\n"
    head = f"POST /flows/bench/{action} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{known}{named}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def session() -> str:
    """Return an id of a session."""
    return secrets.token_hex(16)


def always(action: str, body: bytes = BODY) -> Asking:
    """Ask without a session."""
    said = request(action, body)
    return lambda _: lambda: said


def by_session(action: str, body: bytes = BODY) -> Asking:
    """Ask in a session of each connection's own."""

    def of(_: int) -> Callable[[], bytes]:
        said = request(action, body, Standfast_Session=session())
        return lambda: said

    return of


def in_one_session(action: str, of: str, body: bytes = BODY) -> Asking:
    """Ask in one session, from all connections."""
    said = request(action, body, Standfast_Session=of)
    return lambda _: lambda: said


def with_new_keys(action: str) -> Asking:
    """Ask with an idempotency key that is new each time."""

    def of(_: int) -> Callable[[], bytes]:
        prefix, numbers = session(), itertools.count()
        return lambda: request(action, Idempotency_Key=f"{prefix}-{next(numbers)}")

    return of


def with_one_key(action: str) -> Asking:
    """Ask with the same idempotency key again and again."""

    def of(_: int) -> Callable[[], bytes]:
        said = request(action, Idempotency_Key=session())
        return lambda: said

    return of


class Connection(asyncio.Protocol):
    """Asks one request after another while a window is open."""

    def __init__(self, ask: Callable[[], bytes], status: int) -> None:
        self._ask, self._status = ask, b"HTTP/1.1 %d " % status
        self._buffer = b""
        self._started_at = 0.0
        self._timing: Timing | None = None
        self._transport: asyncio.Transport
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to the server."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def begin(self, timing: Timing) -> asyncio.Future[None]:
        """Ask until a window closes; return what is done then."""
        self._timing, self._over = timing, asyncio.get_running_loop().create_future()
        self.send()
        return self._over

    def send(self) -> None:
        """Ask once."""
        self._started_at = time.perf_counter()
        self._transport.write(self._ask())

    def data_received(self, data: bytes) -> None:
        """Note an answer that is complete, and ask again."""
        self._buffer = buffer = self._buffer + data if self._buffer else data
        end = buffer.find(_END)
        if end < 0:
            return
        length = _LENGTH.search(buffer, 0, end + 2)
        if length is None or len(buffer) < end + len(_END) + int(length[1]):
            return
        self._buffer = b""
        timing = self._timing
        if not buffer.startswith(self._status):
            self._end(RuntimeError(f"not the answer that was expected: {buffer!r:.600}"))
        elif timing is not None:
            timing.note(self._started_at)
            if timing.is_open:
                self.send()
            else:
                self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Hear that the server has hung up."""
        self._end(exc or ConnectionError("the server hung up"))

    def _end(self, problem: Exception | None = None) -> None:
        if self._over.done():
            return
        if problem is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(problem)

    def close(self) -> None:
        """Hang up."""
        self._end()
        self._transport.close()


async def connected(port: int, ask: Callable[[], bytes], status: int) -> Connection:
    """Return a connection."""
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(lambda: Connection(ask, status), "127.0.0.1", port))[1]


async def window(port: int, asking: Asking, at_once: int, seconds: float, status: int = 200) -> Window:
    """Keep so many connections busy, and return what came of it. Each has asked once before."""
    connections = [await connected(port, asking(number), status) for number in range(at_once)]
    try:
        await _asked(connections, Timing(0.0))
        timing = Timing(seconds)
        await _asked(connections, timing)
        return timing.result()
    finally:
        for each in connections:
            each.close()


async def _asked(connections: list[Connection], timing: Timing) -> None:
    """Ask until a window closes, without ever going to sleep: the server would pay for waking its client.

    It does not, where the client is on another machine.
    """
    over = asyncio.gather(*[each.begin(timing) for each in connections])
    while timing.is_open and not over.done():  # noqa: ASYNC110 -- that is what it is for
        await asyncio.sleep(0)
    await over

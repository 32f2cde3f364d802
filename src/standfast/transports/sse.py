"""Events of a request as a stream: numbered, so that whoever was cut off goes on without loss."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Message, Receive, Scope, Send

    from standfast.flows.request import Event
    from standfast.transports.limits import AppLimits

HEARTBEAT: Final = b": still here\n\n"
HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would keep events back until its buffer is full
)


def written(event: Event) -> bytes:
    """Return an event as the stream has it. JSON has no line breaks in it, so one line is enough for the data."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.number, _line(event.name), msgspec.json.encode(event.data))


def _line(text: str) -> bytes:
    return " ".join(text.split()).encode()


@final
class EventStream:
    """An answer that goes on until the events end, the caller goes away, or the application closes.

    Args:
        chunks: What to send.
        limits: After how long a silence something is sent, so that nobody in between hangs up; and how long a caller
            may take to read.
        closing: Set when the application closes: callers are let go, and come back with the last number they saw.
        headers: What to send besides the usual.

    Attributes:
        was_cut_off: The caller has gone away before the end, or did not read.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        limits: AppLimits,
        closing: asyncio.Event,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._chunks, self._limits, self._closing = chunks, limits, closing
        told = [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
        self._headers: Final = [*HEADERS, *told]
        self.was_cut_off = self.is_slow = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        del scope
        self.was_cut_off = True
        leaving: set[asyncio.Future[Any]] = {
            asyncio.ensure_future(_gone(receive)),
            asyncio.ensure_future(self._closing.wait()),
        }
        try:
            await self._sent(send, {"type": "http.response.start", "status": 200, "headers": self._headers})
            await self._send_all(send, leaving)
        except TimeoutError:
            if not self.is_slow:
                raise
        finally:
            for each in leaving:
                each.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)

    async def _send_all(self, send: Send, leaving: set[asyncio.Future[Any]]) -> None:
        chunk, heartbeat = asyncio.ensure_future(anext(self._chunks, None)), self._limits.heartbeat
        try:
            while True:
                await asyncio.wait({chunk, *leaving}, timeout=heartbeat, return_when=asyncio.FIRST_COMPLETED)
                if any(each.done() for each in leaving):
                    self.was_cut_off = not self._closing.is_set()
                    break
                if not chunk.done():
                    await self._sent(send, _piece(HEARTBEAT))
                    continue
                if (data := chunk.result()) is None:
                    self.was_cut_off = False
                    break
                await self._sent(send, _piece(data))
                chunk = asyncio.ensure_future(anext(self._chunks, None))
        finally:
            chunk.cancel()
            await asyncio.gather(chunk, return_exceptions=True)
            with contextlib.suppress(OSError):  # some servers say so when the caller is gone
                await self._sent(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _sent(self, send: Send, message: Message) -> None:
        """Send something; a caller that does not read keeps neither its place nor what waits for it."""
        if self.is_slow:
            return
        try:
            async with asyncio.timeout(self._limits.patience):
                await send(message)
        except TimeoutError:
            self.is_slow = True
            raise


def _piece(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def _gone(receive: Receive) -> None:
    """Return when the caller has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass

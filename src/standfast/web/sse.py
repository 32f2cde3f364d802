"""Events of a request as a stream: numbered, so that a caller that was cut off goes on without loss.

A stream that ends before its request does says so: its last event is ``stream.closed``, which has no number.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from standfast.web.asgi import until_gone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import Message, Receive, Scope, Send

    from standfast.flows.request import EmittedEvent
    from standfast.web.limits import AppLimits


HEARTBEAT: Final = b": still here\n\n"
HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would keep events back until its buffer is full
)

CLOSING: Final = "this server is closing"
NEXT: Final = "Connect again with the id of the last event as Last-Event-ID: what came after it is sent then."


def written(event: EmittedEvent) -> bytes:
    """Return an event as the stream has it. JSON has no line breaks in it, so one line is enough for the data."""
    name = " ".join(event.name.split()).encode()
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.number, name, msgspec.json.encode(event.data))


def closed(reason: str) -> bytes:
    """Return what a caller is told whose stream ends before its request does."""
    return b"event: stream.closed\ndata: %s\n\n" % msgspec.json.encode({"reason": reason, "next": NEXT})


@final
class EventStream:
    """An answer that goes on until the events end, the caller goes away, or the application closes.

    Args:
        chunks: What to send.
        limits: After how long a silence something is sent, so that no proxy in between hangs up; and how long a caller
            may take to read.
        closing: Set when the application closes: callers are told so and let go, and come back with the last number
            that they saw. None: the stream ends by itself before that, with its request.
        headers: What to send besides the usual.

    Attributes:
        was_cut_off: The caller has gone away before the end, or did not read.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes],
        limits: AppLimits,
        closing: asyncio.Event | None,
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
        gone: asyncio.Future[Any] = asyncio.ensure_future(until_gone(receive))
        leaving: set[asyncio.Future[Any]] = {gone}
        if self._closing is not None:
            leaving.add(asyncio.ensure_future(self._closing.wait()))
        try:
            await self._sent(send, {"type": "http.response.start", "status": 200, "headers": self._headers})
            await self._send_all(send, gone, leaving)
        except TimeoutError:
            if not self.is_slow:
                raise
        finally:
            for each in leaving:
                each.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)

    async def _send_all(self, send: Send, gone: asyncio.Future[Any], leaving: set[asyncio.Future[Any]]) -> None:
        chunk, heartbeat = asyncio.ensure_future(anext(self._chunks, None)), self._limits.heartbeat
        try:
            while True:
                await asyncio.wait({chunk, *leaving}, timeout=heartbeat, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    break
                if chunk.done():
                    if (data := chunk.result()) is None:
                        self.was_cut_off = False
                        break
                    await self._sent(send, _piece(data))
                    chunk = asyncio.ensure_future(anext(self._chunks, None))
                elif any(each.done() for each in leaving):
                    self.was_cut_off = False
                    await self._sent(send, _piece(closed(CLOSING)))
                    break
                else:
                    await self._sent(send, _piece(HEARTBEAT))
        finally:
            chunk.cancel()
            await asyncio.gather(chunk, return_exceptions=True)
            await self._chunks.aclose()
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

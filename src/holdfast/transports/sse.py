"""Events of a request as a stream: numbered, so that whoever was cut off goes on without loss."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from holdfast.flows.request import Event

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
        heartbeat: Seconds of silence after which something is sent, so that nobody in between hangs up.
        closing: Set when the application closes: callers are let go, and come back with the last number they saw.
        headers: What to send besides the usual.

    Attributes:
        was_cut_off: The caller has gone away before the end.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        heartbeat: float,
        closing: asyncio.Event,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._chunks, self._heartbeat, self._closing = chunks, heartbeat, closing
        told = [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
        self._headers: Final = [*HEADERS, *told]
        self.was_cut_off = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        del scope
        self.was_cut_off = True
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        leaving: set[asyncio.Future[Any]] = {
            asyncio.ensure_future(_gone(receive)),
            asyncio.ensure_future(self._closing.wait()),
        }
        try:
            await self._send_all(send, leaving)
        finally:
            for each in leaving:
                each.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)

    async def _send_all(self, send: Send, leaving: set[asyncio.Future[Any]]) -> None:
        chunk = asyncio.ensure_future(anext(self._chunks, None))
        try:
            while True:
                await asyncio.wait({chunk, *leaving}, timeout=self._heartbeat, return_when=asyncio.FIRST_COMPLETED)
                if any(each.done() for each in leaving):
                    self.was_cut_off = not self._closing.is_set()
                    break
                if not chunk.done():
                    await _sent(send, HEARTBEAT)
                    continue
                if (data := chunk.result()) is None:
                    self.was_cut_off = False
                    break
                await _sent(send, data)
                chunk = asyncio.ensure_future(anext(self._chunks, None))
        finally:
            chunk.cancel()
            await asyncio.gather(chunk, return_exceptions=True)
            with contextlib.suppress(OSError):  # some servers say so when the caller is gone
                await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _sent(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _gone(receive: Receive) -> None:
    """Return when the caller has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass

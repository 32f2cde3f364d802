"""Where the spans of a benchmark go: to a receiver of OTLP, or through the encoder of OpenTelemetry, or nowhere.

Started as ``python -m benchmarks._spans``, it is a receiver in a process of its own: it prints its port, takes all that
is sent over HTTP, and throws it away, until its stdin is closed.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import standfast as sf
from benchmarks.harness import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

QUEUE: Final = 100_000
"""How many spans wait at most, so that none is dropped, which would be cheaper."""


class Discarding(SpanExporter):
    """Takes spans and sends none; what it does with them before is all that an exporter does without a network."""

    def __init__(self, *, encodes: bool) -> None:
        self._encodes: Final = encodes

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Encode spans as they are sent, if that is to be measured."""
        if self._encodes:
            encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


def provider(where: str = "dropped") -> TracerProvider:
    """Return a provider whose spans are ``dropped``, ``encoded`` first, or sent to the address of a receiver."""
    made = TracerProvider(shutdown_on_exit=False)
    if where.startswith("http"):
        made.add_span_processor(sf.admin.OtlpSpans(where, most_waiting=QUEUE))
    else:
        made.add_span_processor(BatchSpanProcessor(Discarding(encodes=where == "encoded"), max_queue_size=QUEUE))
    return made


class _Taking(asyncio.Protocol):
    """Answers every message, and keeps nothing of it."""

    _length: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)

    def __init__(self) -> None:
        self._head, self._left = b"", 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Count what comes, and answer when it is all there."""
        if not self._left:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            length = self._length.search(self._head, 0, end + 2) if end >= 0 else None
            if length is None:
                return
            self._left, data, self._head = int(length[1]), self._head[end + 4 :], b""
        self._left -= len(data)
        if not self._left:
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


class SpanReceiver:
    """A receiver in a process of its own; seen from the one that started it."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks._spans"]
        pipe = subprocess.PIPE
        self._process: Final = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        self.url: Final = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def close(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


async def _receive() -> None:
    server = await asyncio.get_running_loop().create_server(_Taking, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_receive())

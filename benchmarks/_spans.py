"""Where the spans of a benchmark go: nowhere, or through the encoder of OTLP and then nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

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


def provider(*, encodes: bool = False) -> TracerProvider:
    """Return a provider with the usual processor, whose spans end here."""
    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(BatchSpanProcessor(Discarding(encodes=encodes), max_queue_size=QUEUE))
    return made

"""A receiver of OTLP over gRPC, as a collector is one: it keeps the spans that arrive."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Self, final

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span


@final
class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Listens on a port of this machine while it is entered."""

    def __init__(self) -> None:
        self.spans: Final[list[Span]] = []
        self._arrived: Final = threading.Condition()
        self._server: Any = grpc.server(ThreadPoolExecutor(2))
        register: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
        register(self, self._server)
        self.port: Final[int] = self._server.add_insecure_port("127.0.0.1:0")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.stop(None)

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 -- the name that the protocol knows
        """Take spans."""
        del context
        with self._arrived:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self.spans.extend(scope.spans)
            self._arrived.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait_for(self, name: str, timeout: float = 40.0) -> None:
        """Return when a span of that name has arrived."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: any(span.name == name for span in self.spans), timeout)

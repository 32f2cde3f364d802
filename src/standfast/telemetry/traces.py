"""Traces of runs and requests, for OpenTelemetry.

The spans of a run are made from its history, by the worker that suspends, hands back or ends the run, after that is
durable. What a worker had done that died is told by the one that took over. So each span is exported once, with the
same id and parent whoever did the work.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

from standfast.errors import DeclarationError, MissingExtraError
from standfast.events import Committed
from standfast.trace_context import SAMPLED, RunTrace, TraceContext, read_headers

try:
    from opentelemetry import context as otel_context
    from opentelemetry import trace as otel
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.sampling import Decision
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
except ModuleNotFoundError as missing:
    raise MissingExtraError("traces", "standfast[tracing]") from missing

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from standfast.clock import Instant
    from standfast.events import Event
    from standfast.trace_context import RecordedOperation, RunPiece

ENDED: Final = frozenset({"completed", "failed", "cancelled", "timed_out"})
_FAILED: Final = frozenset({"failed", "timed_out"})
_SCOPE: Final = InstrumentationScope("standfast")

_WAITS: Final = {
    "slept": ("sleep", "wait sleep"),
    "signal": ("waits", "wait signal"),
    "until": ("waits", "wait until"),
    "child_done": ("child", "wait child"),
    "held": ("lock", "wait lock"),
}
"""By which entry of a history a wait ends, by which it began, and the name of its span."""


@final
class TracingHook:
    """A hook that exports a trace of each run and request through OpenTelemetry.

        provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        engine = sf.Engine("sqlite:///shop.db", workflows=[fulfil], hooks=[sf.admin.TracingHook(provider)])

    Spans that code makes inside a step or an action belong to it. A run belongs to the trace of whoever has started it.

    Args:
        tracer_provider: Where spans go; by default the global one. Its sampler decides about traces that begin here.
        commits: Also export a span for every transaction of the store. There are many.

    Raises:
        MissingExtraError: OpenTelemetry is not installed; it is the extra ``tracing``.
        DeclarationError: The provider is none of the OpenTelemetry SDK.
    """

    traces_runs: ClassVar[bool] = True

    def __init__(self, tracer_provider: object = None, *, commits: bool = False) -> None:
        provider = otel.get_tracer_provider() if tracer_provider is None else tracer_provider
        if not isinstance(provider, TracerProvider):
            problem = (
                "it takes a TracerProvider of opentelemetry.sdk.trace; make one, or set it as the global one first"
            )
            raise DeclarationError("TracingHook", problem)
        self._provider: Final = provider
        self._commits: Final = commits
        # Spans with ids of our own cannot be begun through the API, so they are handed over when they have ended.
        self._processor: Final[Any] = vars(provider)["_active_span_processor"]

    def __repr__(self) -> str:
        return "<TracingHook>"

    # --- as a hook -----------------------------------------------------------------------------------------------

    def wants(self, kind: type[Event]) -> bool:
        """Return True for transactions, if they were asked for: all else is told by the engine itself."""
        return self._commits and kind is Committed

    def __call__(self, event: Event, /) -> None:
        """Export the span of a transaction."""
        if isinstance(event, Committed):
            end = event.at * 1_000
            tracer = self._provider.get_tracer("standfast")
            attributes: dict[str, str | int] = {"standfast.backend": event.backend, "standfast.riders": event.riders}
            span = tracer.start_span("commit", attributes=attributes, start_time=end - round(event.seconds * 1e9))
            span.end(end)

    # --- what an engine asks for ---------------------------------------------------------------------------------

    def current(self) -> TraceContext | None:
        """Return the context of the span that is current."""
        found = otel.get_current_span().get_span_context()
        if not found.is_valid:
            return None
        parent = f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags) & SAMPLED:02x}"
        return read_headers(parent, found.trace_state.to_header())

    @contextmanager
    def step(self, trace: RunTrace, step_id: str, attempt: int) -> Generator[None]:
        """Make the span of an attempt current. It is exported when the run's piece ends."""
        inside = trace.within(trace.span("step", step_id, attempt), is_sampled=self._is_sampled(trace))
        token = otel_context.attach(otel.set_span_in_context(otel.NonRecordingSpan(_span_context(inside))))
        try:
            yield
        finally:
            otel_context.detach(token)

    @contextmanager
    def request(self, caller: TraceContext | None, request_id: str, action: str) -> Generator[None]:
        """Trace a request as a span of its own, below the caller's or below what is current."""
        parent = None if caller is None else otel.set_span_in_context(otel.NonRecordingSpan(_span_context(caller)))
        tracer = self._provider.get_tracer("standfast")
        attributes = {"standfast.request.id": request_id, "standfast.action": action}
        span = tracer.start_span(f"request {action}", parent, otel.SpanKind.SERVER, attributes)
        token = otel_context.attach(otel.set_span_in_context(span))
        try:
            yield
        except BaseException as error:
            span.set_status(otel.StatusCode.ERROR, type(error).__name__)
            raise
        finally:
            otel_context.detach(token)
            span.end()

    def end_piece(self, piece: RunPiece) -> None:
        """Export the spans of a piece of a run."""
        if self._is_sampled(piece.trace):
            for span in self._spans(piece):
                self._processor.on_end(span)

    # --- spans ---------------------------------------------------------------------------------------------------

    def _is_sampled(self, trace: RunTrace) -> bool:
        if trace.parent is not None:
            return trace.parent.is_sampled
        decided = self._provider.sampler.should_sample(None, int(trace.trace_id, 16), "run")
        return decided.decision is Decision.RECORD_AND_SAMPLE

    def _spans(self, piece: RunPiece) -> Iterator[ReadableSpan]:
        trace, parent = piece.trace, piece.trace.run_span
        if not piece.number:
            if piece.nominal_at is not None:
                named = {"standfast.schedule": piece.schedule}
                yield self._span(piece, "tick", trace.span("tick"), parent, piece.nominal_at, piece.started_at, named)
            until = min(piece.claimed_at, piece.history[0].at) if piece.history else piece.claimed_at
            yield self._span(piece, "start", trace.span("start"), parent, piece.started_at, until)
        yield from self._operations(piece)
        about = {"standfast.worker": piece.worker, "standfast.fence": piece.fence}
        claim = trace.span("claim", number=piece.number)
        yield self._span(piece, "claim", claim, parent, piece.claimed_at, piece.ended_at, about)
        if piece.status in ENDED:
            above = None if trace.parent is None else trace.parent.span_id
            how = {"standfast.status": piece.status, "standfast.version": piece.version}
            error = piece.error or piece.status if piece.status in _FAILED else ""
            name = f"run {piece.workflow}"
            yield self._span(piece, name, parent, above, piece.started_at, piece.ended_at, how, error=error)

    def _operations(self, piece: RunPiece) -> Iterator[ReadableSpan]:
        """Yield the spans of steps, waits and holds that ended in this piece."""
        history, trace, parent = piece.history, piece.trace, piece.trace.run_span
        tried: dict[str, int] = {}
        for event in history[: piece.first]:
            if event.kind == "tried":
                tried[event.id] = tried.get(event.id, 0) + 1
        since: dict[str, Instant] = {}
        for position, event in enumerate(history[piece.first :], piece.first):
            path, _, operation = event.id.rpartition("/")
            before = since.get(path, min(piece.claimed_at, event.at))
            about: dict[str, Any] = {"standfast.operation": event.id}
            if event.kind in ("step", "tried", "transaction"):
                attempt = tried.get(event.id, 0) + 1
                tried[event.id] = attempt if event.kind == "tried" else 0
                began = piece.began.get((event.id, attempt), before)
                span_id, name = trace.span("step", event.id, attempt), f"step {operation.partition('#')[0]}"
                about |= {"standfast.step.id": event.id, "standfast.attempt": attempt}
                yield self._span(piece, name, span_id, parent, began, event.at, about, error=_error(event))
            elif event.kind in _WAITS:
                opened, name = _WAITS[event.kind]
                began = _found(history, position, opened, event.id) or before
                yield self._span(piece, name, trace.span(event.kind, event.id), parent, began, event.at, about)
            elif event.kind == "released" and (held := _found(history, position, "held", event.id)) is not None:
                span_id = trace.span("hold", event.id)
                yield self._span(piece, "hold", span_id, parent, held, event.at, about, error=_error(event))
            since[path] = event.at

    def _span(
        self,
        piece: RunPiece,
        name: str,
        span_id: str,
        parent: str | None,
        began: Instant,
        ended: Instant,
        about: Mapping[str, Any] | None = None,
        *,
        error: str = "",
    ) -> ReadableSpan:
        trace = piece.trace
        status = otel.Status(otel.StatusCode.ERROR, error) if error else otel.Status()
        attributes = {"standfast.run.id": piece.run, "standfast.workflow": piece.workflow, **(about or {})}
        return ReadableSpan(
            name,
            context=_span_context(trace.within(span_id)),
            parent=None if parent is None else _span_context(trace.within(parent)),
            resource=self._provider.resource,
            attributes=attributes,
            kind=otel.SpanKind.CONSUMER if parent is None or name.startswith("run ") else otel.SpanKind.INTERNAL,
            status=status,
            start_time=min(began, ended) * 1_000,
            end_time=ended * 1_000,
            instrumentation_scope=_SCOPE,
        )


def _span_context(context: TraceContext) -> otel.SpanContext:
    state = otel.TraceState.from_header([context.state]) if context.state else None
    flags = otel.TraceFlags(context.flags)
    return otel.SpanContext(int(context.trace_id, 16), int(context.span_id, 16), False, flags, state)  # noqa: FBT003 -- it is not remote: the order is OpenTelemetry's


def _found(history: Sequence[RecordedOperation], position: int, kind: str, operation: str) -> Instant | None:
    """Return when an operation began whose end is at a position: its first entry is seldom far before it."""
    for place in range(position - 1, -1, -1):
        event = history[place]
        if event.id == operation and event.kind == kind:
            return event.at
    return None


def _error(event: RecordedOperation) -> str:
    return "" if event.failure is None else str(event.failure.type)

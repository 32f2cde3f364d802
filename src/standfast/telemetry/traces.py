"""Traces of runs and requests, for OpenTelemetry.

The spans of a run are made from its history, by the worker that suspends, hands back or ends the run, after that is
durable. What a worker had done that died is told by the one that took over. So each span is exported once, with the
same id and parent whichever worker did the work.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

from msgspec import Struct

from standfast.clock import Instant, wall_nanoseconds
from standfast.errors import DeclarationError, MissingExtraError
from standfast.events import Committed
from standfast.trace_context import SAMPLED, RunTrace, TraceContext, read_headers, read_stored
from standfast.workflows.definition import CURRENT_STEP

try:
    from opentelemetry import context as otel_context
    from opentelemetry import trace as otel
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON, DEFAULT_ON, Decision
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
except ModuleNotFoundError as missing:
    raise MissingExtraError("making traces", "standfast[tracing]") from missing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from opentelemetry.sdk.resources import Resource

    from standfast.events import Event
    from standfast.trace_context import RecordedOperation, RunPiece

    _Common: TypeAlias = tuple[Resource, str, str]

ENDED: Final = frozenset({"completed", "failed", "cancelled", "timed_out"})
FAILED: Final = frozenset({"failed", "timed_out"})
_SCOPE: Final = InstrumentationScope("standfast")
_UNSET: Final = otel.Status()
_NOWHERE: Final = otel_context.Context()
_SAMPLED, _NOT_SAMPLED = otel.TraceFlags(SAMPLED), otel.TraceFlags(0)
_INTERNAL, _CONSUMER, _SERVER = otel.SpanKind.INTERNAL, otel.SpanKind.CONSUMER, otel.SpanKind.SERVER
_CURRENT: Final[ContextVar[otel_context.Context] | None] = getattr(
    vars(otel_context)["_RUNTIME_CONTEXT"], "_current_context", None
)
"""Where OpenTelemetry keeps its context; None: it was told to keep it elsewhere."""

_SPAN_KEY: Final = next(iter(otel.set_span_in_context(otel.INVALID_SPAN, otel_context.Context())))

_ATTEMPTS: Final = frozenset({"step", "tried", "transaction"})
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
        provider.add_span_processor(sf.admin.OtlpSpans("http://collector:4318"))
        engine = sf.Engine("sqlite:///shop.db", workflows=[fulfil], hooks=[sf.admin.TracingHook(provider)])

    Spans that code makes inside a step or an action belong to it. A run belongs to the trace of its starter.

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
        self.resource: Final = provider.resource
        self._commits: Final = commits
        self.is_quiet: Final = not commits
        self.samples_all: Final = provider.sampler in (ALWAYS_ON, DEFAULT_ON)  # which need not be asked
        self._tracer: Final = provider.get_tracer("standfast")
        # Spans with ids of our own cannot be begun through the API, so they are handed over when they have ended.
        self.processor: Final[Any] = vars(provider)["_active_span_processor"]
        self.export: Final[Callable[[ReadableSpan], None]] = self.processor.on_end
        self.processors: object = None
        self.taken: Callable[[RequestFacts], None] | None = None
        self.ids: Final = provider.id_generator
        self.has_random_ids: Final = type(provider.id_generator) is RandomIdGenerator
        self.rows: WaitingRows | None = None
        self.pieces: WaitingRows | None = None

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
            attributes: dict[str, str | int] = {"standfast.backend": event.backend, "standfast.riders": event.riders}
            span = self._tracer.start_span("commit", attributes=attributes, start_time=end - round(event.seconds * 1e9))
            span.end(end)

    # --- what an engine asks for ---------------------------------------------------------------------------------

    def current(self) -> TraceContext | None:
        """Return the context of the span that is current."""
        if _CURRENT is not None and not (around := _CURRENT.get()) and type(around) is otel_context.Context:
            return None  # nothing is current, as a rule: OpenTelemetry would take five calls to say so
        found = otel.get_current_span().get_span_context()
        if not found.is_valid:
            return None
        parent = f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags) & SAMPLED:02x}"
        return read_headers(parent, found.trace_state.to_header())

    def enter_run(self, trace: RunTrace, run_id: str) -> object:
        """Let the span of each step of a run be current while the step runs, until :meth:`leave`."""
        begun = _RunningContext()
        begun.hook, begun.trace, begun.run_id = self, trace, run_id
        begun.around = around = otel_context.get_current() if _CURRENT is None else _CURRENT.get()
        if around:
            dict[str, object].update(begun, around)  # as for a request
        return otel_context.attach(begun) if _CURRENT is None else _CURRENT.set(begun)

    def leave(self, token: Any) -> None:  # noqa: ANN401 -- what OpenTelemetry has returned
        """Make current what was."""
        if _CURRENT is None:
            otel_context.detach(token)
        else:
            _CURRENT.reset(token)

    def request(self, caller: TraceContext | None, request_id: str, action: str) -> _RequestContext:
        """Trace a request as a span of its own, below the caller's or below what is current, until it has ended."""
        begun = _RequestContext()
        begun.hook, begun.request_id, begun.action, begun.own, begun.above = self, request_id, action, None, caller
        if _CURRENT is None:
            begun.lie_in(otel_context.get_current())
            begun.token = otel_context.attach(begun)
        else:
            begun.token = token = _CURRENT.set(begun)
            if (around := token.old_value) is not Token.MISSING:
                begun.lie_in(around)
        begun.began = wall_nanoseconds()
        return begun

    def end_piece(self, piece: RunPiece) -> None:
        """Export the spans of a piece of a run, if its trace is sampled."""
        trace = piece.trace
        if (trace.stored or not self.samples_all) and not self.known(trace).is_sampled:
            return
        if self.processor._span_processors is not self.processors:  # noqa: SLF001 -- see whole
            _ = self.whole
        if (pieces := self.pieces) is not None:
            waiting = pieces.waiting
            waiting.append(piece)
            if len(waiting) >= pieces.most:
                pieces.full(pieces)
            return
        known = self.known(trace)
        for span_id, facts in PieceSpans(piece, self.resource).all():
            self.export(LateSpan(known.context(span_id), facts))

    @property
    def whole(self) -> Callable[[RequestFacts], None] | None:
        """What takes requests as they are, if that is all that spans go to; see :mod:`telemetry.otlp`."""
        processors = self.processor._span_processors  # noqa: SLF001 -- a processor may be added at any time
        if processors is not self.processors:
            self.processors = processors
            only = processors[0] if len(processors) == 1 else None
            self.taken = getattr(only, "take", None)
            pieces, rows = getattr(only, "pieces_of", None), getattr(only, "rows_of", None)
            self.pieces = None if pieces is None else pieces(self.resource)
            self.rows = rows(self.resource) if rows is not None and self.samples_all and self.has_random_ids else None
        return self.taken

    # --- spans ---------------------------------------------------------------------------------------------------

    def is_sampled(self, trace_id: int) -> bool:
        """Return True if the sampler wants a trace that begins here; it is asked by the id alone, so all agree."""
        if self.samples_all:
            return True
        answer = self._provider.sampler.should_sample(_NOWHERE, trace_id, "run")
        return answer.decision is Decision.RECORD_AND_SAMPLE

    def known(self, trace: RunTrace) -> RunContext:
        """Return what all spans of a run have in common."""
        if trace.native is None:
            parent = trace.parent
            is_sampled = self.is_sampled(trace.trace_id) if parent is None else parent.is_sampled
            trace.native = RunContext(trace, is_sampled=is_sampled)
        known: RunContext = trace.native
        return known


@final
class PieceSpans:
    """The spans of one piece of a run."""

    def __init__(self, piece: RunPiece, resource: Resource) -> None:
        self._piece = piece
        self._known: Final[RunContext] = piece.trace.native or RunContext(piece.trace, is_sampled=True)
        self._id = piece.trace.span
        self.has_others = False
        self._common: Final[_Common] = (resource, piece.run, piece.workflow)

    def all(self) -> list[tuple[int, SpanFacts]]:
        """Return them with their ids: what was done, then the claim, and in the end the run itself."""
        piece, run, common = self._piece, self._known.run, self._common
        found: list[tuple[int, SpanFacts]] = []
        if not piece.number:
            if piece.nominal_at is not None:
                found.append(self.tick(piece.nominal_at))
            found.append((self._id("start"), SpanFacts("start", common, run, piece.started_at, self.began_at)))
        for began, ended, operation, attempt, error in self.steps():
            step = SpanFacts("step", common, run, began, ended, operation, attempt, error)
            found.append((self._id("step", operation, attempt), step))
        found += self.others()
        if piece.worker:
            about = (("standfast.worker", piece.worker), ("standfast.fence", piece.fence))
            claim = SpanFacts("claim", common, run, piece.claimed_at, piece.ended_at, about=about)
            found.append((self._id("claim", number=piece.number), claim))
        if piece.status in ENDED:
            found.append(self.whole())
        return found

    @property
    def began_at(self) -> Instant:
        """When the first worker began with the run."""
        piece = self._piece
        return min(piece.claimed_at, piece.history[0].at) if piece.history else piece.claimed_at

    def tick(self, at: Instant) -> tuple[int, SpanFacts]:
        """Return the span of the wait between the time that a schedule named and the start."""
        named = (("standfast.schedule", self._piece.schedule),)
        return self._id("tick"), SpanFacts(
            "tick", self._common, self._known.run, at, self._piece.started_at, about=named
        )

    def whole(self) -> tuple[int, SpanFacts]:
        """Return the span of the run itself."""
        piece, above = self._piece, self._piece.trace.parent
        how = (("standfast.status", piece.status), ("standfast.version", piece.version))
        error = piece.error or piece.status if piece.status in FAILED else ""
        parent = None if above is None else _span_context(above)
        times = (piece.started_at, piece.ended_at)
        facts = SpanFacts(f"run {piece.workflow}", self._common, parent, *times, about=how, error=error, kind=_CONSUMER)
        return piece.trace.run_span, facts

    def steps(self) -> list[tuple[Instant, Instant, str, int, str]]:
        """Return the attempts at steps that ended in this piece; of each its times, id, number, and type of its error.

        They are most of all spans, so nothing more is made of them here.
        """
        piece = self._piece
        history, first = piece.history, piece.first
        tried: dict[str, int] = {}
        for event in history[:first]:
            if event.kind == "tried":
                tried[event.id] = tried.get(event.id, 0) + 1
        found: list[tuple[Instant, Instant, str, int, str]] = []
        for position in range(first, len(history)):
            event = history[position]
            kind = event.kind
            if kind not in _ATTEMPTS:
                self.has_others = True
                continue
            operation, at, took, failure = event.id, event.at, event.took, event.failure
            attempt = tried.get(operation, 0) + 1 if tried else 1
            if kind == "tried":
                tried[operation] = attempt
            began = Instant(at - took) if took else self._since(position)
            found.append((began, at, operation, attempt, "" if failure is None else str(failure.type)))
        return found

    def others(self) -> list[tuple[int, SpanFacts]]:
        """Return waits, holds and updates that ended in this piece; :meth:`steps` has found out if there are any."""
        found: list[tuple[int, SpanFacts]] = []
        if not self.has_others:
            return found
        piece, run, common, identify = self._piece, self._known.run, self._common, self._id
        history = piece.history
        for position in range(piece.first, len(history)):
            event = history[position]
            kind, operation, at = event.kind, event.id, event.at
            if kind in _WAITS:
                opened, name = _WAITS[kind]
                began = _found(history, position, opened, operation) or self._since(position)
                wait = SpanFacts(name, common, run, began, at, operation, link=event.link)
                found.append((identify(kind, operation), wait))
            elif kind == "update":
                name = operation.rpartition("/")[2].removeprefix("@")
                update = SpanFacts(f"update {name}", common, run, at, at, operation, link=event.link)
                found.append((identify(kind, operation, position), update))
            elif kind == "released" and (held := _found(history, position, "held", operation)) is not None:
                hold = SpanFacts("hold", common, run, held, at, operation)
                found.append((identify("hold", operation), hold))
        return found

    def _since(self, position: int) -> Instant:
        """Return since when the branch of an operation did nothing else: the last that it did in this piece, if any."""
        piece, history = self._piece, self._piece.history
        path = history[position].id.rpartition("/")[0]
        for place in range(position - 1, piece.first - 1, -1):
            if history[place].id.rpartition("/")[0] == path:
                return history[place].at
        return min(piece.claimed_at, history[position].at)


def step_name(operation: str) -> str:
    """Return the name of a step's span: that of its function, whatever the number and the branch."""
    return f"step {operation.rpartition('/')[2].partition('#')[0]}"


class SpanFacts(Struct, frozen=True, gc=False):
    """What a span of a run says. There are thousands of them before they are exported, so it is small."""

    title: str
    common: _Common
    parent: otel.SpanContext | None
    began: int
    ended: Instant
    operation: str = ""
    attempt: int = 0
    error: str = ""
    about: tuple[tuple[str, str | int], ...] = ()
    link: str = ""
    kind: otel.SpanKind = _INTERNAL

    @property
    def name(self) -> str:
        """The name of the span."""
        return step_name(self.operation) if self.attempt else self.title

    @property
    def times(self) -> tuple[int, int]:
        """When it began and ended, in nanoseconds."""
        return min(self.began, self.ended) * 1_000, self.ended * 1_000

    @property
    def resource(self) -> Resource:
        """The program that tells it."""
        return self.common[0]

    @property
    def links(self) -> tuple[otel.Link, ...]:
        """What has sent what was received; a context that cannot be read is none."""
        sender = read_stored(self.link)
        return () if sender is None else (otel.Link(_span_context(sender)),)

    @property
    def attributes(self) -> dict[str, Any]:
        """What is said besides."""
        _, run, workflow = self.common
        said: dict[str, Any] = {"standfast.run.id": run, "standfast.workflow": workflow, **dict(self.about)}
        if self.attempt:
            said |= {"standfast.step.id": self.operation, "standfast.attempt": self.attempt}
        elif self.operation:
            said["standfast.operation"] = self.operation
        return said


@final
class LateSpan(ReadableSpan):
    """A span that becomes a whole one when something of it is asked for: by an exporter, in its own thread."""

    def __init__(self, context: otel.SpanContext, facts: SpanFacts | RequestFacts) -> None:
        self._context, self._facts = context, facts

    @property
    def is_late(self) -> bool:
        """Whether nothing was asked for yet."""
        return "_name" not in self.__dict__

    @property
    def told(self) -> tuple[otel.SpanContext, SpanFacts | RequestFacts]:
        """What it is made of."""
        context: Any = self._context
        return context, self._facts

    def __getattr__(self, wanted: str) -> Any:  # noqa: ANN401 -- whatever the SDK keeps of a span
        """Return what is there only in a whole span."""
        if "_name" in self.__dict__ or not wanted.startswith("_"):
            raise AttributeError(wanted)
        facts = self._facts
        began, ended = facts.times
        super().__init__(
            facts.name,
            self._context,
            facts.parent,
            facts.resource,
            facts.attributes,
            links=facts.links,
            kind=facts.kind,
            status=otel.Status(otel.StatusCode.ERROR, facts.error) if facts.error else _UNSET,
            start_time=began,
            end_time=ended,
            instrumentation_scope=_SCOPE,
        )
        return self.__dict__[wanted]


ROW: Final = 4
"""How many values the row of a request has."""


@final
class WaitingRows:
    """What happened in one program and waits to be encoded: rows of requests, or pieces of runs.

    Of a request that begins its trace and raised nothing, no more is made than the four values of its row: its action,
    its id, when it began and when it ended, in nanoseconds. Everything is added at once to the end of one list, and
    taken from its beginning, so that threads need no lock.

    Attributes:
        resource: The program.
        size: How many values one of them is.
        waiting: What waits, one value after another.
        most: With how many values :attr:`full` is called.
        full: What is done then.
    """

    __slots__ = ("full", "most", "resource", "size", "waiting")

    def __init__(self, resource: Resource, size: int, full: Callable[[WaitingRows], None]) -> None:
        self.waiting: Final[list[Any]] = []
        self.most = 0
        self.full: Final = full
        self.resource: Final = resource
        self.size: Final = size

    def __len__(self) -> int:
        return len(self.waiting) // self.size

    def take(self, most: int | None = None) -> list[Any]:
        """Return the values that wait, the oldest ones if there are more; one thread at a time."""
        taken = self.waiting[:most]
        del self.waiting[: len(taken)]
        return taken

    def drop(self, rows: int) -> int:
        """Forget the newest rows; return how many there were."""
        before = len(self)
        del self.waiting[-self.size * rows :]
        return before - len(self)


class RequestFacts(Struct, frozen=True, gc=False):
    """What the span of a request says that is not merely a row of :class:`WaitingRows`.

    Attributes:
        source: The hook that tells it.
        began: When it began, in nanoseconds.
        ended: When it ended, in nanoseconds.
        own: The context of its span; None: its trace begins with it, and nothing has asked for its ids yet.
    """

    source: TracingHook
    action: str
    request_id: str
    began: int
    ended: int
    error: str
    own: otel.SpanContext | None
    parent: otel.SpanContext | None
    kind: ClassVar[otel.SpanKind] = _SERVER
    links: ClassVar[tuple[otel.Link, ...]] = ()

    @property
    def name(self) -> str:
        """The name of the span."""
        return f"request {self.action}"

    @property
    def times(self) -> tuple[int, int]:
        """When it began and ended, in nanoseconds."""
        return min(self.began, self.ended), self.ended

    @property
    def resource(self) -> Resource:
        """The program that tells it."""
        return self.source.resource

    @property
    def attributes(self) -> dict[str, Any]:
        """What is said besides."""
        return {"standfast.action": self.action, "standfast.request.id": self.request_id}


@final
class _RequestContext(otel_context.Context):
    """The context that a request's code runs in, from :meth:`TracingHook.request` to :meth:`end`.

    The ids are made when something asks for them, else when the request has ended. It has no ``__init__``: a call of
    that would take as long as all that there is to do.
    """

    __slots__ = ("above", "action", "began", "hook", "own", "parent", "request_id", "token")

    hook: TracingHook
    request_id: str
    action: str
    began: int
    token: Any
    own: otel.SpanContext | None
    parent: otel.SpanContext | None
    above: Any
    """The context of the caller, or the span that is current around the request, or None."""

    def lie_in(self, around: otel_context.Context) -> None:
        """Have what is current around the request."""
        if around or type(around) is not otel_context.Context:  # one of ours may be empty, and has a span all the same
            dict[str, object].update(self, around)  # OpenTelemetry forbids its own, since contexts never change
            if self.above is None:
                self.above = around.get(_SPAN_KEY)

    def end(self, kind: type[BaseException] | None = None) -> None:
        """Make current what was, and export the span, if its trace is sampled; the request has raised ``kind``."""
        ended = wall_nanoseconds()
        if _CURRENT is None:
            otel_context.detach(self.token)
        else:
            _CURRENT.reset(self.token)
        hook = self.hook
        if hook.processor._span_processors is not hook.processors:  # noqa: SLF001 -- see whole
            _ = hook.whole
        if self.own is None and self.above is None and kind is None and (rows := hook.rows) is not None:
            waiting = rows.waiting
            waiting += (self.action, self.request_id, self.began, ended)
            if len(waiting) >= rows.most:
                rows.full(rows)
            return
        self._export(ended, "" if kind is None else kind.__name__)

    def _export(self, ended: int, error: str) -> None:
        hook, own, parent = self.hook, self.own, None
        if own is None and (self.above is not None or hook.taken is None or not hook.samples_all):
            own = self._identified()  # else whatever takes it makes them
        if own is not None:
            if not own.trace_flags.sampled:
                return
            parent = self.parent
        facts = RequestFacts(hook, self.action, self.request_id, self.began, ended, error, own, parent)
        if hook.taken is not None:
            hook.taken(facts)
        elif own is not None:
            hook.export(LateSpan(own, facts))

    def _identified(self) -> otel.SpanContext:
        """Make its ids, and return the context of its span."""
        hook, ids, above, parent = self.hook, self.hook.ids, self.above, None
        if isinstance(above, TraceContext):
            parent = _span_context(above)
        elif above is not None and (around := above.get_span_context()).is_valid:
            parent = around
        if parent is not None:
            trace_id, flags, state = parent.trace_id, parent.trace_flags, parent.trace_state
        else:
            trace_id, state = ids.generate_trace_id(), None
            flags = _SAMPLED if hook.is_sampled(trace_id) else _NOT_SAMPLED
        self.parent = parent
        self.own = otel.SpanContext(trace_id, ids.generate_span_id(), False, flags, state)  # noqa: FBT003 -- it is not remote: the order is OpenTelemetry's
        return self.own

    def _span(self) -> otel.Span:
        return otel.NonRecordingSpan(self.own or self._identified())

    def get(self, key: str, default: Any = None, /) -> Any:  # noqa: ANN401 -- as a dictionary has it
        """Return what the context has."""
        return self._span() if key == _SPAN_KEY else super().get(key, default)

    def copy(self) -> dict[str, object]:
        """Return what it has as a plain dictionary, of which the next context is made."""
        return {**self, _SPAN_KEY: self._span()}


@final
class _RunningContext(otel_context.Context):
    """The context that a run's code runs in. The span of a step is made when it is asked for: most steps make none.

    It has no ``__init__``, as that of a request.
    """

    __slots__ = ("around", "hook", "run_id", "trace")

    around: otel_context.Context
    hook: TracingHook
    trace: RunTrace
    run_id: str

    def _span(self) -> Any:  # noqa: ANN401 -- a span, if there is one
        step = CURRENT_STEP.get()
        if step is None or step.run_id != self.run_id:
            return self.around.get(_SPAN_KEY)  # its own code between steps, or that of a step which has started it
        known = self.hook.known(self.trace)
        return otel.NonRecordingSpan(known.context(self.trace.span("step", step.step_id, step.attempt)))

    def get(self, key: str, default: Any = None, /) -> Any:  # noqa: ANN401 -- as a dictionary has it
        """Return what the context has."""
        if key != _SPAN_KEY:
            return super().get(key, default)
        own = self._span()
        return default if own is None else own

    def copy(self) -> dict[str, object]:
        """Return what it has as a plain dictionary, of which the next context is made."""
        own = self._span()
        return {**self} if own is None else {**self, _SPAN_KEY: own}


@final
class RunContext:
    """What all spans of a run have in common. It does not refer to the trace, which refers to it."""

    __slots__ = ("_flags", "_run_span", "_trace_id", "is_sampled", "state")

    def __init__(self, trace: RunTrace, *, is_sampled: bool) -> None:
        self.is_sampled = is_sampled
        self._trace_id, self._run_span = trace.trace_id, trace.run_span
        self._flags: Final = _SAMPLED if is_sampled else _NOT_SAMPLED
        parent = trace.parent
        self.state: Final = None if parent is None or not parent.state else _span_context(parent).trace_state

    @property
    def run(self) -> otel.SpanContext:
        """The context of the run's own span."""
        return self.context(self._run_span)

    def context(self, span: int) -> otel.SpanContext:
        """Return the context of a span of the run."""
        return otel.SpanContext(self._trace_id, span, False, self._flags, self.state)  # noqa: FBT003 -- it is not remote: the order is OpenTelemetry's


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

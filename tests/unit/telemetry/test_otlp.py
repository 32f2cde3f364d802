"""Spans for a receiver of OTLP over HTTP: the same messages as OpenTelemetry's own exporter makes, each once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self, final

import pytest
from msgspec import structs
from opentelemetry import trace as otel
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import standfast as sf
from standfast.clock import Instant
from standfast.errors import InvalidArgumentError, RunFailedError
from standfast.telemetry.otlp import BATCH, RUNS, OtlpSpans
from standfast.telemetry.span_encoder import SLICE, SpanEncoder, SpanGroups
from standfast.telemetry.traces import LateSpan, PieceSpans, RequestFacts, TracingHook, WaitingRows
from standfast.trace_context import RunPiece, RunTrace, read_headers
from standfast.workflows.failures import Failure
from standfast.workflows.records import HistoryEvent

if TYPE_CHECKING:
    from collections.abc import Iterator

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@contextlib.contextmanager
def asked_of(hook: TracingHook, caller: Any, request_id: str, action: str) -> Iterator[None]:
    """Trace what is done in the block as a request, as a task of a flow does."""
    request = hook.request(caller, request_id, action)
    try:
        yield
    except BaseException as problem:
        request.end(type(problem))
        raise
    request.end()


@final
class HttpReceiver:
    """A collector on a port of this machine, which answers with what it is told to."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.answers: list[int] = []
        self.headers: list[Any] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.headers.append((self.path, dict(self.headers)))
                status = receiver.answers.pop(0) if receiver.answers else 200
                if status == 200:
                    receiver.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def spans(self) -> list[Any]:
        """All spans that arrived."""
        return [
            span for each in self.requests for some in each.resource_spans for scope in some.scope_spans
            for span in scope.spans
        ]  # fmt: skip


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    """A collector."""
    with HttpReceiver() as opened:
        yield opened


def provided(*processors: Any) -> TracerProvider:
    """Return a provider whose spans go there."""
    resource = Resource({"service.name": "shop", "numbers": (1, 2), "ratio": 0.5, "is_new": True})
    provider = TracerProvider(shutdown_on_exit=False, resource=resource)
    for each in processors:
        provider.add_span_processor(each)
    return provider


@sf.step
async def works(number: int) -> int:
    """Do something that makes a span of its own."""
    return number + 1


@sf.step(retry=sf.Retry(attempts=2, delay=0))
async def breaks() -> None:
    """Fail."""
    raise LookupError


@sf.workflow
async def shopping(ctx: sf.Context, number: int) -> int:
    """Work, wait for a signal, and fail if it says so."""
    number = await ctx.step(works, number)
    if await ctx.wait_signal("go"):
        await ctx.step(breaks)
    async with ctx.mutex("stock"):
        return await ctx.step(works, number)


async def runs(provider: TracerProvider, *, fails: bool = False) -> None:
    """Run one, as part of a trace with a state, and signal it from a span."""
    tracer = provider.get_tracer("test", "1.0")
    async with sf.Engine("memory://", workflows=[shopping], hooks=[TracingHook(provider)]) as engine:
        with tracer.start_as_current_span("outside", attributes={"tags": ["a", "b"], "n": -3, "f": 0.25}) as span:
            span.add_event("asked", {"by": "somebody"})
            run = await engine.start(shopping, 1, id="r")
            await run.signal("go", fails)
        if fails:
            with pytest.raises(RunFailedError):
                await run.result()
        else:
            await run.result()


def by_id(spans: list[Any]) -> dict[bytes, Any]:
    """Return spans by their ids; none is there twice."""
    found = {span.span_id: span for span in spans}
    assert len(found) == len(spans)
    return found


@pytest.mark.parametrize("fails", [False, True])
async def test_spans_are_the_messages_that_the_exporter_of_opentelemetry_makes(
    receiver: HttpReceiver, *, fails: bool
) -> None:
    """Field by field, with two processors: one keeps the spans, and the other one sends them."""
    kept = InMemorySpanExporter()
    provider = provided(OtlpSpans(receiver.url), SimpleSpanProcessor(kept))
    await runs(provider, fails=fails)
    provider.shutdown()
    expected = encode_spans(kept.get_finished_spans())
    wanted = by_id([span for some in expected.resource_spans for scope in some.scope_spans for span in scope.spans])

    assert by_id(receiver.spans) == wanted
    for request in receiver.requests:
        for some in request.resource_spans:
            assert some.resource == expected.resource_spans[0].resource
            assert all(
                scope.scope in [each.scope for each in expected.resource_spans[0].scope_spans]
                for scope in some.scope_spans
            )


@pytest.mark.parametrize("fails", [False, True])
async def test_a_run_that_is_handed_over_whole_has_the_same_spans(receiver: HttpReceiver, *, fails: bool) -> None:
    """Alone, it is given pieces of runs and makes the bytes of them; times and worker differ, all else does not."""

    def shape(span: Any, spans: dict[bytes, Any]) -> Any:
        parent = spans.get(span.parent_span_id)
        said = {each.key for each in span.attributes}
        return (
            span.name,
            span.kind,
            span.status.code,
            span.status.message,
            None if parent is None else parent.name,
            frozenset(said),
            len(span.links),
        )

    alone = provided(OtlpSpans(receiver.url))
    await runs(alone, fails=fails)
    alone.shutdown()
    kept = InMemorySpanExporter()
    beside = provided(SimpleSpanProcessor(kept))
    await runs(beside, fails=fails)
    expected = by_id([
        span for some in encode_spans(kept.get_finished_spans()).resource_spans for scope in some.scope_spans
        for span in scope.spans
    ])  # fmt: skip
    found = by_id(receiver.spans)

    assert sorted(shape(each, found) for each in found.values()) == sorted(
        shape(each, expected) for each in expected.values()
    )
    assert len({span.trace_id for span in found.values()}) == 1


def test_a_request_is_the_same_whole_or_as_a_span(receiver: HttpReceiver) -> None:
    """Below a caller, below what is current, and as the first of its trace."""
    provider = provided(OtlpSpans(receiver.url))
    hook = TracingHook(provider)
    with asked_of(hook, None, "r-1", "shop.buy"):
        pass
    with asked_of(hook, sf_context(), "r-2", "shop.buy"):
        inside = otel.get_current_span().get_span_context()
        provider.get_tracer("test").start_span("inner").end()
    with pytest.raises(LookupError), asked_of(hook, None, "r-3", "shop.sell"):
        raise LookupError
    provider.shutdown()
    named = {
        each.value.string_value: span for span in receiver.spans for each in span.attributes if each.key.endswith("id")
    }

    assert [span.name for span in named.values()] == ["request shop.buy", "request shop.buy", "request shop.sell"]
    assert not named["r-1"].parent_span_id
    assert named["r-2"].parent_span_id.hex() == CALLER.split("-")[2]
    assert named["r-2"].span_id == inside.span_id.to_bytes(8)
    assert next(span for span in receiver.spans if span.name == "inner").parent_span_id == named["r-2"].span_id
    assert (named["r-3"].status.code, named["r-3"].status.message) == (2, "LookupError")
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in receiver.spans)


def sf_context() -> Any:
    """Return the context of a caller."""
    return read_headers(CALLER, "vendor=1")


def test_what_the_receiver_cannot_take_now_is_sent_again(receiver: HttpReceiver) -> None:
    """What it does not want is dropped, and reported; the next ones are sent."""
    receiver.answers[:] = [503, 200, 400]
    sender = OtlpSpans(receiver.url, headers={"x-token": "t"})
    tracer = provided(sender).get_tracer("test")
    for name in ("again", "refused", "last"):
        tracer.start_span(name).end()
        assert sender.force_flush()
    sender.shutdown()

    assert [span.name for span in receiver.spans] == ["again", "last"]
    assert sender.dropped == 1
    assert receiver.headers[0][0] == "/v1/traces"
    assert receiver.headers[0][1]["x-token"] == "t"


def test_spans_that_find_no_room_are_dropped_and_counted(receiver: HttpReceiver) -> None:
    """The program that makes them never waits."""
    sender = OtlpSpans(receiver.url, every=60, most_waiting=3)
    tracer = provided(sender).get_tracer("test")
    for number in range(5):
        tracer.start_span(f"s{number}").end()
    sender.shutdown()

    assert ([span.name for span in receiver.spans], sender.dropped) == (["s0", "s1", "s2"], 2)


def test_a_process_that_is_forked_sends_its_own_spans(receiver: HttpReceiver) -> None:
    """And none of those that its parent has not sent yet."""
    sender = OtlpSpans(receiver.url, every=60)
    tracer = provided(sender).get_tracer("test")
    tracer.start_span("of the parent").end()
    child = os.fork()
    if not child:
        tracer.start_span("of the child").end()
        os._exit(0 if sender.force_flush(10_000) else 1)
    assert os.waitpid(child, 0)[1] == 0
    sender.shutdown()

    assert sorted(span.name for span in receiver.spans) == ["of the child", "of the parent"]


def test_where_spans_go_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch, receiver: HttpReceiver) -> None:
    """As OpenTelemetry has it."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret")
    sender = OtlpSpans()
    provided(sender).get_tracer("test").start_span("s").end()
    sender.shutdown()

    assert receiver.headers[0][0] == "/v1/traces"
    assert receiver.headers[0][1]["authorization"] == "Bearer secret"
    assert "secret" not in repr(sender)


@pytest.mark.parametrize("endpoint", ["collector:4318", "grpc://collector", "http://", ""])
def test_what_is_no_address_of_http_is_refused(endpoint: str) -> None:
    """With an example."""
    with pytest.raises(InvalidArgumentError, match="http://collector:4318"):
        OtlpSpans(endpoint)


def test_a_request_that_cannot_be_encoded_does_not_fail_for_it(
    receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its caller has ended by then: it is logged, and what comes later is sent."""
    provider = provided(OtlpSpans(receiver.url))
    hook = TracingHook(provider)

    def fails(*_: object) -> None:
        raise ValueError("a flaw of the encoder")

    with monkeypatch.context() as broken:
        broken.setattr(SpanEncoder, "add_rows", fails)
        for number in range(2 * SLICE):
            with asked_of(hook, None, f"r-{number}", "shop.buy"):
                pass
        provider.force_flush()
    with asked_of(hook, None, "later", "shop.buy"):
        pass
    provider.shutdown()

    assert caplog.text.count("event=span-not-encoded") >= 2
    assert [span.name for span in receiver.spans] == ["request shop.buy"]


def test_requests_that_are_encoded_together_are_what_each_is_by_itself() -> None:
    """Of several actions, with ids of any length, and with a clock that was set back; the ids of spans are random."""
    hook, encoder = TracingHook(provided()), SpanEncoder()
    rows: list[Any] = []
    for number in range(3 * SLICE + 5):
        request_id = f"r-{number:05}" if number % 50 else "é" * (number // 4 + 1) + "\ud800"
        ended = 1_750_000_000_000_000_000 + number
        rows += (f"shop.{'sell' if number % 7 == 3 else 'buy'}", request_id, ended + 5 - number, ended)
    alike = rows[1 : 4 * SLICE : 4]
    slices = [rows, [value for each in alike for value in ("shop.buy", each[:2], 1, 2)]]
    for some in slices:
        together, alone = SpanGroups(), SpanGroups()
        encoder.add_rows(some, together.of(hook.resource))
        for place in range(0, len(some), 4):
            action, request_id, began, ended = some[place : place + 4]
            encoder.add(RequestFacts(hook, action, request_id, began, ended, "", None, None), alone)
        found, wanted = (in_message(encoder.message(each)) for each in (together, alone))

        assert len({(span.trace_id, span.span_id) for span in found}) == len(wanted)
        assert {(len(span.trace_id), len(span.span_id)) for span in found} == {(16, 8)}
        for span in (*found, *wanted):
            span.trace_id = span.span_id = b""
        assert sorted(map(str, found)) == sorted(map(str, wanted))


def in_message(body: bytes) -> list[Any]:
    """Return the spans in a request of a collector."""
    read = ExportTraceServiceRequest.FromString(body)
    return [span for some in read.resource_spans for scope in some.scope_spans for span in scope.spans]


def test_requests_of_several_threads_are_each_sent_once(receiver: HttpReceiver) -> None:
    """Nothing is locked for each of them."""
    provider = provided(OtlpSpans(receiver.url))
    hook = TracingHook(provider)

    def ask(thread: int) -> None:
        for number in range(5 * SLICE + 7):
            with asked_of(hook, None, f"{thread}-{number:04}", "shop.buy"):
                pass

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    provider.shutdown()
    sent = [each.value.string_value for span in receiver.spans for each in span.attributes if each.key.endswith("id")]

    assert sorted(sent) == sorted(f"{thread}-{number:04}" for thread in range(4) for number in range(5 * SLICE + 7))


def test_requests_that_find_no_room_are_dropped_and_counted(receiver: HttpReceiver) -> None:
    """The first ones are kept; and after the end all are dropped."""
    sender = OtlpSpans(receiver.url, every=60, most_waiting=3)
    hook = TracingHook(provided(sender))
    for number in range(5):
        with asked_of(hook, None, f"r-{number}", "shop.buy"):
            pass
    sender.shutdown()
    with asked_of(hook, None, "late", "shop.buy"):
        pass
    sent = [each.value.string_value for span in receiver.spans for each in span.attributes if each.key.endswith("id")]

    assert (sent, sender.dropped) == (["r-0", "r-1", "r-2"], 3)


def ended(number: int) -> RunPiece:
    """Return the end of a run that no worker had."""
    trace, at = RunTrace(("main", "", f"r-{number}", 0)), Instant(1_750_000_000_000_000)
    return RunPiece(trace, f"r-{number}", "w", "", "cancelled", "", "", None, at, at, at, "", 0, (), 1, 0)


def run_ids(receiver: HttpReceiver) -> list[str]:
    """Return the ids of the runs whose spans arrived."""
    said = [each for span in receiver.spans for each in span.attributes]
    return [each.value.string_value for each in said if each.key == "standfast.run.id"]


def test_runs_that_find_no_room_are_dropped_and_counted(receiver: HttpReceiver) -> None:
    """The first ones are kept; and after the end all are dropped."""
    sender = OtlpSpans(receiver.url, every=60, most_waiting=3)
    hook = TracingHook(provided(sender))
    for number in range(5):
        hook.end_piece(ended(number))
    sender.shutdown()
    hook.end_piece(ended(5))

    assert (run_ids(receiver), sender.dropped) == (["r-0", "r-1", "r-2"], 3)


def test_a_run_that_cannot_be_encoded_does_not_lose_others(
    receiver: HttpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and all others are sent, more of them than are sent together."""
    provider = provided(OtlpSpans(receiver.url))
    hook = TracingHook(provider)
    for number in range(BATCH + 10):
        piece = ended(number)
        hook.end_piece(structs.replace(piece, ended_at=None) if number == 5 else piece)
    provider.shutdown()

    assert caplog.text.count("event=span-not-encoded") == 1
    assert sorted(run_ids(receiver)) == sorted(f"r-{number}" for number in range(BATCH + 10) if number != 5)
    assert len(receiver.requests) > 1


@final
class PiecesTaken(SpanProcessor):
    """Keeps the pieces of runs that it is given whole."""

    def __init__(self) -> None:
        self.pieces: list[RunPiece] = []
        self.suspended = asyncio.Event()

    def pieces_of(self, resource: Resource) -> WaitingRows:
        """Return where pieces are added; each is taken at once."""
        return WaitingRows(resource, 1, self._take)

    def _take(self, rows: WaitingRows) -> None:
        taken = rows.take()
        self.pieces += taken
        if any(piece.status == "suspended" for piece in taken):
            self.suspended.set()


@sf.workflow
async def empty(ctx: sf.Context) -> None:
    """Do nothing."""
    del ctx


@sf.workflow
async def branches(ctx: sf.Context) -> None:
    """Take steps side by side, one of them without an exact time."""
    await ctx.gather(*(ctx.step(works, number) for number in range(3)))


def variants(piece: RunPiece) -> Iterator[RunPiece]:
    """Yield a piece, and what else there may be of it."""
    yield piece
    yield structs.replace(piece, schedule="nightly", nominal_at=Instant(piece.started_at - 5), number=0, first=0)
    yield structs.replace(piece, status="timed_out", error="")
    yield structs.replace(piece, worker="", history=())
    yield structs.replace(piece, ended_at=Instant(piece.started_at - 1_000_000), fence=2**40, version="é" * 3_000)
    yield structs.replace(piece, history=[structs.replace(each, took=0) for each in piece.history])  # type: ignore[type-var] # they are structs
    yield structs.replace(piece, first=len(piece.history) // 2, number=3)
    for stored in (CALLER, f"{CALLER} vendor=1"):
        trace = RunTrace(("main", "", piece.run, 0), stored)
        yield structs.replace(piece, trace=trace, run="é" * 200)


async def test_a_piece_of_a_run_is_encoded_as_its_spans_are_by_opentelemetry() -> None:
    """Field by field, for pieces of every kind: what is written at once is what is made of facts one by one."""
    taken = PiecesTaken()
    provider = provided(taken)
    await runs(provider)
    await runs(provider, fails=True)
    at_once = sf.admin.WorkerLimits(linger=0)
    async with sf.Engine(
        "memory://", workflows=[shopping, empty, branches], hooks=[TracingHook(provider)], worker=at_once
    ) as engine:
        run = await engine.start(shopping, 1)
        await taken.suspended.wait()
        await run.signal("go", False)
        await run.result()
        await (await engine.start(empty)).result()
        await (await engine.start(branches)).result()
    encoder, hook, at_once_too = SpanEncoder(), TracingHook(provider), 0
    assert {piece.status for piece in taken.pieces} == {"completed", "failed", "suspended"}
    for told in taken.pieces:
        for piece in variants(told):
            groups, known = SpanGroups(), hook.known(piece.trace)
            groups.of(hook.resource).append(encoder.piece(piece, hook.resource))
            late = [LateSpan(known.context(each), facts) for each, facts in PieceSpans(piece, hook.resource).all()]
            expected = encode_spans(late).resource_spans[0].scope_spans[0].spans if late else []

            assert by_id(in_message(encoder.message(groups))) == by_id(list(expected))
            together = list[bytes]()
            if not encoder.add_plain([piece], together):
                assert together == groups.of(hook.resource)
                at_once_too += 1
    assert at_once_too


def plain(number: int, steps: tuple[str, ...] = ("works#1", "works#2"), **changes: Any) -> RunPiece:
    """Return a run that did nothing but steps, all of which went well at once."""
    run, at = f"r-{number:04}", 1_750_000_000_000_000 + 10 * number
    history = tuple(HistoryEvent("step", each, Instant(at + place), took=place + 3) for place, each in enumerate(steps))
    claimed, ended_at = Instant(at - number % 3), Instant(at + number % 7 - 2)
    trace = RunTrace(("main", "shop", run, number % 2))
    made = RunPiece(
        trace, run, "shopping", "1", "completed", "", "", None, Instant(at), claimed, ended_at, "w-1", 7, history, 0, 0
    )
    return structs.replace(made, **changes)


def test_plain_runs_that_are_encoded_together_are_what_each_is_by_itself() -> None:
    """Of any shape, as many at once as there are; what is not plain is left to be encoded by itself."""
    many = tuple(f"works#{number}" for number in range(17))
    stored = (CALLER, f"{CALLER} vendor=1", f"{CALLER[:-2]}01 vendor=22", "no context")
    wanted = [
        *(plain(number) for number in range(100)),
        *(plain(number, many[: number - 100]) for number in range(100, 117)),
        *(plain(number, fence=2 ** (number - 120)) for number in range(120, 160)),
        *(plain(number, trace=RunTrace(("main", "", "r", 0), stored[number % 4])) for number in range(160, 170)),
        *(plain(number, run="é" * number, workflow=f"w{number % 2}") for number in range(170, 180)),
        *(plain(180 + place, worker="w" * 10**place, version="é" * 10**place) for place in range(4)),
        plain(190, status="cancelled"),
    ]
    whole, event = plain(200), HistoryEvent("step", "works#1", Instant(1_750_000_000_000_000), took=3)
    left = [
        plain(200, many),
        *(plain(200, status=status, error="LookupError") for status in ("failed", "timed_out", "suspended", "running")),
        plain(200, worker=""),
        structs.replace(whole, number=1),
        plain(200, first=1),
        plain(200, schedule="nightly", nominal_at=Instant(whole.started_at - 5)),
        *(
            plain(200, history=(structs.replace(event, **changes), whole.history[1]))
            for changes in ({"kind": "slept"}, {"took": 0}, {"failure": Failure("LookupError", "")})
        ),
    ]
    encoder, hook, found = SpanEncoder(), TracingHook(provided()), list[bytes]()
    others = encoder.add_plain([*left[:5], *wanted, *left[5:]], found)

    assert list(map(id, others)) == list(map(id, left))
    assert sorted(found) == sorted(encoder.piece(each, hook.resource) for each in wanted)
    for each in wanted:
        alone = list[bytes]()
        assert not encoder.add_plain([each], alone)
        assert alone == [encoder.piece(each, hook.resource)]


@pytest.mark.parametrize("number", [1, RUNS - 1, RUNS, RUNS + 1, 3 * RUNS + 5])
def test_runs_of_all_kinds_are_each_sent_once(receiver: HttpReceiver, number: int) -> None:
    """Whether they were encoded where they ended or by the thread, and however many there are."""
    provider = provided(OtlpSpans(receiver.url))
    hook = TracingHook(provider)
    for each in range(number):
        hook.end_piece(plain(each, status="failed" if each % 5 == 3 else "completed"))
    provider.shutdown()

    assert len(by_id(receiver.spans)) == 5 * number
    assert sorted(run_ids(receiver)) == sorted(f"r-{each:04}" for each in range(number) for _ in range(5))


@pytest.mark.parametrize("changes", [{"ended_at": Instant(-1)}, {"run": None}, {"history": None}])
def test_a_plain_run_that_cannot_be_encoded_loses_and_doubles_no_others(
    receiver: HttpReceiver, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]
) -> None:
    """Those that are encoded at once with it are sent all the same; it is logged, and the loop never hears of it."""
    provider = provided(OtlpSpans(receiver.url))
    hook = TracingHook(provider)
    for number in range(2 * RUNS):
        hook.end_piece(plain(number, **(changes if number == 5 else {})))
    provider.shutdown()

    assert caplog.text.count("event=span-not-encoded") == 1
    assert len(by_id(receiver.spans)) == 5 * (2 * RUNS - 1)


def test_what_waits_for_a_slow_receiver_is_sent_in_messages_of_bounded_size(
    receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector refuses what is too large."""
    monkeypatch.setattr("standfast.telemetry.otlp.BATCH", RUNS)
    provider = provided(OtlpSpans(receiver.url, every=60))
    hook = TracingHook(provider)
    with monkeypatch.context() as stalled:
        stalled.setattr(OtlpSpans, "_attend", lambda _: None)
        for number in range(4 * RUNS):
            hook.end_piece(plain(number))
    for number in range(4 * RUNS, 5 * RUNS):
        hook.end_piece(plain(number))
    provider.shutdown()

    sizes = [sum(len(scope.spans) for some in each.resource_spans for scope in some.scope_spans)
             for each in receiver.requests]  # fmt: skip
    assert sum(sizes) == 5 * 5 * RUNS
    assert max(sizes) < 5 * 2 * RUNS

"""Spans as bytes: the messages of ``opentelemetry.proto.trace.v1``, whose numbers of fields never change.

OpenTelemetry's own exporter makes a span, then a message of it, then bytes: about 20 µs for each. The spans of a run
are known from its history, so their bytes are made of that at once, many at a time.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from itertools import chain, repeat, starmap
from random import randbytes
from typing import TYPE_CHECKING, Any, Final, cast, final

from opentelemetry.trace import SpanKind, TraceState

from standfast.telemetry.traces import ENDED, FAILED, ROW, LateSpan, PieceSpans, RequestFacts, SpanFacts, step_name
from standfast.trace_context import FIRST_SPAN, NO_SPAN, id_of, ids_of, packed_operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

    from standfast.trace_context import RecordedOperation, RunPiece

    Told: TypeAlias = RequestFacts | ReadableSpan | tuple[RunPiece, Resource]
    _PlainRun: TypeAlias = tuple[tuple[str, str, str, str], tuple[str, ...], int, int, int, int]
    """Workflow, version, status and worker; the steps; how long id, state of the trace, parent and fence are."""

    _PlainFacts: TypeAlias = tuple[RunPiece, Any, bytes, bytes, bytes, bytes, bytes, bytes]
    """A piece; digest, id of the trace and of its span; state of the trace, id, parent and fence, as they are sent."""

SLICE: Final = 128
"""How many requests are encoded at once: it takes some 40 µs."""

_NUMBER: Final = 64
"""How many bits a number has."""

_TIMES: Final = struct.Struct("<BQBQ")
_START, _END = 0x39, 0x41
_BEGAN: Final = b"\x39"
_LINK: Final = 10
"""How long the field with the id of what a span belongs to is."""

_TIMED: Final = struct.Struct("<QBQ")
"""When a span of a run began, whose tag is before it, and when it ended."""

_ID: Final = b"\x12\x08"
"""The tag of the id of a span."""

_IDS: Final = struct.Struct("29s")
"""The ids of a trace and of a span and the tags before them, and the tag of the time that follows."""

_ID_TAGS: Final = ((0, b"\x0a"), (1, b"\x10"), (18, b"\x12"), (19, b"\x08"), (28, b"\x39"))
_WENT_WELL: Final = ENDED - FAILED
_A_FEW: Final = 16
"""How many steps a plain run has at the most, so that a slice of runs is encoded in a part of a millisecond."""

_FLAGS, _REMOTE_FLAGS = b"\x85\x01\x00\x01\x00\x00", b"\x85\x01\x00\x03\x00\x00"
_UNSET: Final = b"\x7a\x00"
_PLAIN_END: Final = _UNSET + _FLAGS
_MOST_KEPT: Final = 10_000
_MOST_LAYOUTS: Final = 100


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:  # noqa: PLR2004 -- seven bits in each byte
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


_SIZES: Final = tuple(map(_varint, range(2_048)))


_HEADS: Final = tuple([b"\x12" + each for each in _SIZES])


def _head(size: int) -> bytes:
    """Return what is before a span of that size."""
    return _HEADS[size] if size < len(_HEADS) else b"\x12" + _varint(size)


def _field(tag: bytes, value: bytes) -> bytes:
    size = len(value)
    return tag + (_SIZES[size] if size < len(_SIZES) else _varint(size)) + value


def _text(tag: bytes, value: str) -> bytes:
    return _field(tag, value.encode("utf-8", "replace"))


def _value(value: object) -> bytes:
    """Return any value of an attribute."""
    if isinstance(value, str):
        return _text(b"\x0a", value)
    if isinstance(value, bool | int):
        return (
            b"\x10\x01" if value is True else b"\x10\x00" if value is False else b"\x18" + _varint(value % 2**_NUMBER)
        )
    if isinstance(value, float):
        return b"\x21" + struct.pack("<d", value)
    if isinstance(value, bytes):
        return _field(b"\x3a", value)
    items = cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()
    return _field(b"\x2a", b"".join(_field(b"\x0a", _value(each)) for each in items))


def _named(name: str) -> bytes:
    return _text(b"\x0a", name)


_RUN_ID, _WORKFLOW, _REQUEST_ID, _FENCE = (
    _named("standfast.run.id"),
    _named("standfast.workflow"),
    _named("standfast.request.id"),
    _named("standfast.fence"),
)
_SHORT: Final = 128
"""Below this, the size of a field is one byte."""


def _short(name: bytes, value: str) -> bytes:
    """Return an attribute of a span whose value is a text, as a rule a short one; the name is encoded already."""
    return _short_of(name, value.encode("utf-8", "replace"))


def _short_of(name: bytes, text: bytes) -> bytes:
    size, whole = len(text), len(name) + len(text) + 4
    if whole < _SHORT:
        return b"".join((b"\x4a", _SIZES[whole], name, b"\x12", _SIZES[size + 2], b"\x0a", _SIZES[size], text))
    return _field(b"\x4a", name + _field(b"\x12", _field(b"\x0a", text)))


def _attribute(name: str, value: object, tag: bytes = b"\x4a") -> bytes:
    return _field(tag, _text(b"\x0a", name) + _field(b"\x12", _value(value)))


def _attributes(said: Mapping[str, Any] | None, tag: bytes = b"\x4a") -> bytes:
    return b"".join([_attribute(name, value, tag) for name, value in said.items()]) if said else b""


def _status(code: int, description: str | None) -> bytes:
    about = _text(b"\x12", description) if description else b""
    return _field(b"\x7a", about + (b"\x18" + _varint(code) if code else b""))


def _link(context: SpanContext, attributes: Mapping[str, Any] | None = None) -> bytes:
    ids = b"\x0a\x10" + context.trace_id.to_bytes(16) + b"\x12\x08" + context.span_id.to_bytes(8)
    flags = b"\x35\x00\x03\x00\x00" if context.is_remote else b"\x35\x00\x01\x00\x00"
    return _field(b"\x6a", ids + _attributes(attributes, b"\x22") + flags)


@final
class SpanGroups:
    """The bytes of spans, by the resource and the scope that they have in common.

    They are told apart by what they are and not by what is in them: OpenTelemetry writes a resource out to compare it.

    Attributes:
        count: How many runs and requests they are of, if that is counted.
    """

    def __init__(self) -> None:
        self.count = 0
        self._groups: Final[dict[tuple[int, int], tuple[Resource, Any, list[bytes]]]] = {}

    def of(self, resource: Resource, scope: Any = None) -> list[bytes]:  # noqa: ANN401 -- as the SDK has it
        """Return those of a resource and a scope, to add more; None: those of Standfast itself."""
        key = (id(resource), id(scope))
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = (resource, scope, [])
        return group[2]

    def all(self) -> Iterable[tuple[Resource, Any, list[bytes]]]:
        """Return all of them."""
        return self._groups.values()


@final
class _RunFrame:
    """What spans say of all runs of one workflow whose ids are as long: each part is put together once.

    A span is its size and what all spans of the run have in common, its id, what it says by itself, and its times. What
    is kept of a span is the first of these parts, which is followed by the run's, and the fourth, which ends with the
    tag of the times.

    Attributes:
        run: What is before the id of the run.
        workflow: What says the workflow.
        start: Of the span of the start.
    """

    def __init__(self, workflow: str, run: bytes, state: bytes) -> None:
        said = _short_of(_RUN_ID, run)
        self._workflow: Final = workflow
        self.run, self.workflow = said[: len(said) - len(run)], _short(_WORKFLOW, workflow)
        self._size: Final = 18 + len(state) + len(said) + len(self.workflow) + _LINK + 10 + _TIMED.size
        self._steps: Final[dict[str, tuple[bytes, bytes, bytes]]] = {}
        self._claims: Final[dict[tuple[str, int], tuple[bytes, bytes]]] = {}
        self._ends: Final[dict[tuple[str, str, int], tuple[bytes, bytes]]] = {}
        self.start: Final = self._parts(_name("start", SpanKind.INTERNAL) + _PLAIN_END + _BEGAN)

    def _parts(self, about: bytes, more: int = 0) -> tuple[bytes, bytes]:
        return _head(self._size + len(about) + more), about

    def steps(self, history: Sequence[RecordedOperation], run: Any, below: bytes) -> list[bytes] | None:  # noqa: ANN401 -- a digest, for which hashlib has no type
        """Return the spans of a history of nothing but steps that went well at once; None: there is something else."""
        known, copy, pack, found = self._steps, run.copy, _TIMED.pack, list[bytes]()
        for event in history:
            at, took = event.at, event.took
            if event.kind != "step" or not took or event.failure is not None:
                return None
            head, about, key = known.get(event.id) or self._keep_step(event.id)
            span = copy()
            span.update(key)
            span_id = span.digest()
            times = pack((at - took) * 1_000, _END, at * 1_000)
            found += (head, below, span_id if span_id != NO_SPAN else FIRST_SPAN, about, times)
        return found

    def _keep_step(self, operation: str) -> tuple[bytes, bytes, bytes]:
        if len(self._steps) >= _MOST_KEPT:
            self._steps.clear()
        kept = self._steps[operation] = self.step(operation, 1, "")
        return kept

    def step(self, operation: str, attempt: int, error: str) -> tuple[bytes, bytes, bytes]:
        """Return the parts of an attempt at a step, and what its id follows from."""
        said = _attribute("standfast.step.id", operation) + _attribute("standfast.attempt", attempt)
        ends = _status(2, error) + _FLAGS if error else _PLAIN_END
        about = b"".join((_name(step_name(operation), SpanKind.INTERNAL), said, ends, _BEGAN))
        return *self._parts(about), packed_operation("step", operation, attempt)

    def claim(self, worker: str, size: int) -> tuple[bytes, bytes]:
        """Return the parts of a claim; its fence, which is that long, and the tag of the times come after them."""
        parts = self._claims.get((worker, size))
        if parts is None:
            named = _name("claim", SpanKind.INTERNAL) + _PLAIN_END + _attribute("standfast.worker", worker)
            said = (b"\x4a", _SIZES[len(_FENCE) + size + 3], _FENCE, b"\x12", _SIZES[size + 1], b"\x18")
            about = b"".join((named, *said))
            if len(self._claims) >= _MOST_LAYOUTS:
                self._claims.clear()
            parts = self._claims[worker, size] = self._parts(about, size + len(_BEGAN))
        return parts

    def end(self, status: str, version: str, parent: int) -> tuple[bytes, bytes]:
        """Return the parts of the run's own span; what it belongs to is that long."""
        parts = self._ends.get((status, version, parent))
        if parts is None:
            named = _name(f"run {self._workflow}", SpanKind.CONSUMER)
            said = _attribute("standfast.status", status) + _attribute("standfast.version", version)
            about = b"".join((named, said, _PLAIN_END, _BEGAN))
            if len(self._ends) >= _MOST_LAYOUTS:
                self._ends.clear()
            parts = self._ends[status, version, parent] = self._parts(about, parent - _LINK)
        return parts


@final
class _RunColumns:
    """What the spans of plain runs say that did the same: they differ in ids and times, and one struct fills these in.

    Args:
        frame: Of their workflow.
        shape: What they say alike, and how long the rest is.
    """

    def __init__(self, frame: _RunFrame, shape: _PlainRun) -> None:
        (_, version, status, worker), operations, run, state, parent, fence = shape
        steps = [frame.step(each, 1, "") for each in operations]
        self._frame: Final = frame
        self._started: Final = frame.start
        self._claimed, self._ended = frame.claim(worker, fence), frame.end(status, version, parent)
        self._steps: Final = [(key, repeat(head), repeat(about)) for head, about, key in steps]
        whole = 18 + state + len(frame.run) + run + len(frame.workflow)
        below = f"{whole + _LINK + len(_ID)}s8s"
        layout = (
            f"{len(self._started[0])}s{below}{len(self._started[1])}sQBQ",
            f"{len(self._claimed[0])}s{below}{len(self._claimed[1])}s{fence}sBQBQ",
            f"{len(self._ended[0])}s{whole}s{parent}s{len(_ID)}s8s{len(self._ended[1])}sQBQ",
            *(f"{len(head)}s{below}{len(about)}sQBQ" for head, about, _ in steps),
        )
        self._pack: Final = struct.Struct("<" + "".join(layout)).pack

    def spans(self, facts: list[_PlainFacts]) -> list[bytes]:
        """Return the spans of several runs, those of each together."""
        pieces, digests, traces, owns, states, runs, parents, fences = zip(*facts, strict=True)
        head, workflow, end, began = self._frame.run, self._frame.workflow, repeat(_END), repeat(_START)
        wholes = [
            b"".join((b"\x0a\x10", trace, state, head, run, workflow))
            for trace, state, run in zip(traces, states, runs, strict=True)
        ]
        belows = [b"".join((whole, b"\x22\x08", own, _ID)) for whole, own in zip(wholes, owns, strict=True)]
        started = [each.started_at * 1_000 for each in pieces]
        claimed = [each.claimed_at * 1_000 for each in pieces]
        ended = [each.ended_at * 1_000 for each in pieces]
        histories = [each.history for each in pieces]
        until = claimed
        if self._steps:
            until = [min(each[0].at * 1_000, at) for each, at in zip(histories, claimed, strict=True)]
        columns: list[Iterable[Any]] = [
            *(repeat(self._started[0]), belows, ids_of(digests, _STARTED), repeat(self._started[1])),
            *(map(min, started, until), end, until),
            *(repeat(self._claimed[0]), belows, ids_of(digests, _CLAIMED), repeat(self._claimed[1]), fences, began),
            *(map(min, claimed, ended), end, ended),
            *(repeat(self._ended[0]), wholes, parents, repeat(_ID), owns, repeat(self._ended[1])),
            *(map(min, started, ended), end, ended),
        ]
        for (key, before, about), events in zip(self._steps, zip(*histories, strict=True), strict=True):
            at = [each.at * 1_000 for each in events]
            since = [(each.at - each.took) * 1_000 for each in events]
            columns += (before, belows, ids_of(digests, key), about, since, end, at)
        return list(starmap(self._pack, zip(*columns)))  # noqa: B905 -- what is the same for all has no end


@final
class SpanEncoder:
    """Makes the bytes of spans, and keeps those parts that come again."""

    def __init__(self) -> None:
        self._kept: Final[dict[tuple[str, int], bytes]] = {}
        self._frames: Final[dict[tuple[str, int, int], _RunFrame]] = {}
        self._columns: Final[dict[_PlainRun, _RunColumns]] = {}
        self._layouts: Final[dict[tuple[int, int, int], struct.Struct]] = {}
        self._resources: Final[dict[int, tuple[Resource, bytes]]] = {}
        self._common: Any = None
        self._parent: SpanContext | None = None
        self._run = self._below = b""

    def _keep(self, key: tuple[str, int], part: bytes) -> bytes:
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[key] = part
        return part

    def add(self, told: Told, spans: SpanGroups) -> None:
        """Add the bytes of a span, or of the piece of a run, by its resource and scope."""
        if isinstance(told, tuple):
            spans.of(told[1]).append(self.piece(*told))
        elif isinstance(told, RequestFacts):
            spans.of(told.resource).append(self._of_request(told))
        elif isinstance(told, LateSpan) and told.is_late:
            context, late = told.told
            found = spans.of(late.resource)
            if isinstance(late, RequestFacts):
                found.append(self._of_request(late))
            else:
                trace = b"\x0a\x10" + context.trace_id.to_bytes(16) + _state(context.trace_state)
                found.append(self._of_facts(trace, context.span_id, late))
        else:
            spans.of(told.resource, told.instrumentation_scope).append(self._of_span(told))

    def add_rows(self, rows: list[Any], found: list[bytes]) -> None:
        """Add the bytes of requests that begin their traces, nearly all: those of one action at once."""
        actions = rows[::ROW]
        named = dict.fromkeys(actions)
        if len(named) == 1:
            found.extend(self._of_rows(actions[0], rows[1::ROW], rows[2::ROW], rows[3::ROW]))
            return
        for action in named:
            places = [place for place, each in enumerate(actions) if each == action]
            columns = ([rows[ROW * place + column] for place in places] for column in (1, 2, 3))
            found.extend(self._of_rows(action, *columns))

    def _of_rows(self, action: str, request_ids: list[str], began: list[int], ended: list[int]) -> Iterable[bytes]:
        """Return the spans of requests of one action.

        They differ in four places only, so a struct with as many members as there are fills in all of them in one call.
        Ids are random, as OpenTelemetry's own; the tags between them are written into what was drawn.
        """
        texts = [each.encode("utf-8", "replace") for each in request_ids]
        count, size = len(texts), len(texts[0])
        if set(map(len, texts)) != {size}:
            places = range(count)
            alone = (([request_ids[place]], [began[place]], [ended[place]]) for place in places)
            return [span for one in alone for span in self._of_rows(action, *one)]
        said = _short_of(_REQUEST_ID, texts[0])
        about = self._about_request(action)
        whole = len(said) + _IDS.size + 17 + len(about) + len(_PLAIN_END)
        before = b"".join((b"\x12", _varint(whole), about, _PLAIN_END, said[: len(said) - size]))
        ids = bytearray(randbytes(_IDS.size * count))  # noqa: S311 -- random as OpenTelemetry's own are
        for place, tag in _ID_TAGS:
            ids[place :: _IDS.size] = tag * count
        values: list[Any] = [before, b"", b"", 0, _END, 0] * count
        values[1::6], values[2::6], values[5::6] = texts, [each for (each,) in _IDS.iter_unpack(ids)], ended
        values[3::6] = [first if first < last else last for first, last in zip(began, ended, strict=True)]  # noqa: FURB136 -- without a call, since there are many
        layout = self._layouts.get((len(before), size, count))
        if layout is None:
            layout = struct.Struct("<" + f"{len(before)}s{size}s{_IDS.size}sQBQ" * count)
            if count == SLICE and len(self._layouts) < _MOST_LAYOUTS:
                self._layouts[len(before), size, count] = layout
        return (layout.pack(*values),)

    def _about_request(self, action: str) -> bytes:
        about = self._kept.get((action, -1))
        if about is None:
            named = _name(f"request {action}", RequestFacts.kind) + _attribute("standfast.action", action)
            about = self._keep((action, -1), named)
        return about

    def message(self, *groups: SpanGroups) -> bytes:
        """Return all of them as a request of a collector."""
        found: list[bytes] = []
        for resource, scope, some in chain.from_iterable(each.all() for each in groups):
            if some:
                about = _field(b"\x0a", _text(b"\x0a", "standfast") if scope is None else _scope(scope))
                schema = _text(b"\x1a", scope.schema_url) if scope is not None and scope.schema_url else b""
                whose, size = self._of_resource(resource), sum(map(len, some)) + len(about) + len(schema)
                inner = b"\x12" + _varint(size)
                outer = b"\x0a" + _varint(len(whose) + len(inner) + size)
                found += (outer, whose, inner, about, *some, schema)
        return b"".join(found)

    def _of_resource(self, resource: Resource) -> bytes:
        known = self._resources.get(id(resource))
        if known is None or known[0] is not resource:
            about = _field(b"\x0a", _attributes(resource.attributes, b"\x0a"))
            schema = _text(b"\x1a", resource.schema_url) if resource.schema_url else b""
            known = self._resources[id(resource)] = resource, about + schema
        return known[1]

    def piece(self, piece: RunPiece, resource: Resource) -> bytes:
        """Return the spans of a piece of a run.

        What :class:`PieceSpans` says of them in general is written here at once for those that nearly all runs have:
        the start, steps, the claim, and the run itself if it has not failed.
        """
        trace, number = piece.trace, piece.number
        (digest, trace_id, own), above, run = trace.packed, trace.parent, piece.run.encode("utf-8", "replace")
        state = b"" if above is None or not above.state else _state(TraceState.from_header([above.state]))
        frame = self._frames.get((piece.workflow, len(run), len(state))) or self._keep_frame(piece.workflow, run, state)
        whole = b"".join((b"\x0a\x10", trace_id, state, frame.run, run, frame.workflow))
        below = b"".join((whole, b"\x22\x08", own, _ID))
        history, claimed_at, ended_at = piece.history, piece.claimed_at, piece.ended_at
        found, pack = list[bytes](), _TIMED.pack
        if not number:
            until = history[0].at if history and history[0].at < claimed_at else claimed_at
            times = pack(min(piece.started_at, until) * 1_000, _END, until * 1_000)
            head, about = frame.start
            found += (head, below, id_of(digest, _STARTED), about, times)
        steps = None if piece.first else frame.steps(history, digest, below)
        if piece.worker:
            fence = _varint(piece.fence)
            times = pack(min(claimed_at, ended_at) * 1_000, _END, ended_at * 1_000)
            claimed = id_of(digest, _CLAIMED if not number else packed_operation("claim", number=number))
            head, about = frame.claim(piece.worker, len(fence))
            found += (head, below, claimed, about, fence, _BEGAN, times)
        has_ended, has_failed = piece.status in ENDED, piece.status in FAILED
        if has_ended and not has_failed:
            times = pack(min(piece.started_at, ended_at) * 1_000, _END, ended_at * 1_000)
            parent = b"" if above is None else b"\x22\x08" + bytes.fromhex(above.span_id)
            head, about = frame.end(piece.status, piece.version, len(parent))
            found += (head, whole, parent, _ID, own, about, times)
        if steps is None or has_failed or piece.nominal_at is not None:
            spans, facts = PieceSpans(piece, resource), b"\x0a\x10" + trace_id + state
            found += self._seldom(piece, spans, frame, below, facts, has_steps=steps is not None)
        return b"".join(found if steps is None else (*found, *steps))

    def add_plain(self, pieces: Iterable[RunPiece], found: list[bytes]) -> list[RunPiece]:
        """Add the bytes of plain runs, those that are alike at once; return the others, which :meth:`piece` takes.

        A run is plain if it is told as a whole, has gone well, and did nothing but a few steps that went well at once.
        """
        others: list[RunPiece] = []
        alike: defaultdict[_PlainRun, list[_PlainFacts]] = defaultdict(list)
        for piece in pieces:
            history = piece.history
            operations = tuple(
                [each.id for each in history if each.kind == "step" and each.took and each.failure is None]
            )
            if (
                piece.status not in _WENT_WELL
                or not len(operations) == len(history) <= _A_FEW
                or (piece.number or piece.first or not piece.worker or piece.nominal_at is not None)
            ):
                others.append(piece)
                continue
            trace, run, fence = piece.trace, piece.run.encode("utf-8", "replace"), piece.fence
            above, state, parent = trace.parent, b"", b""
            if above is not None:
                state = _state(TraceState.from_header([above.state])) if above.state else b""
                parent = b"\x22\x08" + bytes.fromhex(above.span_id)
            number = _SIZES[fence] if fence < len(_SIZES) else _varint(fence)
            said = piece.workflow, piece.version, piece.status, piece.worker
            shape = said, operations, len(run), len(state), len(parent), len(number)
            alike[shape].append((piece, *trace.packed, state, run, parent, number))
        for shape, facts in alike.items():
            try:
                found += (self._columns.get(shape) or self._keep_columns(shape, facts[0])).spans(facts)
            except Exception:  # noqa: BLE001 -- one of them cannot be encoded, and must not lose the rest
                others += [each[0] for each in facts]
        return others

    def _keep_columns(self, shape: _PlainRun, facts: _PlainFacts) -> _RunColumns:
        (workflow, *_), state, run = shape[0], facts[4], facts[5]
        frame = self._frames.get((workflow, len(run), len(state))) or self._keep_frame(workflow, run, state)
        if len(self._columns) >= _MOST_LAYOUTS:
            self._columns.clear()
        made = self._columns[shape] = _RunColumns(frame, shape)
        return made

    def _seldom(
        self, piece: RunPiece, spans: PieceSpans, frame: _RunFrame, below: bytes, trace: bytes, *, has_steps: bool
    ) -> Iterator[bytes]:
        """Yield what only some pieces have: steps that failed or were told in part, waits, the end of what failed."""
        digest = piece.trace.packed[0]
        if not piece.number and piece.nominal_at is not None:
            yield self._of_facts(trace, *spans.tick(piece.nominal_at))
        for began, ended, operation, attempt, error in () if has_steps else spans.steps():
            head, about, key = frame.step(operation, attempt, error)
            times = _TIMED.pack(min(began, ended) * 1_000, _END, ended * 1_000)
            yield from (head, below, id_of(digest, key), about, times)
        for other in spans.others():
            yield self._of_facts(trace, *other)
        if piece.status in FAILED:
            yield self._of_facts(trace, *spans.whole())

    def _keep_frame(self, workflow: str, run: bytes, state: bytes) -> _RunFrame:
        if len(self._frames) >= _MOST_LAYOUTS:
            self._frames.clear()
        made = self._frames[workflow, len(run), len(state)] = _RunFrame(workflow, run, state)
        return made

    def _of_facts(self, trace: bytes, span_id: int, facts: SpanFacts) -> bytes:
        """Return a span of a run."""
        if facts.common is not self._common:
            self._common = facts.common
            _, run, workflow = facts.common
            self._run = _short(_RUN_ID, run) + _short(_WORKFLOW, workflow)
        if facts.parent is not self._parent:
            self._parent = facts.parent
            self._below = b"" if facts.parent is None else b"\x22\x08" + facts.parent.span_id.to_bytes(8)
        operation, ended, began = facts.operation, facts.ended, facts.began
        key = (operation, facts.attempt) if facts.attempt else (facts.title, -2)
        about = self._kept.get(key)
        if about is None:
            step = _attribute("standfast.step.id", operation) + _attribute("standfast.attempt", facts.attempt)
            about = self._keep(key, _name(facts.name, facts.kind) + (step if facts.attempt else b""))
        ends = _PLAIN_END
        if facts.about or facts.link or facts.error or (operation and not facts.attempt):
            ends = b"".join((
                *(self._said(name, value) for name, value in facts.about),
                _attribute("standfast.operation", operation) if operation and not facts.attempt else b"",
                *(_link(each.context) for each in facts.links),
                _status(2, facts.error) if facts.error else _UNSET,
                _FLAGS,
            ))  # fmt: skip
        times = _TIMES.pack(_START, (min(ended, began)) * 1_000, _END, ended * 1_000)
        parts = (trace, b"\x12\x08", span_id.to_bytes(8), self._below, self._run, about, times, ends)
        return _field(b"\x12", b"".join(parts))

    def _said(self, name: str, value: str | int) -> bytes:
        """Return an attribute; texts are kept: names of workers, statuses, versions."""
        if isinstance(value, int):
            return _attribute(name, value)
        key = (f"{name}={value}", -3)
        return self._kept.get(key) or self._keep(key, _attribute(name, value))

    def _of_request(self, request: RequestFacts) -> bytes:
        """Return the span of a request."""
        own, (began, ended) = request.own, request.times
        if own is None:
            ids = request.source.ids
            above, trace_id, span_id = b"", ids.generate_trace_id(), ids.generate_span_id()
        else:
            parent, trace_id, span_id = request.parent, own.trace_id, own.span_id
            above = b"" if parent is None else _state(own.trace_state) + b"\x22\x08" + parent.span_id.to_bytes(8)
        ends = _status(2, request.error) + _FLAGS if request.error else _PLAIN_END
        said = (
            b"\x0a\x10",
            trace_id.to_bytes(16),
            b"\x12\x08",
            span_id.to_bytes(8),
            above,
            self._about_request(request.action),
            _short(_REQUEST_ID, request.request_id),
            _TIMES.pack(_START, began, _END, ended),
            ends,
        )
        return _field(b"\x12", b"".join(said))

    def _of_span(self, span: ReadableSpan) -> bytes:
        """Return a span of the code, made through OpenTelemetry."""
        context, parent, status = span.context, span.parent, span.status
        if context is None:
            return b""
        events = (
            _field(
                b"\x5a",
                b"\x09"
                + struct.pack("<Q", each.timestamp)
                + _text(b"\x12", each.name)
                + _attributes(each.attributes, b"\x1a"),
            )
            for each in span.events
        )
        return _field(
            b"\x12",
            b"".join((
                b"\x0a\x10",
                context.trace_id.to_bytes(16),
                b"\x12\x08",
                context.span_id.to_bytes(8),
                _state(context.trace_state),
                b"" if parent is None else b"\x22\x08" + parent.span_id.to_bytes(8),
                _name(span.name, span.kind),
                _TIMES.pack(_START, span.start_time or 0, _END, span.end_time or 0),
                _attributes(span.attributes),
                *events,
                *(_link(each.context, each.attributes) for each in span.links),
                _status(status.status_code.value, status.description),
                _REMOTE_FLAGS if parent is not None and parent.is_remote else _FLAGS,
            )),
        )  # fmt: skip


def _name(name: str, kind: SpanKind) -> bytes:
    return _text(b"\x2a", name) + b"\x30" + _varint(kind.value + 1)


def _state(state: TraceState | None) -> bytes:
    return _text(b"\x1a", ",".join([f"{name}={value}" for name, value in state.items()])) if state else b""


_STARTED, _CLAIMED = packed_operation("start"), packed_operation("claim")


def _scope(scope: Any) -> bytes:  # noqa: ANN401 -- of which only the name and the version are shown
    about = _text(b"\x0a", scope.name) + (_text(b"\x12", scope.version) if scope.version else b"")
    return about + _attributes(scope.attributes, b"\x1a")

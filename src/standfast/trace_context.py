"""Trace contexts as W3C writes them, and ids of spans that follow from the run, whichever worker drives it.

A run's spans have ids that are digests of its namespace, tenant, id and incarnation, and of the operation in its
history. So a worker that takes a run over makes the same ids, and children can name a parent that is not exported yet.
Nothing in here needs a library of traces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol, final

from msgspec import Struct

from standfast.clock import Instant

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]{0,200})?")
_STATE: Final = re.compile(r"[\x20-\x7e]{1,512}")
_INVALID_VERSION: Final = "ff"
SAMPLED: Final = 1
NO_SPAN, FIRST_SPAN = (0).to_bytes(8), (1).to_bytes(8)
"""An id of zero is none."""

_NO_TRACE, _FIRST_TRACE = (0).to_bytes(16), (1).to_bytes(16)
_SPAN_IDS, _TRACE_IDS = blake2b(digest_size=8), blake2b(digest_size=16)
"""Copied for each run: to copy one takes a tenth of the time that it takes to make one."""


class TraceContext(Struct, frozen=True):
    """Which span something belongs to.

    Attributes:
        trace_id: 32 digits of hexadecimal.
        span_id: 16 of them.
        flags: 1 if it is sampled.
        state: What ``tracestate`` says; other systems' matter.
    """

    trace_id: str
    span_id: str
    flags: int = SAMPLED
    state: str = ""

    @property
    def is_sampled(self) -> bool:
        """Whether spans of the trace are exported."""
        return bool(self.flags & SAMPLED)

    @property
    def traceparent(self) -> str:
        """The header of that name."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    @property
    def stored(self) -> str:
        """The text that is stored with a run."""
        return f"{self.traceparent} {self.state}" if self.state else self.traceparent


def read_headers(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """Return what the two headers say; None if ``traceparent`` is malformed. What is odd in the other is left out."""
    found = _PARENT.fullmatch(traceparent.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == _INVALID_VERSION or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    state = tracestate.strip()
    return TraceContext(trace_id, span_id, int(flags, 16) & SAMPLED, state if _STATE.fullmatch(state) else "")


def read_stored(text: str) -> TraceContext | None:
    """Return what was stored with a run; None if that is nothing, or cannot be read."""
    if not text:
        return None
    traceparent, _, state = text.partition(" ")
    return read_headers(traceparent, state)


def packed_operation(kind: str, operation: str = "", number: int = 0) -> bytes:
    """Return what the id of a span of a run follows from, besides the run."""
    return f"{kind}\0{operation}\0{number}".encode()


_RUN: Final = packed_operation("run")


def id_of(run: Any, operation: bytes) -> bytes:  # noqa: ANN401 -- a digest of what hashlib has no type for
    """Return the id of the span of an operation of a run."""
    digest = run.copy()
    digest.update(operation)
    found: bytes = digest.digest()
    return found if found != NO_SPAN else FIRST_SPAN


def ids_of(runs: Iterable[Any], operation: bytes) -> list[bytes]:
    """Return what :func:`id_of` returns for one operation of each of several runs."""
    found: list[bytes] = []
    for run in runs:
        digest = run.copy()
        digest.update(operation)
        found.append(digest.digest())
    return [each if each != NO_SPAN else FIRST_SPAN for each in found] if NO_SPAN in found else found


@final
class RunTrace(Struct, gc=False):
    """The trace that a run belongs to, and the ids of its spans, which are made when they are asked for.

    The collector of garbage does not look at it, as there is one for each run and none refers to itself.

    Attributes:
        place: The run's namespace, tenant, id and incarnation.
        stored: The context that was stored when it was started; empty if there was none.
        native: What the hook that traces keeps of it.
    """

    place: tuple[str, str, str, int]
    stored: str = ""
    native: Any = None
    _parent: TraceContext | None = None
    _packed: tuple[Any, bytes, bytes] | None = None

    @property
    def parent(self) -> TraceContext | None:
        """What the run's own span belongs to."""
        if self._parent is None and self.stored:
            self._parent = read_stored(self.stored)
        return self._parent

    @property
    def trace_id(self) -> int:
        """The trace: that of the caller that started the run, else one of its own."""
        return int.from_bytes(self.packed[1])

    @property
    def run_span(self) -> int:
        """The id of the run's own span."""
        return int.from_bytes(self.packed[2])

    @property
    def packed(self) -> tuple[Any, bytes, bytes]:
        """The digest that its spans' ids go on from, copied for each, and the ids of the trace and of its own span."""
        if self._packed is None:
            namespace, tenant, run_id, incarnation = self.place
            place = f"{namespace}\0{tenant}\0{run_id}\0{incarnation}\0".encode()  # none of them has a NUL in it
            digest, parent = _SPAN_IDS.copy(), self.parent
            digest.update(place)
            if parent is None:
                own = _TRACE_IDS.copy()
                own.update(place)
                trace_id = own.digest()
            else:
                trace_id = bytes.fromhex(parent.trace_id)
            self._packed = digest, trace_id if trace_id != _NO_TRACE else _FIRST_TRACE, id_of(digest, _RUN)
        return self._packed

    def span(self, kind: str, operation: str = "", number: int = 0) -> int:
        """Return the id of the span of one operation."""
        return int.from_bytes(self.packed_span(packed_operation(kind, operation, number)))

    def packed_span(self, operation: bytes) -> bytes:
        """Return the same as eight bytes, for an operation as :func:`packed_operation` has it."""
        return id_of(self.packed[0], operation)

    def within(self, span: int) -> TraceContext:
        """Return the context of what belongs to a span of the run."""
        known = self.parent
        flags, state = (SAMPLED, "") if known is None else (known.flags, known.state)
        return TraceContext(f"{self.trace_id:032x}", f"{span:016x}", flags, state)


class RecordedOperation(Protocol):
    """An entry of a run's history, as far as traces need it."""

    @property
    def kind(self) -> str:
        """Which operation."""
        ...

    @property
    def id(self) -> str:
        """Where in the code."""
        ...

    @property
    def at(self) -> Instant:
        """When, by the store's time."""
        ...

    @property
    def took(self) -> int:
        """For how many microseconds the code of a step ran, until then; 0: not known."""
        ...

    @property
    def link(self) -> str:
        """The trace context of what has sent what was received, as it is stored; empty: none."""
        ...

    @property
    def failure(self) -> Any:  # noqa: ANN401 -- a failure, of which only the type's name is shown
        """What it raised."""
        ...


class RunPiece(Struct, frozen=True, gc=False):
    """What one or more workers did with a run until it was suspended, handed back or ended: one claim, as a rule.

    If a worker dies, its spans are part of the next piece, so that each is told once. It is made for every run, and its
    fields are given in order: by name that would take five times as long.

    Attributes:
        trace: The trace of the run.
        run: Its id.
        workflow: The name of its workflow.
        version: The version of that.
        status: How it is now; ``running``: it was handed back.
        error: The type of what it raised.
        schedule: The schedule that has started it.
        nominal_at: The time that the schedule named.
        started_at: When it was started.
        claimed_at: When the worker took it up that tells this.
        ended_at: When it was suspended, handed back or ended.
        worker: The presence of that worker; empty: it was ended while no worker had it.
        fence: With which fence.
        history: All that is recorded of it.
        number: How many pieces of the run were told before.
        first: From where on its history was not told before.
    """

    trace: RunTrace
    run: str
    workflow: str
    version: str
    status: str
    error: str
    schedule: str
    nominal_at: Instant | None
    started_at: Instant
    claimed_at: Instant
    ended_at: Instant
    worker: str
    fence: int
    history: Sequence[RecordedOperation]
    number: int
    first: int


class RequestTrace(Protocol):
    """A request that is traced."""

    def end(self, kind: type[BaseException] | None = None) -> None:
        """Tell that it has ended; it has raised ``kind``."""
        ...


class RunTracing(Protocol):
    """What an engine needs of a hook that traces runs. A hook is one if it has a true ``traces_runs``."""

    def current(self) -> TraceContext | None:
        """Return the context that the code belongs to that runs now."""
        ...

    def enter_run(self, trace: RunTrace, run_id: str) -> object:
        """Let spans that are made in a step of a run belong to that step, until :meth:`leave`."""
        ...

    def leave(self, token: Any) -> None:  # noqa: ANN401 -- what it was entered with
        """Let spans belong to what they did before."""
        ...

    def request(self, caller: TraceContext | None, request_id: str, action: str) -> RequestTrace:
        """Trace a request, and let spans that are made belong to it until it is told that it has ended."""
        ...

    def end_piece(self, piece: RunPiece) -> None:
        """Tell what was done with a run."""
        ...

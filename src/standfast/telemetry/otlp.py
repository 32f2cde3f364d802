"""Spans for a receiver of OTLP, over HTTP: what happened is encoded some at a time, and sent from a thread."""

from __future__ import annotations

import http.client
import logging
import os
import ssl
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from http import HTTPStatus
from itertools import chain
from typing import TYPE_CHECKING, Final, final
from urllib.parse import unquote, urlsplit

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from standfast.durations import Duration, seconds
from standfast.errors import InvalidArgumentError
from standfast.telemetry.span_encoder import SLICE, SpanEncoder, SpanGroups
from standfast.telemetry.traces import ROW, RequestFacts, WaitingRows
from standfast.threads import start_daemon

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Span

    from standfast.telemetry.span_encoder import Told

PATH: Final = "/v1/traces"
BATCH: Final = 2_048
"""How many things are sent together at the most: runs, requests, spans of the code."""

RUNS: Final = 32
"""How many plain runs are encoded at once: of five steps, it takes some 250 µs."""

TURN: Final = 256
"""After how many things that it encodes the thread lets others have their turn."""

TRIES: Final = 5
_RETRIED: Final = frozenset({408, 429, 502, 503, 504})
_TOO_SLOW: Final = "more came than the receiver took"
_LOG: Final = logging.getLogger("standfast")


@final
class OtlpSpans(SpanProcessor):
    """Sends spans to a receiver of OTLP over HTTP, at a third of what OpenTelemetry's own exporter costs.

        provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
        provider.add_span_processor(sf.admin.OtlpSpans("http://collector:4318"))
        engine = sf.Engine("sqlite:///shop.db", workflows=[fulfil], hooks=[sf.admin.TracingHook(provider)])

    Spans of other instrumentations go the same way. What cannot be sent is tried again for a while, then dropped and
    reported; nothing waits for it.

    Args:
        endpoint: Where the receiver listens; ``/v1/traces`` is added if it names no path. By default what
            ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`` or ``OTEL_EXPORTER_OTLP_ENDPOINT`` says, else port 4318 of this
            machine.
        headers: What is sent with each request, such as a token; by default what ``OTEL_EXPORTER_OTLP_HEADERS`` says.
        every: How long spans wait at the most before they are sent.
        timeout: How long an answer may take.
        most_waiting: How many runs, requests and spans wait in memory at the most; more are dropped.

    Raises:
        InvalidArgumentError: The endpoint is no address of HTTP.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        every: Duration = 1.0,
        timeout: Duration = 10.0,
        most_waiting: int = 100_000,
    ) -> None:
        self._address: Final = urlsplit(_endpoint() if endpoint is None else endpoint)
        if self._address.scheme not in ("http", "https") or not self._address.hostname:
            raise InvalidArgumentError("endpoint", "it must be like http://collector:4318", f"{endpoint!r:.100}")
        path = self._address.path if self._address.path not in ("", "/") else PATH
        self._path: Final = f"{path}?{self._address.query}" if self._address.query else path
        self._headers: Final = {
            **(_headers() if headers is None else headers),
            "content-type": "application/x-protobuf",
        }
        self._every, self._timeout, self._most = seconds(every), seconds(timeout), most_waiting
        self._slice, self._batch, self._runs = (min(each, most_waiting + 1) for each in (SLICE, BATCH, RUNS))
        self._rows: Final[list[WaitingRows]] = []
        self._pieces: Final[list[WaitingRows]] = []
        self._begin_anew()
        again = weakref.WeakMethod(self._begin_anew)
        os.register_at_fork(after_in_child=lambda: (made := again()) and made())
        self._encoder: Final = SpanEncoder()

    def _begin_anew(self) -> None:
        """Begin without a thread and without spans: also in a process that was forked, where no thread goes on."""
        self._waiting: deque[Told] = deque()
        for each in chain(self._rows, self._pieces):
            each.most = 0
            each.waiting.clear()
        self._wanted, self._idle = threading.Event(), threading.Condition()
        self._connection: http.client.HTTPConnection | None = None
        self._thread: threading.Thread | None = None
        self._is_sending, self._is_taking, self._rounds = False, False, 0
        self._batches, self._encoded, self._encoding = deque([SpanGroups()]), 0, threading.Lock()
        self._closing = threading.Event()
        self.dropped, self._problem = 0, _TOO_SLOW

    def __repr__(self) -> str:
        return f"<OtlpSpans {self._address.scheme}://{self._address.hostname}>"

    # --- what is taken -------------------------------------------------------------------------------------------

    def take(self, told: RequestFacts | ReadableSpan) -> None:
        """Send the span of a request, or any other, a moment later."""
        self._waiting.append(told)
        if len(self._waiting) < self._batch and self._is_taking:
            return
        if self._number > self._most or self._closing.is_set():
            with suppress(IndexError):
                self._waiting.pop()
                self.dropped += 1
            return
        self._attend()

    def rows_of(self, resource: Resource) -> WaitingRows:
        """Return where a hook adds requests that have no more to say than a row has."""
        rows = WaitingRows(resource, ROW, self._take_rows)
        self._rows.append(rows)
        return rows

    def pieces_of(self, resource: Resource) -> WaitingRows:
        """Return where a hook adds pieces of runs."""
        pieces = WaitingRows(resource, 1, self._take_pieces)
        self._pieces.append(pieces)
        return pieces

    def _take_pieces(self, pieces: WaitingRows) -> None:
        """Encode plain runs, as many as are encoded at once; or see to the first one.

        It is done by the caller, as for requests: what a run has left in memory is still near, and is free again for
        the next one. Pieces of other kinds are left to the thread, since they may take any time.
        """
        if not self._has_room(pieces):
            return
        pieces.most = self._runs
        if len(pieces.waiting) >= pieces.most:
            self._encode_plain(pieces)
        self._attend()

    def _has_room(self, rows: WaitingRows) -> bool:
        """Return True if what waits may wait; else drop the newest."""
        over = self._number if self._closing.is_set() else self._number - self._most
        if over > 0:
            self.dropped += rows.drop(over)
        return over <= 0

    def _take_rows(self, rows: WaitingRows) -> None:
        """Encode requests, as many as are encoded at once; or the first one.

        The caller that brings the last of a slice does it. A thread that did it beside would take the interpreter away
        from the loop at each of its system calls, several a request, which costs more than the encoding.
        """
        if not self._has_room(rows):
            return
        rows.most = ROW * self._slice
        if len(rows.waiting) >= rows.most:
            self._encode_rows(rows)
        self._attend()

    def _attend(self) -> None:
        """Have a thread that sends what waits: at once, if that is much."""
        self._is_taking = True
        if self._thread is None:
            self._begin()
        if self._number >= BATCH and not self._wanted.is_set():
            self._wanted.set()

    @property
    def _number(self) -> int:
        """How much waits to be sent."""
        return len(self._waiting) + sum(map(len, chain(self._rows, self._pieces))) + self._encoded

    def _encode_rows(self, rows: WaitingRows) -> None:
        with self._encoding:
            taken = rows.take()
            try:
                self._encoder.add_rows(taken, self._batches[-1].of(rows.resource))
            except Exception:  # noqa: BLE001 -- the caller is a request that has ended, and must not fail for it
                _LOG.exception("event=span-not-encoded")
            self._count(len(taken) // ROW)

    def _encode_plain(self, pieces: WaitingRows) -> None:
        with self._encoding:
            taken, resource = pieces.take(), pieces.resource
            try:
                others = self._encoder.add_plain(taken, self._batches[-1].of(resource))
            except Exception:  # noqa: BLE001 -- the caller is a run that has ended, and must not fail for it
                others = taken  # the thread encodes each by itself, and reports which one it was
            self._waiting.extend([(each, resource) for each in others])
            self._count(len(taken) - len(others))

    def _count(self, encoded: int) -> None:
        """Count what was encoded, and begin another batch if this one is large enough to be sent."""
        batch = self._batches[-1]
        batch.count += encoded
        self._encoded += encoded
        if batch.count >= BATCH:
            self._batches.append(SpanGroups())

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: a span is sent when it has ended."""

    def on_end(self, span: ReadableSpan) -> None:
        """Send a span, if it is sampled."""
        if span.context is not None and span.context.trace_flags.sampled:
            self.take(span)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Wait until all that was taken is sent, or dropped; return False if that takes longer."""
        with self._idle:
            asked = self._rounds + (2 if self._is_sending else 1)  # one that is under way may have left some out
            self._wanted.set()
            is_done = lambda: self._thread is None or self._rounds >= asked  # noqa: E731 -- in one place
            return self._idle.wait_for(is_done, timeout_millis / 1_000)

    def shutdown(self) -> None:
        """Send what was taken, and end."""
        if self._closing.is_set():
            return
        self.force_flush()
        self._is_taking = False
        self._closing.set()
        for each in chain(self._rows, self._pieces):
            each.most = 0
        self._wanted.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._timeout)

    # --- the thread that sends -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        with self._idle:
            if self._thread is None:
                self._thread = start_daemon(self._run, "otlp")

    def _run(self) -> None:
        reported = 0
        while not self._closing.is_set():
            self._wanted.wait(self._every)
            self._wanted.clear()
            with self._idle:
                self._is_sending = True
            left = self._number  # what comes meanwhile waits for the next round
            while left > 0 and not self._closing.is_set():
                left -= self._send_some()
            if self.dropped > reported:
                _LOG.warning("event=spans-dropped since-start=%s why=%s", self.dropped, self._problem)
                reported, self._problem = self.dropped, _TOO_SLOW
            with self._idle:
                self._is_sending = False
                self._rounds += 1
                self._idle.notify_all()
        if self._connection is not None:
            self._connection.close()

    def _send_some(self) -> int:
        """Send what waits, a batch at the most; return how much that was."""
        for each in self._rows:
            self._encode_rows(each)
        for each in self._pieces:
            self._encode_plain(each)
        with self._encoding:
            batch = self._batches.popleft()
            self._encoded -= batch.count
            if not self._batches:
                self._batches.append(SpanGroups())
        spans, waiting, encoder, count = SpanGroups(), self._waiting, self._encoder, batch.count
        while waiting and count < BATCH:
            told = waiting.popleft()
            try:
                encoder.add(told, spans)
            except Exception:  # noqa: BLE001 -- whatever the code has said of its spans, others must be sent
                _LOG.exception("event=span-not-encoded")
            count += 1
            if count % TURN == 0:
                time.sleep(0)
        body = encoder.message(batch, spans)
        if body and (problem := self._sent(body)):
            self.dropped, self._problem = self.dropped + count, problem
        return max(1, count)

    def _sent(self, body: bytes) -> str:
        """Send a message; return why it was not taken, or nothing."""
        problem = ""
        for number in range(TRIES):
            if number and self._closing.wait(0.1 * 2**number):
                break
            try:
                status = self._post(body)
            except (OSError, http.client.HTTPException) as failed:
                problem = type(failed).__name__
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
                continue
            if status < HTTPStatus.MULTIPLE_CHOICES:
                return ""
            problem = f"it answered {status}"
            if status not in _RETRIED:
                break
        return problem

    def _post(self, body: bytes) -> int:
        if self._connection is None:
            host, port = self._address.hostname or "", self._address.port
            if self._address.scheme == "https":
                context = ssl.create_default_context()
                self._connection = http.client.HTTPSConnection(host, port, timeout=self._timeout, context=context)
            else:
                self._connection = http.client.HTTPConnection(host, port, timeout=self._timeout)
        self._connection.request("POST", self._path, body, self._headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status


def _endpoint() -> str:
    exact = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if exact:
        return exact
    root = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://127.0.0.1:4318"
    return f"{root.rstrip('/')}{PATH}"


def _headers() -> dict[str, str]:
    said = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or os.environ.get("OTEL_EXPORTER_OTLP_HEADERS") or ""
    pairs = (each.partition("=") for each in said.split(",") if "=" in each)
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}

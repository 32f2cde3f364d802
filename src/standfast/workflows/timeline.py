"""Where the time of a run went: a pure function of its records.

A history says when each operation was recorded, for how long the code of each step ran, when that was there which the
run waited for, and which worker took it up. From that follows what every branch did at every moment: it worked, waited
for a lock, a limit, a signal, a timer, a child or a worker, or ran its own code between two operations.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

import msgspec
from msgspec import Struct

from standfast.clock import MICROSECONDS, Instant, seconds_between
from standfast.locks.inspect import length
from standfast.workflows.replay import branch_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from standfast.workflows.records import Driven, Header, HistoryEvent, RunState

SpanKind: TypeAlias = Literal[
    "work", "retry", "lock", "limit", "child", "signal", "timer", "condition", "start", "worker", "operator", "code"
]

WAITS: Final[dict[SpanKind, str]] = {
    "work": "work",
    "retry": "waited to try again",
    "lock": "waited for a lock",
    "limit": "waited for a limit",
    "child": "waited for a child",
    "signal": "waited for a signal",
    "timer": "slept",
    "condition": "waited for a condition",
    "start": "waited for the time of its start",
    "worker": "waited for a worker",
    "operator": "waited for an operator",
    "code": "its own code, and writing",
}
"""What each kind of span is, in words; of several at a time the first one counts."""

_IDLE: Final[SpanKind] = "code"
_STEPS: Final = ("step", "tried", "transaction")
_BEGINNINGS: Final[dict[str, SpanKind]] = {"sleep": "timer", "lock": "lock", "child": "child"}
_ENDS: Final = ("slept", "held", "released", "child_done")
_OPEN: Final[tuple[tuple[str, SpanKind], ...]] = (
    ("the signal", "signal"),
    ("its sleep", "timer"),
    ("the child", "child"),
    ("a predicate", "condition"),
    ("attempt", "retry"),
    ("its turn", "limit"),
    ("the time of its start", "start"),
    ("an operator", "operator"),
    ("somebody to retry", "operator"),  # word: in runs of earlier versions
    ("a worker", "worker"),
    ("its run lock", "lock"),
)


class Span(Struct, frozen=True, omit_defaults=True):
    """What a branch of a run did for a while.

    Attributes:
        kind: What: see :data:`WAITS`.
        id: The operation, with the path of its branch; empty for what concerns the whole run.
        began_at: From when.
        ended_at: Until when; of a span that goes on, until the moment of the look.
        is_open: It goes on.
        attempt: Of a step: which attempt this was.
        error: What an attempt raised, in words.
        worker: The presence that recorded it.
        host: The machine that it ran on.
    """

    kind: SpanKind
    id: str
    began_at: Instant
    ended_at: Instant
    is_open: bool = False
    attempt: int = 0
    error: str = ""
    worker: str = ""
    host: str = ""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return seconds_between(self.began_at, self.ended_at)


class Timeline(Struct, frozen=True):
    """Where the time of a run went.

    Attributes:
        run: The run.
        workflow: Its workflow.
        status: How it is.
        began_at: When it was started.
        ended_at: When it ended; of one that has not, the moment of the look.
        spans: What was done and waited for, by the time of its beginning.
        seconds: For how long each kind of span was what the run did; together, as long as it took. While several
            branches did something, work counts before waits.
    """

    run: str
    workflow: str
    status: str
    began_at: Instant
    ended_at: Instant
    spans: tuple[Span, ...]
    seconds: dict[str, float]

    @property
    def took(self) -> float:
        """How long the run took, or takes so far."""
        return seconds_between(self.began_at, self.ended_at)


def timeline_of(run_id: str, header: Header, state: RunState, events: Sequence[HistoryEvent], now: Instant) -> Timeline:
    """Return the timeline of a run.

    Args:
        run_id: The run.
        header: What it was started with.
        state: How it is.
        events: Its history.
        now: The store's time: until then goes what is not over.
    """
    ends = state.changed_at if state.has_ended else max(now, state.changed_at)
    drawn = _Drawing(header, state, events, ends)
    spans = tuple(sorted(drawn.spans, key=lambda span: (span.began_at, span.ended_at)))
    began = header.started_at
    return Timeline(run_id, header.workflow, state.status, began, ends, spans, _totals(spans, began, ends))


@final
class _Drawing:
    """The spans of a history, drawn event by event."""

    def __init__(self, header: Header, state: RunState, events: Sequence[HistoryEvent], ends: Instant) -> None:
        self.spans: Final[list[Span]] = []
        self._ends: Final = ends
        self._stops: Final = state.stops
        self._claims: Final[list[Driven]] = [event.driven for event in events if event.driven is not None]
        self._attempts: Final[dict[str, int]] = {}
        self._pending: Final[dict[str, HistoryEvent]] = {}
        for since, until in self._stops:
            self.spans.append(Span("operator", "", since, until))
        if self._claims:
            first = self._claims[0].at
        elif events:
            first = events[0].at
        else:
            first = state.changed_at if state.owner or state.claims else ends
        begins = header.started_at  # what it waited for before it was first taken up
        if header.begins_at is not None:
            until = min(header.begins_at, first)
            self._add("start", "", begins, until)
            begins = max(begins, until)
        self._add("limit" if header.lines else "worker", "", begins, first)
        self._last: Final[dict[str, Instant]] = {"": first}
        for event in events:
            self._draw(event)
            self._last[branch_of(event.id)] = event.at
        if not state.has_ended and (events or state.claims):
            self._go_on(state)

    def _add(self, kind: SpanKind, operation: str, began: Instant, ended: Instant, *, is_open: bool = False) -> None:
        """Draw a span, but for the time in which the run had ended and an operator was to let it go on.

        Before that it waited for no worker: it did what is not recorded any more.
        """
        for since, until in self._stops:
            if since < ended and until > began:
                if since > began and kind != "worker":
                    self.spans.append(Span(kind, operation, began, since))
                began = max(began, until)
        if ended > began:
            self.spans.append(Span(kind, operation, began, ended, is_open=is_open))

    def _since(self, event: HistoryEvent) -> Instant:
        """Return when a branch had done what came before an event: it, or the nearest that it is part of."""
        path = branch_of(event.id)
        while path not in self._last:
            path = path.rpartition("/")[0]
        return min(self._last[path], event.at)

    def _draw(self, event: HistoryEvent) -> None:
        if event.kind in _STEPS:
            self._draw_step(event)
        elif event.kind in ("waits", *_BEGINNINGS):
            self._pending[event.id] = event
        elif event.kind in _ENDS:
            if (begun := self._pending.pop(event.id, None)) is not None:
                due = event.due
                if begun.kind == "sleep":
                    due = begun.until
                elif event.kind == "held" and event.value:
                    due = msgspec.json.decode(event.value, type=_Granted).granted_at
                self._draw_wait(_BEGINNINGS.get(begun.kind, "condition"), event, begun.at, due)
        elif event.kind in ("signal", "until"):
            begun = self._pending.pop(event.id, None)
            kind: SpanKind = "signal" if event.kind == "signal" else "condition"
            self._draw_wait(kind, event, self._since(event) if begun is None else begun.at, event.due)

    def _draw_step(self, event: HistoryEvent) -> None:
        since, attempt = self._since(event), self._attempts.get(event.id, 0) + 1
        began = (
            Instant(event.at - event.took)
            if event.took
            else max((until for _, until in self._stops if since < until <= event.at), default=since)
        )
        before = self._pending.pop(event.id, None)
        if before is not None and before.until is not None:
            until = min(before.until, began)
            self._add("retry", event.id, before.at, until)
            self._draw_gap(event.id, max(before.at, until), began)
        else:
            self._draw_gap(event.id, since, began)
        error = "" if event.failure is None else f"{event.failure.type}: {event.failure.message}"[:300]
        claims = self._claims
        driven = (
            claims[0] if len(claims) == 1 else next((each for each in reversed(claims) if each.at <= event.at), None)
        )
        worker, host = ("", "") if driven is None else (driven.by, driven.host)
        self.spans.append(
            Span(
                "work", event.id, min(began, event.at), event.at, attempt=attempt, error=error, worker=worker, host=host
            )
        )
        self._attempts[event.id] = attempt
        if event.kind == "tried":
            self._pending[event.id] = event

    def _draw_gap(self, operation: str, since: Instant, until: Instant) -> None:
        """Draw that a run waited for a worker, if it was taken up between two moments."""
        if until <= since or self._claims[-1:] == [] or self._claims[-1].at <= since:
            return
        taken = next((each.at for each in self._claims if since < each.at <= until), None)
        if taken is not None:
            self._add("worker", operation, since, taken)

    def _draw_wait(self, kind: SpanKind, event: HistoryEvent, since: Instant, due: Instant | None) -> None:
        """Draw a wait until that was there which it was for, and from then on the wait for a worker."""
        there = event.at if due is None else max(since, min(due, event.at))
        self._add(kind, event.id, since, there)
        self._add("worker", event.id, there, event.at)

    def _go_on(self, state: RunState) -> None:
        """Draw what a run that has not ended does, or waits for."""
        for event in self._pending.values():
            waits: SpanKind = "condition" if event.id.rpartition("/")[2].startswith("until") else "signal"
            kind: SpanKind = "retry" if event.kind == "tried" else _BEGINNINGS.get(event.kind, waits)
            self._add(kind, event.id, event.at, self._ends, is_open=True)
        if state.owner:
            self._add("code", "", max(self._last.values()), self._ends, is_open=True)
        elif not self._pending or not state.waits_for.startswith(("its sleep", "the child", "attempt")):
            named: list[SpanKind] = [kind for words, kind in _OPEN if state.waits_for.startswith(words)]
            self._add(named[0] if named else "worker", "", max(self._last.values()), self._ends, is_open=True)


class _Granted(Struct, frozen=True):
    granted_at: Instant


def _totals(spans: Iterable[Span], began: Instant, ended: Instant) -> dict[str, float]:
    """Return for how long each kind was what the run did: at each moment one, and its own code where there is none."""
    ranks = {kind: rank for rank, kind in enumerate(WAITS)}
    changes: list[tuple[Instant, int, int]] = []
    for span in spans:
        rank = ranks[span.kind]
        changes.append((span.began_at, rank, 1))
        changes.append((span.ended_at, rank, -1))
    changes.sort(key=itemgetter(0))
    changes.append((ended, 0, 0))
    active, first, last = [0] * len(ranks), len(ranks), ranks[_IDLE]  # first: the rank of the first kind that is active
    totals = [0] * len(ranks)
    at = began
    for until, rank, step in changes:  # a history may be long: this is what its page takes longest for
        if until > at:
            until = min(until, ended)  # noqa: PLW2901 -- within the time of the run
            totals[min(first, last)] += max(0, until - at)
            at = max(at, until)
        active[rank] += step
        if step > 0 and rank < first:
            first = rank
        elif rank == first and not active[rank]:
            first = next((each for each, count in enumerate(active) if count), len(ranks))
    found: dict[str, float] = {kind: totals[rank] / MICROSECONDS for kind, rank in ranks.items() if totals[rank]}
    return {kind: found[kind] for kind in sorted(found, key=lambda kind: -found[kind])}


# --- as text --------------------------------------------------------------------------------------------------------

MOST_SPANS: Final = 60
"""How many spans are shown: the longest ones, in the order of time."""

_BAR: Final = 24


def timeline_lines(timeline: Timeline, *, width: int = 100, most: int = MOST_SPANS) -> list[str]:
    """Return a timeline as lines of text that are no longer than ``width``: a summary, then the longest spans."""
    whole = timeline.took or 1.0
    shares = [f"{length(took)} {kind} ({100 * took / whole:.0f} %)" for kind, took in timeline.seconds.items()]
    lines = [f"{length(timeline.took)} in all: {', '.join(shares) or 'nothing yet'}"]
    chosen = {id(span) for span in sorted(timeline.spans, key=lambda span: -span.seconds)[:most]}
    for span in (span for span in timeline.spans if id(span) in chosen):
        when = length(seconds_between(timeline.began_at, span.began_at))
        took = f"{length(span.seconds)}{'...' if span.is_open else ''}"
        attempt = f"attempt {span.attempt}" if span.attempt > 1 or (span.error and span.kind == "work") else ""
        result = ", ".join(filter(None, (attempt, " ".join(span.error.split()))))
        about = " ".join(filter(None, (span.id, result)))
        lines.append(f"  +{when:<9} {_bar(timeline, span)} {took:>10}  {span.kind:<9} {about}"[:width].rstrip())
    if len(timeline.spans) > most:
        lines.append(f"  and {len(timeline.spans) - most:,} shorter ones; --json shows all")
    return lines


def _bar(timeline: Timeline, span: Span) -> str:
    whole = max(1, timeline.ended_at - timeline.began_at)
    first = min(_BAR - 1, (span.began_at - timeline.began_at) * _BAR // whole)
    last = min(_BAR, max(first + 1, -(-(span.ended_at - timeline.began_at) * _BAR // whole)))
    return f"{' ' * first}{('#' if span.kind == 'work' else '-') * (last - first)}".ljust(_BAR)

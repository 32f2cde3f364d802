"""The instruments: every metric by name, what it means, and the numbers behind it.

They know neither Prometheus nor OpenTelemetry. A counter and a histogram are a dictionary of label values each, so that
counting costs well under a microsecond; what exports them reads them when it is asked.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

from msgspec import Struct

from standfast.clock import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = tuple[str, ...]

MOST_LABELS: Final = 200
"""How many label sets one metric has at most. What comes later is counted under ``other``."""

OTHER: Final = "other"

QUICK: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds for what takes a moment: commits, hints, polls. In seconds."""

WAITS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
"""Bounds for what a caller waits for: locks, requests, steps, a worker. In seconds."""

LONG: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0)
"""Bounds for whole runs, which may sleep for days. In seconds."""

RIDERS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0)


class Instrument(Struct, frozen=True):
    """One metric: its name, what it means, and the names of its labels.

    ``bounds`` are those of the buckets of a histogram.
    """

    name: str
    kind: Kind
    help: str
    labels: Labels = ()
    bounds: tuple[float, ...] = ()


def _counter(name: str, text: str, *labels: str) -> Instrument:
    return Instrument(f"standfast_{name}_total", "counter", text, labels)


def _gauge(name: str, text: str, *labels: str) -> Instrument:
    return Instrument(f"standfast_{name}", "gauge", text, labels)


def _histogram(name: str, text: str, bounds: tuple[float, ...], *labels: str) -> Instrument:
    return Instrument(f"standfast_{name}", "histogram", text, labels, bounds)


# --- runs and workers ----------------------------------------------------------------------------------------------

RUNS_STARTED: Final = _counter("runs_started", "Runs that were started here.", "workflow")
RUNS_ENDED: Final = _counter("runs_ended", "Runs that ended here, by outcome.", "workflow", "outcome")
RUN_DURATION: Final = _histogram("run_duration_seconds", "From the start of a run to its end.", LONG, "workflow")
RUN_READY_WAIT: Final = _histogram(
    "run_schedule_to_start_seconds", "From when a run could go on until a worker claimed it.", WAITS, "workflow"
)
RUNS_SUSPENDED: Final = _counter("runs_suspended", "Runs that were unloaded because all they do is wait.", "workflow")
RUNS_QUARANTINED: Final = _counter("runs_quarantined", "Runs that were put into quarantine here.", "workflow")
RUNS_MISFIT: Final = _counter("runs_code_differs", "Runs whose history the code here does not fit.")
RUNS_DEPOSED: Final = _counter("runs_deposed", "Runs that were taken over while this worker still ran.", "workflow")
TAKEOVERS: Final = _counter("takeovers", "Runs claimed here whose worker had died.", "workflow")
TAKEOVER_SECONDS: Final = _histogram(
    "takeover_seconds", "From when the worker of a run was found dead until another one claimed it.", WAITS, "workflow"
)
WORKERS_DIED: Final = _counter("workers_died", "Workers that were found dead from here.")
WORKER_FAILURES: Final = _counter("worker_failures", "Times that the worker could do nothing as the store failed.")
STEPS: Final = _counter("steps", "Steps that ended, by outcome.", "workflow", "step", "outcome")
STEP_DURATION: Final = _histogram("step_duration_seconds", "The last attempt of each step.", WAITS, "workflow", "step")
STEP_RETRIES: Final = _counter("step_retries", "Attempts of steps that failed and are tried again.", "workflow", "step")
HINT_LAG: Final = _histogram("hint_lag_seconds", "From the commit of a new run until a worker heard of it.", QUICK)
POLLS: Final = _counter("polls", "Times that the worker looked by itself for what hints may have missed.")
POLLS_FOUND: Final = _counter("polls_found", "Ready runs that the worker found so, of which no hint had told.")
LOOP_HELD_UP: Final = _counter("loop_held_up", "Times that the event loop stood still for half a second or longer.")
LOOP_HELD_UP_SECONDS: Final = _counter("loop_held_up_seconds", "Seconds for which the event loop stood still so.")

# --- locks and rate limiters ---------------------------------------------------------------------------------------

LOCK_WAIT: Final = _histogram("lock_wait_seconds", "From asking for a lock until it was held.", WAITS, "family")
LOCK_HOLD: Final = _histogram("lock_hold_seconds", "How long locks were held.", WAITS, "family")
LOCKS_ENDED: Final = _counter("locks_released", "Holds that ended, by outcome.", "family", "outcome")
LOCKS_REFUSED: Final = _counter("locks_refused", "Locks that were asked for and not got.", "family", "outcome")
LEASES_LOST: Final = _counter("leases_lost", "Holds that ended before their time.", "family")
DEADLOCKS: Final = _counter("deadlocks_refused", "Waits that would never have ended, refused.", "family")
FENCES: Final = _counter("fences_refused", "Writes with a fence that was not the highest any more, refused.")
RATE_GRANTED: Final = _counter("rate_granted", "Callers that passed a rate limiter.", "family")
RATE_WAIT: Final = _histogram("rate_wait_seconds", "How long callers waited at a rate limiter.", WAITS, "family")
RATE_REFUSED: Final = _counter("rate_refused", "Callers that did not pass a rate limiter.", "family")
RATE_CLOSED: Final = _counter("rate_closed", "Pauses that were asked of a rate limiter.", "family")

# --- requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = _counter("requests", "What was decided about requests.", "flow", "action", "policy", "verdict")
REQUESTS_ENDED: Final = _counter("requests_ended", "Requests that ended here.", "flow", "action", "policy", "outcome")
REQUEST_WAIT: Final = _histogram(
    "request_wait_seconds", "How long requests waited for their turn.", WAITS, "flow", "action"
)
REQUEST_DURATION: Final = _histogram("request_duration_seconds", "How long actions ran.", WAITS, "flow", "action")
DEBOUNCED: Final = _counter("requests_collected", "Requests put into a burst or a batch.", "flow", "action")
SUPERSEDED: Final = _counter("requests_superseded", "Requests whose place a newer one took.", "flow", "action")
JOINED: Final = _counter("requests_joined", "Requests that share the run of another one.", "flow", "action")
REPLAYED: Final = _counter("requests_replayed", "Requests answered again by their idempotency key.", "flow", "action")

# --- schedules -----------------------------------------------------------------------------------------------------

TICKS: Final = _counter("ticks", "Ticks of schedules, by outcome: fired, skipped or missed.", "outcome")
TICK_LATENESS: Final = _histogram("tick_lateness_seconds", "How late ticks fired.", WAITS)

# --- the store -----------------------------------------------------------------------------------------------------

COMMIT_SECONDS: Final = _histogram("commit_seconds", "How long transactions of the store took.", QUICK, "backend")
COMMIT_RIDERS: Final = _histogram("commit_riders", "Commits that shared a transaction.", RIDERS, "backend")
COMMIT_CONFLICTS: Final = _counter("commit_conflicts", "Commits that lost a race.", "backend")
UNKNOWN_OUTCOMES: Final = _counter("commits_unknown", "Transactions whose answer was lost on the way.", "backend")

# --- gauges: read from the store and this process when they are asked for --------------------------------------------

STORE_UP: Final = _gauge("store_up", "1 if the store answered when the gauges were last read, and took writes; else 0.")
GAUGES_SECONDS: Final = _gauge("gauges_seconds", "How long it took to read the gauges from the store.")
GAUGES_AGE: Final = _gauge("gauges_age_seconds", "How long ago the gauges were read.")
READY: Final = _gauge("runs_ready", "Runs in the store that could go on and have no worker; at most 1,000 are counted.")
READY_OLDEST: Final = _gauge("runs_ready_oldest_seconds", "For how long the oldest of them has been ready.")
WITHOUT_CODE: Final = _gauge("runs_without_code", "Ready runs whose workflow or version this process does not have.")
MISFITS: Final = _gauge("runs_misfit", "Ready runs that workers have tried, with code that does not fit them.")
QUARANTINED: Final = _gauge("runs_in_quarantine", "Runs in quarantine; at most 1,000 are counted.")
CLAIMED: Final = _gauge("runs_claimed", "Runs that all workers have claimed; at most 1,000 are counted.")
WORKERS: Final = _gauge("workers", "Workers on the store.")
LOADED: Final = _gauge("runs_loaded", "Runs in the memory of this process.")
UTILISATION: Final = _gauge("worker_utilisation", "Share of the runs that this worker takes at a time: 0 to 1.")
LINES_WAITING: Final = _gauge("lines_waiting", "Entries that wait for locks; at most 1,000 lines are read.", "family")
LINES_OLDEST: Final = _gauge(
    "lines_oldest_wait_seconds", "How long the front of a line has waited, at most, by family.", "family"
)
STORE_RECORDS: Final = _gauge("store_records", "Records in the store; at most 50,000 are counted.", "backend")
STORE_BYTES: Final = _gauge("store_bytes", "Bytes that the store takes, where it can tell.", "backend")
STORE_FREE: Final = _gauge("store_free_bytes", "How many of them are unused, for what is written next.", "backend")

INSTRUMENTS: Final[tuple[Instrument, ...]] = tuple(
    each for each in tuple(globals().values()) if isinstance(each, Instrument)
)
"""All of them, in the order of the page."""


# --- the numbers ---------------------------------------------------------------------------------------------------


@final
class CounterValues:
    """A number for each set of label values, which only grows."""

    __slots__ = ("_lock", "_other", "instrument", "values")

    def __init__(self, instrument: Instrument) -> None:
        self.instrument: Final = instrument
        self.values: Final[dict[Labels, float]] = {}
        self._other: Final = (OTHER,) * len(instrument.labels)
        self._lock: Final = threading.Lock()  # hooks are called on several threads

    def add(self, labels: Labels = (), amount: float = 1.0) -> None:
        """Count."""
        with self._lock:
            values = self.values
            if labels not in values and len(values) >= MOST_LABELS:
                labels = self._other
            values[labels] = values.get(labels, 0.0) + amount

    def read(self) -> list[tuple[Labels, float]]:
        """Return the numbers."""
        with self._lock:
            return list(self.values.items())


@final
class HistogramValues:
    """For each set of label values: how many fell into each bucket, and their sum."""

    __slots__ = ("_bounds", "_lock", "_other", "instrument", "values")

    def __init__(self, instrument: Instrument) -> None:
        self.instrument: Final = instrument
        self._bounds: Final = instrument.bounds
        self.values: Final[dict[Labels, list[float]]] = {}
        self._other: Final = (OTHER,) * len(instrument.labels)
        self._lock: Final = threading.Lock()

    def observe(self, labels: Labels, value: float) -> None:
        """Take note of a value."""
        bounds = self._bounds
        with self._lock:
            counts = self.values.get(labels)
            if counts is None:
                counts = self._another(labels)
            counts[bisect_left(bounds, value)] += 1
            counts[-1] += value

    def observe_all(self, labels: Labels, found: list[int], unit: int = MICROSECONDS) -> None:
        """Take note of several values, of which a ``unit`` is one: sorted, they are counted by bounds, not singly."""
        if not found:
            return
        found.sort()
        before = 0
        with self._lock:
            counts = self.values.get(labels)
            if counts is None:
                counts = self._another(labels)
            for place, bound in enumerate(self._bounds):
                until = bisect_right(found, bound * unit, before)
                counts[place] += until - before
                before = until
                if before == len(found):
                    break
            else:
                counts[len(self._bounds)] += len(found) - before
            counts[-1] += sum(found) / unit

    def _another(self, labels: Labels) -> list[float]:
        if len(self.values) >= MOST_LABELS:
            labels = self._other
        return self.values.setdefault(labels, [0.0] * (len(self._bounds) + 2))

    def read(self) -> list[tuple[Labels, list[float], float]]:
        """Return, for each set of labels, how many fell into each bucket (the last has no bound), and the sum."""
        with self._lock:
            return [(labels, counts[:-1], counts[-1]) for labels, counts in self.values.items()]


class GaugeValue(Struct, frozen=True):
    """What a gauge says."""

    instrument: Instrument
    value: float
    labels: Labels = ()


def bounded(values: Iterable[GaugeValue]) -> list[GaugeValue]:
    """Return gauges of which none has more label sets than it may have; the rest are left out."""
    seen: dict[str, int] = {}
    kept: list[GaugeValue] = []
    for each in values:
        seen[each.instrument.name] = seen.get(each.instrument.name, 0) + 1
        if seen[each.instrument.name] <= MOST_LABELS:
            kept.append(each)
    return kept

"""Metrics: a hook that turns events into numbers.

    metrics = sf.admin.PrometheusMetrics()
    engine = sf.Engine("sqlite:///jobs.db", workflows=[fulfil], hooks=[metrics])

Labels have only names that were declared in code: workflows, steps, families of keys, flows, actions, policies,
outcomes, backends. Keys, ids of runs, tenants and users are never among them.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from standfast import events as told
from standfast.clock import MICROSECONDS, seconds_between
from standfast.telemetry import instruments as of
from standfast.telemetry.instruments import INSTRUMENTS, CounterValues, HistogramValues
from standfast.workflows.records import ENDED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from standfast.events import Event
    from standfast.telemetry.instruments import Instrument

T = TypeVar("T")

_LOG: Final = logging.getLogger("standfast")
TEXT: Final = "text"
"""The family of keys that are plain text, as a label."""


class Metrics:
    """The numbers that events make. Pass it as a hook; :class:`PrometheusMetrics` and others show them.

    Args:
        histogram: Makes what takes the values of a histogram; by default :class:`~.instruments.HistogramValues`.
    """

    def __init__(self, histogram: Callable[[Instrument], Any] = HistogramValues) -> None:
        self.counters: Final = {each: CounterValues(each) for each in INSTRUMENTS if each.kind == "counter"}
        self.histograms: Final = {each: histogram(each) for each in INSTRUMENTS if each.kind == "histogram"}
        self._handlers: Final[dict[type[Event], Callable[[Any], None]]] = {
            **self._of_runs(),
            **self._of_workers(),
            **self._of_locks(),
            **self._of_requests(),
            **self._of_stores(),
        }
        for each in self.counters.values():
            if not each.instrument.labels:
                each.add((), 0.0)  # so that an alert on its growth sees the first
        self._tallies: Final[Tallies | None] = Tallies(self) if histogram is HistogramValues else None

    def wants(self, kind: type[Event]) -> bool:
        """Return True for the events that are counted."""
        return kind in self._handlers

    def counter_of(self, kind: type[Event]) -> Callable[[Any], None]:
        """Return what counts events of a kind."""
        return self._handlers[kind]

    def tally_of(self, kind: type[Event]) -> object:
        """Return what takes the bare facts of events of a kind, see :class:`Tallies`; None: it takes the events."""
        return None if self._tallies is None else self._tallies.takes.get(kind)

    def add_up(self) -> None:
        """Count what was taken note of and not counted yet: before numbers are shown."""
        if self._tallies is not None:
            self._tallies.add_up()

    def __call__(self, event: Event, /) -> None:
        """Count an event."""
        self._handlers[type(event)](event)

    # --- runs ----------------------------------------------------------------------------------------------------

    def _of_runs(self) -> dict[type[Event], Callable[[Any], None]]:
        count, histogram = self._counting, self.histograms
        started, ended = self.counters[of.RUNS_STARTED].add, self.counters[of.RUNS_ENDED].add
        duration, wait = histogram[of.RUN_DURATION].observe, histogram[of.RUN_READY_WAIT].observe
        suspended, takeovers = self.counters[of.RUNS_SUSPENDED].add, self.counters[of.TAKEOVERS].add
        takeover_seconds, quarantined = histogram[of.TAKEOVER_SECONDS].observe, self.counters[of.RUNS_QUARANTINED].add
        steps, step_seconds = self.counters[of.STEPS].add, histogram[of.STEP_DURATION].observe

        def moved(event: told.RunMoved) -> None:
            workflow = (event.workflow,)
            if not event.before:
                started(workflow)
            if event.ready_for is not None:
                wait(workflow, event.ready_for)
            if event.orphaned_for is not None:
                takeovers(workflow)
                takeover_seconds(workflow, event.orphaned_for)
            if event.has_ended:
                ended((event.workflow, event.status))
                if event.started_at:
                    duration(workflow, max(0.0, seconds_between(event.started_at, event.changed_at)))
            elif event.status == "suspended":
                suspended(workflow)

        def recorded(event: told.StepRecorded) -> None:
            steps((event.workflow, event.name, "failed" if event.failed else "completed"))
            step_seconds((event.workflow, event.name), event.seconds)

        return {
            told.RunMoved: moved,
            told.StepRecorded: recorded,
            told.StepRetried: count(of.STEP_RETRIES, lambda event: (event.workflow, event.name)),
            told.RunQuarantined: lambda event: quarantined((event.workflow,)),
            told.RunConflicts: lambda event: quarantined((event.workflow,)),
            told.RunCodeDiffers: count(of.RUNS_MISFIT),
            told.RunDeposed: count(of.RUNS_DEPOSED, lambda event: (event.workflow,)),
        }

    # --- workers and schedules -----------------------------------------------------------------------------------

    def _of_workers(self) -> dict[type[Event], Callable[[Any], None]]:
        count, histogram = self._counting, self.histograms
        polls, found = self.counters[of.POLLS].add, self.counters[of.POLLS_FOUND].add
        hint_lag = histogram[of.HINT_LAG].observe
        held_up, held_up_seconds = self.counters[of.LOOP_HELD_UP].add, self.counters[of.LOOP_HELD_UP_SECONDS].add
        ticks, lateness = self.counters[of.TICKS].add, histogram[of.TICK_LATENESS].observe

        def polled(event: told.WorkerPolled) -> None:
            polls()
            found((), event.found)

        def stood_still(event: told.LoopHeldUp) -> None:
            held_up()
            held_up_seconds((), event.seconds)

        def fired(event: told.TickFired) -> None:
            ticks(("fired",))
            lateness((), max(0.0, event.late))

        return {
            told.WorkerDied: count(of.WORKERS_DIED),
            told.WorkerFails: count(of.WORKER_FAILURES),
            told.WorkerPolled: polled,
            told.HintHeard: lambda event: hint_lag((), event.seconds),
            told.LoopHeldUp: stood_still,
            told.TickFired: fired,
            told.TickSkipped: lambda _: ticks(("skipped",)),
            told.TicksMissed: lambda event: ticks(("missed",), event.count),
        }

    # --- locks ---------------------------------------------------------------------------------------------------

    def _of_locks(self) -> dict[type[Event], Callable[[Any], None]]:
        count, histogram = self._counting, self.histograms
        wait, hold = histogram[of.LOCK_WAIT].observe, histogram[of.LOCK_HOLD].observe
        ended, refused = self.counters[of.LOCKS_ENDED].add, self.counters[of.LOCKS_REFUSED].add
        granted, rate_wait = self.counters[of.RATE_GRANTED].add, histogram[of.RATE_WAIT].observe

        def released(event: told.LockReleased) -> None:
            family = event.family or TEXT
            hold((family,), event.held)
            ended((family, event.outcome))

        def unlocked(event: told.RunUnlocked) -> None:
            family = event.family or TEXT
            if not event.fence:
                refused((family, "run"))
                return
            hold((family,), event.held)
            ended((family, event.outcome))

        def passed(event: told.RateGranted) -> None:
            family = (event.family or TEXT,)
            granted(family)
            if event.waited is not None:
                rate_wait(family, event.waited)

        return {
            told.LockAcquired: lambda event: wait((event.family or TEXT,), event.waited),
            told.RunLocked: lambda event: wait((event.family or TEXT,), event.waited),
            told.LockReleased: released,
            told.RunUnlocked: unlocked,
            told.LockRefused: lambda event: refused((event.family or TEXT, event.reason)),
            told.LeaseLost: count(of.LEASES_LOST, _family),
            told.DeadlockRefused: count(of.DEADLOCKS, _family),
            told.FenceRefused: count(of.FENCES),
            told.RateGranted: passed,
            told.RateRefused: count(of.RATE_REFUSED, _family),
            told.RateClosed: count(of.RATE_CLOSED, _family),
        }

    # --- requests ------------------------------------------------------------------------------------------------

    def _of_requests(self) -> dict[type[Event], Callable[[Any], None]]:
        decided_by, ended_as = self.counters[of.REQUESTS].add, self.counters[of.REQUESTS_ENDED].add
        superseded = self.counters[of.SUPERSEDED].add
        wait, ran = self.histograms[of.REQUEST_WAIT].observe, self.histograms[of.REQUEST_DURATION].observe
        besides = {
            "collected": self.counters[of.DEBOUNCED].add,
            "joined": self.counters[of.JOINED].add,
            "replayed": self.counters[of.REPLAYED].add,
        }

        def decided(event: told.RequestDecided) -> None:
            decided_by((event.flow, event.name, event.policy, event.verdict))
            if (count := besides.get(event.verdict)) is not None:
                count((event.flow, event.name))

        def ended(event: told.RequestEnded) -> None:
            action = (event.flow, event.name)
            ended_as((*action, event.policy, event.outcome))
            wait(action, event.waited)
            ran(action, event.ran)
            if event.superseded:
                superseded(action, len(event.superseded))

        return {told.RequestDecided: decided, told.RequestEnded: ended}

    # --- the store -----------------------------------------------------------------------------------------------

    def _of_stores(self) -> dict[type[Event], Callable[[Any], None]]:
        seconds, riders = self.histograms[of.COMMIT_SECONDS].observe, self.histograms[of.COMMIT_RIDERS].observe
        conflicts, backends = self.counters[of.COMMIT_CONFLICTS].add, dict[str, tuple[str]]()

        def committed(event: told.Committed) -> None:
            if (tallies := self._tallies) is not None:
                tallies.count_commits(event.riders)
            backend = backends.get(event.store)
            if backend is None:
                backend = backends[event.store] = (event.backend,)
                conflicts(backend, 0.0)
            seconds(backend, event.seconds)
            riders(backend, event.riders)
            if event.conflicts:
                conflicts(backend, event.conflicts)

        return {
            told.Committed: committed,
            told.OutcomeUnknown: self._counting(of.UNKNOWN_OUTCOMES, lambda event: (event.backend,)),
        }

    def _counting(
        self, instrument: Instrument, labels: Callable[[Any], tuple[str, ...]] = lambda _: ()
    ) -> Callable[[Any], None]:
        add = self.counters[instrument].add
        return lambda event: add(labels(event))


MANY: Final = 4_000
"""After how many commits facts are counted. Each brings a fact or two: a step, a run that is claimed or has ended.

To count them takes some 300 µs then, half of which does not depend on how many there are.
"""


@final
class Tallies:
    """Bare facts of what happens most often, steps, moves of runs and commits, which are counted many at a time.

    To take note of one is to append a number to the list of its labels; for steps, workflows do so themselves, since a
    call would take longer. A list is emptied in place when it is counted, so nothing is lost that another thread
    appends meanwhile.

    Args:
        metrics: Where they are counted.

    Attributes:
        committed: How many commits there were since all was counted, about: threads that add at once may lose some.
        takes: What takes the facts of a kind of event.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._counters, self._histograms = metrics.counters, metrics.histograms
        self._lock: Final = threading.Lock()  # one thread at a time counts
        self.committed = 0
        self._steps: Final[defaultdict[tuple[str, str, bool], list[int]]] = defaultdict(list)
        self._started: Final[list[str]] = []
        self._suspended: Final[list[str]] = []
        self._ended: Final[defaultdict[tuple[str, str], list[int]]] = defaultdict(list)
        self._waits: Final[defaultdict[str, list[int]]] = defaultdict(list)
        self._orphaned: Final[defaultdict[str, list[int]]] = defaultdict(list)
        self._commits: Final[defaultdict[str, list[int]]] = defaultdict(list)
        self._riders: Final[defaultdict[str, list[int]]] = defaultdict(list)
        self._conflicts: Final[list[str]] = []
        self.takes: Final[dict[type[Event], object]] = {
            told.StepRecorded: self._steps,
            told.RunMoved: self._take_move,
            told.Committed: self._take_commit,
        }

    def _take_commit(self, store: str, seconds: float, riders: int, conflicts: int) -> None:
        """Take note of a transaction."""
        self._commits[store].append(round(seconds * MICROSECONDS))
        self._riders[store].append(riders)
        if conflicts:
            self._conflicts.extend([store] * conflicts)
        try:
            self.count_commits(riders)
        except Exception:  # noqa: BLE001 -- whatever it is, the transaction is durable, and the store goes on
            _LOG.exception("event=metrics-not-counted")

    def count_commits(self, riders: int) -> None:
        """Count what waits, if there were many commits since that was done."""
        self.committed += riders
        if self.committed >= MANY:
            self.add_up()

    def _take_move(
        self,
        workflow: str,
        status: str,
        is_new: bool,  # noqa: FBT001 -- a hot path
        took: int | None,
        ready_for: float | None,
        orphaned_for: float | None,
    ) -> None:
        """Take note of a run in another state; ``took`` are the microseconds since its start, if that is known."""
        if is_new:
            self._started.append(workflow)
        if ready_for is not None:
            self._waits[workflow].append(int(ready_for * MICROSECONDS))
        if orphaned_for is not None:
            self._orphaned[workflow].append(int(orphaned_for * MICROSECONDS))
        if status in ENDED:
            self._ended[workflow, status].append(UNKNOWN if took is None else max(0, took))
        elif status == "suspended":
            self._suspended.append(workflow)

    def add_up(self) -> None:
        """Count all that wait. Several threads may do so at a time."""
        counters, histograms = self._counters, self._histograms
        with self._lock:
            self.committed = 0
            for (workflow, name, failed), times in _taken(self._steps):
                counters[of.STEPS].add((workflow, name, "failed" if failed else "completed"), len(times))
                histograms[of.STEP_DURATION].observe_all((workflow, name), times)
            for (workflow, status), times in _taken(self._ended):
                counters[of.RUNS_ENDED].add((workflow, status), len(times))
                known = [took for took in times if took != UNKNOWN]
                histograms[of.RUN_DURATION].observe_all((workflow,), known)
            for workflow, times in _taken(self._waits):
                histograms[of.RUN_READY_WAIT].observe_all((workflow,), times)
            for workflow, times in _taken(self._orphaned):
                counters[of.TAKEOVERS].add((workflow,), len(times))
                histograms[of.TAKEOVER_SECONDS].observe_all((workflow,), times)
            for store, times in _taken(self._commits):
                histograms[of.COMMIT_SECONDS].observe_all(_backend(store), times)
                counters[of.COMMIT_CONFLICTS].add(_backend(store), 0.0)
            for store, riders in _taken(self._riders):
                histograms[of.COMMIT_RIDERS].observe_all(_backend(store), riders, unit=1)
            for store, number in Counter(_emptied(self._conflicts)).items():
                counters[of.COMMIT_CONFLICTS].add(_backend(store), number)
            for instrument, names in ((of.RUNS_STARTED, self._started), (of.RUNS_SUSPENDED, self._suspended)):
                for workflow, number in Counter(_emptied(names)).items():
                    counters[instrument].add((workflow,), number)


UNKNOWN: Final = -1
"""In the place of a duration: when the run was started is not known."""


def _taken(waiting: Mapping[T, list[int]]) -> Iterator[tuple[T, list[int]]]:
    """Take out what waits, by its labels."""
    for labels, times in list(waiting.items()):
        if times:
            yield labels, _emptied(times)


def _emptied(waiting: list[T]) -> list[T]:
    """Take out what waits; what another thread appends meanwhile stays."""
    found = waiting[:]
    del waiting[: len(found)]
    return found


def _backend(store: str) -> tuple[str]:
    return (store.partition(":")[0],)


def _family(event: told.LockEvent) -> tuple[str, ...]:
    return (event.family or TEXT,)

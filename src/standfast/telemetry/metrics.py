"""Metrics: a hook that turns events into numbers.

    metrics = sf.admin.PrometheusMetrics()
    engine = sf.Engine("sqlite:///jobs.db", workflows=[fulfil], hooks=[metrics])

Labels have only names that were declared in code: workflows, steps, families of keys, flows, actions, policies,
outcomes, backends. Keys, ids of runs, tenants and users are never among them.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from standfast import events as told
from standfast.clock import MICROSECONDS, seconds_between
from standfast.telemetry import instruments as of
from standfast.telemetry.instruments import INSTRUMENTS, CounterValues, HistogramValues
from standfast.workflows.records import ENDED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from standfast.clock import Instant
    from standfast.events import Event
    from standfast.telemetry.instruments import Instrument

T = TypeVar("T")

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

    def tally_of(self, kind: type[Event]) -> Callable[[tuple[Any, ...]], None] | None:
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
            tallies = self._tallies
            if tallies is not None and tallies.are_many:
                tallies.add_up()
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


MANY: Final = 500
"""How many facts wait at most before they are counted, about: at the next commit after that."""


@final
class Tallies:
    """Bare facts of what happens most often, the steps and moves of runs, which are counted many at a time.

    To take note of one is to append a tuple to a queue. Counting them together costs a fifth of counting each.

    Args:
        metrics: Where they are counted.

    Attributes:
        takes: What takes the facts of a kind of event.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._counters, self._histograms = metrics.counters, metrics.histograms
        self._steps: Final[deque[tuple[str, str, bool, int]]] = deque()
        self._moves: Final[deque[tuple[str, str, bool, Instant, Instant, float | None, float | None]]] = deque()
        self.takes: Final[dict[type[Event], Callable[[Any], None]]] = {
            told.StepRecorded: self._steps.append,
            told.RunMoved: self._moves.append,
        }

    @property
    def are_many(self) -> bool:
        """Whether enough wait to be counted."""
        return len(self._steps) + len(self._moves) >= MANY

    def add_up(self) -> None:
        """Count all that wait. Several threads may do so at a time."""
        self._add_up_steps()
        self._add_up_moves()

    def _add_up_steps(self) -> None:
        found: defaultdict[tuple[str, str, bool], list[int]] = defaultdict(list)
        for workflow, name, failed, took in _taken(self._steps):
            found[workflow, name, failed].append(took)
        count, observe_all = self._counters[of.STEPS].add, self._histograms[of.STEP_DURATION].observe_all
        for (workflow, name, failed), times in found.items():
            count((workflow, name, "failed" if failed else "completed"), len(times))
            observe_all((workflow, name), [took / MICROSECONDS for took in times])

    def _add_up_moves(self) -> None:
        started, suspended, ended = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
        waits: defaultdict[str, list[float]] = defaultdict(list)
        durations: defaultdict[str, list[float]] = defaultdict(list)
        orphaned: defaultdict[str, list[float]] = defaultdict(list)
        for workflow, status, is_new, started_at, changed_at, ready_for, orphaned_for in _taken(self._moves):
            if is_new:
                started[workflow] += 1
            if ready_for is not None:
                waits[workflow].append(ready_for)
            if orphaned_for is not None:
                orphaned[workflow].append(orphaned_for)
            if status in ENDED:
                ended[workflow, status] += 1
                if started_at:
                    durations[workflow].append(max(0.0, seconds_between(started_at, changed_at)))
            elif status == "suspended":
                suspended[workflow] += 1
        self._count(of.RUNS_STARTED, {(workflow,): number for workflow, number in started.items()})
        self._count(of.RUNS_SUSPENDED, {(workflow,): number for workflow, number in suspended.items()})
        self._count(of.TAKEOVERS, {(workflow,): len(seconds) for workflow, seconds in orphaned.items()})
        self._count(of.RUNS_ENDED, ended)
        self._observe(of.RUN_READY_WAIT, waits)
        self._observe(of.RUN_DURATION, durations)
        self._observe(of.TAKEOVER_SECONDS, orphaned)

    def _count(self, instrument: Instrument, numbers: Mapping[Any, int]) -> None:
        for labels, number in numbers.items():
            self._counters[instrument].add(labels, number)

    def _observe(self, instrument: Instrument, found: Mapping[str, list[float]]) -> None:
        for workflow, seconds in found.items():
            self._histograms[instrument].observe_all((workflow,), seconds)


def _taken(waiting: deque[T]) -> list[T]:
    """Take out what waits, each once, also if another thread does the same."""
    found: list[T] = []
    with suppress(IndexError):
        for _ in range(len(waiting)):
            found.append(waiting.popleft())  # noqa: PERF401 -- what was taken counts, whatever another thread takes
    return found


def _family(event: told.LockEvent) -> tuple[str, ...]:
    return (event.family or TEXT,)

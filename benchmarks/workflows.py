"""Durable workflows: runs a second, queues, sleeping runs, replays, and what the death of a worker costs."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import sys
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._lock_crowd import Crowd
from benchmarks._workflow_deaths import Deaths
from benchmarks._workflow_limit import WorkflowLimit
from benchmarks._workflow_ours import Ours
from benchmarks._workflow_peers import DBOS_WAL, RESTATE, peers
from benchmarks._workflow_replay import STEPS, Replaying
from benchmarks._workflow_sleepers import DUE, Sleepers
from benchmarks._workflow_windows import Taking, p50, rate
from benchmarks.harness import LIMIT, Row, Subject, at_least, at_most, finish, plainly_at_least, plainly_at_most

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks._workflow_peers import Peers
    from benchmarks._workflow_sleepers import Wakings
    from benchmarks._workflow_windows import Window
    from benchmarks.harness import Bar

NOTES = """\
Standfast is on SQLite, in WAL with `synchronous=FULL`, one engine that starts runs and drives them. The limit is a
plain loop over the driver that writes the same rows just as durably: three for a start, one for a step, guarded, three
for the end, with the last step: its state, its grant, and where it is listed; a hundred runs at a time are one
transaction of a hundred. DBOS and Restate are at their documented best: DBOS is called from threads on a SQLite file,
made in WAL by hand or as shipped (a rollback journal), in windows of 4 s; Restate keeps a log of its own and is called
over HTTP on loopback. Peers that no bar of a row is about are measured in one window. A queue admits one run at a time
and is full before the clock starts. Sleeping runs are copies of one that the engine put to sleep; a worker is measured
in a process of its own. Waking is from the moment at which all are due. A replay is from a signal to the first new
line of code, in a worker that has just been opened; its limit reads and decodes the same history. After a `kill -9`
another process goes on with the next step; the limit is `flock(2)`."""

ROUNDS = 5
STEPS_OF_A_RUN = (5, 1, 0)
SECONDS, LIMIT_SECONDS = 0.5, 0.3
QUEUED = 500
KILLS = 20
MANY, MORE = 100_000, 1_000_000


class Runs:
    """The rows about runs that do not wait. All bars of a row are judged by the same windows."""

    def __init__(self, ours: Ours, limit: WorkflowLimit, others: Peers) -> None:
        self._ours, self._limit, self._peers = ours, limit, others
        self._windows: dict[tuple[str, int, int], Taking[Window]] = {}

    def _standfast(self, at_once: int, steps: int) -> Taking[Window]:
        measure = partial(self._ours.runs, at_once, steps, SECONDS)
        return self._windows.setdefault(("Standfast", at_once, steps), Taking(measure))

    def _bare(self, at_once: int, steps: int) -> Taking[Window]:
        measure = partial(self._limit.runs, at_once, steps, LIMIT_SECONDS)
        return self._windows.setdefault(("limit", at_once, steps), Taking(measure))

    def rows(self) -> Iterable[Row]:
        """Return the rows in the order they are shown."""
        yield from self._rows("100 at a time", 100, at_least(0.35), at_least(45, of=DBOS_WAL), at_least(10, of=RESTATE))
        yield from self._rows("one after another", 1, at_least(0.7), at_least(6, of=DBOS_WAL))
        yield self._latency()
        yield self._queue()

    def _rows(self, how: str, at_once: int, *bars: Bar) -> Iterable[Row]:
        for steps in STEPS_OF_A_RUN:
            what = f"{how}, {steps} step{'s' * (steps != 1)}"
            yield from (self._row(what, at_once, steps, bar) for bar in (bars if steps == 5 else (None,)))

    def _row(self, what: str, at_once: int, steps: int, bar: Bar | None) -> Row:
        """Return a row of everybody; or of one peer alone, if the bar is about it."""
        everybody = self._peers.runs(at_once, steps, every_round=steps == 5)
        ours, limit = self._standfast(at_once, steps).figure(rate), self._bare(at_once, steps).figure(rate)
        if bar is None or bar.of == LIMIT:
            return Row(what, "runs/s", ours, limit, everybody, bar, ROUNDS, self._peers.absent)
        alone = {name: measure for name, measure in everybody.items() if name == bar.of}
        return Row(f"{what}, and {bar.of}", "runs/s", ours, None, alone, bar, ROUNDS, self._peers.absent)

    def _latency(self) -> Row:
        ours, limit = self._standfast(1, 1).figure(p50), self._bare(1, 1).figure(p50)
        what = "start to result, 1 step, p50"
        return Row(what, "ms", ours, limit, self._peers.latencies(1), at_most(1.4), ROUNDS, self._peers.absent)

    def _queue(self) -> Row:
        ours, limit = partial(self._ours.queue, QUEUED), partial(self._limit.queue, QUEUED)
        bar = plainly_at_least(1_500)
        return Row(
            "queue, limit 1, 1 step", "runs/s", ours, limit, self._peers.queues(), bar, ROUNDS, self._peers.absent
        )


class Sleeping:
    """The rows about sleeping runs: figures of the same workers, whatever they are about."""

    def __init__(self, sleepers: Sleepers, others: Peers) -> None:
        self._peers = others
        self._memory = Taking(lambda: {count: sleepers.memory(count) for count in (0, MANY, MORE)})
        self._wakings = {count: Taking(partial(sleepers.wake, count)) for count in (MANY, MORE)}

    def rows(self) -> Iterable[Row]:
        """Return the rows in the order they are shown."""
        yield self._added(f"{MANY:,} sleeping runs add to a worker", MANY, 0, 20)
        yield self._added(f"{MORE:,} sleeping runs add to a worker", MORE, 0, 20)
        yield self._added(f"{MORE:,} sleeping runs add more than {MANY:,}", MORE, MANY, 5)
        each = self._memory.figure(lambda found: max(0.0, found[MORE] - found[0]) * 1000 / MORE)
        yield Row("a sleeping run, memory", "kB", each, peers=self._peers.sleepers(), rounds=ROUNDS)
        yield self._woken("p50", lambda wakings: wakings.p50)
        yield self._woken("the last one", lambda wakings: wakings.last)

    def _added(self, what: str, more: int, less: int, bar: float) -> Row:
        measure = self._memory.figure(lambda found: found[more] - found[less])
        return Row(what, "MB", measure, bar=plainly_at_most(bar), rounds=ROUNDS)

    def _woken(self, which: str, figure: Callable[[Wakings], float]) -> Row:
        """Waking must cost what is due, not what sleeps: ten times the sleepers may not make it much slower."""
        fewer = f"among {MANY:,}"
        what = f"{DUE:,} due among {MORE:,} asleep, {which}"
        others = {fewer: self._wakings[MANY].figure(figure)}
        return Row(
            what, "ms", self._wakings[MORE].figure(figure), peers=others, bar=at_most(1.5, of=fewer), rounds=ROUNDS
        )


def replay_rows(replaying: Replaying) -> Iterable[Row]:
    """Return the rows about a long history; both are figures of the same replays."""
    ours, limit = Taking(replaying.standfast), Taking(replaying.limit)

    def row(what: str, unit: str, scale: float) -> Row:
        def scaled(taken: float) -> float:
            return taken * scale

        return Row(what, unit, ours.figure(scaled), limit.figure(scaled), rounds=ROUNDS)

    yield row(f"replay of {STEPS:,} steps", "ms", 1)
    yield row("replay, a step", "µs", 1000 / STEPS)


def takeover_rows(folder: Path, deaths: Deaths, flock: Crowd) -> Iterable[Row]:
    """Return the rows about the death of a worker; all are figures of the same kills."""
    ours = cache(lambda: [deaths.takeover() for _ in range(KILLS)])
    limit = cache(lambda: [flock.takeover("flock", str(folder / "flock")) for _ in range(KILLS)])
    absent = {"DBOS": "when its process is started again, or by a paid service"}

    def row(which: str, figure: Callable[[list[float]], float]) -> Row:
        what = f"takeover after `kill -9`, {which} of {KILLS}"
        bar = plainly_at_most(200)
        return Row(what, "ms", lambda: figure(ours()), lambda: figure(limit()), bar=bar, rounds=ROUNDS, absent=absent)

    yield row("p50", statistics.median)
    yield row("the longest", max)


def main() -> None:
    """Measure everything, in a folder that is gone afterwards."""
    subject = Subject("workflows", "Durable workflows", notes=NOTES)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="standfast-bench-")))
        others = stack.enter_context(peers(folder))
        ours, deaths = Ours(f"sqlite:///{folder / 'ours.db'}"), Deaths(folder)
        flock = Crowd(sys.executable, "benchmarks._lock_flock", 1)
        for part in (ours, deaths, flock):
            stack.callback(part.close)
        runs = Runs(ours, WorkflowLimit(str(folder / "limit.db"), ours.values()), others)
        sleeping = Sleeping(Sleepers(folder), others)
        rows = (runs.rows(), sleeping.rows(), replay_rows(Replaying(folder)), takeover_rows(folder, deaths, flock))
        for row in itertools.chain(*rows):
            subject.add(row)
        finish(subject)


if __name__ == "__main__":
    main()

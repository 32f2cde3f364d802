"""Workflows on a server: Standfast's engine, the limit, and DBOS on the same server."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from benchmarks._workflow_peers import BACKLOGS, DBOS_SECONDS, SHORT, Peer
from benchmarks._workflow_windows import Taking, Window, p50, rate
from benchmarks.harness import Row, at_least, at_most, plainly_at_least

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from benchmarks._store_workflow_limit import PostgresWorkflowLimit
    from benchmarks._workflow_ours import Ours
    from benchmarks.harness import Bar, Measure

DBOS: Final = "DBOS"
SECONDS, LIMIT_SECONDS = 0.5, 0.3
QUEUED: Final = 300
ROUNDS: Final = 5
POLLS: Final = {"0.01": "DBOS at a 10 ms poll", "default": "DBOS by default"}


class DbosPeer:
    """DBOS with its system database on a server; between its turns its processes are stopped."""

    def __init__(self, python: Path | None, url: str) -> None:
        self._python, self._url = python, url
        self._peers: dict[str, Peer] = {}

    @property
    def absent(self) -> Mapping[str, str]:
        """Why it cannot be asked, if it cannot."""
        return {} if self._python else {DBOS: "not to be had"}

    def windows(self, at_once: int, steps: int) -> Taking[Window]:
        """Return windows of runs; the first one is short, and does not count."""
        seconds = iter([SHORT])

        def measure() -> Window:
            lasting = next(seconds, DBOS_SECONDS)
            return Window(*self._peer("").ask("runs", at_once=at_once, steps=steps, seconds=lasting))

        return Taking(measure)

    def queues(self) -> dict[str, Measure]:
        """Return measures of runs of one step a second that take turns, in one window each."""
        measures: dict[str, Measure] = {}
        for poll, name in POLLS.items() if self._python else ():
            measures[name] = functools.cache(functools.partial(self._queue, poll))
        return measures

    def _queue(self, poll: str) -> float:
        return float(self._peer(poll).ask("queue", backlog=BACKLOGS[poll], seconds=DBOS_SECONDS))

    def _peer(self, poll: str) -> Peer:
        url = self._url + poll.replace(".", "_")  # a queue belongs to its database, and so does its polling
        if poll not in self._peers:
            self._peers[poll] = Peer(str(self._python), "-m", "benchmarks._workflow_dbos", url, "server", poll)
        return self._peers[poll]

    def close(self) -> None:
        """Let it end."""
        for peer in self._peers.values():
            peer.close()


class Workflows:
    """The rows about workflows on PostgreSQL. All bars of a row are judged by the same windows."""

    def __init__(self, server: str, ours: Ours, limit: PostgresWorkflowLimit, dbos: DbosPeer) -> None:
        self._server, self._ours, self._limit, self._dbos = server, ours, limit, dbos

    def rows(self) -> Iterable[Row]:
        """Return the rows in the order they are shown."""
        yield from self._rows("100 runs at a time, 5 steps", 100, at_least(0.45), at_least(60, of=DBOS))
        yield from self._rows("runs one after another, 5 steps", 1, at_least(0.7), at_least(5, of=DBOS))
        yield self._latency()
        yield self._queue()

    def _rows(self, what: str, at_once: int, of_limit: Bar, of_dbos: Bar) -> Iterable[Row]:
        ours = Taking(functools.partial(self._ours.runs, at_once, 5, SECONDS))
        bare = Taking(functools.partial(self._limit.runs, at_once, 5, LIMIT_SECONDS))
        what, absent = f"{self._server}: {what}", self._dbos.absent
        yield Row(what, "runs/s", ours.figure(rate), bare.figure(rate), bar=of_limit, rounds=ROUNDS)
        peers = {} if absent else {DBOS: self._dbos.windows(at_once, 5).figure(rate)}
        yield Row(f"{what}, and {DBOS}", "runs/s", ours.figure(rate), None, peers, of_dbos, ROUNDS, absent)

    def _latency(self) -> Row:
        ours = Taking(functools.partial(self._ours.runs, 1, 1, SECONDS)).figure(p50)
        bare = Taking(functools.partial(self._limit.runs, 1, 1, LIMIT_SECONDS)).figure(p50)
        windows = self._dbos.windows(1, 1)
        peers = {} if self._dbos.absent else {DBOS: functools.cache(windows.figure(p50))}
        what = f"{self._server}: start to result, 1 step, p50"
        return Row(what, "ms", ours, bare, peers, at_most(1.4), ROUNDS, self._dbos.absent)

    def _queue(self) -> Row:
        ours, bare = functools.partial(self._ours.queue, QUEUED), functools.partial(self._limit.queue, QUEUED)
        what = f"{self._server}: queue, limit 1, 1 step"
        bar = plainly_at_least(600)
        return Row(what, "runs/s", ours, bare, self._dbos.queues(), bar, ROUNDS, self._dbos.absent)


def reported(server: str, ours: Ours) -> Iterable[Row]:
    """Return the rows about workflows on a server without a limit of its own."""

    def row(what: str, unit: str, measure: Measure) -> Row:
        return Row(f"{server}: {what}", unit, measure, rounds=ROUNDS)

    yield row("100 runs at a time, 5 steps", "runs/s", lambda: ours.runs(100, 5, SECONDS).rate)
    one = Taking(functools.partial(ours.runs, 1, 5, SECONDS))
    yield row("runs one after another, 5 steps", "runs/s", one.figure(rate))
    yield row("start to result, 1 step, p50", "ms", lambda: ours.runs(1, 1, SECONDS).p50)
    yield row("queue, limit 1, 1 step", "runs/s", functools.partial(ours.queue, QUEUED))

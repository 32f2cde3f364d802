"""The limit for workflows on SQLite: the rows that Standfast writes, just as durably, by a plain loop over the driver.

One writer with group commit: what a hundred runs have to write at the same moment is one transaction.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks._sqlite_limit import LAST, Limit
from benchmarks._workflow_windows import Timing
from standfast.ids import new_id
from standfast.keys import RecordKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks._workflow_windows import Window

INSERT: Final = "INSERT INTO records VALUES (?, ?, NULL, ?)"
REPLACE: Final = "UPDATE records SET version = ?, value = ? WHERE key = ? AND version = ?"
DELETE: Final = "DELETE FROM records WHERE key = ? AND version = ?"
GUARD: Final = "SELECT version FROM records WHERE key = ?"
ROOT: Final = RecordKey("default", "default")
DIGITS: Final = 12  # how much of a value is new each time
MOST_STEPS: Final = 5


def around(key: RecordKey, name: str) -> tuple[bytes, bytes]:
    """Return what stands before and after a name in a key, so that the same key of another name is cheaply made."""
    before, after = key.split(name.encode())
    return before, after


SOMEONE: Final = new_id()
HEADER: Final = around(ROOT.child("run", SOMEONE), SOMEONE)
LIFE: Final = around(ROOT.child("life", SOMEONE), SOMEONE)
OWNER: Final = around(ROOT.child("own", new_id(), SOMEONE), SOMEONE)
STEPS: Final = [around(ROOT.child("step", SOMEONE, f"{number:08}"), SOMEONE) for number in range(MOST_STEPS)]
WORKER: Final = ROOT.child("worker", new_id())
LISTED: Final = bytes(ROOT.child("runs", "completed", "add"))
END: Final = b"\x00\x01"  # of a part of a key


class Values(NamedTuple):
    """What the records of a run hold: as many bytes as those that Standfast writes.

    The record of the first step says which worker recorded it, and so is longer than the others.
    """

    header: bytes
    life: bytes
    owner: bytes
    first_step: bytes
    step: bytes
    ended: bytes

    def of_step(self, number: int) -> bytes:
        """Return what the record of a step holds."""
        return self.step if number else self.first_step


class BareRun:
    """A run: its name, which sorts by time, some of its keys, and the versions that its records have."""

    __slots__ = ("fence", "life", "life_version", "name", "owner")

    def __init__(self) -> None:
        name = self.name = new_id().encode()
        self.life, self.owner = name.join(LIFE), name.join(OWNER)
        self.fence = self.life_version = 0

    def listed(self) -> tuple[bytes, bytes]:
        """Return the record that lists it among those that have ended by now: its key and its value."""
        now = time.time_ns() // 1000
        return b"%b%016d%b%b%b" % (LISTED, now, END, self.name, END), b"1:%d" % now


class WorkflowLimit(Limit):
    """Starts runs, records their steps and ends them.

    A start is guarded by the record of the worker, every other write by the owner's grant.
    """

    def __init__(self, path: str, values: Values) -> None:
        super().__init__(path)
        self._values = values
        self._version = self._writes = 0
        self._worker = 0
        self._together(self._come, [BareRun()])

    def runs(self, at_once: int, steps: int, seconds: float) -> Window:
        """Run batches of so many, each of whose writes is one transaction, one batch after another."""
        timing = Timing(seconds)
        while timing.is_open:
            started = time.perf_counter()
            self._batch([BareRun() for _ in range(at_once)], steps)
            for _ in range(at_once):
                timing.note(started)
        return timing.result()

    def _batch(self, runs: list[BareRun], steps: int) -> None:
        self._together(self._start, runs)
        for number in range(steps - 1):
            self._together(self._record, runs, number)
        self._together(self._end, runs, steps - 1)

    def queue(self, runs: int) -> float:
        """Return how many runs of one step a second take turns: ending one and beginning the next is one commit."""
        line = [BareRun() for _ in range(runs)]
        self._together(self._enqueue, line)
        self._together(self._begin, line[:1])
        timing = Timing(0)
        for run, successor in zip(line, [*line[1:], None], strict=True):
            self._together(self._hand_over, [run], successor)
            timing.note(timing.started)
        return timing.result().rate

    def _together(self, work: Callable[..., None], runs: Iterable[BareRun], *more: object) -> None:
        """Do the work of all runs in one transaction, and count up what Standfast counts up."""
        execute = self.connection.execute
        self._transactions += 1
        execute("BEGIN IMMEDIATE")
        counted: Any = execute(LAST).fetchall()[0][0]
        self._version = counted
        for run in runs:
            work(run, *more)
        self._finish(self._version)

    def _come(self, _: BareRun) -> None:
        self._worker = self._put(WORKER, self._values.owner)

    def _start(self, run: BareRun) -> None:
        self._check(WORKER, self._worker)
        self._put(run.name.join(HEADER), self._values.header)
        run.life_version = self._put(run.life, self._values.life)
        run.fence = self._put(run.owner, self._values.owner)

    def _record(self, run: BareRun, number: int) -> None:
        self._check(run.owner, run.fence)
        self._put_step(run, number)

    def _put_step(self, run: BareRun, number: int) -> None:
        self._put(run.name.join(STEPS[number]), self._values.of_step(number))

    def _end(self, run: BareRun, last: int) -> None:
        """The last step's record and the end are one commit; deleting the grant checks it."""
        if last >= 0:
            self._put_step(run, last)
        self._replace(run.life, self._values.ended, run.life_version)
        self._version += 1
        key, value = run.listed()
        self.connection.execute(INSERT, (key, self._version, value))
        self.connection.execute(DELETE, (run.owner, run.fence))
        assert self.connection.changes() == 1

    def _enqueue(self, run: BareRun) -> None:
        self._put(run.name.join(HEADER), self._values.header)
        run.life_version = self._put(run.life, self._values.life)

    def _begin(self, run: BareRun) -> None:
        run.life_version = self._replace(run.life, self._values.life, run.life_version)
        run.fence = self._put(run.owner, self._values.owner)

    def _hand_over(self, run: BareRun, successor: BareRun | None) -> None:
        self._end(run, 0)
        if successor is not None:
            self._begin(successor)

    def _check(self, key: bytes, version: int) -> None:
        found: Any = self.connection.execute(GUARD, (key,)).fetchall()
        assert found[0][0] == version

    def _put(self, key: bytes, value: bytes) -> int:
        self._version += 1
        self.connection.execute(INSERT, (key, self._version, self._fresh(value)))
        return self._version

    def _replace(self, key: bytes, value: bytes, expected: int) -> int:
        self._version += 1
        self.connection.execute(REPLACE, (self._version, self._fresh(value), key, expected))
        assert self.connection.changes() == 1
        return self._version

    def _fresh(self, value: bytes) -> bytes:
        """Return a value that was never written before: rewriting the same bytes dirties no page."""
        self._writes += 1
        return value[:-DIGITS] + b"%012d" % self._writes

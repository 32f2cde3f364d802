"""The limit for workflows on PostgreSQL: the rows that Standfast writes, just as durably, by a loop over the driver.

One writer with group commit: what a hundred runs have to write at the same moment is one transaction.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import asyncpg

import standfast as sf
from benchmarks._sqlite_limit import HANDLE
from benchmarks._store_limit import TABLES, beside
from benchmarks._store_limit_sql import NOW, SETTINGS
from benchmarks._workflow_limit import DIGITS, HEADER, STEPS, WORKER, BareRun
from benchmarks._workflow_windows import Timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks._workflow_limit import Values
    from benchmarks._workflow_windows import Window

WRITER: Final = f"{HANDLE}-runs"
TRANSACT: Final = f"""\
WITH held AS MATERIALIZED (
    SELECT r.key FROM unnest($1::bytea[], $2::bigint[]) AS g (key, version)
    JOIN {TABLES}.records AS r ON r.key = g.key AND r.version = g.version FOR SHARE OF r
), made AS (
    INSERT INTO {TABLES}.records
    SELECT g.key, g.value, nextval('{TABLES}.versions') FROM unnest($3::bytea[], $4::bytea[]) AS g (key, value)
    RETURNING key, version
), changed AS (
    UPDATE {TABLES}.records AS r SET value = g.value, version = nextval('{TABLES}.versions')
    FROM unnest($5::bytea[], $6::bigint[], $7::bytea[]) AS g (key, version, value)
    WHERE r.key = g.key AND r.version = g.version RETURNING r.key, r.version
), gone AS (
    DELETE FROM {TABLES}.records AS r USING unnest($8::bytea[], $9::bigint[]) AS g (key, version)
    WHERE r.key = g.key AND r.version = g.version RETURNING r.key
), counted AS (
    UPDATE {TABLES}.attempts SET number = number + 1, at = {NOW}, versions = ARRAY(SELECT version FROM made),
        touched_at = now() WHERE handle = '{WRITER}'
)
SELECT key, version FROM made UNION ALL SELECT key, version FROM changed
UNION ALL SELECT key, 0 FROM held UNION ALL SELECT key, 0 FROM gone"""  # noqa: S608 -- of constants


class Pending:
    """What the next transaction is to do."""

    def __init__(self) -> None:
        self.held: list[tuple[bytes, int]] = []
        self.made: list[tuple[bytes, bytes]] = []
        self.changed: list[tuple[bytes, int, bytes]] = []
        self.gone: list[tuple[bytes, int]] = []

    def parameters(self) -> list[list[Any]]:
        """Return the columns."""
        tables: tuple[tuple[list[Any], int], ...] = ((self.held, 2), (self.made, 2), (self.changed, 3), (self.gone, 2))
        return [[row[n] for row in rows] for rows, width in tables for n in range(width)]

    @property
    def size(self) -> int:
        """How many rows must be found or made."""
        return len(self.held) + len(self.made) + len(self.changed) + len(self.gone)


class PostgresWorkflowLimit:
    """Starts runs, records their steps and ends them.

    A start is guarded by the record of the worker, every other write by the owner's grant.
    """

    def __init__(self, url: str, values: Values) -> None:
        self._values = values
        self._writes = 0
        self._runner = asyncio.Runner()
        self._connection: Any = None
        self._runner.run(self._open(url))

    async def _open(self, url: str) -> None:
        async with sf.open(beside(url)):
            pass
        self._connection = connection = await asyncpg.connect(url)
        await connection.execute(SETTINGS)
        await connection.execute(f"INSERT INTO {TABLES}.attempts VALUES ('{WRITER}', 0, 0, '{{}}')")  # noqa: S608 -- of constants
        self._statement = await connection.prepare(TRANSACT)
        pending = Pending()
        pending.made.append((WORKER, self._fresh(self._values.owner)))
        self._worker: int = (await self._statement.fetch(*pending.parameters()))[0][1]

    def runs(self, at_once: int, steps: int, seconds: float) -> Window:
        """Run batches of so many, each of whose writes is one transaction, one batch after another."""
        return self._runner.run(self._runs(at_once, steps, seconds))

    async def _runs(self, at_once: int, steps: int, seconds: float) -> Window:
        timing = Timing(seconds)
        while timing.is_open:
            started = time.perf_counter()
            await self._batch([BareRun() for _ in range(at_once)], steps)
            for _ in range(at_once):
                timing.note(started)
        return timing.result()

    async def _batch(self, runs: Sequence[BareRun], steps: int) -> None:
        pending = Pending()
        pending.held.append((WORKER, self._worker))
        for run in runs:
            self._enqueue(run, pending)
            pending.made.append((run.owner, self._fresh(self._values.owner)))
        await self._commit(pending, runs)
        for number in range(steps):
            pending = Pending()
            for run in runs:
                self._record(run, number, pending)
                if number == steps - 1:
                    self._end(run, pending)
            await self._commit(pending, runs)

    def queue(self, runs: int) -> float:
        """Return how many runs of one step a second take turns: ending one and beginning the next is one commit."""
        return self._runner.run(self._queue(runs))

    async def _queue(self, runs: int) -> float:
        line = [BareRun() for _ in range(runs)]
        pending = Pending()
        for run in line:
            self._enqueue(run, pending)
        await self._commit(pending, line)
        pending = Pending()
        self._begin(line[0], pending)
        await self._commit(pending, line[:1])
        timing = Timing(0)
        for run, successor in zip(line, [*line[1:], None], strict=True):
            await self._hand_over(run, successor)
            timing.note(timing.started)
        return timing.result().rate

    async def _hand_over(self, run: BareRun, successor: BareRun | None) -> None:
        pending = Pending()
        self._record(run, 0, pending)
        self._end(run, pending)
        if successor is not None:
            self._begin(successor, pending)
        await self._commit(pending, [run] if successor is None else [run, successor])

    def _enqueue(self, run: BareRun, pending: Pending) -> None:
        pending.made.append((run.name.join(HEADER), self._fresh(self._values.header)))
        pending.made.append((run.life, self._fresh(self._values.life)))

    def _begin(self, run: BareRun, pending: Pending) -> None:
        pending.changed.append((run.life, run.life_version, self._fresh(self._values.life)))
        pending.made.append((run.owner, self._fresh(self._values.owner)))

    def _record(self, run: BareRun, number: int, pending: Pending) -> None:
        pending.held.append((run.owner, run.fence))
        pending.made.append((run.name.join(STEPS[number]), self._fresh(self._values.of_step(number))))

    def _end(self, run: BareRun, pending: Pending) -> None:
        """The last step's record and the end are one commit; deleting the grant checks it."""
        pending.held.pop()
        pending.changed.append((run.life, run.life_version, self._fresh(self._values.ended)))
        pending.gone.append((run.owner, run.fence))
        pending.made.append(run.listed())

    async def _commit(self, pending: Pending, runs: Sequence[BareRun]) -> None:
        rows = await self._statement.fetch(*pending.parameters())
        assert len(rows) == pending.size
        versions = {key: version for key, version in rows if version}
        for run in runs:
            run.fence = versions.get(run.owner, run.fence)
            run.life_version = versions.get(run.life, run.life_version)

    def _fresh(self, value: bytes) -> bytes:
        """Return a value that was never written before."""
        self._writes += 1
        return value[:-DIGITS] + b"%012d" % self._writes

    def close(self) -> None:
        """Close the connection and the loop."""
        self._runner.run(self._connection.close())
        self._runner.close()

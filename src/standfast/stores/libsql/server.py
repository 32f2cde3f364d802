"""One handle on a libSQL server: every call is one request, every intent one batch whose steps stop at a refusal."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final, TypeAlias, cast, final

from msgspec import structs

from standfast.clock import Instant
from standfast.errors import AttemptClosedError, OutcomeUnknownError, StoreError
from standfast.keys import RecordKey
from standfast.stores.backend import Batching
from standfast.stores.libsql.calling import Caller
from standfast.stores.libsql.hrana import Batch, Failure, Results, if_failed, if_first_but_not, if_ok
from standfast.stores.libsql.moving import LibsqlMoving
from standfast.stores.libsql.packing import pack_guards, pack_keys, pack_rows
from standfast.stores.libsql.statements import Statements
from standfast.stores.libsql.trouble import is_busy, is_constraint, is_frozen, is_rolled_back, is_too_large, translate
from standfast.stores.protocol import ABSENT, Capabilities, Record, Snapshot
from standfast.stores.remote.lacking import PushesNothing, SeesNoDeaths, SharesNoTransaction
from standfast.stores.remote.server import Intent, Landed, Refused, Written

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from standfast.stores.libsql.hrana import Cell
    from standfast.stores.libsql.options import Options

    Run: TypeAlias = Callable[[Batch], Awaitable[Results | Failure]]

CAPABILITIES: Final = Capabilities(
    backend="libsql",
    atomic=True,
    durable=True,
    reach="network",
    wakes="poll",
    clock_resolution=0.001,
    shortest_lease=0.5,
)

BATCHING: Final = Batching(max_riders=500, max_weight=5_000, max_bytes=4_000_000)

BUSY_TRIES: Final = 20
BUSY_PAUSE: Final = 0.02
ATTEMPTS_KEPT: Final = 24 * 3_600 * 1_000_000
"""For how many microseconds the attempts of a handle that died can still be settled."""


@final
class LibsqlServer(PushesNothing, SeesNoDeaths, SharesNoTransaction):
    """A server whose tables are there."""

    def __init__(self, caller: Caller, options: Options, *, durable: bool) -> None:
        self._caller, self._options = caller, options
        self._capabilities: Final = structs.replace(CAPABILITIES, durable=durable)
        self._sql: Final = Statements(options.prefix)
        self._random: Final = random.Random()  # noqa: S311 -- spreads out who tries again when

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return self._capabilities

    @property
    def batching(self) -> Batching:
        """How much fits into one request."""
        return BATCHING

    @property
    def name(self) -> str:
        """The URL, without secrets."""
        return self._options.name

    # --- writing -----------------------------------------------------------------------------------------------

    async def write(self, intent: Intent) -> Written | Refused:
        """Do all of it in one transaction, in one request."""
        batch = _intent_batch(self._sql, intent)
        results = await self._not_busy(self._caller.write, batch)
        if isinstance(results, Failure):
            if is_too_large(results):  # only the records that refuse it can be: nothing was written
                return await self._look_for_refusal(intent)
            raise OutcomeUnknownError(self.name, translate(results, self.name).problem)
        if results.step_results[_COMMIT] is not None:
            [[at, count]] = _numbers(results.rows(_JUDGE))
            first = count - max(intent.draws, 1) + 1
            return Written(Instant(at), intent.exact or tuple(range(first, first + intent.draws)))
        failed = results.step_errors[_JUDGE]
        if is_constraint(failed) and not is_frozen(failed):
            return self._refused(intent, results)
        raise self._undone(results)

    def _refused(self, intent: Intent, results: Results) -> Refused:
        if results.step_results[_DIAGNOSIS] is None:
            raise translate(results.step_errors[_DIAGNOSIS] or _NOTHING, self.name)
        [at, count, number, _], *lost = results.rows(_DIAGNOSIS)
        if number is not None and cast("int", number) >= intent.number:
            raise AttemptClosedError(self.name, f"attempt {intent.handle}.{intent.number} is closed")
        keys = list(intent.guards)
        current = {keys[cast("int", row[0])]: _record(keys[cast("int", row[0])], row) for row in lost}
        return Refused(Instant(cast("int", at)), current, stale=bool(intent.exact) and count != intent.exact[-1])

    async def _look_for_refusal(self, intent: Intent) -> Refused:
        """Find out which guards did not hold where the records are too much for one answer."""
        seen = await self.read(list(intent.guards))
        lost = {key: seen.get(key) for key, version in intent.guards.items() if seen.version(key) != version}
        return Refused(seen.at, lost, stale=bool(intent.exact))

    def _undone(self, results: Results) -> StoreError:
        failure = results.failure() or _NOTHING
        error = translate(failure, self.name)
        if results.step_results[_ROLLBACK] is not None or results.step_results[0] is None or is_rolled_back(failure):
            return error
        return OutcomeUnknownError(self.name, error.problem)

    async def _not_busy(self, run: Run, batch: Batch) -> Results | Failure:
        """Run a batch until its first step meets no other writer: nothing was written then."""
        failure = _NOTHING
        for _ in range(BUSY_TRIES):
            results = await run(batch)
            failed = results.step_errors[0] if isinstance(results, Results) else None
            if failed is None or not is_busy(failed):
                return results
            failure = failed
            await asyncio.sleep(self._random.uniform(0, BUSY_PAUSE))
        raise translate(failure, self.name)

    async def reserve(self, count: int, namespace: bytes) -> tuple[int, ...]:
        """Take versions."""
        del namespace
        [[last]] = _numbers(await self._one(self._sql.reserve, count))
        return tuple(range(last - count + 1, last + 1))

    async def close_attempt(self, handle: str, number: int, namespace: bytes) -> Landed | None:
        """Close an attempt: a write of it that is under way holds the one turn to write, so this comes after it."""
        del namespace
        batch = Batch()
        batch.add(self._sql.close, (handle, number))
        found = batch.add(self._sql.closed, (handle,), if_ok(0))
        [[last, at, first, draws]] = (await self._done(batch)).rows(found)
        if last != number:
            raise StoreError(self.name, f"attempt {handle}.{number} is not the last one of its handle")
        if first is None:
            return None
        [[at_, first_, draws_]] = _numbers([[at, first, draws]])
        return Landed(Instant(at_), tuple(range(first_, first_ + draws_)))

    async def forget(self, handle: str) -> None:
        """Forget a handle."""
        await self._one(self._sql.forget, handle)

    async def sweep(self, limit: int) -> int:
        """Delete expired records, and attempts that nobody will ask for any more."""
        batch = Batch()
        swept = batch.add(self._sql.sweep, (limit,))
        batch.add(self._sql.sweep_attempts, (ATTEMPTS_KEPT,), if_ok(swept))
        result = (await self._done(batch)).step_results[swept]
        return 0 if result is None else result.affected_row_count

    def moving(self) -> LibsqlMoving:
        """Return what moves everything in the tables."""
        return LibsqlMoving(self._done, self._options.prefix, self.scan)

    # --- reading -----------------------------------------------------------------------------------------------

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records, in one statement."""
        [at, *_], *found = await self._rows(self._sql.read, *pack_keys(keys))
        at = Instant(cast("int", at))
        return Snapshot(at, {keys[cast("int", row[0])]: _record_there(keys[cast("int", row[0])], row) for row in found})

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page, in one statement."""
        sql = self._sql.scan_back if reverse else self._sql.scan
        [at, *_], *found = await self._rows(sql, bytes(start), bytes(end), limit + 1)
        records = [_record_there(RecordKey.from_encoded(cast("bytes", row[0])), row) for row in found]
        records.sort(key=_key_of, reverse=reverse)
        page = records[:limit]
        more = None if len(records) <= limit else page[-1].key if reverse else page[-1].key.successor()
        return Snapshot(Instant(cast("int", at)), {record.key: record for record in page}, more)

    async def mark(self) -> int:
        """Return the last version: it grows with every commit."""
        [[count]] = _numbers(await self._one(self._sql.mark))
        return count

    async def _rows(self, sql: str, *parameters: bytes | int | str) -> list[list[Cell]]:
        batch = Batch()
        batch.add(sql, parameters)
        results = await self._caller.read(batch)
        if isinstance(results, Failure) and is_too_large(results):
            return await self._caller.rows(batch)
        return self._checked(results).rows(0)

    async def _one(self, sql: str, *parameters: int | str) -> list[list[Cell]]:
        batch = Batch()
        batch.add(sql, parameters)
        return (await self._done(batch)).rows(0)

    async def _done(self, batch: Batch) -> Results:
        """Run statements that stand for themselves, and may be run twice."""
        return self._checked(await self._not_busy(self._caller.read, batch))

    def _checked(self, results: Results | Failure) -> Results:
        failure = results if isinstance(results, Failure) else results.failure()
        if failure is not None:
            raise translate(failure, self.name)
        return cast("Results", results)

    # --- hints: none are pushed --------------------------------------------------------------------------------

    # --- life --------------------------------------------------------------------------------------------------

    async def another(self) -> LibsqlServer:
        """Open another handle."""
        return LibsqlServer(Caller(self._options), self._options, durable=self._capabilities.durable)

    async def aclose(self) -> None:
        """Close everything."""
        await self._caller.aclose()


_JUDGE: Final = 1
_COMMIT, _ROLLBACK, _DIAGNOSIS = -3, -2, -1
_NOTHING: Final = Failure("the server did not say why")


def _intent_batch(sql: Statements, intent: Intent) -> Batch:
    """Return the steps: begin, judge, write, commit; and if that was refused, undo it and look why.

    What is seen then is there at one moment, though perhaps a later one: the records as they are, to try again with.
    """
    batch = Batch()
    first, last = (intent.exact[0], intent.exact[-1]) if intent.exact else (None, None)
    creates = any(intent.guards[row.key] == ABSENT for row in intent.puts)
    draws = max(intent.draws, 1)
    guards = pack_guards(intent.guards)
    begin = batch.add("BEGIN IMMEDIATE")
    window = (intent.after, intent.before, last if creates else None, 0 if intent.exact else draws)
    judge = done = batch.add(sql.judge, (intent.handle, intent.number, *window, *guards), if_ok(begin))
    taken = len(intent.exact) or intent.draws
    done = batch.add(sql.count, (intent.handle, intent.number, first, taken), if_ok(done))
    for packed in pack_rows(intent.puts):
        done = batch.add(sql.put, (*packed, first, draws), if_ok(done))
    if intent.deletes:
        done = batch.add(sql.delete, pack_keys(intent.deletes), if_ok(done))
    commit = batch.add("COMMIT", condition=if_ok(done))
    batch.add("ROLLBACK", condition=if_first_but_not(begin, commit))
    batch.add(sql.diagnose, (intent.handle, *guards), if_failed(judge))
    return batch


def _record(key: RecordKey, row: list[Cell]) -> Record | None:
    return None if row[1] is None else _record_there(key, row)


def _record_there(key: RecordKey, row: list[Cell]) -> Record:
    _, version, expires_at, value = row
    return Record(key, cast("bytes", value), cast("int", version), cast("Instant | None", expires_at))


def _key_of(record: Record) -> RecordKey:
    return record.key


def _numbers(rows: list[list[Cell]]) -> list[list[int]]:
    return cast("list[list[int]]", rows)

"""One handle on a MySQL or MariaDB server: guarded writes, the user's own SQL, reads, attempts and upkeep."""

from __future__ import annotations

import asyncio
import random
from copy import copy
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Struct, structs

from standfast.clock import SYSTEM_CLOCK, Instant, monotonic
from standfast.errors import AttemptClosedError, OutcomeUnknownError, StoreBusyError, StoreError, WorkTimeoutError
from standfast.events import NO_HOOKS
from standfast.keys import RecordKey
from standfast.stores.backend import Batching, WorkRider, moved_error, pages
from standfast.stores.fold import as_exception
from standfast.stores.mysql import sql
from standfast.stores.mysql import sql as schema
from standfast.stores.mysql.connection import (
    DEADLOCK,
    DRIVER_ERRORS,
    DUPLICATE,
    LOCK_TIMEOUT,
    LOST,
    NOT_SENT,
    NULL_REFUSED,
    MysqlPool,
    check,
    code_of,
    failover_loss,
    is_certain,
    packet_of,
    session_of,
    settings_of,
    translated,
    weakness_of,
)
from standfast.stores.mysql.liveness import find_server_id, liveness_server
from standfast.stores.mysql.sql import COLUMNS, NOW, dead_since, fetch, handle_literal, literal, literals, load
from standfast.stores.protocol import ABSENT, Capabilities, Conflict, Record, Snapshot, StoreMeasure, Worked
from standfast.stores.remote.connection import tell_failover_loss, warn_not_durable
from standfast.stores.remote.failover import PrimaryTracker
from standfast.stores.remote.liveness import join_liveness
from standfast.stores.remote.server import Intent, Landed, ServerDefaults, WriteRefused, Written, run_user_work
from standfast.stores.validation import check_commit, in_window

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

    from standfast.events import Hooks
    from standfast.stores.backend import Outcome, Scan
    from standfast.stores.mysql.connection import MysqlConnection, MysqlOptions, MysqlTables, Rows
    from standfast.stores.protocol import Change
    from standfast.stores.remote.liveness import SessionLiveness

# ruff: noqa: S608 -- names of tables are checked where they are read, and all else is a number or a hex literal


# --- the server ----------------------------------------------------------------------------------------------------


LONGEST_PACKET: Final = 8_000_000
TIME_IS_GOOD_FOR: Final = 5_000_000
"""For how many microseconds the server's time is extrapolated from its last answer."""

BATCHING: Final = Batching(max_riders=500, max_weight=500, max_bytes=2_000_000)


async def open_server(options: MysqlOptions, hooks: Hooks = NO_HOOKS) -> MysqlServer:
    """Connect, make the tables if they are not there, and look at the settings.

    Raises:
        StoreError: The server cannot be reached, or cannot be used; the message says why.
    """
    links = MysqlPool(options, options.pool, PrimaryTracker(options.name))
    try:
        async with links.borrow() as link:
            settings = await settings_of(link, options)
            check(settings, options.name)
            await schema.prepare(link, options)
            server_id = await find_server_id(link, options.timeout) if options.liveness else ""
            loss = await failover_loss(link, options.timeout)
    except DRIVER_ERRORS as error:
        await links.aclose()
        raise translated(error, options.name) from error
    except BaseException:
        await links.aclose()
        raise
    if weakness := weakness_of(settings):
        settings_at_fault = f"{weakness} on the server; only 1 keeps what was committed when its machine crashes"
        warn_not_durable(options.name, settings_at_fault, hooks)
    tell_failover_loss(options.name, loss, hooks)
    return MysqlServer(options, links, settings, server_id, loss)


@final
class MysqlServer(ServerDefaults):
    """One handle: a connection to write on, and a few for everything else."""

    def __init__(
        self,
        options: MysqlOptions,
        links: MysqlPool,
        settings: Mapping[str, str],
        server_id: str = "",
        loss: str = "",
    ) -> None:
        self._options, self._links, self._settings, self._server_id = options, links, settings, server_id
        self._names: Final = options.names
        self.name = options.name
        self.batching: Final = BATCHING
        self.capabilities: Final = Capabilities(
            backend="mysql",
            atomic=True,
            durable=not weakness_of(settings),
            reach="network",
            wakes="poll",
            shortest_lease=0.5,
            sees_process_death=bool(server_id),
            commit_with=True,
            failover_loss=loss,
        )
        self._leaving: Final[set[asyncio.Task[None]]] = set()
        self._follow()
        longest = min(packet_of(settings) - 100_000, LONGEST_PACKET)
        self._writer: Final = MysqlPool(options, 1, links.tracker)
        self._writing: Final = MysqlWriter(options, self._writer, longest)
        self._working: Final = MysqlWorkRunner(options, self._writer, longest, self.capabilities)
        self._last_reserved = 0
        self._server_time = Instant(0)
        self._received_at = Instant(0)

    def __repr__(self) -> str:
        return f"<MysqlServer {self.name}>"

    # --- writing ---------------------------------------------------------------------------------------------

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Do all of ``intent`` or nothing, durably."""
        answer = await self._writing.write(intent)
        self._note_time(answer.at)
        if isinstance(answer, Written):
            self._links.tracker.acknowledge(intent.handle, intent.number)
        if isinstance(answer, Written) and answer.versions:
            self._last_reserved = max(self._last_reserved, answer.versions[-1])
        return answer

    def _note_time(self, at: Instant) -> None:
        self._server_time, self._received_at = at, SYSTEM_CLOCK.elapsed()

    async def reserve(self, count: int, namespace: bytes) -> tuple[int, ...]:
        """Take versions from the server's time on, without asking it if it answered lately.

        Nothing is kept for them on the server. They are compared, under the locks, with the versions of the very rows
        that are written and with those of rows that were swept; if they are not higher, the intent is stale.
        """
        del namespace
        passed = SYSTEM_CLOCK.elapsed() - self._received_at
        if not self._server_time or passed > TIME_IS_GOOD_FOR:
            [[[at]]] = await self._links.ask(f"SELECT {NOW}")
            self._note_time(Instant(at))
            passed = 0
        first = max(self._server_time + passed, self._last_reserved + 1)
        self._last_reserved = first + count - 1
        return tuple(range(first, first + count))

    async def work(self, rider: WorkRider, handle: str, number: int, note: Callable[[Outcome], object]) -> Outcome:
        """Do the caller's own SQL and a commit in one transaction."""
        outcome = await self._working.work(rider, handle, number, note)
        if isinstance(outcome, Worked):
            self._links.tracker.acknowledge(handle, number)
        return outcome

    async def close_attempt(self, handle: str, number: int, namespace: bytes) -> Landed | None:
        """Make sure that an attempt can never be written any more; if it was, say with which versions."""
        del namespace
        landed = await close_attempt(self._links, self._names, handle, number, self.name)
        self._links.tracker.acknowledge(handle, number)
        return landed

    async def forget(self, handle: str) -> None:
        """Remove what was counted for a handle that is being closed."""
        self._links.tracker.forget(handle)
        await self._links.ask(f"DELETE FROM {self._names.attempts} WHERE handle={handle_literal(handle)}")

    async def sweep(self, limit: int) -> int:
        """Delete up to ``limit`` rows that are dead, and old attempts."""
        return await sweep(self._links, self._names, limit)

    async def measure(self) -> StoreMeasure:
        """Return the bytes of the table and its indexes, and how many rows the server estimates."""
        where = f"TABLE_SCHEMA=DATABASE() AND TABLE_NAME='{self._names.plain[0]}'"
        [rows] = await self._links.ask(
            f"SELECT DATA_LENGTH+INDEX_LENGTH, TABLE_ROWS FROM information_schema.TABLES WHERE {where}"
        )
        return StoreMeasure(*(None if each is None else int(each) for each in rows[0])) if rows else StoreMeasure()

    def transfer(self) -> MysqlTransfer:
        """Return what moves everything in the tables."""
        return MysqlTransfer(self._links, self._names, self.scan)

    # --- reading ---------------------------------------------------------------------------------------------

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read the live records at ``keys``."""
        (((at,),), rows) = await self._links.ask(f"SELECT {NOW};{fetch(self._names, sorted(keys))}")
        self._note_time(Instant(at))
        return Snapshot(Instant(at), live(rows, Instant(at)))

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of live records in the order of the bytes of their keys."""
        where = f"k>={literal(start)} AND k<{literal(end)} AND (expires_at IS NULL OR expires_at>@sf_t)"
        page = f"ORDER BY k {'DESC' if reverse else 'ASC'} LIMIT {limit + 1}"
        found = f"SELECT {COLUMNS} FROM {self._names.records} FORCE INDEX (PRIMARY) WHERE {where} {page}"
        _, ((at,),), rows = await self._links.ask(f"SET @sf_t={NOW};SELECT @sf_t;{found}")
        return Snapshot.page(Instant(at), list(map(record_of, rows)), limit, reverse=reverse)

    # --- notifications ---------------------------------------------------------------------------------------

    async def mark(self) -> int:
        """Return a number that is another one after every transaction: each moves on the attempt of its handle."""
        crc = "CRC32(CONCAT(handle,':',number))"
        [[[mark]]] = await self._links.ask(f"SELECT CAST(COALESCE(SUM({crc}),0) AS SIGNED) FROM {self._names.attempts}")
        return int(mark)

    # --- life ------------------------------------------------------------------------------------------------

    async def another(self) -> MysqlServer:
        """Open another handle on the same server, on the running loop."""
        links = MysqlPool(self._options, self._options.pool, self._links.tracker)
        try:
            await links.ask("DO 1")
        except BaseException:
            await links.aclose()
            raise
        return MysqlServer(self._options, links, self._settings, self._server_id, self.capabilities.failover_loss)

    def _follow(self) -> SessionLiveness | None:
        """Return what shows deaths at the server that is the primary now; after a failover that is another one."""
        known = self._links.tracker.epoch
        if not self._server_id or (self._liveness is not None and (known is None or known.server == self._server_id)):
            return self._liveness
        old = self._liveness
        if known is not None:
            self._server_id = known.server
        [here, *_] = self._options.each_host("" if known is None else known.place)
        self._liveness = join_liveness(liveness_server(here, self._server_id))
        if old is not None:
            leaving = asyncio.get_running_loop().create_task(old.leave())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        return self._liveness

    def liveness_token(self) -> str:
        """Return this process's token; empty if deaths are not seen here."""
        liveness = self._follow()
        return "" if liveness is None else liveness.liveness_token()

    def is_dead(self, token: str) -> bool:
        """Return True if the process that gave ``token`` is known to have died."""
        liveness = self._follow()
        return liveness is not None and liveness.is_dead(token)

    async def aclose(self) -> None:
        """Close every connection."""
        if self._leaving:
            await asyncio.wait(self._leaving)
        if self._liveness is not None:
            await self._liveness.leave()
        await self._writer.aclose()
        await self._links.aclose()


# --- transfer: everything in a database ----------------------------------------------------------------------------
#
# A fact says that the store is frozen. Every write reads it under a shared lock, which lasts until it is over, in the
# statement that reads the time; so setting it waits for all writes under way, and all later ones see it.


@final
class MysqlTransfer:
    """Everything in the tables with one prefix."""

    def __init__(self, links: MysqlPool, names: MysqlTables, scan: Scan) -> None:
        self._links, self._names, self._scan = links, names, scan

    async def frozen(self) -> int:
        """Return why it is frozen."""
        [[[number]]] = await self._links.ask(f"SELECT number FROM {self._names.facts} WHERE name='frozen'")
        return int(number)

    async def freeze(self, reason: int) -> None:
        """Refuse writes, when those under way have ended."""
        await self._set(f"number={int(reason)} WHERE name='frozen' AND number=0")

    async def thaw(self) -> None:
        """Take writes again."""
        await self._set("number=0 WHERE name='frozen'")

    async def last(self) -> int:
        """Return the highest of the versions there, of those that were swept, and of what the time gives."""
        facts, records = self._names.facts, self._names.records
        floor = f"SELECT number FROM {facts} WHERE name='floor'"
        highest = f"SELECT COALESCE(MAX(version),0) FROM {records}"
        [[[last]]] = await self._links.ask(f"SELECT GREATEST({NOW},({floor}),({highest}))")
        return int(last)

    async def lift(self, version: int) -> None:
        """Go on above a version: a key that has no record is created above it, one that has goes on above that."""
        await self._set(f"number=GREATEST(number,{int(version)}) WHERE name='floor'")

    async def _set(self, change: str) -> None:
        await self._links.ask(f"UPDATE {self._names.facts} SET {change}")

    def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all records."""
        return pages(self._scan)

    async def put(self, records: Sequence[Record]) -> None:
        """Write records as they are."""
        for statement in load(self._names, records):
            await self._links.ask(statement)


# --- rows of the table of records, as records ----------------------------------------------------------------------


def record_of(row: tuple[Any, ...]) -> Record:
    """Return a row: key, version, expiry, value."""
    key, version, expires_at, value = row
    return Record(RecordKey.from_encoded(key), value, version, None if expires_at is None else Instant(expires_at))


def live(rows: Iterable[tuple[Any, ...]], at: Instant) -> dict[RecordKey, Record]:
    """Return the records that have not expired at ``at``, in the order of the rows."""
    found = map(record_of, rows)
    return {record.key: record for record in found if not record.is_expired(at)}


# --- attempts that are settled and forgotten, and rows that are swept away -----------------------------------------


GRACE: Final = 5_000_000
"""For how many microseconds a dead row stays: longer than any transaction lies between its locks and its writes."""

ATTEMPTS_KEPT: Final = 7 * 24 * 3600 * 1_000_000
"""For how many microseconds the last attempt of a handle is kept that never said goodbye."""

MOST_ATTEMPTS: Final = 100


async def close_attempt(links: MysqlPool, names: MysqlTables, handle: str, number: int, name: str) -> Landed | None:
    """Make sure that an attempt can never be counted any more; if it was, say with which versions."""
    who, is_new = handle_literal(handle), f"number<{number}"
    close = (
        f"INSERT INTO {names.attempts} (handle,number,at,first,draws) VALUES ({who},{number},{NOW},NULL,0) "
        f"ON DUPLICATE KEY UPDATE at=IF({is_new},VALUES(at),at),first=IF({is_new},NULL,first),"
        f"draws=IF({is_new},0,draws),number=GREATEST(number,{number})"
    )
    look = f"SELECT number,at,first,draws FROM {names.attempts} WHERE handle={who}"
    statements = ["START TRANSACTION", close, look, "COMMIT"]
    _, _, [(last, at, first, draws)], _ = await links.ask(";".join(statements))
    if last > number:
        raise StoreError(name, f"attempt {handle}.{number} is not the last one of its handle any more")
    return None if first is None else Landed(Instant(at), tuple(range(first, first + draws)))


async def sweep(links: MysqlPool, names: MysqlTables, limit: int) -> int:
    """Delete rows that have been dead for a while, and attempts of handles that are long gone.

    The highest version that goes is remembered: what is created later, at the same key perhaps, gets a higher one.
    Rows are locked by their keys, in order, as writes do.
    """
    old, dead = f"SET @sf_o={NOW}-{GRACE}", dead_since("@sf_o")
    _, rows = await links.ask(f"{old};SELECT k FROM {names.records} WHERE {dead} ORDER BY expires_at LIMIT {limit}")
    if rows:
        where = f"WHERE k IN ({literals(sorted(row[0] for row in rows))}) AND {dead}"
        statements = [
            old,
            "START TRANSACTION",
            f"SELECT COALESCE(MAX(version),0) INTO @sf_v FROM {names.records} FORCE INDEX (PRIMARY) {where} FOR UPDATE",
            f"UPDATE {names.facts} SET number=@sf_v WHERE name='floor' AND number<@sf_v",
            f"DELETE FROM {names.records} {where}",
            "COMMIT",
        ]
        await links.ask(";".join(statements))
    is_old = f"at<{NOW}-{ATTEMPTS_KEPT}"
    [attempts] = await links.ask(f"SELECT handle FROM {names.attempts} WHERE {is_old} LIMIT {MOST_ATTEMPTS}")
    if attempts:
        handles = literals(sorted(row[0] for row in attempts))
        await links.ask(f"DELETE FROM {names.attempts} WHERE handle IN ({handles}) AND {is_old}")
    return len(rows)


# --- writing: an intent in one round trip, tried again while it is certain that nothing landed ---------------------


TRIES: Final = 30
"""How often a transaction that was chosen to end a deadlock, or that lost a race to create a key, is tried at most."""

BEFORE_COUNTING: Final = 3
"""How many statements come before the one that judges the guards."""

LONGEST_PAUSE: Final = 0.05
_AGAIN: Final = frozenset({DEADLOCK, DUPLICATE, LOCK_TIMEOUT, NULL_REFUSED}) | NOT_SENT
"""What is tried again: a deadlock, a lost race, or a connection that had died while it was idle."""


@final
class MysqlWriter:
    """The writes of one handle."""

    def __init__(self, options: MysqlOptions, links: MysqlPool, longest_packet: int) -> None:
        self._options, self._links, self._longest = options, links, longest_packet
        self._names: Final = options.names
        self._random: Final = random.Random()  # noqa: S311 -- spreads out the retries of several handles

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Do all of an intent or nothing.

        Raises:
            AttemptClosedError: The attempt was counted before.
            OutcomeUnknownError: It may have been written.
            StoreError: It was certainly not.
        """
        deadline = monotonic() + self._options.timeout
        for tries in range(TRIES):
            answer = await self._try(intent)
            if not isinstance(answer, Exception):
                return answer
            if code_of(answer) not in _AGAIN or monotonic() > deadline:
                raise translated(answer, self._options.name) from answer
            await asyncio.sleep(self._random.uniform(0, min(LONGEST_PAUSE, 0.001 * 2**tries)))
        raise StoreBusyError(self._options.name, f"it was undone {TRIES} times in a row in favour of others; retry")

    async def _try(self, intent: Intent) -> Written | WriteRefused | Exception:
        """Send it; return the driver's error if nothing was written."""
        answers: list[Rows] = []
        async with self._links.borrow() as link:
            try:
                await self._send(link, intent, answers)
            except DRIVER_ERRORS as error:
                if code_of(error) == NULL_REFUSED and len(answers) == BEFORE_COUNTING:
                    return await see_why(link, intent, self._options)
                await link.undo(self._options.timeout)
                return error
        at, first = answers[-2][0]
        return Written(Instant(at), intent.exact or tuple(range(first, first + intent.draws)))

    async def _send(self, link: MysqlConnection, intent: Intent, answers: list[Rows]) -> None:
        names, guards, count = self._names, guards_of(intent), count_of(intent)
        statements = [
            "START TRANSACTION",
            sql.lock(names, guards),
            sql.look_at_time(names, count),
            sql.count_attempt(names, guards, count),
            *changes_of(names, intent),
            "SELECT @sf_t,@sf_b",
            "COMMIT",
        ]
        *first, last = sql.packets(statements, self._longest)
        for packet in first:
            await link.run(packet, self._options.timeout, answers)
        try:
            await link.run(last, self._options.timeout, answers)
        except DRIVER_ERRORS as error:
            if is_certain(error):
                raise
            attempt = f"{intent.handle}.{intent.number}"
            unknown = translated(error, self._options.name)
            raise OutcomeUnknownError(self._options.name, unknown.problem, attempt) from error


async def see_why(link: MysqlConnection, intent: Intent, options: MysqlOptions) -> WriteRefused:
    """Find out what did not hold, while all the locks are still held and nothing is changed yet; then let go.

    Raises:
        AttemptClosedError: The attempt was counted before.
        StoreMovedError: The store is frozen.
    """
    asked = [
        "SELECT @sf_t,@sf_b,@sf_l,@sf_f",
        f"SELECT number FROM {options.names.attempts} WHERE handle={sql.handle_literal(intent.handle)}",
        sql.fetch(options.names, intent.guards),
        "ROLLBACK",
    ]
    try:
        facts, counted, rows, _ = await link.run(";".join(asked), options.timeout)
    except DRIVER_ERRORS as error:
        raise translated(error, options.name) from error
    at, first, lowest, frozen = facts[0]
    if frozen:
        raise moved_error(options.name, int(frozen))
    if counted and counted[0][0] >= intent.number:
        raise AttemptClosedError(options.name, f"attempt {intent.handle}.{intent.number} is over")
    return judged(intent, Instant(at), rows, is_stale=first < lowest)


def guards_of(intent: Intent) -> sql.Guards:
    """Return what an intent rests on."""
    return sql.Guards(intent.guards, intent.after, intent.before)


def count_of(intent: Intent) -> sql.AttemptCount:
    """Return which attempt an intent is, and what it takes."""
    creates = any(intent.guards[row.key] == ABSENT for row in intent.puts)
    first = intent.exact[0] if intent.exact else None
    draws = len(intent.exact) or intent.draws
    return sql.AttemptCount(intent.handle, intent.number, draws, first, creates)


def changes_of(names: MysqlTables, intent: Intent) -> Iterator[str]:
    """Return the statements that write: rows that are there first, then those that are not, each in order."""
    puts = [row for row in intent.puts if intent.guards[row.key] != ABSENT]
    creates = [row for row in intent.puts if intent.guards[row.key] == ABSENT]
    if puts:
        yield from sql.put(names, puts)
    if intent.deletes:
        yield sql.delete(names, intent.deletes)
    if creates:
        yield from sql.create(names, creates)
        yield sql.check_floor(names, intent.handle)


def judged(intent: Intent, at: Instant, rows: Rows, *, is_stale: bool) -> WriteRefused:
    """Return why an intent was refused at ``at``, with the rows as they were."""
    records = live(rows, at)
    lost: dict[RecordKey, Record | None] = {
        key: records.get(key)
        for key, version in intent.guards.items()
        if (records[key].version if key in records else ABSENT) != version
    }
    is_missed = not in_window(at, intent.after, intent.before)
    return WriteRefused(at, lost, stale=is_stale and not lost and not is_missed)


# --- the user's own SQL inside one of our transactions -------------------------------------------------------------
#
# It runs between our locks and our writes. If it ends the transaction on the way (``COMMIT``, ``ROLLBACK``, or a change
# of a table, which commits by itself here), that is noticed before anything of ours is written.

_NO_SAVEPOINT: Final = 1305
_BEFORE_WRITING: Final = 3
"""How many statements have succeeded once the guards held."""

_UNDONE: Final = LOST | {DEADLOCK, LOCK_TIMEOUT}
_ENDED: Final = (
    "the work ended the transaction it was in (COMMIT, ROLLBACK, or a statement such as CREATE TABLE that commits by "
    "itself); nothing of this commit was written, but what the work itself did may have been"
)


@final
class MysqlWork:
    """What ``commit_with`` hands to the work: SQL on the caller's own tables, for as long as the call lasts."""

    __slots__ = ("_link", "_name", "error")

    def __init__(self, link: MysqlConnection, name: str) -> None:
        self._link: MysqlConnection | None = link
        self._name = name
        self.error: StoreError | None = None
        """What the store could not do in the middle of the work; the transaction is over then."""

    @property
    def connection(self) -> Any:  # noqa: ANN401 -- the driver has types in name only
        """The connection of the driver, ``asyncmy``, for what else it can do. Leave the transaction to the store."""
        return self._open().connection

    async def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement, with ``%s`` where parameters go, and return its rows."""
        cursor = self._open().connection.cursor()
        try:
            await cursor.execute(statement, tuple(parameters) or None)
            return list(await cursor.fetchall()) if cursor.description else []
        except DRIVER_ERRORS as error:
            raise self._told(error) from error

    async def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Run one statement once for each set of parameters."""
        cursor = self._open().connection.cursor()
        try:
            await cursor.executemany(statement, [tuple(each) for each in parameters])
        except DRIVER_ERRORS as error:
            raise self._told(error) from error

    def _told(self, error: Exception) -> Exception:
        """Return what the work is told: its own mistakes as the driver says them, the rest in words of the store."""
        if code_of(error) not in _UNDONE:
            return error
        self.error = translated(error, self._name)
        return self.error

    def _open(self) -> MysqlConnection:
        if self._link is None:
            raise RuntimeError("the transaction is over; do all the work inside the function given to commit_with")
        return self._link

    def end(self) -> None:
        """Make it unusable."""
        self._link = None


class _Work(Struct, frozen=True):
    rider: WorkRider
    handle: str
    number: int

    @property
    def attempt(self) -> str:
        return f"{self.handle}.{self.number}"


@final
class MysqlWorkRunner:
    """Transactions that are shared with the caller's own SQL."""

    def __init__(self, options: MysqlOptions, links: MysqlPool, longest_packet: int, limits: Capabilities) -> None:
        self._options, self._links, self._longest, self._limits = options, links, longest_packet, limits
        self._names: Final = options.names

    async def work(self, rider: WorkRider, handle: str, number: int, note: Callable[[Outcome], object]) -> Outcome:
        """Do the work and the commit together; return what came of them, or what the work raised."""
        await self._links.ask("DO 1")  # a connection that died while it was idle is found here
        job = _Work(rider, handle, number)
        async with self._links.borrow() as link:
            try:
                outcome = await self._prepare(link, job)
                if isinstance(outcome, Worked):
                    note(outcome)
                    await self._commit(link, job)
                elif isinstance(outcome, Conflict):
                    await link.undo(self._options.timeout)
                else:
                    link.drop()  # which settings of the session the work has changed is not known
            except DRIVER_ERRORS as error:
                raise translated(error, self._options.name) from error
        return outcome

    async def _prepare(self, link: MysqlConnection, job: _Work) -> Outcome:
        """Do everything but commit."""
        intent = Intent.of_commit(job.rider.commit, job.handle, job.number)
        locked = f"{sql.fetch(self._names, intent.guards)} FOR UPDATE"
        statements = ["START TRANSACTION", "SAVEPOINT sf", locked, f"SELECT {sql.NOW}"]
        _, _, rows, ((at,),) = await link.run(";".join(statements), self._options.timeout)
        begun = judged(intent, Instant(at), rows, is_stale=False)
        if begun.current or not in_window(begun.at, intent.after, intent.before):
            return Conflict(begun.at, begun.current)
        try:
            answer, changes = await self._do(link, job.rider)
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001 -- it is the caller's own, and is raised to it alone
            return as_exception(error)
        refused, versions = await self._write(
            link, Intent.of_commit(structs.replace(job.rider.commit, changes=changes), job.handle, job.number), begun.at
        )
        if refused is not None:
            return Conflict(refused.at, refused.current)
        return Worked(answer, begun.at, versions)

    async def _do(self, link: MysqlConnection, rider: WorkRider) -> tuple[Any, tuple[Change, ...]]:
        """Run the work with a time limit; return its answer and all changes to commit with it."""
        work = MysqlWork(link, self._options.name)
        try:
            answer, changes = await run_user_work(rider, work, self._options.name)
        except WorkTimeoutError:
            link.drop()
            raise
        except Exception:
            if work.error is None:
                raise
            # Another one than the work saw: this is no outcome of the work, which was undone and can be done again.
            raise copy(work.error) from None
        finally:
            work.end()
        if work.error is not None:
            raise work.error
        if len(changes) > len(rider.commit.changes):
            check_commit(changes, rider.commit.wake, self._limits)
        try:  # it must still be the same transaction; and settings are put back that the work may have changed
            await link.run(f"RELEASE SAVEPOINT sf;{session_of(self._options)}", self._options.timeout)
        except DRIVER_ERRORS as error:
            if code_of(error) == _NO_SAVEPOINT:
                raise StoreError(self._options.name, _ENDED) from error
            raise translated(error, self._options.name) from error
        return answer, changes

    async def _write(
        self, link: MysqlConnection, intent: Intent, at: Instant
    ) -> tuple[WriteRefused | None, dict[RecordKey, int]]:
        """Write everything, as of ``at``: what held when the work began does not fail for its age."""
        answers: list[Rows] = []
        count = count_of(intent)
        statements = [
            sql.lock(self._names, guards_of(intent)),
            sql.look_at_time(self._names, count, since=at),
            sql.count_attempt(self._names, guards_of(intent), count),
            *changes_of(self._names, intent),
            "SELECT @sf_b",
        ]
        try:
            for packet in sql.packets(statements, self._longest):
                await link.run(packet, self._options.timeout, answers)
        except DRIVER_ERRORS as error:
            if code_of(error) not in {NULL_REFUSED, DUPLICATE}:
                raise
            return await self._refused(link, intent, is_judged=len(answers) < _BEFORE_WRITING), {}
        version = int(answers[-1][0][0])
        return None, {row.key: version for row in intent.puts}

    async def _refused(self, link: MysqlConnection, intent: Intent, *, is_judged: bool) -> WriteRefused:
        if is_judged:
            return await see_why(link, intent, self._options)
        statements = ["ROLLBACK", f"SELECT {sql.NOW}", sql.fetch(self._names, intent.guards)]
        _, ((at,),), rows = await link.run(";".join(statements), self._options.timeout)
        refused = judged(intent, Instant(at), rows, is_stale=False)
        if not refused.current:
            raise StoreBusyError(self._options.name, "others wrote the same keys meanwhile; nothing was written; retry")
        return refused

    async def _commit(self, link: MysqlConnection, job: _Work) -> None:
        try:
            await link.run("COMMIT", self._options.timeout)
        except DRIVER_ERRORS as error:
            if is_certain(error):
                raise
            unknown = translated(error, self._options.name)
            raise OutcomeUnknownError(self._options.name, unknown.problem, job.attempt) from error

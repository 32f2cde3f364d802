"""Transactions shared with the user: the user's SQL in one of ours, and our records in one of the user's."""

from __future__ import annotations

import asyncio
import contextlib
import re
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from msgspec import structs

from standfast.clock import Instant
from standfast.errors import (
    AttemptClosedError,
    InvalidArgumentError,
    InvalidChangeError,
    StoreError,
    StoreUnavailableError,
    WorkTimeoutError,
)
from standfast.keys import RecordKey
from standfast.stores.backend import CommitRider, moved_error
from standfast.stores.fold import as_exception
from standfast.stores.postgresql.connection import (
    ATTEMPT_CLOSED,
    CREATED_MEANWHILE,
    DRIVER_ERRORS,
    code_of,
    translate,
    translate_write,
)
from standfast.stores.postgresql.statements import channel, lock_runs, lost_records, payload, write_parameters, written
from standfast.stores.protocol import ABSENT, Check, Commit, Conflict, Record, Snapshot, Worked
from standfast.stores.remote.connection import note_place
from standfast.stores.remote.server import Audience, Intent, WriteRefused, run_user_work
from standfast.stores.remote.subscriptions import KnownTopics
from standfast.stores.user_transactions import Question, sqlstate_of, unsuitable_connection
from standfast.stores.validation import check_commit, check_read, in_window

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    import asyncpg

    from standfast.stores.backend import Outcome, WorkRider
    from standfast.stores.postgresql.connection import PostgresConnection, PostgresOptions, PostgresSession
    from standfast.stores.postgresql.statements import Connection, PostgresStatements
    from standfast.stores.protocol import Capabilities, Change
    from standfast.stores.remote.server import Message
    from standfast.stores.user_transactions import Talk


# --- the user's own SQL in one of our transactions -----------------------------------------------------------------

_ENDS_IT: Final = re.compile(
    r"\s*(?:begin|start\s+transaction|commit|end|rollback(?!\s+(?:work\s+|transaction\s+)?to\b)|abort|prepare\s+transaction)\b",
    re.IGNORECASE,
)


_OURS: Final = r"(?<![a-z0-9_$])\"?@\"?\s*\.\s*\"?(?!(?:runs|steps|locks)\b)[a-z_]"
"""Our tables and functions, by their full names. It prevents mistakes, not malice."""


@final
class PostgresWork:
    """What ``commit_with`` hands to the work: SQL on the caller's own tables, for as long as the call lasts.

    The methods are those of an asyncpg connection. The transaction belongs to the store, and cannot be ended; for a
    part that may fail by itself there is :meth:`savepoint`.
    """

    __slots__ = ("_connection", "_ours", "_savepoints", "_seconds")

    def __init__(self, connection: Connection, schema: str, seconds: float) -> None:
        self._connection: Connection | None = connection
        self._seconds: Final = seconds
        self._savepoints = 0
        self._ours: Final = re.compile(_OURS.replace("@", schema), re.IGNORECASE)

    async def execute(self, statement: str, *parameters: Any) -> str:  # noqa: ANN401 -- as the driver has it
        """Run a statement, or several without parameters, and return the status of the last."""
        return await self._open(statement).execute(statement, *parameters, timeout=self._seconds)

    async def executemany(self, statement: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Run one statement once for each set of parameters."""
        await self._open(statement).executemany(statement, parameters, timeout=self._seconds)

    async def fetch(self, statement: str, *parameters: Any) -> list[asyncpg.Record]:  # noqa: ANN401 -- as the driver has it
        """Run a statement and return its rows."""
        return await self._open(statement).fetch(statement, *parameters, timeout=self._seconds)

    async def fetchrow(self, statement: str, *parameters: Any) -> asyncpg.Record | None:  # noqa: ANN401 -- as the driver has it
        """Run a statement and return its first row."""
        return await self._open(statement).fetchrow(statement, *parameters, timeout=self._seconds)

    async def fetchval(self, statement: str, *parameters: Any) -> Any:  # noqa: ANN401 -- as the driver has it
        """Run a statement and return the first value of its first row."""
        return await self._open(statement).fetchval(statement, *parameters, timeout=self._seconds)

    @contextlib.asynccontextmanager
    async def savepoint(self) -> AsyncGenerator[None]:
        """Undo what is done inside if it raises, and let the transaction go on."""
        self._savepoints += 1
        name = f"standfast_{self._savepoints}"
        await self.execute(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            await self.execute(f"ROLLBACK TO SAVEPOINT {name}")
            raise
        await self.execute(f"RELEASE SAVEPOINT {name}")

    def _open(self, statement: str) -> Connection:
        if self._connection is None:
            raise RuntimeError("the transaction is over; do all the work inside the function given to commit_with")
        if _ENDS_IT.match(statement):
            raise InvalidChangeError("the transaction belongs to the store and cannot be ended in it; use savepoint()")
        if self._ours.search(statement):
            raise InvalidChangeError("what lies in the schema of the store is its own; use the store to change it")
        return self._connection

    def end(self) -> None:
        """Make it unusable."""
        self._connection = None


@final
class PostgresWorkRunner:
    """Runs work, one at a time, on a connection of its own."""

    def __init__(
        self,
        link: PostgresConnection,
        calls: PostgresStatements,
        options: PostgresOptions,
        name: str,
        limits: Capabilities,
    ) -> None:
        self._link, self._calls, self._options, self._name, self._limits = link, calls, options, name, limits

    async def work(self, rider: WorkRider, handle: str, number: int, note: Callable[[Outcome], object]) -> Outcome:
        """Do the work and the commit, or neither."""
        async with self._link.turn() as session:
            try:
                await self._execute(session, "BEGIN ISOLATION LEVEL READ COMMITTED")
                outcome = await self._inside(session, rider, handle, number)
            except BaseException:
                self._link.drop()  # which undoes everything
                raise
            if not isinstance(outcome, Worked):
                await self._roll_back(session)
                return outcome
            note(outcome)
            await self._commit(session)
            return outcome

    async def _execute(self, session: PostgresSession, statement: str) -> None:
        try:
            await session.connection.execute(statement, timeout=self._options.timeout)
        except DRIVER_ERRORS as error:
            raise translate(self._noted(error, session), self._name) from error

    def _noted(self, error: BaseException, session: PostgresSession) -> BaseException:
        if self._options.others:
            note_place(error, session.epoch.place)
        return error

    async def _roll_back(self, session: PostgresSession) -> None:
        try:
            await session.connection.execute("ROLLBACK", timeout=self._options.timeout)
        except DRIVER_ERRORS:
            self._link.drop()

    async def _commit(self, session: PostgresSession) -> None:
        try:
            status = await session.connection.execute("COMMIT", timeout=self._options.timeout)
        except DRIVER_ERRORS as error:
            self._link.drop()
            raise translate_write(self._noted(error, session), self._name) from error
        except BaseException:
            self._link.drop()
            raise
        if status != "COMMIT":
            raise StoreError(self._name, "an error in the transaction had undone it; nothing was written")

    async def _inside(self, session: PostgresSession, rider: WorkRider, handle: str, number: int) -> Outcome:
        commit = rider.commit
        conflict = await self._guard(session, commit)
        if conflict is not None:
            return conflict
        transaction = await self._transaction(session)
        sql = PostgresWork(session.connection, self._options.schema, rider.seconds)
        try:
            answer, changes = await run_user_work(rider, sql, self._name)
            check_commit(changes, commit.wake, self._limits)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                raise
            if session.connection.is_closed() and not isinstance(error, WorkTimeoutError):
                # Whatever the work makes of it is no outcome of the work: it was undone, and can be done again.
                raise StoreUnavailableError(
                    self._name, "the connection was lost while the work went on; nothing was written; retry"
                ) from None
            return as_exception(error)
        finally:
            sql.end()
        if not session.connection.is_in_transaction() or await self._transaction(session) != transaction:
            raise StoreError(self._name, "the work ended the transaction it was in; what it wrote may be there, alone")
        return await self._record(session, structs.replace(commit, changes=changes), handle, number, answer)

    async def _transaction(self, session: PostgresSession) -> int:
        rows = await self._call(session, "SELECT pg_current_xact_id()::text::bigint", ())
        return int(rows[0][0])

    async def _guard(self, session: PostgresSession, commit: CommitRider) -> Conflict | None:
        """Lock what the commit is about and compare it: the work begins only if all guards hold."""
        guards = {change.key: change.expected for change in sorted(commit.changes, key=attrgetter("key"))}
        checks = {change.key for change in commit.changes if isinstance(change, Check)}
        keys, expected = list(guards), list(guards.values())
        there = len(expected) - expected.count(ABSENT)
        runs = lock_runs([key not in checks for key in keys])
        [(at, holds)] = await self._call(session, self._calls.hold, (keys, expected, there, runs))
        if holds and in_window(at, commit.after, commit.before):
            return None
        [(_, *lost)] = await self._call(session, self._calls.look_closely, (keys, expected, at))
        current = lost_records(keys, lost)
        return Conflict(Instant(at), current) if current or not in_window(at, commit.after, commit.before) else None

    async def _record(
        self,
        session: PostgresSession,
        commit: CommitRider,
        handle: str,
        number: int,
        answer: Any,  # noqa: ANN401 -- whatever the work returned
    ) -> Outcome:
        intent = Intent.of_commit(commit, handle, number)
        try:
            rows = await self._link.run(session, self._calls.write, write_parameters(intent, self._options.schema))
        except DRIVER_ERRORS as error:
            if code_of(error) == ATTEMPT_CLOSED:
                raise AttemptClosedError(self._name, "the attempt had been settled as never written") from error
            if code_of(error) == CREATED_MEANWHILE and (conflict := await self._met(session, commit)) is not None:
                return conflict
            raise translate(self._noted(error, session), self._name) from error
        verdict = written(rows[0], intent)
        if isinstance(verdict, WriteRefused):
            return Conflict(verdict.at, verdict.current)
        return Worked(answer, verdict.at, dict.fromkeys([row.key for row in intent.puts], verdict.versions[0]))

    async def _met(self, session: PostgresSession, commit: CommitRider) -> Conflict | None:
        """Undo everything, and read what others created while the work went on."""
        await self._execute(session, "ROLLBACK")
        return await self._guard(session, commit)

    async def _call(self, session: PostgresSession, statement: str, parameters: Sequence[Any]) -> list[asyncpg.Record]:
        """Run a statement before the commit: if it fails, nothing is written."""
        try:
            return await self._link.run(session, statement, parameters)
        except DRIVER_ERRORS as error:
            raise translate(self._noted(error, session), self._name) from error

    async def aclose(self) -> None:
        """Close the connection."""
        await self._link.aclose()


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


# --- records of the store in the user's own transaction ------------------------------------------------------------

_WRITTEN: Final = 0
_APART: Final = 2

_NO_SUCH_STORE: Final = frozenset({"3F000", "42883", "42P01"})
_NO_PRIVILEGE: Final = "42501"
_FROZEN: Final = "SF004"


@final
class PostgresUserTransactions:
    """The store in one schema, over connections of the user's.

    Args:
        schema: The schema.
        store: Which store that is, as the store's own connection sees it.
        name: The store as shown to people.
        limits: What a commit may have.
    """

    def __init__(self, schema: str, store: str, name: str, limits: Capabilities) -> None:
        self._schema, self._store, self._name, self._limits = schema, store, name, limits
        self._begin: Final = Question(f'SELECT "{schema}".join_begin()')
        self._write: Final = f'SELECT "{schema}".join_write(:asked)'
        self._read: Final = f'SELECT "{schema}".join_read(:asked)'

    def write(
        self, changes: Sequence[Change], *, before: Instant | None = None, idle: float | None = None
    ) -> Talk[Commit | Conflict]:
        """Do all of ``changes`` or none, as part of the transaction under way."""
        check_commit(changes, (), self._limits)
        intent = Intent.of_commit(CommitRider(tuple(changes), None, before), "", 0)
        begun = yield from self._opening()
        asked = _asked(intent, begun["transaction"], idle, self._messages(intent, begun["topics"]), self._schema)
        try:
            told = _decode((yield Question(self._write, asked)))
        except Exception as error:
            if sqlstate_of(error) == _FROZEN:
                raise moved_error(self._name) from error
            raise
        if told["status"] == _APART:
            raise unsuitable_connection(self._name, "no transaction is open on it: begin one, and commit it")
        at = Instant(told["at"])
        if told["status"] == _WRITTEN:
            version: int = told["drawn"][0]
            return Commit(at, dict.fromkeys([row.key for row in intent.puts], version))
        values = [None if each is None else bytes.fromhex(each) for each in told["values"] or ()]
        lost = (told["lost"], values, told["versions"], told["ends"])
        return Conflict(at, lost_records(list(intent.guards), lost))

    def _opening(self) -> Talk[dict[str, Any]]:
        """Find out what is at the other end."""
        try:
            begun: dict[str, Any] = _decode((yield self._begin))
        except Exception as error:
            code = sqlstate_of(error)
            if code in _NO_SUCH_STORE:
                raise self._elsewhere() from error
            if code == _NO_PRIVILEGE:
                advice = f'its user may not use the store; let the owner call SELECT "{self._schema}".grant_to(user)'
                raise unsuitable_connection(self._name, advice) from error
            raise
        if begun["store"] != self._store:
            raise self._elsewhere()
        return begun

    def _elsewhere(self) -> InvalidArgumentError:
        return unsuitable_connection(
            self._name,
            f"it sees another database than the store's, or another schema {self._schema!r}; connect it there",
        )

    @staticmethod
    def _messages(intent: Intent, topics: Iterable[str]) -> tuple[Message, ...]:
        """Return what is sent when the user commits: to all handles, this store's own included."""
        addressing = KnownTopics()
        addressing.learn(Audience(0, frozenset(map(bytes.fromhex, topics))))
        return addressing.messages([*(row.key for row in intent.puts), *intent.deletes], (), "")

    def read(self, keys: Sequence[RecordKey]) -> Talk[Snapshot]:
        """Read records as the transaction under way sees them."""
        check_read(keys, self._limits)
        told = _decode((yield Question(self._read, _encode([bytes(key).hex() for key in keys]))))
        return Snapshot(Instant(told["at"]), dict(map(_record, told["records"])))


def _record(row: Sequence[Any]) -> tuple[RecordKey, Record]:
    digits, value, version, ends = row
    key = RecordKey.from_encoded(bytes.fromhex(digits))
    return key, Record(key, bytes.fromhex(value), version, None if ends is None else Instant(ends))


def _asked(intent: Intent, transaction: str, idle: float | None, messages: Sequence[Message], schema: str) -> str:
    """Return the parameter of ``join_write``; what is left out is NULL there."""
    guards, gone = intent.guards, frozenset(intent.deletes)
    puts = {row.key: row for row in intent.puts}
    rows = [puts.get(key) for key in guards]
    made = sum(guards[key] == ABSENT for key in puts)
    asked = {
        "transaction": transaction,
        "idle": None if idle is None else int(idle * 1000),
        "keys": [bytes(key).hex() for key in guards],
        "expected": list(guards.values()),
        "there": sum(version != ABSENT for version in guards.values()),
        "locks": lock_runs([key in puts or key in gone for key in guards]),
        "puts": [None if row is None else row.value.hex() for row in rows],
        "draws": [1 if row is not None else -1 if key in gone else 0 for key, row in zip(guards, rows, strict=True)],
        "ends": [None if row is None else row.expires_at for row in rows],
        "made": made,
        "changed": len(puts) - made,
        "gone": len(gone),
        "before": intent.before,
        "channels": [channel(schema, message.topic) for message in messages] or None,
        "payloads": [payload(message) for message in messages] or None,
    }
    return _encode({name: value for name, value in asked.items() if value is not None})


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _decode(text: str) -> Any:  # noqa: ANN401 -- as the function in the database has made it
    return msgspec.json.decode(text)

"""One handle on a PostgreSQL server: writes, reads, notifications, liveness, and the transfer of everything."""

from __future__ import annotations

import asyncio
import functools
import random
from typing import TYPE_CHECKING, Any, Final, final

import asyncpg
from msgspec import structs

from standfast.clock import Instant
from standfast.errors import AttemptClosedError, StoreError, StoreReadOnlyError, StoreUnavailableError
from standfast.ids import new_id
from standfast.stores.backend import Batching, pages
from standfast.stores.postgresql.connection import (
    ATTEMPT_CLOSED,
    CLOSED_WITHIN,
    DRIVER_ERRORS,
    STALE,
    TRY_AGAIN,
    PostgresConnection,
    PostgresSession,
    PostgresSubscriber,
    code_of,
    dial,
    dial_primary,
    translate,
    translate_write,
)
from standfast.stores.postgresql.liveness import liveness_server
from standfast.stores.postgresql.statements import (
    PostgresStatements,
    channel,
    choice_parameters,
    choices_made,
    few_call,
    page,
    payload,
    quick_call,
    quick_choice_made,
    records,
    write_parameters,
    written,
)
from standfast.stores.postgresql.transactions import PostgresUserTransactions, PostgresWorkRunner
from standfast.stores.protocol import Snapshot, StoreMeasure, Worked
from standfast.stores.remote.liveness import join_liveness
from standfast.stores.remote.server import Audience, ChoiceWritten, Landed, WriteRefused, Written

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.backend import Outcome, Scan, WorkRider
    from standfast.stores.postgresql.connection import PostgresOptions, PostgresTarget, Rows
    from standfast.stores.protocol import Capabilities, Record
    from standfast.stores.remote.failover import PrimaryTracker
    from standfast.stores.remote.server import (
        ChoiceIntent,
        ChoicesMade,
        Intent,
        Listener,
        Message,
    )


# --- the server ----------------------------------------------------------------------------------------------------

BATCHING: Final = Batching(max_riders=1_000, max_weight=4_000, in_halves=True, max_choices=100)
TRIES: Final = 10
"""How often a write is sent that lost a race on the server."""

SUBSCRIBED_FOR: Final = 60_000_000
"""For how many microseconds the server believes that a handle listens, after it has last said so."""


@final
class PostgresServer:
    """One handle: a connection for writing, one for reading, and others for listening and for work when needed."""

    def __init__(
        self, options: PostgresOptions, name: str, capabilities: Capabilities, store: str, tracker: PrimaryTracker
    ) -> None:
        self.name: Final = name
        self._tracker: Final = tracker
        self.capabilities: Final = capabilities
        self.batching: Final = BATCHING
        self._options: Final = options
        self._calls: Final = PostgresStatements(options.schema)
        self._id: Final = new_id()
        self._random: Final = random.Random()  # noqa: S311 -- spreads out who tries again when
        self._topics: frozenset[bytes] | None = None
        self._joining: PostgresUserTransactions | None = None
        self._store: Final = store
        self._liveness: Final = (
            join_liveness(liveness_server(options, store, tracker)) if capabilities.sees_process_death else None
        )
        self._writer: Final = self._link(self._open_writer)
        self._reader: Final = self._link(self._dial)
        self._working: Final = PostgresWorkRunner(self._link(self._dial), self._calls, options, name, capabilities)
        listening = functools.partial(self._dial, options.listening)
        self._subscriber: Final = PostgresSubscriber(options, name, listening, tracker)

    def _link(self, open_session: Callable[[], Awaitable[PostgresSession]]) -> PostgresConnection:
        return PostgresConnection(self._options, self.name, open_session, self._tracker)

    async def _dial(self, target: PostgresTarget | None = None) -> PostgresSession:
        """Connect to the primary, and see that it has what was acknowledged."""
        try:
            session = await (
                dial(target, self._options, self.name) if target else dial_primary(self._options, self.name)
            )
        except StoreReadOnlyError as error:
            raise StoreUnavailableError(
                self.name, f"{error.problem}; perhaps another one is taking over: retry"
            ) from None
        return await self._checked(session, self.meet)

    async def meet(self, session: PostgresSession) -> PostgresSession:
        """Compare what the server has counted with what was acknowledged."""
        expected = self._tracker.expected()
        rows = await session.connection.fetch(self._calls.counted, list(expected), timeout=self._options.timeout)
        moves = self._tracker.meet(session.epoch, expected, {row[0]: row[1] for row in rows})
        return structs.replace(session, moves=moves)

    async def _open_writer(self) -> PostgresSession:
        return await self._checked(await self._dial(), self.raise_versions)

    async def _checked(
        self, session: PostgresSession, check: Callable[[PostgresSession], Awaitable[PostgresSession]]
    ) -> PostgresSession:
        try:
            return await check(session)
        except DRIVER_ERRORS as error:
            session.connection.terminate()
            raise translate(error, self.name) from error
        except BaseException:
            session.connection.terminate()
            raise

    async def raise_versions(self, session: PostgresSession) -> PostgresSession:
        """Let no version be given out twice, also if the database was restored from a backup since."""
        await session.connection.execute(self._calls.raise_versions, timeout=self._options.timeout)
        return session

    def adopt(self, session: PostgresSession) -> None:
        """Write over a connection that is open already."""
        self._writer.adopt(session)

    # --- writing ---------------------------------------------------------------------------------------------

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Do all of ``intent`` or nothing, in one round trip."""
        few = few_call(intent, self._calls, self._options.schema) if self._writer.is_direct else None
        if few is not None and self._writer.is_prepared(few[0]):
            few = None  # what could not be sent that way at once is not tried that way again
        for _ in range(TRIES):
            statement, parameters = few or (self._calls.write, write_parameters(intent, self._options.schema))
            few = None
            try:
                [answer] = await self._writer.write(statement, *parameters)
            except asyncpg.PostgresError as error:
                refused = await self._judged(error)
                if refused is not None:
                    return refused
                continue
            done = self._done(answer, intent)
            if done is not None:
                return done
        raise StoreUnavailableError(self.name, f"others got in the way {TRIES} times in a row; retry")

    def _done(self, answer: asyncpg.Record, intent: Intent) -> Written | WriteRefused | None:
        """Return what a write came to; None: ``write_few`` has done nothing, and ``write`` is to be called."""
        if answer[0] is None:
            return None
        done = written(answer, intent)
        if type(done) is Written:
            self._tracker.acknowledge(intent.handle, intent.number)
        return done

    async def choose(self, intent: ChoiceIntent) -> ChoicesMade:
        """Do all choices in one transaction, and in one round trip."""
        quick = quick_call(intent, self._calls) if self._writer.is_direct else None
        if quick is not None and (made := await self._choose_quickly(intent, *quick)) is not None:
            return made
        parameters = choice_parameters(intent, self._options.schema)
        for _ in range(TRIES):
            try:
                answers = await self._writer.write(self._calls.choose, *parameters)
            except asyncpg.PostgresError as error:
                await self._judged(error)
                continue
            made = choices_made(answers, intent)
            if _has_written(made):
                self._tracker.acknowledge(intent.handle, intent.number)
            return made
        raise StoreUnavailableError(self.name, f"others got in the way {TRIES} times in a row; retry")

    async def _choose_quickly(
        self, intent: ChoiceIntent, statement: str, parameters: tuple[Any, ...]
    ) -> ChoicesMade | None:
        """Make a choice by the function that is made for it; None: it has done nothing."""
        try:
            [answer] = await self._writer.write(statement, *parameters)
        except asyncpg.PostgresError as error:
            if code_of(error) not in TRY_AGAIN:
                await self._judged(error)
            return None
        made = quick_choice_made(answer, intent)
        if made is not None:
            self._tracker.acknowledge(intent.handle, intent.number)
        return made

    def write_soon(
        self, intent: Intent, arrive: Callable[[Written | WriteRefused | Exception | None], None]
    ) -> asyncio.Future[Any] | None:
        """Do as :meth:`write` does, without a task that waits for the answer."""

        def take(answer: Rows | Exception) -> None:
            if isinstance(answer, Exception):
                arrive(self._refused(answer) or self._write_error(answer))
                return
            arrive(self._done(answer[0], intent))

        few = few_call(intent, self._calls, self._options.schema)
        statement, parameters = few or (self._calls.write, write_parameters(intent, self._options.schema))
        return self._writer.write_soon(statement, parameters, take)

    def choose_soon(
        self, intent: ChoiceIntent, arrive: Callable[[ChoicesMade | Exception | None], None]
    ) -> asyncio.Future[Any] | None:
        """Do as :meth:`choose` does, without a task that waits for the answer."""
        quick = quick_call(intent, self._calls)
        statement, parameters = quick or (self._calls.choose, choice_parameters(intent, self._options.schema))

        def take(answer: Rows | Exception) -> None:
            if isinstance(answer, Exception):
                arrive(self._write_error(answer))
                return
            made = choices_made(answer, intent) if quick is None else quick_choice_made(answer[0], intent)
            if made is not None and (quick is not None or _has_written(made)):
                self._tracker.acknowledge(intent.handle, intent.number)
            arrive(made)

        return self._writer.write_soon(statement, parameters, take)

    @staticmethod
    def _refused(error: Exception) -> WriteRefused | None:
        if code_of(error) != STALE:
            return None
        return WriteRefused(Instant(int(getattr(error, "detail", None) or 0)), {}, stale=True)

    def _write_error(self, error: Exception) -> Exception | None:
        """Return what a write that failed raises; None: it lost a race, and nothing was written."""
        if not isinstance(error, asyncpg.PostgresError):
            return error
        code = code_of(error)
        if code in TRY_AGAIN:
            return None
        problem = "the attempt had been settled as never written"
        raised = AttemptClosedError(self.name, problem) if code == ATTEMPT_CLOSED else translate_write(error, self.name)
        raised.__cause__ = error
        return raised

    async def _judged(self, error: asyncpg.PostgresError) -> WriteRefused | None:
        if (refused := self._refused(error)) is not None:
            return refused
        if (raised := self._write_error(error)) is not None:
            raise raised from error
        await asyncio.sleep(self._random.uniform(0, 0.002))
        return None

    async def reserve(self, count: int, namespace: bytes) -> tuple[int, ...]:
        """Take versions; lost ones are not missed."""
        del namespace
        return tuple([row[0] for row in await self._writer.call(self._calls.reserve, count)])

    async def close_attempt(self, handle: str, number: int, namespace: bytes) -> Landed | None:
        """Close an attempt, when nothing of it is under way any more."""
        del namespace
        [(last, at, versions)] = await self._writer.call(self._calls.close_attempt, handle, number)
        if last is None or last > number:
            raise StoreError(self.name, f"attempt {handle}.{number} is not the last one of its handle")
        if (
            at is not None
        ):  # the answer may have been lost because no standby has it: this waits for one, as a commit does
            await self._writer.call(self._calls.touch, handle)
        self._tracker.acknowledge(handle, number)
        return None if at is None else Landed(Instant(at), tuple(versions))

    async def forget(self, handle: str) -> None:
        """Remove what was counted for a handle."""
        self._tracker.forget(handle)
        await self._writer.call(self._calls.forget, handle)

    async def work(self, rider: WorkRider, handle: str, number: int, note: Callable[[Outcome], object]) -> Outcome:
        """Do the caller's own work and a commit in one transaction, on a connection for that."""
        outcome = await self._working.work(rider, handle, number, note)
        if isinstance(outcome, Worked):
            self._tracker.acknowledge(handle, number)
        return outcome

    async def user_transactions(self) -> PostgresUserTransactions:
        """Return what can be done over connections of the user's, in transactions of theirs."""
        if self._joining is None:
            [(store,)] = await self._reader.call(self._calls.store_here)
            self._joining = PostgresUserTransactions(self._options.schema, store, self.name, self.capabilities)
        return self._joining

    def transfer(self) -> PostgresTransfer:
        """Return the transfer of everything in the schema."""
        return PostgresTransfer(self._reader, self._options.schema, self.scan)

    # --- reading ---------------------------------------------------------------------------------------------

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read the live records at ``keys``."""
        at, found = records(await self._reader.call(self._calls.read, keys))
        return Snapshot(at, found)

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of live records."""
        statement = self._calls.scan_back if reverse else self._calls.scan
        return page(await self._reader.call(statement, start, end, limit + 1), limit, reverse=reverse)

    async def mark(self) -> int:
        """Return a number made of what all handles have written."""
        [(mark,)] = await self._reader.call(self._calls.mark)
        return mark or 0

    async def sweep(self, limit: int) -> int:
        """Delete what has expired."""
        [(removed,)] = await self._reader.call(self._calls.sweep, limit)
        return int(removed)

    async def measure(self) -> StoreMeasure:
        """Return the bytes of the table and its indexes, and how many rows its planner believes in."""
        [(size, rows)] = await self._reader.call(self._calls.measure)
        return StoreMeasure(int(size), int(rows) if rows >= 0 else None)

    # --- notifications ---------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Hand what is pushed to ``listener``."""
        self._subscriber.listen(listener)

    async def subscribe(self, added: Iterable[bytes], removed: Iterable[bytes], all_topics: frozenset[bytes]) -> None:
        """Listen first, then say so, then let committers know of the change."""
        del added, removed
        await self._subscriber.want(all_topics)
        await self._reader.call(self._calls.subscribe, self._id, sorted(all_topics), SUBSCRIBED_FOR)
        if all_topics != self._topics:
            await self._reader.call(self._calls.next_generation)
            self._topics = all_topics

    async def audience(self) -> Audience:
        """Return the topics that any handle listens to."""
        [(generation, topics)] = await self._reader.call(self._calls.audience)
        return Audience(generation, frozenset(topics or ()))

    async def send(self, messages: Sequence[Message]) -> None:
        """Send messages outside of a transaction."""
        names = [channel(self._options.schema, message.topic) for message in messages]
        if names:
            await self._reader.call(self._calls.notify, names, [payload(message) for message in messages])

    # --- life ------------------------------------------------------------------------------------------------

    async def another(self) -> PostgresServer:
        """Open another handle on the same server, on the running loop."""
        server = PostgresServer(self._options, self.name, self.capabilities, self._store, self._tracker)
        try:
            await server.mark()
        except BaseException:
            await server.aclose()
            raise
        return server

    def liveness_token(self) -> str:
        """Return what falls with this process's session; nothing behind a pooler, where there is none."""
        return "" if self._liveness is None else self._liveness.liveness_token()

    def is_dead(self, token: str) -> bool:
        """Return True if a process has been without its session for longer than a living one would be."""
        return self._liveness is not None and self._liveness.is_dead(token)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._subscriber.aclose()
        if self._topics:
            await self._unsubscribe()
        for each in (self._working, self._writer, self._reader):
            await each.aclose()
        if self._liveness is not None:
            await self._liveness.leave()

    async def _unsubscribe(self) -> None:
        try:
            async with asyncio.timeout(CLOSED_WITHIN):
                await self._reader.call(self._calls.forget, self._id)
        except (StoreError, TimeoutError):  # then it is forgotten in a minute
            return


def _has_written(made: ChoicesMade) -> bool:
    return any(type(each) is ChoiceWritten and each.version for each in made.answers)


# --- transfer: everything in a schema; ``migrations/0004_moving.sql`` says what freezes it -------------------------

_PUT: Final = (
    "INSERT INTO {0}.records (key, value, version, expires_at)"
    " SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bigint[])"
    " ON CONFLICT (key) DO UPDATE"
    " SET value = excluded.value, version = excluded.version, expires_at = excluded.expires_at"
)


@final
class PostgresTransfer:
    """Everything in one schema."""

    def __init__(self, link: PostgresConnection, schema: str, scan: Scan) -> None:
        self._link, self._scan = link, scan
        self._schema: Final = f'"{schema}"'

    async def _call(self, function: str, *parameters: int) -> int:
        marks = ", ".join(f"${number + 1}::bigint" for number in range(len(parameters)))
        [(answer,)] = await self._link.call(f"SELECT {self._schema}.{function}({marks})", *parameters)
        return int(answer or 0)

    async def frozen(self) -> int:
        """Return why it is frozen."""
        return await self._call("frozen")

    async def freeze(self, reason: int) -> None:
        """Refuse writes, when those under way have ended."""
        await self._call("freeze", reason)

    async def thaw(self) -> None:
        """Take writes again."""
        await self._call("thaw")

    async def last(self) -> int:
        """Return the last version that was given out."""
        [(last,)] = await self._link.call(f"SELECT pg_sequence_last_value('{self._schema}.versions'::regclass)")
        return int(last or 0)

    async def lift(self, version: int) -> None:
        """Go on above a version."""
        await self._call("lift", version)

    def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all records."""
        return pages(self._scan)

    async def put(self, records: Sequence[Record]) -> None:
        """Write records as they are."""
        columns = (
            [record.key for record in records],
            [record.value for record in records],
            [record.version for record in records],
            [record.expires_at for record in records],
        )
        await self._link.call(_PUT.format(self._schema), *columns)

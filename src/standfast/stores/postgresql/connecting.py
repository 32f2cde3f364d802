"""One connection, opened when it is needed and again when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from typing import TYPE_CHECKING, Any, Final, final

import asyncpg
from msgspec import Struct

from standfast.errors import (
    StoreClosedError,
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.postgresql.trouble import DRIVER_ERRORS, is_answer, translate, translate_write

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from standfast.stores.postgresql.options import Options, Target

    Connection = asyncpg.Connection[asyncpg.Record]
    Rows = list[asyncpg.Record]
    Run = Callable[..., Awaitable[Rows]]

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 3.0
CLOSED_WITHIN: Final = 2.0
OLDEST: Final = 140_000

_LOOK: Final = (
    "SELECT pg_backend_pid(), current_setting('server_version_num')::int, pg_is_in_recovery(),"
    " current_setting('fsync')::bool AND current_setting('full_page_writes')::bool"
)
_SETTINGS: Final = (
    "SET default_transaction_isolation = 'read committed'; SET enable_seqscan = off; SET jit = off;"
    " SET plan_cache_mode = force_generic_plan"
)


class Session(Struct, frozen=True):
    """What a connection is like."""

    connection: Any
    is_direct: bool
    """Whether it is one session of the server; behind a pooler each transaction may be another one."""
    syncs: bool


async def dial(target: Target, options: Options, name: str) -> Session:
    """Open a connection and look at what is at its other end; raise a ``StoreError`` if it is of no use."""
    try:
        async with asyncio.timeout(options.connect_timeout):
            connection: Connection = await asyncpg.connect(
                host=target.host,
                port=target.port,
                user=target.user,
                password=target.password,
                database=target.database,
                ssl=target.tls or False,
                timeout=options.connect_timeout,
                command_timeout=options.timeout,  # for whatever the driver sends by itself
                statement_cache_size=0,
                server_settings={"application_name": "standfast"},
            )
    except DRIVER_ERRORS as problem:
        raise translate(problem, name) from None  # its traceback has the password
    try:
        return await _look(connection, options, name)
    except BaseException as problem:
        connection.terminate()
        if isinstance(problem, DRIVER_ERRORS):
            raise translate(problem, name) from problem
        raise


async def _look(connection: Connection, options: Options, name: str) -> Session:
    row = await connection.fetchrow(_LOOK, timeout=options.timeout)
    pid, version, is_replica, syncs = row or (0, 0, False, False)
    if version < OLDEST:
        raise UnsuitableStoreError(name, f"it is PostgreSQL {version // 10_000}; {OLDEST // 10_000} or later is needed")
    if is_replica:
        raise StoreReadOnlyError(name, "it is a replica, which cannot be written to; name the primary")
    is_direct = options.pooler == "none" or (options.pooler == "auto" and pid == connection.get_server_pid())
    if is_direct:
        await connection.execute(_SETTINGS, timeout=options.timeout)
    return Session(connection, is_direct, syncs)


@final
class Link:
    """One connection for one purpose. Calls take turns.

    Args:
        options: Time limits.
        name: The store as shown to people.
        open_session: Opens the connection.
    """

    def __init__(self, options: Options, name: str, open_session: Callable[[], Awaitable[Session]]) -> None:
        self._options, self._name, self._open = options, name, open_session
        self._loop: Final = asyncio.get_running_loop()
        self._lock: Final = asyncio.Lock()
        self._waiting = 0
        self._session: Session | None = None
        self._prepared: dict[str, Run] = {}
        self._random: Final = random.Random()  # noqa: S311 -- spreads out who connects when
        self._failures, self._not_before = 0, 0.0
        self._closing: Final[set[asyncio.Task[None]]] = set()
        self._is_closed = False

    def adopt(self, session: Session) -> None:
        """Use a connection that is open already."""
        self._session = session

    # --- calling -----------------------------------------------------------------------------------------------

    async def call(self, statement: str, *parameters: Any) -> Rows:  # noqa: ANN401 -- whatever the statement takes
        """Run a statement that changes nothing, or that may as well be run twice: as it is if the connection ends."""
        ended: BaseException | None = None
        for _ in range(2):
            async with self.turn() as session:
                try:
                    return await self.run(session, statement, parameters)
                except DRIVER_ERRORS as problem:
                    self._judge(problem)
                    if is_answer(problem) or isinstance(problem, TimeoutError):
                        raise translate(problem, self._name) from problem
                    ended = problem
        raise translate(ended or OSError(), self._name) from ended

    async def write(self, statement: str, *parameters: Any) -> Rows:  # noqa: ANN401 -- whatever the statement takes
        """Run a statement that must not be run twice; the server's own refusals are raised as they are."""
        await self._take_turn()  # as turn() does, without a generator around every commit
        try:
            return await self._write(await self._ready(), statement, parameters)
        except asyncio.CancelledError:
            self._drop()
            raise
        finally:
            self._lock.release()

    async def _write(self, session: Session, statement: str, parameters: Sequence[Any]) -> Rows:
        try:
            run = self._prepared.get(statement) or await self._prepare(session, statement)
        except DRIVER_ERRORS as problem:
            self._judge(problem)
            raise translate(problem, self._name) from problem
        try:
            return await run(*parameters, timeout=self._options.timeout)
        except DRIVER_ERRORS as problem:
            self._judge(problem)
            if isinstance(problem, asyncpg.PostgresError):
                raise
            raise translate_write(problem, self._name) from problem

    async def _prepare(self, session: Session, statement: str) -> Run:
        """Return what runs a statement on the connection, and keep it for the next time."""
        if session.is_direct:
            name = f"standfast_{len(self._prepared)}"  # without one, the driver sends the text anew each time
            prepared = await session.connection.prepare(statement, name=name, timeout=self._options.timeout)
            run: Run = prepared.fetch
        else:
            run = functools.partial(session.connection.fetch, statement)
        self._prepared[statement] = run
        return run

    async def run(self, session: Session, statement: str, parameters: Sequence[Any]) -> Rows:
        """Run a statement in the caller's turn; errors are the driver's."""
        run = self._prepared.get(statement) or await self._prepare(session, statement)
        rows: Rows = await run(*parameters, timeout=self._options.timeout)
        return rows

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncGenerator[Session]:
        """Wait for a turn on the connection, and for the connection."""
        await self._take_turn()
        try:
            yield await self._ready()
        except asyncio.CancelledError:
            self._drop()  # it is in the middle of something
            raise
        finally:
            self._lock.release()

    async def _take_turn(self) -> None:
        if not self._waiting and not self._lock.locked():
            await self._lock.acquire()
            return
        self._waiting += 1
        try:
            async with asyncio.timeout(self._options.timeout):
                await self._lock.acquire()
        except TimeoutError:
            raise StoreUnavailableError(self._name, "the connection was in use for too long; retry") from None
        finally:
            self._waiting -= 1

    # --- connecting --------------------------------------------------------------------------------------------

    async def _ready(self) -> Session:
        if self._is_closed:
            raise StoreClosedError(self._name, "it was closed; open a new one")
        if self._session is not None and not self._session.connection.is_closed():
            return self._session
        self._drop()
        await self._wait_until_allowed()
        try:
            self._session = await self._open()
        except StoreError:
            self._failures += 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self._failures, 10))
            self._not_before = self._loop.time() + self._random.uniform(pause / 2, pause)
            raise
        self._failures = 0
        return self._session

    async def _wait_until_allowed(self) -> None:
        pause = self._not_before - self._loop.time()
        if pause > 0:
            await asyncio.sleep(pause)

    def _judge(self, problem: BaseException) -> None:
        """Give the connection up after anything that was not an answer of the server, or was its last."""
        if not is_answer(problem):
            self._drop()

    def drop(self) -> None:
        """Give the connection up; the next call opens another one."""
        self._drop()

    def _drop(self) -> None:
        session, self._session = self._session, None
        self._prepared = {}
        if session is not None:
            task = self._loop.create_task(hang_up(session.connection))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close the connection."""
        self._is_closed = True
        self._drop()
        if self._closing:
            await asyncio.wait(self._closing)


async def hang_up(connection: Connection) -> None:
    """Close a connection, in good manners if there is somebody at the other end; what it was doing is cancelled."""
    try:
        async with asyncio.timeout(CLOSED_WITHIN):
            await connection.close(timeout=CLOSED_WITHIN)
    except Exception:  # noqa: BLE001 -- whatever it is, there is nobody to tell and nothing left to do
        connection.terminate()
    except BaseException:
        connection.terminate()
        raise

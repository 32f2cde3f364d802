"""Links: connections with a time limit on everything, opened again with growing pauses, never too many of them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, final

from asyncmy import errors as driver
from asyncmy.connection import Connection
from asyncmy.constants.CLIENT import FOUND_ROWS

from standfast.errors import StoreClosedError
from standfast.stores.mysql.trouble import LOST, WOULD_SHOW_PASSWORD, code_of, translated
from standfast.stores.remote.addresses import is_this_machine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from standfast.stores.mysql.options import Options

Rows: TypeAlias = "tuple[tuple[Any, ...], ...]"

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 3.0
"""How long to wait before connecting again, at first and at most, in seconds."""

LONGEST_WAIT: Final = 3
"""For how many seconds a statement waits for a lock at most, before the whole transaction is tried again."""

CLOSED_WITHIN: Final = 1.0

TROUBLE: Final = (driver.Error, OSError, TimeoutError, EOFError)
"""What a driver may raise for a connection that fails; ``TimeoutError`` comes from the limits set here."""

_SESSION: Final = (
    "SET SESSION sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',time_zone='+00:00',"
    "innodb_lock_wait_timeout={wait},lock_wait_timeout={wait};"
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
)
"""Strict, so that nothing is cut or replaced silently; read committed, so that every statement sees the latest."""


@final
class Link:
    """One connection. Whoever has it uses it alone."""

    __slots__ = ("connection",)

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 -- the driver has types in name only
        self.connection: Final = connection

    async def run(self, statements: str, seconds: float, answers: list[Rows] | None = None) -> list[Rows]:
        """Run statements in one round trip; return what each of them returned.

        The first that fails ends it: its error is raised, and those after it are not run. By then ``answers`` has
        what was returned before.
        """
        answers = [] if answers is None else answers
        async with asyncio.timeout(seconds):
            cursor = self.connection.cursor()
            await cursor.execute(statements)
            answers.append(await _rows(cursor))
            while await cursor.nextset():
                answers.append(await _rows(cursor))
        return answers

    async def undo(self, seconds: float) -> None:
        """Roll back; if there is nothing left to talk to, the server has done so, or will."""
        try:
            await self.run("ROLLBACK", seconds)
        except TROUBLE:
            self.drop()

    def drop(self) -> None:
        """Cut the connection; the server undoes what was not committed."""
        self.connection.close()

    async def aclose(self) -> None:
        """Say goodbye and close."""
        with contextlib.suppress(*TROUBLE):
            async with asyncio.timeout(CLOSED_WITHIN):
                await self.connection.ensure_closed()
        self.drop()


async def _rows(cursor: Any) -> Rows:  # noqa: ANN401 -- the driver has types in name only
    return tuple(await cursor.fetchall()) if cursor.description else ()


def session_of(options: Options) -> str:
    """Return the statements that put every setting of a session in place."""
    wait = min(LONGEST_WAIT, max(1, round(options.timeout * 0.6)))  # the server gives up before the caller does
    return _SESSION.format(wait=wait)


_SHOWS_IT: Final = frozenset({"mysql_clear_password", "dialog", "mysql_old_password"})
"""Ways to log in that send the password as it is, or as good as that."""

_TAKES_ANY_KEY: Final = "sha256_password"
"""One that encrypts it with whatever key it is offered."""

_NO_KEY: Final = b"none: a key that comes over a network without TLS may be anybody's"


@final
class _PlainConnection(Connection):
    """A connection without TLS. The server says how to log in, and whoever is on the way may have said it in its place.

    So the password is never sent as it is; nor, to another machine, encrypted with a key that came from there.
    """

    async def _get_server_information(self) -> None:
        await cast("Any", super())._get_server_information()  # noqa: SLF001 -- a step of the driver, overridden here
        self._check(cast("Any", self)._auth_plugin_name)  # noqa: SLF001 -- what that step found

    async def _process_auth(self, plugin_name: bytes, packet: object) -> object:
        self._check(plugin_name.decode("ascii", "replace"))
        return await cast("Any", super())._process_auth(plugin_name, packet)  # noqa: SLF001 -- a step of the driver

    def _check(self, way: str) -> None:
        if way in _SHOWS_IT or (way == _TAKES_ANY_KEY and not is_this_machine(cast("Any", self)._host)):  # noqa: SLF001 -- the driver's
            raise driver.OperationalError(WOULD_SHOW_PASSWORD, f"it asked for {way}")


async def connect(options: Options) -> Link:
    """Open a connection with every setting in place. Raises what the driver raises."""
    is_exposed = options.tls is None and not is_this_machine(options.host)
    async with asyncio.timeout(options.connect_timeout):
        kind = cast("Any", Connection if options.tls else _PlainConnection)  # the driver has types in name only
        connection = kind(
            host=options.host,
            port=options.port,
            user=options.user,
            password=options.password().encode(),  # the driver would take text for Latin-1
            database=options.database,
            ssl=options.tls,
            autocommit=True,
            client_flag=FOUND_ROWS,
            program_name="standfast",
            server_public_key=_NO_KEY if is_exposed else None,
        )
        try:
            await connection.connect()
        except (ValueError, RuntimeError) as problem:
            if not is_exposed:
                raise
            said = "it asked for the password, encrypted with a key of its own"  # the driver could not use ours
            raise driver.OperationalError(WOULD_SHOW_PASSWORD, said) from problem
        link = Link(connection)
        try:
            await link.run(session_of(options), options.connect_timeout)
        except BaseException:
            link.drop()
            raise
    return link


@final
class Links:
    """The connections of one handle: at most so many at a time, and none in a hurry after it failed."""

    def __init__(self, options: Options, most: int) -> None:
        self._options: Final = options
        self._free: Final = asyncio.Semaphore(most)
        self._idle: Final[list[Link]] = []
        self._random: Final = random.Random()  # noqa: S311 -- spreads out who connects when
        self._pause = 0.0
        self._not_before = 0.0
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def borrow(self) -> AsyncGenerator[Link]:
        """Lend a link. One that comes back with an exception is cut: nobody knows what it has in its pipe."""
        async with self._free:
            link = self._idle.pop() if self._idle else await self._open()
            try:
                yield link
            except BaseException:
                link.drop()
                raise
            if self._is_closed or not link.connection.connected:
                link.drop()
            else:
                self._idle.append(link)

    async def _open(self) -> Link:
        if self._is_closed:
            raise StoreClosedError(self._options.name, "it was closed; open a new one")
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._not_before - loop.time()))
        try:
            link = await connect(self._options)
        except TROUBLE as problem:
            self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, self._pause * 2))
            self._not_before = loop.time() + self._random.uniform(self._pause / 2, self._pause)
            raise translated(problem, self._options.name) from problem
        self._pause = 0.0
        return link

    async def ask(self, statements: str, seconds: float | None = None) -> Sequence[Rows]:
        """Run statements that may well be run twice, and once more if the connection turns out to be dead.

        Raises:
            StoreError: They failed.
        """
        seconds = self._options.timeout if seconds is None else seconds
        try:
            return await self._ask(statements, seconds)
        except TROUBLE as problem:
            if code_of(problem) not in LOST:
                raise translated(problem, self._options.name) from problem
        self.forget_idle()  # the server went away, and all of them with it
        try:
            return await self._ask(statements, seconds)
        except TROUBLE as problem:
            raise translated(problem, self._options.name) from problem

    async def _ask(self, statements: str, seconds: float) -> Sequence[Rows]:
        async with self.borrow() as link:
            return await link.run(statements, seconds)

    def forget_idle(self) -> None:
        """Cut the links that nobody has."""
        while self._idle:
            self._idle.pop().drop()

    async def aclose(self) -> None:
        """Close the links that nobody has; those that are lent are cut when they come back."""
        self._is_closed = True
        while self._idle:
            await self._idle.pop().aclose()
        await asyncio.sleep(0)  # those that were cut close their sockets on the next turn of the loop

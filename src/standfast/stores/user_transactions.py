"""Records that are written in a transaction of the user's own, over the user's connection.

Connections are recognised without importing their libraries. Each is asked one question at a time: a statement with at
most one parameter, a text, that answers with one text. Every driver can do that in the same way, whatever it makes of
arrays, bytes and JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

from msgspec import Struct

from standfast.errors import InvalidArgumentError, UnsuitableStoreError
from standfast.redaction import mask_text, mask_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.clock import Instant
    from standfast.keys import RecordKey
    from standfast.stores.protocol import Change, Commit, Conflict, Snapshot


# --- records in a transaction that is not the store's --------------------------------------------------------------
#
# Nothing here does I/O. A store says what to ask as a *talk*, a generator of questions; the holder of the connection
# asks them, with or without an event loop, and the talk ends with what came of it. What was written is there if and
# only if the user's transaction is committed.

T = TypeVar("T")


class Question(Struct, frozen=True, gc=False):
    """A statement that answers with one text. ``:asked`` in it stands for its only parameter, a text too.

    Its ``repr`` leaves that out, so that no value ends up in a log.
    """

    statement: str
    asked: str | None = None

    def __repr__(self) -> str:
        return f"Question({self.statement!r}, {len(self.asked or ''):,} characters)"


Talk: TypeAlias = Generator[Question, str, T]
"""Asks questions one after the other, and returns what came of them."""


class UserTransactions(Protocol):
    """What a store can do over the connection of a user. Any thread may use it."""

    def write(
        self, changes: Sequence[Change], *, before: Instant | None = None, idle: float | None = None
    ) -> Talk[Commit | Conflict]:
        """Do all of ``changes`` or none, as part of the transaction under way; a ``Commit`` is not durable yet.

        Args:
            changes: As in a commit.
            before: When it must be written, by the store's time.
            idle: For how many seconds the transaction may then sit idle. Others wait for what it has locked.

        Raises:
            InvalidArgumentError: No transaction is open, or the connection sees another store.
        """
        ...

    def read(self, keys: Sequence[RecordKey]) -> Talk[Snapshot]:
        """Read records as the transaction under way sees them."""
        ...


@runtime_checkable
class JoinsUserTransactions(Protocol):
    """A store, or what one is made of, that may be able to take part in a user's transaction."""

    async def user_transactions(self) -> UserTransactions:
        """Return what it can do there.

        Raises:
            UnsuitableStoreError: Nothing.
        """
        ...


async def user_transactions_of(holder: object, name: str) -> UserTransactions:
    """Return what a store can do in a user's transaction; refuse one that cannot."""
    if isinstance(holder, JoinsUserTransactions):
        return await holder.user_transactions()
    raise UnsuitableStoreError(
        name,
        "it cannot take part in a transaction of yours; use postgresql://, or do your SQL in ctx.transaction, or call "
        "engine.start with an id after your commit",
    )


async def converse(guest: UserConnection, talk: Talk[T]) -> T:
    """Ask the questions of a talk over a connection that is used with ``await``."""
    try:
        question = next(talk)
        while True:
            try:
                told = await guest.ask(question)
            except Exception as error:  # noqa: BLE001 -- the talk knows better what it means
                question = talk.throw(error)
            else:
                question = talk.send(told)
    except StopIteration as over:
        result: T = over.value
        return result


def converse_blocking(guest: UserConnection, talk: Talk[T]) -> T:
    """Ask the questions of a talk over a connection that blocks."""
    try:
        question = next(talk)
        while True:
            try:
                told = guest.ask(question)
            except Exception as error:  # noqa: BLE001 -- the talk knows better what it means
                question = talk.throw(error)
            else:
                question = talk.send(told)
    except StopIteration as over:
        result: T = over.value
        return result


# --- the user's connections ----------------------------------------------------------------------------------------

_PARAMETER: Final = ":asked"

KNOWN: Final = (
    "an asyncpg or psycopg connection, a SQLAlchemy connection or session, or django.db.connection, in a transaction"
)


class UserConnection(Struct, frozen=True):
    """A connection of the user's.

    Attributes:
        kind: What it is, for people.
        blocks: It answers at once, and keeps its thread waiting; otherwise what it returns is awaited.
        ask: Ask a question.
    """

    kind: str
    blocks: bool
    ask: Callable[[Question], Any]


def unsuitable_connection(connection: str, problem: str) -> InvalidArgumentError:
    """Return the error of a connection that cannot take records along; the user rolls back what was begun on it."""
    return InvalidArgumentError(f"the connection ({mask_url(connection)})", mask_text(problem))


def user_connection_of(connection: Any) -> UserConnection:  # noqa: ANN401 -- of a library that is not imported here
    """Recognise a connection.

    Raises:
        InvalidArgumentError: It is none, or none to PostgreSQL.
    """
    names = {(each.__module__.partition(".")[0], each.__name__) for each in type(connection).__mro__}
    for (library, name), make in _KINDS.items():
        if (library, name) in names:
            return make(connection, f"{library} {name}")
    told = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise unsuitable_connection(told, f"it is not known here; pass {KNOWN}")


# --- asyncpg -------------------------------------------------------------------------------------------------------


def _asyncpg(connection: Any, kind: str) -> UserConnection:  # noqa: ANN401 -- of a library that is not imported here
    def ask(question: Question) -> Any:  # noqa: ANN401 -- an awaitable of the driver
        return connection.fetchval(question.statement.replace(_PARAMETER, "$1"), *_parameters(question))

    return UserConnection(kind, blocks=False, ask=ask)


def _parameters(question: Question) -> tuple[str, ...]:
    return () if question.asked is None else (question.asked,)


# --- psycopg -------------------------------------------------------------------------------------------------------


def _psycopg(connection: Any, kind: str) -> UserConnection:  # noqa: ANN401 -- of a library that is not imported here
    def ask(question: Question) -> str:
        with connection.cursor(row_factory=sys.modules["psycopg.rows"].tuple_row) as cursor:
            cursor.execute(_with_percent(question), _parameters(question))
            return _only(cursor.fetchone())

    return UserConnection(kind, blocks=True, ask=ask)


def _psycopg_async(connection: Any, kind: str) -> UserConnection:  # noqa: ANN401 -- of a library that is not imported here
    async def ask(question: Question) -> str:
        async with connection.cursor(row_factory=sys.modules["psycopg.rows"].tuple_row) as cursor:
            await cursor.execute(_with_percent(question), _parameters(question))
            return _only(await cursor.fetchone())

    return UserConnection(kind, blocks=False, ask=ask)


def _psycopg2(connection: Any, kind: str) -> UserConnection:  # noqa: ANN401 -- of a library that is not imported here
    def ask(question: Question) -> str:
        with connection.cursor(cursor_factory=sys.modules["psycopg2.extensions"].cursor) as cursor:
            cursor.execute(_with_percent(question), _parameters(question))
            return _only(cursor.fetchone())

    return UserConnection(kind, blocks=True, ask=ask)


def _with_percent(question: Question) -> str:
    return question.statement.replace(_PARAMETER, "%s")


def _only(row: Any) -> str:  # noqa: ANN401 -- a row of the driver
    return str(row[0])


# --- SQLAlchemy ----------------------------------------------------------------------------------------------------


def _sqlalchemy(connection: Any, kind: str) -> UserConnection:  # noqa: ANN401 -- of a library that is not imported here
    _check_dialect(connection, kind)

    def ask(question: Question) -> Any:  # noqa: ANN401 -- whatever it returns
        return _run_sqlalchemy(connection, question).scalar_one()

    return UserConnection(kind, blocks=True, ask=ask)


def _sqlalchemy_async(connection: Any, kind: str) -> UserConnection:  # noqa: ANN401 -- of a library that is not imported here
    _check_dialect(connection, kind)

    async def ask(question: Question) -> Any:  # noqa: ANN401 -- whatever it returns
        return (await _run_sqlalchemy(connection, question)).scalar_one()

    return UserConnection(kind, blocks=False, ask=ask)


def _run_sqlalchemy(connection: Any, question: Question) -> Any:  # noqa: ANN401 -- of a library that is not imported here
    statement = sys.modules["sqlalchemy"].text(question.statement)
    return connection.execute(statement, {} if question.asked is None else {"asked": _Unshown(question.asked)})


class _Unshown(str):
    """Text that is not shown: errors of SQLAlchemy, and its log, show what a statement was given."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{len(self):,} characters>"


def _check_dialect(connection: Any, kind: str) -> None:  # noqa: ANN401 -- of a library that is not imported here
    """Refuse another database, before anything is sent to it."""
    try:
        bound = connection.get_bind() if hasattr(connection, "get_bind") else connection
        dialect = str(bound.dialect.name)
    except Exception as error:
        raise unsuitable_connection(kind, "it is bound to no database; bind it to the store's own") from error
    if dialect != "postgresql":
        raise unsuitable_connection(kind, f"it is connected to {dialect}, not to the PostgreSQL of the store")


# --- Django --------------------------------------------------------------------------------------------------------


def _django(connection: Any, kind: str) -> UserConnection:  # noqa: ANN401 -- of a library that is not imported here
    vendor = getattr(connection, "vendor", "nothing")
    if vendor != "postgresql":
        raise unsuitable_connection(kind, f"it is connected to {vendor}, not to the PostgreSQL of the store")

    def ask(question: Question) -> str:
        with connection.cursor() as cursor:
            cursor.execute(_with_percent(question), _parameters(question))
            return _only(cursor.fetchone())

    return UserConnection("django.db.connection", blocks=True, ask=ask)


_KINDS: Final[dict[tuple[str, str], Callable[[Any, str], UserConnection]]] = {
    ("asyncpg", "Connection"): _asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _asyncpg,
    ("psycopg", "AsyncConnection"): _psycopg_async,
    ("psycopg", "Connection"): _psycopg,
    ("psycopg2", "connection"): _psycopg2,
    ("sqlalchemy", "AsyncConnection"): _sqlalchemy_async,
    ("sqlalchemy", "AsyncSession"): _sqlalchemy_async,
    ("sqlalchemy", "async_scoped_session"): _sqlalchemy_async,
    ("sqlalchemy", "Connection"): _sqlalchemy,
    ("sqlalchemy", "Session"): _sqlalchemy,
    ("sqlalchemy", "scoped_session"): _sqlalchemy,
    ("django", "BaseDatabaseWrapper"): _django,
    ("django", "ConnectionProxy"): _django,
}
"""The classes to look for among those that a connection is an instance of."""


def sqlstate_of(problem: BaseException | None) -> str:
    """Return the SQLSTATE of an error of any of these libraries, however they wrap it; empty if it has none."""
    for _ in range(5):
        if problem is None:
            break
        code = getattr(problem, "sqlstate", None) or getattr(problem, "pgcode", None)
        if isinstance(code, str):
            return code
        problem = getattr(problem, "orig", None) or problem.__cause__
    return ""

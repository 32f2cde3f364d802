"""A fence that a SQL database enforces, in the transaction of the write itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, final

from standfast.errors import InvalidFenceGuardError, StaleFenceError
from standfast.fencing._checks import check_fence, check_resource

if TYPE_CHECKING:
    from collections.abc import Awaitable

SqlStyle: TypeAlias = Literal["qmark", "numeric", "named", "format", "pyformat", "dollar"]
"""How a driver marks parameters: its ``paramstyle``, or ``dollar`` for ``$1`` (asyncpg)."""

SqlParameters: TypeAlias = "tuple[str | int, ...] | dict[str, str | int]"
"""The parameters of a statement, as its style wants them."""

_PLACEHOLDERS: Final[dict[str, tuple[str, str]]] = {
    "qmark": ("?", "?"),
    "numeric": (":1", ":2"),
    "named": (":resource", ":fence"),
    "format": ("%s", "%s"),
    "pyformat": ("%(resource)s", "%(fence)s"),
    "dollar": ("$1", "$2"),
}
_IDENTIFIER: Final = re.compile(r"[a-z_][a-z0-9_]{0,30}", re.ASCII)


class Cursor(Protocol):
    """What is asked of a DB-API cursor."""

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed; -1 if the driver cannot tell."""
        ...

    def execute(self, statement: str, parameters: Any, /) -> object:  # noqa: ANN401 -- drivers differ in what they take
        """Run a statement."""
        ...

    def fetchone(self) -> Any:  # noqa: ANN401 -- drivers differ in what a row is
        """Return the next row."""
        ...


class AsyncCursor(Protocol):
    """The same as coroutines, as psycopg and aiosqlite have them."""

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed; -1 if the driver cannot tell."""
        ...

    def execute(self, statement: str, parameters: Any, /) -> Awaitable[object]:  # noqa: ANN401 -- drivers differ in what they take
        """Run a statement."""
        ...

    def fetchone(self) -> Awaitable[Any]:
        """Return the next row."""
        ...


@final
class SqlFenceGuard:
    """Remembers the highest fence of each resource in a table beside your own.

    >>> import sqlite3
    >>> connection = sqlite3.connect(":memory:")
    >>> guard = SqlFenceGuard()
    >>> _ = connection.execute(guard.create_statement)
    >>> guard.admit(connection.cursor(), "invoice-7", 12)
    >>> guard.admit(connection.cursor(), "invoice-7", 11)
    Traceback (most recent call last):
        ...
    standfast.errors.StaleFenceError: fence 11 is stale at 'invoice-7', which has seen 12; another holder writes now
    >>> connection.close()

    Call :meth:`admit` first in the transaction that writes. It locks the row of the resource until that ends,
    so nobody with a higher fence comes between, and rolling back takes the fence back, too. For SQLite from 3.24 and
    PostgreSQL; a driver that commits each statement on its own must be told to begin a transaction.

    Args:
        table: Where the fences are kept.
        resource_column: The column that names what is guarded.
        fence_column: The column of the highest fence.
        style: How the driver marks parameters; its module says it as ``paramstyle``.

    Attributes:
        create_statement: Makes the table if it is not there.
        raise_statement: Raises the fence of a resource, or changes no row if a higher one is there.
        highest_statement: Selects the highest fence of a resource.

    Raises:
        InvalidFenceGuardError: A name is not lower-case letters, digits and underscores, or the style is unknown.
    """

    __slots__ = ("_style", "create_statement", "highest_statement", "raise_statement")

    def __init__(
        self,
        table: str = "fences",
        *,
        resource_column: str = "resource",
        fence_column: str = "fence",
        style: SqlStyle = "qmark",
    ) -> None:
        name, key, number = _quoted("table", table), _quoted("column", resource_column), _quoted("column", fence_column)
        if style not in _PLACEHOLDERS:
            raise InvalidFenceGuardError("style", ascii(style)[:40], f"it is one of {', '.join(_PLACEHOLDERS)}")
        resource, fence = _PLACEHOLDERS[style]
        self._style: Final = style
        # The names are checked and quoted above; values are always parameters.
        self.create_statement: Final = (
            f"CREATE TABLE IF NOT EXISTS {name} ({key} TEXT NOT NULL PRIMARY KEY, {number} BIGINT NOT NULL)"
        )
        self.raise_statement: Final = (
            f"INSERT INTO {name} ({key}, {number}) VALUES ({resource}, {fence}) "  # noqa: S608 -- see above
            f"ON CONFLICT ({key}) DO UPDATE SET {number} = excluded.{number} WHERE {name}.{number} <= excluded.{number}"
        )
        self.highest_statement: Final = f"SELECT {number} FROM {name} WHERE {key} = {resource}"  # noqa: S608 -- see above

    def admit(self, cursor: Cursor, resource: str, fence: int) -> None:
        """Let a writer with ``fence`` go on, or refuse it. The same fence is admitted as often as it comes.

        Raises:
            StaleFenceError: The resource has seen a higher fence; roll the transaction back.
            InvalidFenceError: The fence is no whole number from 1 to 2**53 - 1.
        """
        cursor.execute(self.raise_statement, self.raise_parameters(resource, fence))
        if cursor.rowcount != 1:
            cursor.execute(self.highest_statement, self.highest_parameters(resource))
            _refuse_stale(resource, fence, cursor.fetchone())

    async def admit_async(self, cursor: AsyncCursor, resource: str, fence: int) -> None:
        """Do the same as :meth:`admit` with a cursor whose methods are awaited."""
        await cursor.execute(self.raise_statement, self.raise_parameters(resource, fence))
        if cursor.rowcount != 1:
            await cursor.execute(self.highest_statement, self.highest_parameters(resource))
            _refuse_stale(resource, fence, await cursor.fetchone())

    def raise_parameters(self, resource: str, fence: int) -> SqlParameters:
        """Return the parameters of ``raise_statement``, for drivers that have neither kind of cursor."""
        return self._styled({"resource": check_resource(resource), "fence": check_fence(fence)})

    def highest_parameters(self, resource: str) -> SqlParameters:
        """Return the parameters of ``highest_statement``, for drivers that have neither kind of cursor."""
        return self._styled({"resource": check_resource(resource)})

    def _styled(self, named: dict[str, str | int]) -> SqlParameters:
        return named if self._style in {"named", "pyformat"} else tuple(named.values())


def _refuse_stale(resource: str, fence: int, row: Any) -> None:  # noqa: ANN401 -- drivers differ in what a row is
    """Judge by the row itself: a driver that cannot count rows is no reason to refuse."""
    highest = int(row[0])
    if highest > fence:
        raise StaleFenceError(resource, fence, highest)


def _quoted(what: str, name: str) -> str:
    if type(name) is not str or not _IDENTIFIER.fullmatch(name):
        problem = "it must be a lower-case letter or underscore and up to 30 of those and digits"
        raise InvalidFenceGuardError(what, ascii(name)[:40], problem)
    return f'"{name}"'

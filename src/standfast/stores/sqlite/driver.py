"""The driver as this store uses it, with types that a strict checker can follow."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

import apsw

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence


class Rows(Protocol):
    """What a statement returns."""

    @property
    def get(self) -> Any:  # noqa: ANN401 -- whatever the one column of the one row holds
        """The only value of the only row, or None."""
        ...

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows."""
        ...

    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...


class Connection(Protocol):
    """The part of ``apsw.Connection`` that is used here."""

    authorizer: Callable[[int, str | None, str | None, str | None, str | None], int] | None

    @property
    def in_transaction(self) -> bool: ...  # noqa: D102 -- as in apsw
    def execute(self, statements: str, bindings: Sequence[Any] | None = None, /) -> Rows: ...  # noqa: D102 -- as in apsw
    def executemany(self, statements: str, bindings: Iterable[Sequence[Any]], /) -> Rows: ...  # noqa: D102 -- as in apsw
    def pragma(self, name: str, value: int | str | None = None, /) -> Any: ...  # noqa: ANN401, D102 -- as in apsw
    def readonly(self, name: str, /) -> bool: ...  # noqa: D102 -- as in apsw
    def changes(self) -> int: ...  # noqa: D102 -- as in apsw
    def set_busy_timeout(self, milliseconds: int, /) -> None: ...  # noqa: D102 -- as in apsw
    def set_wal_hook(self, hook: Callable[[Any, str, int], int] | None, /) -> None: ...  # noqa: D102 -- as in apsw
    def set_progress_handler(self, handler: Callable[[], bool] | None, steps: int = 100, /) -> None: ...  # noqa: D102 -- as in apsw
    def wal_checkpoint(self, dbname: str | None = None, mode: int = 0) -> tuple[int, int]: ...  # noqa: D102 -- as in apsw
    def config(self, option: int, value: int, /) -> int: ...  # noqa: D102 -- as in apsw
    def file_control(self, dbname: str, option: int, pointer: int, /) -> bool: ...  # noqa: D102 -- as in apsw
    def close(self) -> None: ...  # noqa: D102 -- as in apsw
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...


def open_connection(path: str) -> Connection:
    """Open an existing database for reading and writing, refusing symbolic links."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
    return cast("Connection", apsw.Connection(path, flags=flags))


@contextlib.contextmanager
def transaction(connection: Connection) -> Generator[None]:
    """Commit what is done inside, or undo it.

    Unlike the driver's own, it shows the error that made SQLite undo everything by itself, not that nothing was left
    to be undone.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise

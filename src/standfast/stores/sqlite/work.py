"""The user's own SQL inside one of our transactions.

Their tables may lie in our file, but only our connection may touch it; so the work comes here. It can do anything to
its own tables and nothing to ours, and cannot end the transaction it is in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import apsw

from standfast.clock import monotonic
from standfast.errors import StoreError, WorkTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from standfast.stores.backend import WorkRider
    from standfast.stores.protocol import Change
    from standfast.stores.sqlite.driver import Connection

_OURS: Final = frozenset({"records", "records_that_expire", "counters", "facts", "frozen"})
_FORBIDDEN: Final = frozenset(
    {apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT, apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH, apsw.SQLITE_PRAGMA}
)
_ON_A_TABLE: Final = frozenset(
    {apsw.SQLITE_ALTER_TABLE, apsw.SQLITE_CREATE_INDEX, apsw.SQLITE_CREATE_TRIGGER, apsw.SQLITE_CREATE_TEMP_TRIGGER}
)
"""Actions whose second name is the table they are on."""

_STEPS_BETWEEN_CHECKS: Final = 1_000


@final
class SqlWork:
    """What ``commit_with`` hands to the work: SQL on the caller's own tables, for as long as the call lasts."""

    __slots__ = ("_connection", "_name")

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection: Connection | None = connection
        self._name = name

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        return self._open().execute(statement, tuple(parameters)).fetchall()

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Run one statement once for each set of parameters."""
        self._open().executemany(statement, parameters)

    def _open(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("the transaction is over; do all the work inside the function given to commit_with")
        self.check(self._connection)
        return self._connection

    def check(self, connection: Connection) -> None:
        """Raise if SQLite has ended the transaction: what is written after that would be written for good."""
        if not connection.in_transaction:
            raise StoreError(
                self._name,
                "an error in the work's SQL rolled the whole transaction back (ON CONFLICT ROLLBACK, RAISE(ROLLBACK), "
                "a full disk); nothing was written",
            )

    def end(self) -> None:
        """Make it unusable."""
        self._connection = None


def run_work(connection: Connection, rider: WorkRider, name: str) -> tuple[Any, tuple[Change, ...]]:
    """Run the work with a time limit, kept to its own tables; return its answer and all changes to commit with it.

    Exceptions of the work, and of the function that makes changes of its answer, pass through.
    """
    seconds, changes = rider.seconds, rider.commit.changes
    deadline = monotonic() + seconds
    sql = SqlWork(connection, name)
    connection.authorizer = _authorize
    connection.set_progress_handler(lambda: monotonic() > deadline, _STEPS_BETWEEN_CHECKS)
    try:
        answer = rider.work(sql)
        if rider.and_then is not None:
            changes = (*changes, *rider.and_then(answer))
    except apsw.InterruptError as problem:
        raise WorkTimeoutError(name, f"the work took longer than {seconds:g} s; everything was undone") from problem
    finally:
        sql.end()
        connection.set_progress_handler(None)
        connection.authorizer = None
    if monotonic() > deadline:
        raise WorkTimeoutError(name, f"the work took longer than {seconds:g} s; everything was undone")
    sql.check(connection)
    return answer, changes


def _authorize(action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    if action in _FORBIDDEN or _is_ours(first) or (action in _ON_A_TABLE and _is_ours(second)):
        return apsw.SQLITE_DENY
    return apsw.SQLITE_OK


def _is_ours(name: str | None) -> bool:
    return name is not None and name.lower() in _OURS  # to SQLite, "RECORDS" is the same name

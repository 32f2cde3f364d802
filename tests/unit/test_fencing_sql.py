"""A SQL database that refuses a stale writer."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import InvalidArgumentError, StaleFenceError
from standfast.fencing import SqlFenceGuard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GUARD = SqlFenceGuard()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A database of the user's own: invoices, and beside them the fences."""
    with closing(sqlite3.connect(tmp_path / "own.db")) as connection, connection:
        connection.execute("CREATE TABLE invoices (id TEXT PRIMARY KEY, total INTEGER)")
        connection.execute("INSERT INTO invoices VALUES ('invoice-7', 0)")
        connection.execute(GUARD.create_statement)
        connection.commit()
        yield connection


def write(connection: sqlite3.Connection, total: int, fence: int) -> None:
    """Write an invoice under a fence, in one transaction."""
    with connection:
        GUARD.admit(connection.cursor(), "invoice-7", fence)
        connection.execute("UPDATE invoices SET total = ? WHERE id = 'invoice-7'", (total,))


def total(connection: sqlite3.Connection) -> int:
    """Return what was written last."""
    return int(connection.execute("SELECT total FROM invoices").fetchone()[0])


def test_a_stale_writer_is_refused(database: sqlite3.Connection) -> None:
    """Who was replaced writes nothing, and the error says by which fence."""
    write(database, 100, fence=12)
    with pytest.raises(StaleFenceError) as caught:
        write(database, 999, fence=11)
    assert (caught.value.resource, caught.value.fence, caught.value.highest) == ("invoice-7", 11, 12)
    assert total(database) == 100


def test_the_same_holder_writes_again_and_its_successor_after_it(database: sqlite3.Connection) -> None:
    """An equal or a higher fence is admitted."""
    for value, fence in ((1, 12), (2, 12), (3, 40), (4, 40)):
        write(database, value, fence)
    assert total(database) == 4


def test_a_write_that_is_rolled_back_raises_no_fence(database: sqlite3.Connection) -> None:
    """The fence is part of the transaction: what never happened refuses nobody."""
    GUARD.admit(database.cursor(), "invoice-7", 50)
    database.rollback()
    write(database, 1, fence=12)
    assert total(database) == 1


def test_resources_are_guarded_apart(database: sqlite3.Connection) -> None:
    """The fence of one resource says nothing about another."""
    GUARD.admit(database.cursor(), "invoice-8", 500)
    GUARD.admit(database.cursor(), "invoice-7", 1)


def test_fences_are_exact_up_to_the_largest(database: sqlite3.Connection) -> None:
    """The last two numbers below 2^53 are told apart."""
    GUARD.admit(database.cursor(), "invoice-7", 2**53 - 1)
    with pytest.raises(StaleFenceError):
        GUARD.admit(database.cursor(), "invoice-7", 2**53 - 2)


def test_of_writers_that_race_none_overwrites_a_higher_fence(database: sqlite3.Connection, tmp_path: Path) -> None:
    """Whatever the order in which they come, the highest fence writes last and the admitted ones only rise."""
    start = threading.Barrier(8)
    admitted: list[int] = []

    def race(fence: int) -> None:
        with closing(sqlite3.connect(tmp_path / "own.db", timeout=30)) as connection, connection:
            start.wait()
            try:
                GUARD.admit(connection.cursor(), "invoice-7", fence)
            except StaleFenceError:
                return
            connection.execute("UPDATE invoices SET total = ?", (fence,))
            admitted.append(fence)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(race, [3, 8, 1, 6, 5, 2, 7, 4]))
    assert total(database) == 8
    assert admitted == sorted(admitted)


@pytest.mark.parametrize("style", ["qmark", "named"])
def test_the_marks_of_the_driver_are_used(database: sqlite3.Connection, style: Any) -> None:
    """SQLite takes two styles; each admits and refuses."""
    guard = SqlFenceGuard(style=style)
    guard.admit(database.cursor(), "invoice-7", 12)
    with pytest.raises(StaleFenceError):
        guard.admit(database.cursor(), "invoice-7", 11)


def test_the_marks_of_other_drivers_are_written_as_they_want_them() -> None:
    """Statements and parameters fit together in every style."""
    statements = {style: SqlFenceGuard(style=style).raise_statement for style in ("format", "pyformat", "dollar")}
    assert "VALUES (%s, %s)" in statements["format"]
    assert "VALUES (%(resource)s, %(fence)s)" in statements["pyformat"]
    assert "VALUES ($1, $2)" in statements["dollar"]
    assert SqlFenceGuard(style="pyformat").raise_parameters("x", 3) == {"resource": "x", "fence": 3}
    assert SqlFenceGuard(style="dollar").highest_parameters("x") == ("x",)


class Uncounted:
    """A cursor of a driver that cannot tell how many rows were changed."""

    rowcount = -1

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._cursor = connection.cursor()

    def execute(self, statement: str, parameters: Any, /) -> object:
        """Run a statement."""
        return self._cursor.execute(statement, parameters)

    def fetchone(self) -> Any:
        """Return the next row."""
        return self._cursor.fetchone()


def test_a_driver_that_counts_no_rows_is_enough(database: sqlite3.Connection) -> None:
    """The table itself is asked: the writer is neither refused for nothing nor admitted by mistake."""
    GUARD.admit(Uncounted(database), "invoice-7", 12)
    GUARD.admit(Uncounted(database), "invoice-7", 12)
    with pytest.raises(StaleFenceError):
        GUARD.admit(Uncounted(database), "invoice-7", 11)


class Awaited:
    """A cursor whose methods are awaited."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._cursor = connection.cursor()

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed."""
        return self._cursor.rowcount

    async def execute(self, statement: str, parameters: Any, /) -> object:
        """Run a statement."""
        return self._cursor.execute(statement, parameters)

    async def fetchone(self) -> Any:
        """Return the next row."""
        return self._cursor.fetchone()


async def test_an_asynchronous_cursor_is_guarded_the_same(database: sqlite3.Connection) -> None:
    """A stale writer is refused, its successor is not."""
    await GUARD.admit_async(Awaited(database), "invoice-7", 12)
    with pytest.raises(StaleFenceError):
        await GUARD.admit_async(Awaited(database), "invoice-7", 11)
    await GUARD.admit_async(Awaited(database), "invoice-7", 13)


@pytest.mark.parametrize("name", ["", "Fences", "7up", 'x"; DROP TABLE invoices; --', "a" * 32, "fénces", None, "a\n"])
@pytest.mark.parametrize("where", ["table", "resource_column", "fence_column"])
def test_a_name_that_could_be_sql_is_refused(name: Any, where: str) -> None:
    """Names of tables and columns are plain words."""
    with pytest.raises(InvalidArgumentError, match="lower-case"):
        SqlFenceGuard(**{where: name})


def test_a_word_of_sql_is_fine_as_a_name() -> None:
    """Names are quoted."""
    guard = SqlFenceGuard("order", resource_column="select", fence_column="from")
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(guard.create_statement)
        guard.admit(connection.cursor(), "x", 1)


def test_an_unknown_style_is_refused() -> None:
    """The message lists those there are."""
    with pytest.raises(InvalidArgumentError, match="qmark, numeric"):
        SqlFenceGuard(style="perl")  # type: ignore[arg-type] # an unknown one is what is tested


@pytest.mark.parametrize("fence", [0, -1, 2**53, 10**400, True, 1.0, "7", None])
def test_what_is_no_fence_is_refused(database: sqlite3.Connection, fence: Any) -> None:
    """Only a whole number from 1 to 2^53 - 1 reaches the table; above all not the 0 of somebody who holds nothing."""
    with pytest.raises(InvalidArgumentError, match="cannot be a fence"):
        GUARD.admit(database.cursor(), "invoice-7", fence)
    assert not database.in_transaction


@pytest.mark.parametrize("resource", ["", "x" * 201, "a\nb", 7])
def test_what_is_no_resource_is_refused(database: sqlite3.Connection, resource: Any) -> None:
    """A resource is short printable text."""
    with pytest.raises(InvalidArgumentError, match="resource"):
        GUARD.admit(database.cursor(), resource, 1)


def test_numbered_marks_are_numbered() -> None:
    """No driver at hand takes them in earnest any more; the statement names each parameter by its place."""
    guard = SqlFenceGuard(style="numeric")
    assert ":1" in guard.raise_statement
    assert ":2" in guard.raise_statement

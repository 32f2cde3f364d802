"""Connections of other libraries are recognised by what they are, without importing those libraries."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import sqlalchemy

from standfast.errors import InvalidArgumentError
from standfast.stores.user_transactions import Question, user_connection_of
from standfast.stores.user_transactions import sqlstate_of as code_of


def pretend(library: str, name: str, **attributes: Any) -> Any:
    """Return an instance of a subclass of a class of another library."""
    kind = type(name, (), {"__module__": f"{library}.inside", **attributes})
    return type("Mine", (kind,), {"__module__": "shop"})()


def test_an_asyncpg_connection_takes_numbered_parameters() -> None:
    """A subclass of the user's own is recognised too."""
    asked: list[tuple[Any, ...]] = []
    connection = pretend("asyncpg", "Connection", fetchval=lambda _, *args: asked.append(args))

    guest = user_connection_of(connection)
    guest.ask(Question("SELECT f(:asked)", "x"))
    guest.ask(Question("SELECT g()"))

    assert not guest.blocks
    assert asked == [("SELECT f($1)", "x"), ("SELECT g()",)]


def test_a_connection_to_another_kind_of_database_is_refused() -> None:
    """Before anything is sent to it."""
    with pytest.raises(InvalidArgumentError, match="sqlite"):
        user_connection_of(pretend("django", "BaseDatabaseWrapper", vendor="sqlite"))
    mysql = type("Dialect", (), {"name": "mysql"})
    with pytest.raises(InvalidArgumentError, match="mysql"):
        user_connection_of(pretend("sqlalchemy", "Connection", dialect=mysql))
    with pytest.raises(InvalidArgumentError, match="bound to no database"):
        user_connection_of(pretend("sqlalchemy", "Session", get_bind=lambda _: None))


@pytest.mark.parametrize("other", [None, "postgresql://localhost", 7, object()])
def test_what_is_no_connection_is_refused(other: object) -> None:
    """The error names what it got, and what can be passed."""
    with pytest.raises(InvalidArgumentError, match="asyncpg or psycopg"):
        user_connection_of(other)


def test_a_code_is_found_however_an_error_is_wrapped() -> None:
    """Drivers have it themselves; SQLAlchemy keeps the driver's error, Django chains it."""
    inner = type("PostgresError", (Exception,), {"sqlstate": "42883"})()
    chained = RuntimeError()
    chained.__cause__ = inner

    assert code_of(inner) == code_of(chained) == "42883"
    assert code_of(type("DBAPIError", (Exception,), {"orig": chained})()) == "42883"
    assert code_of(type("Old", (Exception,), {"pgcode": "3F000"})()) == "3F000"
    assert code_of(ValueError()) == ""


def test_nothing_of_them_is_imported() -> None:
    """A program that has none of these libraries loads none of them."""
    loaded = "import sys, standfast.stores.user_transactions; print([each for each in sys.modules if each in sys.argv])"
    libraries = ["asyncpg", "psycopg", "psycopg2", "sqlalchemy", "django"]
    told = subprocess.run([sys.executable, "-c", loaded, *libraries], capture_output=True, text=True, check=True)

    assert told.stdout.strip() == "[]"


def test_what_is_written_shows_up_in_no_error() -> None:
    """SQLAlchemy puts the parameters of a failed statement into its error: ours are not shown there."""
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection:
        connection.dialect.name = "postgresql"
        with pytest.raises(sqlalchemy.exc.DBAPIError) as caught:
            user_connection_of(connection).ask(Question("SELECT no_such(:asked)", "secret"))
    engine.dispose()

    assert "secret" not in str(caught.value)
    assert "secret" not in repr(Question("SELECT f(:asked)", "secret"))

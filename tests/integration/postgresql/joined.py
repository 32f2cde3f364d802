"""A table of the user's own beside a store, and every kind of connection to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import psycopg
import sqlalchemy
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from standfast.ids import new_id

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

SCHEMA: Final = "joining"


class Ground(Struct, frozen=True):
    """Where a test plays: a server, the store on it, and a namespace that is also the name of its own effects."""

    server: str
    namespace: str

    @property
    def url(self) -> str:
        """The URL of the store."""
        return f"{self.server}?schema={SCHEMA}"

    def of(self, driver: str) -> str:
        """Return the URL of the database as SQLAlchemy wants it."""
        return self.server.replace("postgresql://", f"postgresql+{driver}://")

    async def effects(self) -> list[str]:
        """Return what was done, and committed."""
        connection = await asyncpg.connect(self.server)
        try:
            rows = await connection.fetch("SELECT what FROM effects WHERE space = $1 ORDER BY id", self.namespace)
        finally:
            await connection.close()
        return [row["what"] for row in rows]

    def write(self, what: str) -> str:
        """Return the statement that has an effect."""
        return f"INSERT INTO effects (space, what) VALUES ('{self.namespace}', '{what}')"  # noqa: S608 -- names of our own


async def make_ground(server: str) -> Ground:
    """Return a place of its own for one test."""
    connection = await asyncpg.connect(server)
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(7205)")
            await connection.execute(
                "CREATE TABLE IF NOT EXISTS effects (id bigserial PRIMARY KEY, space text NOT NULL, what text NOT NULL)"
            )
    finally:
        await connection.close()
    return Ground(server, f"j{new_id()}")


class Guested(Struct, frozen=True):
    """A connection in a transaction that ends with its block, and how to run a statement on it."""

    connection: Any
    run: Callable[[str], Any]


# --- connections that are used with await ------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def asyncpg_connection(ground: Ground) -> AsyncGenerator[Guested]:
    """A connection of its own."""
    connection = await asyncpg.connect(ground.server)
    try:
        async with connection.transaction():
            yield Guested(connection, connection.execute)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def asyncpg_pooled(ground: Ground) -> AsyncGenerator[Guested]:
    """A connection out of a pool."""
    async with (
        asyncpg.create_pool(ground.server, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield Guested(connection, connection.execute)


@contextlib.asynccontextmanager
async def psycopg_connection(ground: Ground) -> AsyncGenerator[Guested]:
    """One with rows that are no tuples."""
    async with await psycopg.AsyncConnection.connect(ground.server, row_factory=psycopg.rows.dict_row) as connection:
        yield Guested(connection, connection.execute)


def sqlalchemy_connection(driver: str) -> Callable[[Ground], Any]:
    """Return what opens a connection of SQLAlchemy."""

    @contextlib.asynccontextmanager
    async def opened(ground: Ground) -> AsyncGenerator[Guested]:
        engine = create_async_engine(ground.of(driver))
        try:
            async with engine.begin() as connection:
                yield Guested(connection, _text(connection.execute))
        finally:
            await engine.dispose()

    return opened


def sqlalchemy_session(driver: str) -> Callable[[Ground], Any]:
    """Return what opens a session of SQLAlchemy."""

    @contextlib.asynccontextmanager
    async def opened(ground: Ground) -> AsyncGenerator[Guested]:
        engine = create_async_engine(ground.of(driver))
        try:
            async with AsyncSession(engine) as session, session.begin():
                yield Guested(session, _text(session.execute))
        finally:
            await engine.dispose()

    return opened


def _text(execute: Callable[..., Any]) -> Callable[[str], Any]:
    return lambda statement: execute(sqlalchemy.text(statement))


AWAITED: Final[dict[str, Callable[[Ground], Any]]] = {
    "asyncpg": asyncpg_connection,
    "asyncpg pool": asyncpg_pooled,
    "psycopg": psycopg_connection,
    "SQLAlchemy connection, asyncpg": sqlalchemy_connection("asyncpg"),
    "SQLAlchemy connection, psycopg": sqlalchemy_connection("psycopg"),
    "SQLAlchemy session, asyncpg": sqlalchemy_session("asyncpg"),
    "SQLAlchemy session, psycopg": sqlalchemy_session("psycopg"),
}


# --- connections that block --------------------------------------------------------------------------------------


@contextlib.contextmanager
def blocking_psycopg(ground: Ground) -> Generator[Guested]:
    """A connection of its own."""
    with psycopg.connect(ground.server) as connection:
        yield Guested(connection, connection.execute)


@contextlib.contextmanager
def blocking_connection(ground: Ground) -> Generator[Guested]:
    """A connection of SQLAlchemy."""
    engine = sqlalchemy.create_engine(ground.of("psycopg"))
    try:
        with engine.begin() as connection:
            yield Guested(connection, _text(connection.execute))
    finally:
        engine.dispose()


@contextlib.contextmanager
def blocking_session(ground: Ground) -> Generator[Guested]:
    """A session of SQLAlchemy."""
    engine = sqlalchemy.create_engine(ground.of("psycopg"))
    try:
        with Session(engine) as session, session.begin():
            yield Guested(session, _text(session.execute))
    finally:
        engine.dispose()


BLOCKING: Final[dict[str, Callable[[Ground], Any]]] = {
    "psycopg": blocking_psycopg,
    "SQLAlchemy connection": blocking_connection,
    "SQLAlchemy session": blocking_session,
}


class RolledBackError(Exception):
    """Raised to undo a transaction."""

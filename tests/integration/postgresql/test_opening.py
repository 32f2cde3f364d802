"""Opening a store on PostgreSQL: by many at once, on other versions of its schema, with a URL that is wrong."""

# ruff: noqa: S608 -- the names are made up here

from __future__ import annotations

import logging
import traceback
import uuid
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

import standfast as sf
from standfast.errors import InvalidUrlError, StoreReadOnlyError, StoreUnavailableError, UnsuitableStoreError
from standfast.events import StoreNotDurable
from standfast.keys import RecordKey
from standfast.stores import Put
from standfast.stores.postgresql import NotDurableWarning, PostgresOptions, PostgresTarget
from standfast.stores.postgresql.statements import first, migrations
from standfast.stores.url import open_store
from tests import services
from tests.integration.postgresql.ground import as_user, connected, made, opened, place, run_program, run_sql, schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from standfast.events import Event
    from tests.services.server import Server

KEY = RecordKey("n", "k")


# --- the schema -----------------------------------------------------------------------------------------------------


async def test_twenty_processes_that_open_a_new_schema_at_once_make_it_once(postgresql_url: str) -> None:
    """Whoever comes first makes it; the others wait and find it."""
    url = place(postgresql_url)
    failed, told = await run_program("open_at_once", url, "20")

    assert failed == 0, told
    assert len(await run_sql(url, "SELECT FROM @.records")) == 20
    assert [row["number"] for row in await run_sql(url, "SELECT number FROM @.migrations ORDER BY number")] == [
        number for number, _ in migrations("x")
    ]


async def test_a_schema_of_a_newer_release_is_refused(postgresql_url: str) -> None:
    """Nobody knows what is in it."""
    url = await made(postgresql_url)
    await run_sql(url, "INSERT INTO @.migrations (number) VALUES (9000)")

    with pytest.raises(UnsuitableStoreError, match="migration 9000"):
        await open_store(url)


async def test_a_schema_is_not_made_where_that_is_done_apart(postgresql_url: str) -> None:
    """``migrate=false`` only looks; it opens what is there."""
    url = place(postgresql_url)

    with pytest.raises(UnsuitableStoreError, match="migrate=true"):
        await open_store(f"{url}&migrate=false")
    assert await run_sql(url, "SELECT FROM pg_namespace WHERE nspname = '@'") == []
    async with opened(url, f"{url}&migrate=false"):
        pass


async def test_a_schema_of_an_older_release_is_brought_up_to_date(postgresql_url: str) -> None:
    """What is there stays; without ``migrate`` it is refused."""
    url, newest = place(postgresql_url), migrations("x")[-1][0]
    await _make_first(url)

    with pytest.raises(UnsuitableStoreError, match=f"at migration 1, {newest} is needed"):
        await open_store(f"{url}&migrate=false")
    async with opened(url) as [store]:
        assert (await store.read(KEY)).records[KEY].value == b"old"
    assert len(await run_sql(url, "SELECT FROM @.migrations")) == newest


async def _make_first(url: str) -> None:
    """Make a schema as it was at first, with a record in it."""
    schema = schema_of(url)
    async with connected(url) as connection:
        await connection.execute(first(schema) + "; " + migrations(schema)[0][1])
        await connection.execute(f"INSERT INTO {schema}.migrations (number) VALUES (1)")
        await connection.execute(f"INSERT INTO {schema}.records VALUES ($1, $2, 1)", KEY, b"old")


def test_migrations_are_numbered_without_a_gap() -> None:
    """Forward only: each has the number after the one before."""
    numbers = [number for number, _ in migrations("x")]

    assert numbers == list(range(1, len(numbers) + 1))


# --- what the URL says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "schema=Robert'); DROP TABLE",
        'schema=a"b',
        "schema=Standfast",
        "schema=1st",
        "schema=" + "x" * 32,
        "schema=sch%C3%A9ma",
        "timeout=0s",
        "sslmode=require",
        "pooler=session",
        "listen=host:port",
    ],
)
async def test_a_url_that_says_something_else_is_refused(query: str) -> None:
    """Before anything is sent anywhere; so PostgreSQL never cuts a name off."""
    with pytest.raises(InvalidUrlError):
        await open_store(f"postgresql://user@127.0.0.1:1/database?{query}")


def test_a_schema_is_checked_however_it_is_given() -> None:
    """Also by code that reads no URL."""
    with pytest.raises(ValueError, match="a schema is"):
        PostgresOptions(PostgresTarget("host", 5432, None, None, None, None), schema="x" * 64)


async def test_a_schema_with_the_name_of_a_word_of_sql_is_fine(postgresql_url: str) -> None:
    """All names are quoted."""
    async with opened(f"{postgresql_url}?schema=select") as [store]:
        await store.commit(Put(KEY, b"there", (await store.read(KEY)).version(KEY)))

        assert (await store.read(KEY)).records[KEY].value == b"there"


# --- servers that do not suit ---------------------------------------------------------------------------------------


async def test_a_wrong_password_is_told_and_shown_nowhere(
    postgresql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in the message, not in the traceback, not in what it came from, not in a log."""
    secret = uuid.uuid4().hex
    caplog.set_level(logging.DEBUG)
    with pytest.raises(UnsuitableStoreError, match="user or the password") as caught:
        await sf.open(as_user(postgresql_url, "standfast", secret))

    told = [repr(caught.value), str(caught.value), *traceback.format_exception(caught.value), caplog.text]
    assert not any(secret in line for line in told)


async def test_an_open_store_shows_its_password_nowhere(postgresql_url: str) -> None:
    """Nor do the options that it was opened with."""
    async with opened(await made(postgresql_url)) as [store]:
        shown = f"{store!r} {store.backend.name} {vars(store.backend)!r} {vars(store.backend.server)!r}"  # type: ignore[attr-defined]  # of a server

    assert str(urlsplit(postgresql_url).password) not in shown


async def test_a_database_that_is_not_there_is_told(postgresql_url: str) -> None:
    """It is not made: who may do that knows better how."""
    with pytest.raises(UnsuitableStoreError, match="no such database"):
        await open_store(urlsplit(postgresql_url)._replace(path="/nowhere").geturl())


async def test_nobody_there_is_unavailable(unused_tcp_port: int) -> None:
    """Nothing was written, and it can be tried again."""
    with pytest.raises(StoreUnavailableError):
        await open_store(f"postgresql://user:hush@127.0.0.1:{unused_tcp_port}/database?connect_timeout=1s")


async def test_a_listening_address_where_nobody_is_is_told_at_once(postgresql_url: str, unused_tcp_port: int) -> None:
    """Not by hints that never come."""
    with pytest.raises(StoreUnavailableError):
        await open_store(f"{place(postgresql_url)}&listen=127.0.0.1:{unused_tcp_port}")


async def test_a_pooler_is_no_address_to_listen_at(postgresql_url: str, pgbouncer_url: str) -> None:
    """It would swallow all hints."""
    pooler = urlsplit(pgbouncer_url)
    with pytest.raises(UnsuitableStoreError, match="listen"):
        await open_store(f"{place(postgresql_url)}&listen={pooler.hostname}:{pooler.port}")


@pytest.fixture
def weak() -> Iterator[Server]:
    """A server that answers before a commit is on its disk, and then cannot be written to."""
    with services.private("postgresql", arguments=["-c", "fsync=off"]) as server:
        yield server


@pytest.mark.services
async def test_settings_of_a_server_are_looked_at(weak: Server) -> None:
    """One that may lose commits is warned of; one that cannot be written to is refused."""
    told: list[Event] = []
    with pytest.warns(NotDurableWarning, match="fsync"):
        store = await open_store(weak.url, hooks=[told.append])
    await store.aclose()
    assert not store.capabilities.durable
    assert [type(event) for event in told] == [StoreNotDurable]

    await run_sql(weak.url, "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
    with pytest.raises(StoreReadOnlyError, match="primary"):
        await open_store(weak.url)

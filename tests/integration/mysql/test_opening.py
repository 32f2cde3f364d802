"""Opening a store on MariaDB: by many at once, with too few rights, on servers that do not suit."""

# ruff: noqa: S608 -- the names are made up here

from __future__ import annotations

import asyncio
import traceback
import uuid
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from standfast.errors import (
    InvalidUrlError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.events import StoreNotDurable
from standfast.keys import RecordKey
from standfast.stores import Put
from standfast.stores.mysql import NotDurableWarning
from standfast.stores.url import open_store
from tests import services
from tests.integration.mysql.ground import opened, place, prefix_of, run_sql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from standfast.events import Event
    from tests.services.server import Server

KEY = RecordKey("n", "k")


def as_user(url: str, user: str, password: str) -> str:
    """Return the same URL for another user."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}:{password}@{parts.hostname}:{parts.port}").geturl()


async def test_twenty_handles_that_start_at_once_make_the_tables_once(mysql_url: str) -> None:
    """Whoever comes first makes them; the others wait and find them."""
    url = place(mysql_url)

    stores = await asyncio.gather(*(open_store(url) for _ in range(20)))
    await asyncio.gather(*(store.commit(Put(RecordKey("n", str(n)), b"")) for n, store in enumerate(stores)))
    seen = await stores[0].scan(*RecordKey("n").within(), limit=100)
    for store in stores:
        await store.aclose()

    assert len(seen.records) == 20


async def test_tables_of_a_newer_release_are_refused(mysql_url: str) -> None:
    """Nobody knows what is in them."""
    url = place(mysql_url)
    async with opened(url):
        pass
    await run_sql(url, f"UPDATE {prefix_of(url)}_facts SET number=99 WHERE name='schema'")

    with pytest.raises(UnsuitableStoreError, match="version 99"):
        await open_store(url)


async def test_tables_are_not_made_where_that_is_done_apart(mysql_url: str) -> None:
    """``migrate=false`` only looks."""
    url = place(mysql_url)

    with pytest.raises(UnsuitableStoreError, match="migrate=false"):
        await open_store(f"{url}&migrate=false")
    async with opened(url, f"{url}&migrate=false"):
        pass


async def test_the_rights_that_are_documented_are_enough(mysql_url: str) -> None:
    """Once the tables are there, four rights on the database do."""
    url = place(mysql_url)
    user = prefix_of(url)
    async with opened(url):
        pass
    rights = "SELECT, INSERT, UPDATE, DELETE"
    await run_sql(url, f"CREATE USER {user} IDENTIFIED BY 'pässword'", f"GRANT {rights} ON standfast.* TO {user}")

    async with opened(f"{as_user(url, user, 'p%C3%A4ssword')}&migrate=false") as [store]:
        await store.commit(Put(KEY, b"there"))

        assert (await store.read(KEY)).records[KEY].value == b"there"


async def test_a_user_who_may_make_no_views_opens_it_without_them(mysql_url: str) -> None:
    """They are made by the next one who may."""
    url = place(mysql_url)
    user = prefix_of(url)
    rights = "SELECT, INSERT, UPDATE, DELETE, CREATE"
    await run_sql(url, f"CREATE USER {user} IDENTIFIED BY 'x'", f"GRANT {rights} ON standfast.* TO {user}")
    views = f"SELECT count(*) FROM information_schema.views WHERE table_name LIKE '{user}%'"

    async with opened(as_user(url, user, "x")) as [store]:
        await store.commit(Put(KEY, b"there"))
    assert await run_sql(url, views) == [(0,)]

    async with opened(url):
        pass
    assert await run_sql(url, views) == [(3,)]


async def test_missing_rights_are_told(mysql_url: str) -> None:
    """With what to do about them."""
    url = place(mysql_url)
    user = prefix_of(url)
    await run_sql(url, f"CREATE USER {user} IDENTIFIED BY 'x'", f"GRANT SELECT ON standfast.* TO {user}")

    with pytest.raises(UnsuitableStoreError, match="run-on-mysql"):
        await open_store(as_user(url, user, "x"))


async def test_a_wrong_password_is_told_and_shown_nowhere(mysql_url: str) -> None:
    """Not in the message, not in the traceback, not in what it came from."""
    secret = uuid.uuid4().hex
    with pytest.raises(UnsuitableStoreError) as caught:
        await open_store(as_user(mysql_url, "standfast", secret))

    told = [repr(caught.value), *traceback.format_exception(caught.value), caught.value.store]
    assert "user and password" in str(caught.value)
    assert not any(secret in line for line in told)


async def test_a_database_that_is_not_there_is_told(mysql_url: str) -> None:
    """It is not made: who may do that knows better how."""
    with pytest.raises(UnsuitableStoreError, match="no such database"):
        await open_store(urlsplit(mysql_url)._replace(path="/nowhere").geturl())


async def test_nobody_there_is_unavailable(unused_tcp_port: int) -> None:
    """Nothing was written, and it can be tried again."""
    with pytest.raises(StoreUnavailableError):
        await open_store(f"mysql://user@127.0.0.1:{unused_tcp_port}/database?connect_timeout=1s")


@pytest.mark.parametrize(
    "url",
    [
        "mysql://host/database",
        "mysql://user@host",
        "mysql://user@host/data`base",
        "mysql://user@host/database?prefix=Robert'); DROP TABLE",
        "mysql://user@host/database?prefix=" + "x" * 32,
        "mysql://user@host/database?timeout=0s",
        "mysql://user@host/database?sslmode=require",
    ],
)
async def test_a_url_that_says_something_else_is_refused(url: str) -> None:
    """Before anything is sent anywhere."""
    with pytest.raises(InvalidUrlError):
        await open_store(url)


@pytest.fixture
def weak() -> Iterator[Server]:
    """A server that answers before a commit is on its disk."""
    with services.private("mysql", arguments=["--innodb-flush-log-at-trx-commit=2"]) as server:
        yield server


@pytest.mark.services
async def test_settings_of_a_server_are_looked_at(weak: Server) -> None:
    """One that may lose commits is warned of; a replica and a small packet are refused."""
    told: list[Event] = []
    with pytest.warns(NotDurableWarning, match="innodb_flush_log_at_trx_commit=2"):
        store = await open_store(weak.url, hooks=[told.append])
    await store.aclose()
    assert not store.capabilities.durable
    assert [type(event) for event in told] == [StoreNotDurable]

    await run_sql(weak.url, "SET GLOBAL innodb_flush_log_at_trx_commit=1", "SET GLOBAL read_only=1")
    with pytest.raises(StoreReadOnlyError):
        await open_store(weak.url)
    await run_sql(weak.url, "SET GLOBAL read_only=0", "SET GLOBAL max_allowed_packet=1048576")
    with pytest.raises(UnsuitableStoreError, match="max_allowed_packet"):
        await open_store(weak.url)


async def test_tables_of_another_engine_are_refused(mysql_url: str) -> None:
    """Without transactions nothing holds."""
    url = place(mysql_url)
    async with opened(url):
        pass
    await run_sql(url, f"ALTER TABLE {prefix_of(url)}_attempts ENGINE=Aria")

    with pytest.raises(UnsuitableStoreError, match="InnoDB"):
        await open_store(url)

"""Opening a store on a libSQL server: tokens, tables, and what is refused."""

from __future__ import annotations

import asyncio
import traceback
import uuid
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import (
    InvalidUrlError,
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.events import StoreNotDurable
from standfast.stores import Commit, Put
from standfast.stores.url import open_store
from tests.integration.libsql.conftest import opened, sql

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.keys import RecordKey
    from tests.integration.libsql.conftest import Tokens
    from tests.services.server import Server

pytestmark = pytest.mark.services


async def test_twenty_who_start_at_once_make_the_tables_once(url: str, key: Callable[..., RecordKey]) -> None:
    """Each of them gets a store that works, and all of them the same one."""
    stores = await asyncio.gather(*(open_store(url) for _ in range(20)))

    verdicts = await asyncio.gather(*(store.commit(Put(key("a"), b"")) for store in stores))

    assert sum(isinstance(verdict, Commit) for verdict in verdicts) == 1
    assert await sql(url, "SELECT count(*) FROM {p}clock") == [[[1]]]
    await asyncio.gather(*(store.aclose() for store in stores))


async def test_tables_of_a_newer_program_are_refused(url: str) -> None:
    """Whoever does not know their form leaves them alone, and says what to do."""
    await (await open_store(url)).aclose()
    await sql(url, "UPDATE {p}facts SET value = 99 WHERE name = 'schema'")

    with pytest.raises(UnsuitableStoreError, match="update Standfast"):
        await open_store(url)


async def test_tables_are_made_only_where_that_is_wanted(url: str) -> None:
    """With migrate=false missing tables are refused, and those that are there are used."""
    with pytest.raises(UnsuitableStoreError, match="migrate=true"):
        await open_store(f"{url}&migrate=false")
    assert await sql(url, "SELECT count(*) FROM sqlite_schema WHERE name LIKE '{p}%'") == [[[0]]]

    await (await open_store(url)).aclose()
    await (await open_store(f"{url}&migrate=false")).aclose()


async def test_two_prefixes_are_two_stores(url: str, key: Callable[..., RecordKey]) -> None:
    """What is written in the tables of one is not in those of another."""
    async with opened(url) as first, opened(f"{url}b_") as second:
        await first.commit(Put(key("a"), b""))
        assert (await second.read(key("a"))).get(key("a")) is None


async def test_a_wrong_token_is_refused_and_shown_nowhere(guarded_server: Server) -> None:
    """The error says what to do; the secret is in no message, no repr and no traceback."""
    url = guarded_server.url.replace("://", "://:s3cr3t-t0ken@")
    with pytest.raises(StoreUnavailableError, match="refuses the token") as caught:
        await open_store(url)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + str(caught.value)
    assert "s3cr3t" not in shown


@pytest.mark.parametrize("where", ["password", "authToken", "credentials"])
async def test_a_token_opens_the_door_wherever_it_is_given(guarded_server: Server, tokens: Tokens, where: str) -> None:
    """As the password of the URL, as Turso writes it, or beside the URL; and no name shows it."""
    url, token, credentials = guarded_server.url, tokens.token(a="rw"), None
    if where == "password":
        url = url.replace("://", f"://:{token}@")
    elif where == "authToken":
        url = f"{url}&authToken={token}"
    else:
        credentials = sf.admin.Credentials(token)

    async with opened(url, credentials=credentials) as store:
        assert token[-10:] not in repr(store)


async def test_a_token_from_a_file_ends_with_its_last_character(guarded_server: Server, tokens: Tokens) -> None:
    """The end of the line is not part of it."""
    credentials = sf.admin.Credentials(tokens.token(a="rw") + "\n")

    async with opened(guarded_server.url, credentials=credentials) as store:
        assert store.capabilities.atomic


async def test_what_cannot_be_a_token_is_refused_and_shown_nowhere(libsql_url: str) -> None:
    """Nothing of it is sent either."""
    token = f"{uuid.uuid4().hex}\nX-Header: 1"
    with pytest.raises(InvalidUrlError) as caught:
        await open_store(libsql_url, credentials=sf.admin.Credentials(token))

    assert token[:32] not in "".join(traceback.format_exception(caught.value))


async def test_a_token_that_may_only_read_is_told_so(guarded_server: Server, tokens: Tokens) -> None:
    """The tables cannot be made, nor written to."""
    reader = sf.admin.Credentials(tokens.token(a="ro"))
    with pytest.raises(StoreReadOnlyError, match="write access"):
        await open_store(guarded_server.url, credentials=reader)


async def test_a_token_that_ran_out_is_asked_for_again(
    guarded_server: Server, tokens: Tokens, key: Callable[..., RecordKey]
) -> None:
    """Where the token comes from a function, a newer one is taken up when the old one is refused."""
    given = iter([tokens.token(a="rw", exp=1), tokens.token(a="rw")])
    async with opened(guarded_server.url, credentials=sf.admin.Credentials(lambda: next(given))) as store:
        assert isinstance(await store.commit(Put(key("a"), b"")), Commit)


async def test_a_server_without_tls_is_told_from_one_that_is_down(libsql_url: str) -> None:
    """The advice is to say tls=false."""
    with pytest.raises(StoreUnavailableError, match="tls=false"):
        await open_store(libsql_url.replace("tls=0", "tls=1"))


async def test_a_server_that_is_not_there_is_told_of(unused_tcp_port: int) -> None:
    """Nothing listens: no long wait, and no error of the driver."""
    with pytest.raises(StoreUnavailableError, match="is the server up"):
        await open_store(f"libsql://127.0.0.1:{unused_tcp_port}?tls=false")


async def test_something_else_than_a_libsql_server_is_told_of(dynamodb_url: str) -> None:
    """Whatever it answers, it becomes an error of a store."""
    place = dynamodb_url.partition("@")[2].partition("/")[0]
    with pytest.raises(StoreError):
        await open_store(f"libsql://{place}?tls=false")


async def test_a_server_that_does_not_wait_for_its_disk_is_told_of(url: str) -> None:
    """Once, when it is opened, unless the URL says that one knows."""
    heard: list[object] = []
    async with opened(url, hooks=[heard.append]) as store:
        assert not store.capabilities.durable
    assert [type(event) for event in heard] == [StoreNotDurable]

    async with opened(f"{url}&durable=true", hooks=[heard.append]) as store:
        assert store.capabilities.durable
    assert len(heard) == 1


@pytest.mark.parametrize(
    "wrong", ["?prefix=Bad-Name", "?prefix=a%22b", f"?prefix={'a' * 32}", "?nonsense=1", "/database", "?pool=0"]
)
async def test_a_url_that_cannot_be_used_is_refused(wrong: str) -> None:
    """Before anything is connected to."""
    with pytest.raises(InvalidUrlError):
        await open_store(f"libsql://localhost{wrong}")

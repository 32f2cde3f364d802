"""Opening a store on Cloudflare: secrets, versions of the worker, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import traceback
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

import standfast as sf
from standfast.errors import InvalidUrlError, StoreUnavailableError, UnsuitableStoreError
from standfast.stores import Commit, Put
from standfast.stores.cloudflare import connection
from standfast.stores.url import open_store
from tests import services
from tests.integration.cloudflare.conftest import data_of, opened

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.keys import RecordKey
    from tests.services.server import Server

    MakeKey = Callable[..., RecordKey]

pytestmark = pytest.mark.services

WRONG = "wr0ng-s3cr3t-wr0ng-s3cr3t"


def without_secret(url: str) -> str:
    """Return a URL without its secret."""
    return url.replace(f":{urlsplit(url).password}@", "")


async def test_a_wrong_secret_is_refused_and_shown_nowhere(
    cloudflare_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The error says what to do; the secret is in no message, no repr, no traceback and no log."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(StoreUnavailableError, match="refuses the secret") as caught:
        await open_store(without_secret(cloudflare_url), credentials=sf.admin.Credentials(WRONG))
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + str(caught.value) + caplog.text
    assert "s3cr3t" not in shown


async def test_a_secret_that_is_missing_or_cannot_be_one_is_refused_before_anything_is_sent(
    cloudflare_url: str,
) -> None:
    """Nothing of it is sent or shown."""
    for secret in ("", "short", "sixteen characters", "sixteen,characters", "sixteen-charact\u00e9rs"):
        with pytest.raises(InvalidUrlError, match="secret") as caught:
            await open_store(without_secret(cloudflare_url), credentials=sf.admin.Credentials(secret))
        assert not secret or secret not in "".join(traceback.format_exception(caught.value))


async def test_a_secret_is_changed_without_a_pause(key: MakeKey) -> None:
    """The worker takes both for a while, and a program takes up the new one when the old one is refused."""
    old, new = "the-old-secret-of-all", "the-new-secret-of-all"
    with services.private("cloudflare", behind=f"{old},{new}") as both:
        for secret in (old, new):
            async with opened(without_secret(both.url), credentials=sf.admin.Credentials(secret)) as store:
                assert secret not in repr(store)
    with services.private("cloudflare", behind=new) as only:
        given = iter([old, old, new, new, new])
        credentials = sf.admin.Credentials(lambda: next(given, new))
        async with opened(without_secret(only.url), credentials=credentials) as store:
            assert isinstance(await store.commit(Put(key("a"), b"")), Commit)


async def test_a_worker_without_a_secret_lets_no_one_in() -> None:
    """Not with an empty one either: it says what to set."""
    refused = pytest.raises(StoreUnavailableError, match="wrangler secret put")
    with services.private("cloudflare", behind="short") as server, refused:
        await open_store(without_secret(server.url), credentials=sf.admin.Credentials(WRONG))


@pytest.mark.parametrize(("protocol", "advice"), [(2, "deploy the worker"), (0, "update Standfast")])
async def test_a_worker_of_another_version_is_told_of(
    cloudflare_url: str, monkeypatch: pytest.MonkeyPatch, protocol: int, advice: str
) -> None:
    """Before a single record is read, with what to do about it."""
    monkeypatch.setattr(connection, "PROTOCOL", protocol)
    with pytest.raises(UnsuitableStoreError, match=rf"speaks protocol 1, and this program {protocol}; {advice}"):
        await open_store(cloudflare_url)


async def test_a_worker_that_lacks_an_operation_is_told_of(url: str) -> None:
    """An operation that came later is no riddle."""
    async with opened(url) as store:
        sockets = store._backend.server._sockets  # type: ignore[attr-defined]  # there is no such call otherwise
        with pytest.raises(UnsuitableStoreError, match="older than this program"):
            await sockets.read(connection.STORE, "constructor")


async def test_objects_of_a_newer_worker_are_left_alone(server: Server, key: MakeKey) -> None:
    """An older worker that was deployed over it says so, and touches nothing."""
    async with opened(server.url) as store:
        await store.commit(Put(key("a"), b""))
    folder = data_of(server)
    await asyncio.to_thread(server.kill)
    for file in folder.rglob("*.sqlite"):
        with contextlib.closing(sqlite3.connect(file)) as database, contextlib.suppress(sqlite3.OperationalError):
            database.execute("UPDATE head SET schema = 99")  # another file there has no such table
            database.commit()
    await asyncio.to_thread(server.restart)

    with pytest.raises(UnsuitableStoreError, match="newer worker"):
        await open_store(server.url)


async def test_plain_connections_are_for_this_machine() -> None:
    """A secret is not sent over a network that others can read."""
    with pytest.raises(InvalidUrlError, match="on this machine"):
        await open_store(f"cloudflare://:{WRONG}@standfast.example.com?tls=false")


@pytest.mark.parametrize("rest", ["/somewhere", "?prefix=Not-a-name", "?pool=3", "#a"])
async def test_what_a_url_cannot_say_is_refused(rest: str) -> None:
    """With what it can."""
    with pytest.raises(InvalidUrlError):
        await open_store(f"cloudflare://:{WRONG}@localhost{rest}")


async def test_a_worker_that_is_not_there_is_told_of(unused_tcp_port: int) -> None:
    """Nothing listens: no long wait, and no error of the driver."""
    with pytest.raises(StoreUnavailableError, match="is the worker deployed"):
        await open_store(f"cloudflare://:{WRONG}@127.0.0.1:{unused_tcp_port}?tls=false")


async def test_something_else_than_a_worker_is_told_of(libsql_url: str) -> None:
    """Whatever it answers."""
    place = urlsplit(libsql_url).netloc
    with pytest.raises(UnsuitableStoreError, match="no Standfast worker at this address"):
        await open_store(f"cloudflare://:{WRONG}@{place}?tls=false")


async def test_two_prefixes_are_two_stores(url: str, key: MakeKey) -> None:
    """What is written in the objects of one is not in those of another."""
    async with opened(url) as first, opened(f"{url}b") as second:
        await first.commit(Put(key("a"), b""))
        assert (await second.read(key("a"))).get(key("a")) is None

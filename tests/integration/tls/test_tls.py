"""TLS and passwords on every server that is reached over a network: all that is sent is encrypted, or nothing is."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest
from redis import asyncio as redis

import standfast as sf
from standfast.errors import StoreError, StoreUnavailableError
from standfast.keys import RecordKey
from standfast.stores import Put
from standfast.stores.remote import subscriptions as hearing
from standfast.stores.url import open_store
from tests import services
from tests.integration.postgresql.ground import run_sql, until
from tests.integration.tls.authority import NAME

if TYPE_CHECKING:
    from tests.integration.tls.authority import Authority
    from tests.integration.tls.relay import Relay
    from tests.integration.tls.servers import Guarded

pytestmark = pytest.mark.services

KEY: Final = RecordKey("n", "t", "k")
CANARY: Final = "canary-hunter2-canary"
LEASE: Final = {"dynamodb": 10.0}
PUSHES: Final = ["postgresql", "redis", "mongodb", "etcd", "cloudflare"]
ASKS: Final = ["postgresql", "redis", "mysql", "mongodb", "libsql", "etcd", "cloudflare"]
"""Those that ask for a password; the emulator of DynamoDB takes any key."""

IMPATIENT: Final = "&timeout=1&connect_timeout=1"
AT_ONCE: Final = 4.0
"""Seconds within which a refusal is told, on a busy machine; trying again and again takes longer."""


def given_to(server: Guarded, authority: Authority, password: str = "") -> sf.admin.Credentials:
    """Return a password and a TLS context; the driver of MongoDB takes no context."""
    tls = True if server.kind == "mongodb" else authority.client()
    return sf.admin.Credentials(password or server.password, tls=tls)


def url_beside(server: Guarded, authority: Authority) -> str:
    """Return a URL without what stands in the credentials."""
    return server.url(ca=authority.ca if server.kind == "mongodb" else None)


async def written_and_read(url: str, credentials: sf.admin.Credentials | None = None) -> bytes:
    """Open a store, write a record and return what is read."""
    store = await open_store(url, credentials=credentials)
    try:
        await store.commit(Put(KEY, b"written"))
        record = (await store.read(KEY)).get(KEY)
        return b"" if record is None else record.value
    finally:
        await store.aclose()


async def test_an_authority_named_in_the_url_is_trusted(server: Guarded, authority: Authority) -> None:
    """So that a command line can name it as well."""
    assert await written_and_read(server.url(server.password, ca=authority.ca)) == b"written"


async def test_password_and_context_need_not_stand_in_the_url(server: Guarded, authority: Authority) -> None:
    """Both come from the credentials."""
    url = url_beside(server, authority)

    assert await written_and_read(url, given_to(server, authority)) == b"written"


async def test_an_unknown_authority_is_refused(server: Guarded) -> None:
    """By what a machine trusts anyway, nobody is let in for an authority of one's own."""
    with pytest.raises(StoreUnavailableError, match=r"not trusted.*tls_ca") as refused:
        await open_store(server.url(server.password, more=f"&tls=true{IMPATIENT}"))

    assert server.password not in str(refused.value)
    assert f"localhost:{server.port}" in str(refused.value)


async def test_a_certificate_for_another_name_is_refused(server: Guarded, authority: Authority) -> None:
    """A server that is certified, and not the one that was asked for, learns nothing."""
    with pytest.raises(StoreUnavailableError, match="another name") as refused:
        await open_store(server.url(server.password, host="127.0.0.1", ca=authority.ca, more=f"&tls=true{IMPATIENT}"))

    assert server.password not in str(refused.value)


async def test_a_server_without_tls_is_refused_rather_than_talked_to_in_plain_text(
    started: Guarded, authority: Authority
) -> None:
    """Nobody falls back to what others can read."""
    parts = urlsplit(services.url(started.kind))
    password, options = parts.password or started.password, f"&tls=true{IMPATIENT}"
    url = started.url(password, port=parts.port or 0, ca=authority.ca, more=options)
    with pytest.raises(StoreUnavailableError, match="speak TLS") as refused:
        await open_store(url)

    assert f"localhost:{parts.port}" in str(refused.value)


async def test_a_server_that_wants_tls_is_not_reached_without(server: Guarded) -> None:
    """What the other tests rest on: there is no way to it in plain text."""
    with pytest.raises(StoreError):
        await open_store(server.url(server.password, more=f"&tls=false{IMPATIENT}"))


@pytest.mark.parametrize("started", ASKS, indirect=True)
async def test_a_wrong_password_is_told_at_once_and_shown_nowhere(
    server: Guarded, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by the error, its causes and their tracebacks, and not by what the driver logs."""
    caplog.set_level(logging.DEBUG)
    begun = time.monotonic()
    with pytest.raises(StoreError, match=r"password|token|secret") as refused:
        await open_store(url_beside(server, authority), credentials=given_to(server, authority, CANARY))

    shown = "".join(traceback.format_exception(refused.value)) + caplog.text + repr(refused.value)
    assert CANARY not in shown
    assert time.monotonic() - begun < AT_ONCE


async def test_a_lock_is_handed_over_where_nothing_but_tls_gets_through(server: Guarded, authority: Authority) -> None:
    """Whatever a handle opens besides its first connection is encrypted too."""
    url, lease = server.url(server.password, ca=authority.ca), LEASE.get(server.kind, 2.0)
    async with AsyncExitStack() as opened:
        one, other = [await opened.enter_async_context(sf.open(url, lease=lease)) for _ in range(2)]

        async def taken_over() -> int:
            async with other.mutex("handed").hold(timeout=10) as hold:
                return hold.fence

        async def is_waited_for() -> bool:
            return bool((await one.explain("handed")).waiters)

        async with one.mutex("handed").hold() as first:
            waiting = asyncio.create_task(taken_over())
            await until(is_waited_for)
        assert await waiting > first.fence


@pytest.mark.parametrize("started", PUSHES, indirect=True)
async def test_hints_come_encrypted(server: Guarded, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for another handle is woken, though it never looks by itself."""
    monkeypatch.setattr(hearing, "SLOW_CHECK", 1_000.0)
    url = server.url(server.password, ca=authority.ca)
    async with AsyncExitStack() as opened:
        mine, other = await open_store(url), await open_store(url)
        opened.push_async_callback(mine.aclose)
        opened.push_async_callback(other.aclose)
        watch = await opened.enter_async_context(mine.watch(KEY))
        while await watch.wait(0.2) is not None:
            pass
        await other.commit(Put(KEY, b"written"))
        hint = await watch.wait(10)

    assert hint is not None
    assert KEY in hint.about


@pytest.mark.parametrize("started", ["redis"], indirect=True)
async def test_a_client_is_known_by_the_certificate_in_its_context(server: Guarded, authority: Authority) -> None:
    """A server that wants one lets nobody else in."""
    named, nameless = authority.client(), authority.client()
    named.load_cert_chain(authority.chain, authority.key)
    files = f"ssl_ca_certs={authority.ca}&ssl_certfile={authority.chain}&ssl_keyfile={authority.key}"
    async with redis.Redis.from_url(f"rediss://:{server.password}@{NAME}:{server.port}?{files}") as admin:
        await admin.config_set("tls-auth-clients", "yes")
        try:
            assert await written_and_read(server.url(), sf.admin.Credentials(server.password, tls=named)) == b"written"
            with pytest.raises(StoreUnavailableError):
                await open_store(server.url(), credentials=sf.admin.Credentials(server.password, tls=nameless))
        finally:
            await admin.config_set("tls-auth-clients", "no")


@pytest.mark.parametrize("started", ["postgresql"], indirect=True)
async def test_liveness_sessions_and_listeners_of_postgresql_are_encrypted(
    server: Guarded, authority: Authority, relay: Relay
) -> None:
    """All sessions of a handle come over the relay, which takes none that does not ask for TLS."""
    url = server.url(server.password, ca=authority.ca)
    async with sf.open(url) as space, space.mutex("held").hold():

        async def are_there() -> bool:
            rows = await run_sql(server.plain, "SELECT client_port, application_name FROM pg_stat_activity")
            return {name for port, name in rows if port in relay.ports} == {"standfast", "standfast liveness"}

        await until(are_there)

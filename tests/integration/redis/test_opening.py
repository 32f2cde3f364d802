"""Opening a server: unsuitable ones are refused with what to type, secrets stay secret."""

from __future__ import annotations

import re
import traceback
import warnings
from typing import TYPE_CHECKING, Any, cast

import pytest

from standfast.errors import (
    InvalidUrlError,
    StandfastError,
    StoreReadOnlyError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.events import StoreNotDurable, StoreNotEncrypted
from standfast.keys import RecordKey
from standfast.stores import Put
from standfast.stores.redis import NotDurableWarning
from standfast.stores.url import open_store
from tests import services

if TYPE_CHECKING:
    import redis.asyncio

    from standfast.events import Event
    from tests.integration.redis.conftest import Open
    from tests.services.server import Server

pytestmark = pytest.mark.services

COMMANDS = (
    "+eval +evalsha +time +get +set +del +hset +hget +hmget +hdel +hlen +hscan +zadd +zrem +zcard +zrangebylex "
    "+zrevrangebylex +zrangebyscore +zremrangebyscore +publish +subscribe +unsubscribe +ping +select +info"
)
"""The least that a user needs, as the how-to has it."""


async def enlist(admin: redis.asyncio.Redis, prefix: str, *rules: str) -> None:
    """Make a user with the rights of the how-to, and other rules after them."""
    least = ("reset", "on", ">s3cret", f"~{{{prefix}:*", f"~{prefix}:*", f"&{{{prefix}:*", *COMMANDS.split())
    await cast("Any", admin).execute_command("ACL", "SETUSER", prefix, *least, *rules)


def as_user(server: Server, prefix: str) -> str:
    """Return the server's URL with that user in it."""
    return re.sub("//:[^@]*@", f"//{prefix}:s3cret@", server.url)


# --- eviction --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
async def test_a_server_that_drops_keys_is_refused(open_it: Open, admin: redis.asyncio.Redis, policy: str) -> None:
    """The message has the command that mends it."""
    await admin.config_set("maxmemory-policy", policy)

    with pytest.raises(UnsuitableStoreError, match="CONFIG SET maxmemory-policy noeviction"):
        await open_it()


async def test_a_server_that_drops_keys_with_a_time_to_live_will_do(
    open_it: Open, admin: redis.asyncio.Redis, prefix: str
) -> None:
    """None of ours has one: it is the default of a large service."""
    await admin.config_set("maxmemory-policy", "volatile-lru")
    store = await open_it()

    await store.commit(Put(RecordKey("space", "a"), b"", expires_at=(await store.read(RecordKey("space"))).at))

    assert {await admin.ttl(key) async for key in admin.scan_iter(f"*{prefix}*")} == {-1}


# --- persistence -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [("appendonly", "no", "appendonly yes"), ("appendfsync", "everysec", "appendfsync always")],
)
async def test_missing_persistence_is_warned_about(
    server: Server, admin: redis.asyncio.Redis, prefix: str, name: str, value: str, advice: str
) -> None:
    """By a warning, an event and the capabilities; the message has the command that mends it."""
    events: list[Event] = []
    await admin.config_set(name, value)

    with pytest.warns(NotDurableWarning, match=advice):
        store = await open_store(f"{server.url}?prefix={prefix}", hooks=[events.append])

    assert not store.capabilities.durable
    assert [type(event) for event in events] == [StoreNotDurable]
    await store.aclose()


@pytest.mark.parametrize(("host", "told"), [("0.0.0.0", True), ("127.0.0.1", False), ("localhost", False)])  # noqa: S104 -- an address that is not loopback, and leads here
async def test_another_machine_without_tls_is_told_of_once(
    server: Server, prefix: str, host: str, caplog: pytest.LogCaptureFixture, *, told: bool
) -> None:
    """By an event and a line in the log, without the password; what stays on this machine is not."""
    events: list[Event] = []
    url = re.sub("@[^:/]*", f"@{host}", server.url)
    store = await open_store(f"{url}?prefix={prefix}&durable=true", hooks=[events.append])
    other = await store.another()
    await other.aclose()
    await store.aclose()

    found = [event for event in events if isinstance(event, StoreNotEncrypted)]
    assert [event.hosts for event in found] == ([(host,)] if told else [])
    assert len([line for line in caplog.messages if "without TLS" in line and "***" in line]) == told


@pytest.mark.parametrize(("said", "durable"), [("true", True), ("false", False)])
async def test_who_says_whether_it_is_durable_is_not_warned(
    open_it: Open, admin: redis.asyncio.Redis, said: str, *, durable: bool
) -> None:
    """A service may keep its promise in another way, or nobody may need it."""
    await admin.config_set("appendonly", "no")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = await open_it(durable=said)

    assert store.capabilities.durable is durable


# --- permissions -----------------------------------------------------------------------------------------------


async def test_the_documented_permissions_are_enough(
    server: Server, admin: redis.asyncio.Redis, open_it: Open, prefix: str
) -> None:
    """A user with just those can do everything; CONFIG is not among them."""
    await enlist(admin, prefix)
    with pytest.warns(NotDurableWarning, match="durable=true if you know"):
        store = await open_it(as_user(server, prefix))

    key = RecordKey("space", "a")
    async with store.watch(key) as watch:
        await (await open_it(as_user(server, prefix), durable="true")).commit(Put(key, b""))
        hint = await watch.wait(10)

    assert hint is not None


@pytest.mark.parametrize("missing", sorted({*COMMANDS.split()} - {"+ping", "+select", "+subscribe", "+unsubscribe"}))
async def test_a_missing_permission_is_found_when_the_store_is_opened(
    server: Server, admin: redis.asyncio.Redis, open_it: Open, prefix: str, missing: str
) -> None:
    """Not half-way through a commit."""
    await enlist(admin, prefix, missing.replace("+", "-"))
    if missing in {"+eval", "+evalsha"}:
        await admin.script_flush()

    with pytest.raises(UnsuitableStoreError, match="may not"):
        await open_it(as_user(server, prefix), durable="true")


@pytest.mark.parametrize("rules", [("resetkeys", "~mine:*"), ("resetchannels",)])
async def test_keys_and_channels_that_are_not_allowed_are_found_when_the_store_is_opened(
    server: Server, admin: redis.asyncio.Redis, open_it: Open, prefix: str, rules: tuple[str, ...]
) -> None:
    """Users of Redis 7 have no channels unless they are given some."""
    await enlist(admin, prefix, *rules)

    with pytest.raises(UnsuitableStoreError, match="may not"):
        await open_it(as_user(server, prefix), durable="true")


# --- who is there ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["", "somebody"])
async def test_a_wrong_password_is_said_and_never_shown(server: Server, user: str) -> None:
    """Neither in the message nor in the traceback, of the error and all that led to it."""
    url = re.sub("//:[^@]*@", f"//{user}:hunter2@", server.url)

    with pytest.raises(UnsuitableStoreError, match="password") as caught:
        await open_store(f"{url}?prefix=x")

    shown = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in shown + repr(caught.value) + str(caught.value)


async def test_a_password_beside_the_url_is_used(server: Server, open_it: Open) -> None:
    """And the URL with one has it masked wherever it is shown."""
    store = await open_it()

    secret = server.url.partition("//:")[2].partition("@")[0]
    assert secret not in repr(store)
    assert secret not in repr(store.backend.name)


async def test_nobody_there_is_unavailable() -> None:
    """Quickly, and with the reason."""
    with pytest.raises(StoreUnavailableError, match="cannot connect"):
        await open_store("redis://127.0.0.1:1/0?connect_timeout=2s")


async def test_a_replica_is_refused(server: Server, prefix: str) -> None:
    """Its records may be old, and it cannot be written to."""
    secret = server.url.partition("//:")[2].partition("@")[0]
    port = server.url.rpartition(":")[2].partition("/")[0]
    following = ["--replicaof", f"127.0.0.1 {port}", "--masterauth", secret]

    with (
        services.private("redis", arguments=following) as replica,
        pytest.raises(StoreReadOnlyError, match="primary"),
    ):
        await open_store(f"{replica.url}?prefix={prefix}")


@pytest.mark.parametrize(
    "wrong",
    [
        "/zero",
        "?prefix=Über",
        "?prefix=a{b}",
        "?prefix=1a",
        "?pool=0",
        "?timeout=soon",
        "?durable=maybe",
        "?unknown=1",
        "?replicas=x",
        "/1?cluster=true",
    ],
)
async def test_a_url_that_makes_no_sense_is_refused(wrong: str) -> None:
    """Before anything is connected."""
    with pytest.raises(InvalidUrlError):
        await open_store(f"redis://127.0.0.1:1{wrong}")


async def test_several_hosts_that_are_no_cluster_are_refused(server: Server, prefix: str) -> None:
    """Each would have its own locks."""
    place = server.url.rpartition("@")[2].partition("/")[0]
    with pytest.raises(InvalidUrlError, match="cluster"):
        await open_store(f"{server.url.replace(place, f'{place},{place}')}?prefix={prefix}")


async def test_a_database_that_is_not_there_is_refused(server: Server) -> None:
    """With what the server says."""
    with pytest.raises(StandfastError, match="DB index"):
        await open_store(f"{server.url.removesuffix('/0')}/99")

"""A primary that sentinels choose: the URL names the sentinels, and every connection follows what they decide."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest
import redis

import standfast as sf
from standfast.errors import (
    InvalidUrlError,
    OutcomeUnknownError,
    StandfastError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.ids import new_id
from standfast.keys import RecordKey
from standfast.redaction import mask_url
from standfast.stores import Commit, Put
from standfast.stores.url import open_store
from tests.integration.faults.program import insistently
from tests.services import replicated
from tests.services.relay import port_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from standfast.stores import GroupedStore
    from tests.services.replicated import SentinelGroup

pytestmark = [pytest.mark.services, pytest.mark.heavy, pytest.mark.timeout(90)]

KEY = RecordKey("space", "a")


@pytest.fixture
def servers() -> Iterator[SentinelGroup]:
    """A primary with two replicas, and three sentinels."""
    with replicated.sentinels() as servers:
        yield servers


@contextlib.asynccontextmanager
async def opened(url: str, options: str = "replicas=1&timeout=2s") -> AsyncGenerator[GroupedStore]:
    """Open a store and close it."""
    store = await open_store(f"{url}?{options}")
    try:
        yield store
    finally:
        await store.aclose()


async def test_a_handle_follows_to_the_primary_that_sentinels_chose(servers: SentinelGroup) -> None:
    """It has everything that was acknowledged; the old primary, which comes back, follows and is not used."""
    async with opened(servers.url) as store:
        keys = [RecordKey("space", str(number)) for number in range(50)]
        for key in keys:
            assert isinstance(await store.commit(Put(key, b"")), Commit)
        old = servers.primary
        await asyncio.to_thread(old.kill)
        await asyncio.to_thread(servers.take_over)

        await insistently(lambda: store.commit(Put(KEY, b"on")))
        assert set((await store.read(*keys)).records) == set(keys)

        await asyncio.to_thread(old.restart)
        await insistently(lambda: store.commit(Put(RecordKey("space", "b"), b"")))
        assert replicated.valkey_ask(servers.primary.url, "HLEN", "{standfast:space}:records") == 52


async def test_a_call_does_not_wait_for_a_primary_that_is_frozen_and_replaced(servers: SentinelGroup) -> None:
    """Its connections are open and silent; they are cut when a sentinel tells of another primary."""
    async with opened(servers.url, "timeout=40s&durable=true") as store:
        await store.commit(Put(KEY, b"1"))
        await asyncio.to_thread(replicated.until, lambda: has_all(servers), "the replicas have the commit")
        old, began = servers.primary, time.monotonic()
        old.stop()

        assert (await store.read(KEY)).get(KEY) is not None

        assert time.monotonic() - began < 20
        old.cont()


async def test_deaths_are_seen_at_the_new_primary(servers: SentinelGroup) -> None:
    """The session by which others see that this process lives has moved there, also if the old one leaves it open."""
    async with await sf.open(f"{servers.url}?replicas=1&timeout=2s", lease=5) as space:
        async with space.mutex("a").hold():
            pass
        old = servers.primary
        assert alive_at(old.url)
        old.stop()
        await asyncio.to_thread(servers.take_over)

        await asyncio.to_thread(
            replicated.until, lambda: alive_at(servers.primary.url), "the liveness session has moved"
        )
        old.cont()


async def test_a_primary_that_is_cut_off_acknowledges_nothing_if_all_replicas_are_waited_for() -> None:
    """A process on its side of the cut is told how many have it; without replicas= it goes on, and two hold a lock."""
    with replicated.sentinels(relayed=True) as servers:
        old = servers.primary
        async with (
            opened(old.url, "replicas=2&timeout=2s") as careful,
            await sf.open(f"{old.url}?timeout=2s", namespace="a") as careless,
            await sf.open(f"{servers.url}?timeout=2s", namespace="a") as elsewhere,
        ):
            servers.part()
            with pytest.raises(OutcomeUnknownError, match=r"0 of 2 replicas have acknowledged a write"):
                await careful.commit(Put(KEY, b"1"))
            await asyncio.to_thread(servers.take_over)
            async with careless.mutex("lock").hold(timeout=20), elsewhere.mutex("lock").hold(timeout=20):
                pass  # inherent, and documented

            servers.rejoin()
            await asyncio.to_thread(replicated.until, lambda: is_replica(old.url), "the old primary follows")
            with pytest.raises(StandfastError, match="is a replica"):
                await careful.read(KEY)


async def test_one_sentinel_that_answers_is_enough(servers: SentinelGroup) -> None:
    """Whichever of those that the URL names."""
    for sentinel in servers.sentinels[:2]:
        await asyncio.to_thread(sentinel.kill)
    async with opened(servers.url) as store:
        assert isinstance(await store.commit(Put(KEY, b"1")), Commit)
    await asyncio.to_thread(servers.sentinels[2].kill)

    last = port_of(servers.sentinels[2].url)
    with pytest.raises(StoreUnavailableError, match=f"cannot connect to 127.0.0.1:{last}"):
        await open_store(f"redis+sentinel://127.0.0.1:{last}/main")


async def test_a_url_of_sentinels_that_is_wrong_says_how(servers: SentinelGroup) -> None:
    """No name, a name that they do not know, and servers that are no sentinels."""
    with pytest.raises(InvalidUrlError, match="what they call the primary"):
        await open_store(servers.url.removesuffix("/main/0"))
    with pytest.raises(UnsuitableStoreError, match="no primary that is called 'other'"):
        await open_store(servers.url.replace("/main/0", "/other/0"))
    server = servers.primary.url.replace("redis://", "redis+sentinel://").replace("/0", "/main/0")
    with pytest.raises(UnsuitableStoreError, match="is no sentinel"):
        await open_store(f"{server}?sentinel_auth=true")


async def test_sentinels_with_a_password_of_their_own_are_asked_with_it() -> None:
    """From the URL or the credentials; a wrong one and a missing one name the sentinel, and none is ever shown."""
    with replicated.sentinels("watchword") as servers:
        for url, credentials in [
            (f"{servers.url}?sentinel_password=watchword", None),
            (f"{servers.url}?sentinel_user=default&sentinel_password=watchword", None),
            (servers.url, sf.admin.Credentials(sentinel_password=lambda: "watchword")),
        ]:
            store = await open_store(url, credentials=credentials)
            assert isinstance(await store.commit(Put(RecordKey("space", new_id()), b"1")), Commit)
            assert "watchword" not in mask_url(url)
            await store.aclose()

        async with opened(servers.url, "replicas=1&timeout=2s&sentinel_password=watchword") as store:
            old = servers.primary
            await asyncio.to_thread(old.kill)
            await asyncio.to_thread(servers.take_over)
            await insistently(lambda: store.commit(Put(KEY, b"on")))

        place = r"the sentinel 127\.0\.0\.1:\d+"
        with pytest.raises(UnsuitableStoreError, match=f"{place} wants a password; the option sentinel_password"):
            await open_store(servers.url)
        with pytest.raises(UnsuitableStoreError, match=r"127\.0\.0\.1:\d+: the server refuses this user") as refused:
            await open_store(f"{servers.url}?sentinel_password=mistaken")
        assert "mistaken" not in str(refused.value)


def has_all(servers: SentinelGroup) -> bool:
    """Return True if both replicas have what the primary has written."""
    return bool(replicated.valkey_ask(servers.primary.url, "WAIT", 2, 1000) == 2)


def is_replica(url: str) -> bool:
    """Return True if a server follows another one. It drops its clients when it begins to."""
    with contextlib.suppress(redis.ConnectionError):
        return bool(replicated.valkey_ask(url, "ROLE")[0] == "slave")
    return False


def alive_at(url: str) -> bool:
    """Return True if a server has the subscription by which this process is seen to live."""
    return bool(replicated.valkey_ask(url, "PUBSUB", "CHANNELS", "*alive:*"))
